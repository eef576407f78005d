"""Versions whose manifests are listed apart: an engine fetches the listing, believes it only when it fits the record,
and then goes the same ways as always."""

from __future__ import annotations

import pytest

from pipeline.weights import listing
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.listing import set_apart
from schemas.records import Manifest
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout_deltas import BigEngine, Line, notices, num_deltas, received_bytes, serves
from tests.unit.producers.world import until
from topics.catalog import WEIGHTS


class ApartLine(Line):
    """Publishes every version with a listing."""

    def record_of(self, manifest: Manifest) -> Manifest:
        record = set_apart(manifest, target=StoreTarget(store=self.world.store, chunk_bytes=300))
        assert record.listing
        return record

    @property
    def records(self) -> list[Manifest]:
        """As they are on the topic."""
        return [record for record in self.world.read(WEIGHTS) if isinstance(record, Manifest)]


@pytest.fixture
def line(rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch) -> ApartLine:
    monkeypatch.setattr(listing, "MAX_INLINE_BYTES", 10)
    rollouts.world.lineage(1)
    return ApartLine(rollouts.world)


def test_an_engine_that_keeps_up(rollouts: Rollouts, line: ApartLine) -> None:
    engine = BigEngine()
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    for step in range(22):  # over the anchor of version 20, which is a delta as well
        manifest = line.publish(step)
        until(stage, lambda wanted=manifest: serves(engine, wanted))  # type: ignore[misc]
    assert num_deltas(rollouts.world) == [0.0] + [1.0] * 21
    assert received_bytes(rollouts, stage) < 100_000 * 1.7, "listings and deltas, and one state"


def test_a_late_joiner(rollouts: Rollouts, line: ApartLine) -> None:
    engine = BigEngine()
    manifests = [line.publish(step, quiet=True) for step in range(31)]
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    rollouts.world.command("publish", version=manifests[30].version)
    until(stage, lambda: serves(engine, manifests[30]))
    assert num_deltas(rollouts.world) == [10.0], "the nearest anchor and what came after it"


@pytest.mark.parametrize("damage", ["cut", "exchanged"])
def test_a_damaged_listing(rollouts: Rollouts, line: ApartLine, damage: str) -> None:
    """Case 41, the manifest cut short: the old version is served until the listing is whole again, then N is."""
    engine = BigEngine()
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    second = line.publish(1, quiet=True)
    mine, other = (line.world.store.path_of(record.listing[0].digest) for record in line.records[::-1])
    whole = mine.read_bytes()
    mine.write_bytes({"cut": whole[:-1], "exchanged": other.read_bytes()}[damage])
    rollouts.world.command("publish", version=second.version)
    until(stage, lambda: len(notices(rollouts.world, "fetch_failed")) > 0)
    assert serves(engine, first)
    mine.write_bytes(whole)
    until(stage, lambda: serves(engine, second))


def test_a_listing_of_another_version_is_refused(rollouts: Rollouts, line: ApartLine) -> None:
    """A publisher at fault: good chunks, and a record that says something else than they do."""
    engine = BigEngine()
    stage = rollouts.make(engine, scheduler_silence_s=1e6)
    first = line.publish(0)
    until(stage, lambda: serves(engine, first))
    line.publish(1, listing=line.records[0].listing)
    until(stage, lambda: len(notices(rollouts.world, "fetch_failed")) > 0)
    assert "does not fit its record" in notices(rollouts.world, "fetch_failed")[0].details["error"]
    assert serves(engine, first)
