"""What the learner publishes: anchors and deltas, what stays listed, and that staging is not a step behind."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from consumers.learner.publisher import Publisher, Staged
from pipeline.settings import WeightsSettings
from pipeline.weights import listing
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.held import HeldState
from pipeline.weights.listing import open_listing
from pipeline.weights.manifest import all_chunks
from pipeline.weights.route import find_route
from pipeline.weights.state import decode_state
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError
from schemas.records import Manifest, Version
from topics.clock import SystemClock


class Rig:
    """A publisher over a small model, and the manifests that are not tombstoned."""

    def __init__(self, folder: Path, **fields: object) -> None:
        self.store = ChunkStore(folder, max_bytes=1)  # nothing stays that is not needed
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "peer.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
        self.model = nn.Linear(100, 60)
        self.settings = WeightsSettings.model_validate(
            {"anchor_every": 5, "keep_versions": 3, "chunk_bytes": 4096, **fields}
        )
        self.publisher = self.new_publisher()
        self.listed: dict[Version, Manifest] = {}
        self.step = 0

    def new_publisher(self) -> Publisher:
        return Publisher(self.settings, store=self.store, run="r", clock=SystemClock())

    def change(self, num_elements: int = 20) -> None:
        with torch.no_grad():
            self.model.weight.view(-1)[torch.randint(0, 6000, (num_elements,))] += 1.0

    def publish(self, *, lineage: int = 1) -> Staged:
        self.change()
        staged = self.publisher.stage(self.model, version=Version(lineage=lineage, step=self.step))
        self.step += 1
        self.commit(staged)
        return staged

    def commit(self, staged: Staged) -> None:
        self.listed[staged.manifest.version] = staged.manifest
        for version in staged.retired:
            del self.listed[version]
        self.publisher.release()

    def fetch(self, target: Manifest, *, published: Mapping[Version, Manifest]) -> Mapping[str, torch.Tensor]:
        """As an engine that has nothing."""
        held = HeldState(decode_state)
        return held.advance(target, find_route(target, published=published, held_digest=None), store=self.store)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "store")


def test_every_listed_version_can_be_reached_and_the_kept_ones_are_listed(rig: Rig) -> None:
    for _ in range(17):
        rig.publish()
        newest = sorted(rig.listed)[-3:]
        assert [version.step for version in newest] == list(range(max(0, rig.step - 3), rig.step))
        for manifest in rig.listed.values():
            rig.fetch(manifest, published=rig.listed)
        assert len(rig.listed) <= 3 + 5
    assert min(rig.listed).step == 10, "the anchor that version 14, the oldest kept one, rests on"


def test_chunks_of_retired_versions_are_swept_and_no_others(rig: Rig) -> None:
    for _ in range(17):
        rig.publish()
    needed = {chunk.digest for manifest in rig.listed.values() for chunk in all_chunks(manifest)}
    assert {path.name for path in (rig.store.root / "chunks").glob("*/*")} == needed
    assert rig.store.pins()["learner"] == needed


def test_a_restored_learner_begins_with_an_anchor(rig: Rig) -> None:
    for _ in range(8):
        rig.publish()
    rig.publisher = rig.new_publisher()
    rig.publisher.adopt(list(rig.listed.values()))
    staged = rig.publish(lineage=2)
    assert staged.manifest.encoding == "full"
    assert staged.manifest.base is None
    for _ in range(6):
        rig.publish(lineage=2)
        for manifest in rig.listed.values():
            rig.fetch(manifest, published=rig.listed)
    assert {version.lineage for version in rig.listed} == {2}


def test_listings_are_kept_as_long_as_what_they_list(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests too large for a record: nothing that a listed version needs is swept, also after a restart."""
    monkeypatch.setattr(listing, "MAX_INLINE_BYTES", 500)  # anchors are over it, deltas are not
    for _ in range(8):
        rig.publish()
    assert {bool(manifest.listing) for manifest in rig.listed.values() if manifest.encoding == "full"} == {True}
    assert {bool(manifest.listing) for manifest in rig.listed.values() if manifest.encoding == "delta"} == {False}
    rig.publisher = rig.new_publisher()
    rig.publisher.adopt(list(rig.listed.values()))
    for _ in range(4):
        rig.publish(lineage=2)
        opened = [open_listing(manifest, store=rig.store) for manifest in rig.listed.values()]
        for manifest in rig.listed.values():
            rig.fetch(manifest, published=rig.listed)
        needed = {each.digest for manifest in (*opened, *rig.listed.values()) for each in all_chunks(manifest)}
        assert {path.name for path in (rig.store.root / "chunks").glob("*/*")} == needed
    assert {version.lineage for version in rig.listed} == {2}


def test_a_listing_that_was_lost_does_not_stop_a_restored_learner(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_INLINE_BYTES", 500)
    first = rig.publish()
    rig.store.path_of(first.manifest.listing[0].digest).unlink()
    rig.publisher = rig.new_publisher()
    rig.publisher.adopt(list(rig.listed.values()))
    staged = rig.publish(lineage=2)
    assert rig.fetch(staged.manifest, published=rig.listed)


def test_a_listing_that_cannot_be_stored_is_an_error_and_its_version_is_nobodys_base(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.publish()

    def full(*_: object, **__: object) -> None:
        raise WeightsError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr("consumers.learner.publisher.set_apart", full)
        rig.change()
        rig.publisher.begin(rig.model, version=Version(lineage=1, step=1))
        with pytest.raises(WeightsError, match="no space left"):
            rig.publisher.poll(wait_s=None)
    assert rig.publish().manifest.base is None


def test_figures_say_what_travelled(rig: Rig) -> None:
    first, second = rig.publish().figures, rig.publish().figures
    assert (first.delta_bytes, first.num_new_bytes, first.num_bytes) == (0, 24_240, 24_240)
    assert 0 < second.delta_bytes == second.num_new_bytes < 300
    assert 0 < second.changed_share <= 20 / 6060


def test_weights_may_change_as_soon_as_begin_returns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sees the copy: a version is what the weights were, however long encoding takes."""
    rig.publish()
    let_go = threading.Event()
    encode = rig.publisher._series.encode

    def slow(state: WireState, *, version: Version) -> object:
        assert let_go.wait(10)
        return encode(state, version=version)

    monkeypatch.setattr(rig.publisher._series, "encode", slow)
    rig.change()
    wanted = rig.model.weight.detach().clone()
    rig.publisher.begin(rig.model, version=Version(lineage=1, step=1))
    rig.change(500)
    assert rig.publisher.poll(wait_s=0.0) is None
    with pytest.raises(RuntimeError, match=r"version 1\.1 is still being staged"):
        rig.publisher.begin(rig.model, version=Version(lineage=1, step=2))
    let_go.set()
    staged = rig.publisher.poll(wait_s=None)
    assert staged is not None
    rig.commit(staged)
    assert torch.equal(rig.fetch(staged.manifest, published=rig.listed)["weight"], wanted)
    assert rig.publisher.poll(wait_s=0.0) is None


def test_a_full_store_is_an_error_of_poll_and_the_next_version_stands_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.publish()

    def full(*_: object, **__: object) -> None:
        raise WeightsError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(ChunkStore, "put", full)
        rig.change()
        rig.publisher.begin(rig.model, version=Version(lineage=1, step=1))
        with pytest.raises(WeightsError, match="no space left"):
            rig.publisher.poll(wait_s=None)
    staged = rig.publish()
    assert staged.manifest.base == Version(lineage=1, step=0)
    rig.fetch(staged.manifest, published=rig.listed)
