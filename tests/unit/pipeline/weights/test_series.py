"""Versions in a row: when anchors come, what deltas name, and that every way to a version ends at its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.held import HeldState
from pipeline.weights.manifest import as_anchor, as_delta, build_manifest, check_manifest
from pipeline.weights.route import find_route
from pipeline.weights.series import EncodedVersion, SeriesSettings, VersionSeries
from pipeline.weights.state import decode_state
from schemas.errors import WeightsError
from schemas.records import Manifest, Version
from tests.unit.pipeline.weights.helpers import new_store

Tensors = dict[str, torch.Tensor]


class Line:
    """A lineage that publishes into a store."""

    def __init__(self, folder: Path, *, anchor_every: int = 4, wire_dtype: str | None = "BF16") -> None:
        self.store: ChunkStore = new_store(folder)
        self.series = VersionSeries(
            SeriesSettings(anchor_every=anchor_every, max_delta_share=0.5, wire_dtype=wire_dtype),
            target=StoreTarget(store=self.store, chunk_bytes=4096),
        )
        self.tensors: Tensors = {"w": torch.randn(40_000), "frozen": torch.randn(2000), "count": torch.arange(4)}
        self.published: dict[Version, Manifest] = {}
        self.encoded: list[EncodedVersion] = []
        self.rng = np.random.default_rng(0)

    def publish(self, *, num_changed: int = 100) -> Manifest:
        step = len(self.encoded)
        chosen = torch.from_numpy(self.rng.integers(0, 40_000, num_changed))
        self.tensors["w"][chosen] += 1.0
        state = self.series.snapshot(self.tensors, ties={})
        version = Version(lineage=1, step=step)
        encoded = self.series.encode(state, version=version)
        manifest = build_manifest(
            encoded.state, run="r", version=version, seeds=(), created_unix_ms=0, delta=encoded.delta
        )
        self.encoded.append(encoded)
        self.published[version] = manifest
        return manifest

    def held(self) -> HeldState[torch.Tensor]:
        return HeldState(decode_state)

    def follow(self, held: HeldState[torch.Tensor], target: Manifest) -> Mapping[str, torch.Tensor]:
        route = find_route(target, published=self.published, held_digest=held.digest)
        return held.advance(target, route, store=self.store)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def test_the_first_version_and_every_kth_is_an_anchor_and_later_ones_carry_the_delta_too(line: Line) -> None:
    manifests = [line.publish() for _ in range(9)]
    assert [manifest.encoding == "full" for manifest in manifests] == [True, False, False, False] * 2 + [True]
    assert [as_delta(manifest) is not None for manifest in manifests] == [False] + [True] * 8
    for before, manifest in pairwise(manifests):
        assert (manifest.base, manifest.base_digest) == (before.version, before.state_digest)
    assert len({manifest.state_digest for manifest in manifests}) == 9


def test_a_delta_that_does_not_pay_becomes_an_anchor(line: Line) -> None:
    line.publish()
    manifest = line.publish(num_changed=200_000)
    assert manifest.encoding == "full"
    assert manifest.base is None
    assert line.publish().encoding == "delta"


def test_anchors_only_when_asked_for(tmp_path: Path) -> None:
    line = Line(tmp_path, anchor_every=1)
    assert {line.publish().encoding for _ in range(3)} == {"full"}
    assert all(manifest.base is None for manifest in line.published.values())


def test_an_empty_delta_is_a_version_of_equal_content(line: Line) -> None:
    """Case 37."""
    first, second = line.publish(), line.publish(num_changed=0)
    assert second.encoding == "delta"
    assert second.state_digest == first.state_digest
    assert second.version != first.version
    assert line.encoded[1].num_changed == 0
    held = line.held()
    line.follow(held, first)
    assert find_route(second, published=line.published, held_digest=held.digest).manifests == ()
    assert torch.equal(line.follow(held, second)["w"], line.tensors["w"].to(torch.bfloat16))


def test_a_snapshot_does_not_follow_the_weights(line: Line) -> None:
    """Training goes on while a version is encoded."""
    line.publish()
    state = line.series.snapshot(line.tensors, ties={})
    before = line.tensors["w"].to(torch.bfloat16).clone()
    line.tensors["w"] += 1
    encoded = line.series.encode(state, version=Version(lineage=1, step=1))
    assert state.digest() == encoded.state.state_digest
    assert encoded.num_changed == 0
    assert torch.equal(torch.from_numpy(state.buffers[2].data).view(torch.bfloat16), before)


def test_frozen_tensors_are_never_sent_again(line: Line) -> None:
    line.publish()
    line.tensors["w"] += 0
    line.publish(num_changed=1)
    delta = line.encoded[1].delta
    assert delta is not None
    assert sum(chunk.num_bytes for chunk in delta.chunks) < 150


@pytest.mark.parametrize("wire_dtype", ["BF16", None])
def test_an_engine_that_keeps_up_ends_on_every_digest_through_fifty_versions(
    tmp_path: Path, wire_dtype: str | None
) -> None:
    """Bit-identical, and it never fetches a second anchor."""
    line = Line(tmp_path, wire_dtype=wire_dtype)
    held = line.held()
    for step in range(51):
        target = line.publish()
        route = find_route(target, published=line.published, held_digest=held.digest)
        assert (route.anchor is not None) == (step == 0)
        tensors = held.advance(target, route, store=line.store)
        assert held.digest == target.state_digest
    wanted = line.tensors["w"] if wire_dtype is None else line.tensors["w"].to(torch.bfloat16)
    assert torch.equal(tensors["w"], wanted)
    assert torch.equal(tensors["count"], line.tensors["count"])


def test_a_late_joiner_takes_the_nearest_anchor_and_the_tail(line: Line) -> None:
    manifests = [line.publish() for _ in range(31)]
    route = find_route(manifests[30], published=line.published, held_digest=None)
    assert route.anchor is not None
    assert route.anchor.version.step == 28
    assert [delta.version.step for delta in route.deltas] == [29, 30]
    held = line.held()
    assert torch.equal(line.follow(held, manifests[30])["w"], line.tensors["w"].to(torch.bfloat16))


def test_an_engine_behind_takes_the_shorter_way(line: Line) -> None:
    manifests = [line.publish() for _ in range(7)]
    held = line.held()
    line.follow(held, manifests[1])
    route = find_route(manifests[6], published=line.published, held_digest=held.digest)
    assert route.anchor is None
    assert [delta.version.step for delta in route.deltas] == [2, 3, 4, 5, 6]  # over the anchor 4, which is a delta too
    line.follow(held, manifests[6])
    assert held.digest == manifests[6].state_digest


def test_a_long_way_of_large_deltas_is_given_up_for_an_anchor(line: Line) -> None:
    manifests = [line.publish(num_changed=15_000) for _ in range(10)]
    held = line.held()
    line.follow(held, manifests[0])
    route = find_route(manifests[8], published=line.published, held_digest=held.digest)
    assert route.anchor is not None
    assert (route.anchor.version.step, route.deltas) == (8, ())


class TestRow36:
    """A delta goes onto the state whose digest it names, or nowhere."""

    def test_three_behind_with_a_delta_pruned(self, line: Line) -> None:
        manifests = [line.publish() for _ in range(6)]
        held = line.held()
        line.follow(held, manifests[2])
        del line.published[manifests[3].version]  # the anchor 4 is there
        assert find_route(manifests[5], published=line.published, held_digest=held.digest).anchor is not None
        line.follow(held, manifests[5])
        assert held.digest == manifests[5].state_digest

    def test_without_any_way_it_says_so(self, line: Line) -> None:
        manifests = [line.publish() for _ in range(4)]
        del line.published[manifests[0].version]
        with pytest.raises(WeightsError, match="neither an anchor before it nor a way"):
            find_route(manifests[3], published=line.published, held_digest="00" * 32)
        held_digest = manifests[0].state_digest  # its manifest is gone, and the first delta names it all the same
        assert find_route(manifests[3], published=line.published, held_digest=held_digest).anchor is None

    def test_the_right_number_but_another_content(self, line: Line) -> None:
        """A base of the same version number from elsewhere: the digest decides."""
        first, second = line.publish(), line.publish()
        line.published[first.version] = replace(first, state_digest="11" * 32)
        with pytest.raises(WeightsError, match="neither an anchor"):
            find_route(second, published=line.published, held_digest="11" * 32)

    @pytest.mark.parametrize("at", [0, -1])
    def test_one_altered_element_in_memory_never_becomes_a_version(self, line: Line, at: int) -> None:
        first, second = line.publish(), line.publish()
        held = line.held()
        line.follow(held, first)["w"][at] += 1
        with pytest.raises(WeightsError, match=r"other bytes than the delta names|it came out as"):
            line.follow(held, second)
        assert held.digest is None
        line.follow(held, second)  # from nothing: the anchor and the tail
        assert held.digest == second.state_digest

    def test_the_same_delta_twice(self, line: Line) -> None:
        """Case 36."""
        first, second = line.publish(), line.publish()
        held = line.held()
        line.follow(held, first)
        route = find_route(second, published=line.published, held_digest=held.digest)
        held.advance(second, route, store=line.store)
        with pytest.raises(WeightsError, match=r"is a delta to 1\.0"):
            held.advance(second, route, store=line.store)

    def test_deltas_out_of_order(self, line: Line) -> None:
        """Case 36."""
        manifests = [line.publish() for _ in range(3)]
        held = line.held()
        line.follow(held, manifests[0])
        route = find_route(manifests[2], published=line.published, held_digest=held.digest)
        with pytest.raises(WeightsError, match="it was not applied"):
            held.advance(manifests[2], replace(route, deltas=route.deltas[::-1]), store=line.store)


class TestRow41:
    """Chunks of deltas: altered, truncated, absent, exchanged."""

    @pytest.fixture
    def delta(self, line: Line) -> Manifest:
        line.publish()
        return line.publish(num_changed=4000)  # more than one chunk

    @pytest.mark.parametrize("damage", ["bit", "cut", "absent"])
    def test_a_chunk_on_disk(self, line: Line, delta: Manifest, damage: str) -> None:
        held = line.held()
        line.follow(held, line.published[Version(lineage=1, step=0)])
        path = line.store.path_of(delta.chunks[0].digest)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.unlink()
        if damage != "absent":
            path.write_bytes(data if damage == "bit" else data[:-1])
        with pytest.raises(WeightsError, match=r"was altered on disk|is absent"):
            line.follow(held, delta)

    def test_chunks_exchanged(self, line: Line, delta: Manifest) -> None:
        first, second, *rest = delta.chunks
        assert first.num_bytes == second.num_bytes
        swapped = replace(delta, chunks=(second, first, *rest))
        held = line.held()
        line.follow(held, line.published[Version(lineage=1, step=0)])
        with pytest.raises(WeightsError, match="do not begin as a delta does"):
            line.follow(held, swapped)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"base": None}, "names its base"),
            ({"base_digest": None}, "names its base"),
            ({"base_digest": "x"}, "not 64 lower-case"),
            ({"base": Version(lineage=1, step=1)}, "not an earlier version"),
            ({"base": Version(lineage=0, step=0)}, "not an earlier version of the same lineage"),
            ({"chunks": ()}, "a delta of 0 bytes"),
            ({"encoding": "full"}, "its 3 chunks add up"),
        ],
    )
    def test_a_manifest_that_cannot_be_right(self, delta: Manifest, change: dict[str, object], message: str) -> None:
        check_manifest(delta)
        with pytest.raises(WeightsError, match=message):
            check_manifest(replace(delta, **change))  # type: ignore[arg-type]

    def test_a_delta_as_long_as_a_state_is_refused(self, delta: Manifest) -> None:
        huge = tuple(replace(delta.chunks[0], num_bytes=2**20) for _ in range(3))
        with pytest.raises(WeightsError, match="a delta of 3145728 bytes to a state of"):
            check_manifest(replace(delta, chunks=huge))


def test_both_faces_of_an_anchor_with_a_delta_are_manifests(line: Line) -> None:
    both = [line.publish() for _ in range(5)][4]
    anchor, delta = as_anchor(both), as_delta(both)
    assert anchor is not None
    assert delta is not None
    check_manifest(anchor)
    check_manifest(delta)
    assert (anchor.base, delta.encoding, delta.chunks) == (None, "delta", both.delta_chunks)
