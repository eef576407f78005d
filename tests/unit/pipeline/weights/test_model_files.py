"""The first version out of a model directory's own files: fetched is nothing when they are it, believed is nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import make_tiny_model
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import fetch
from pipeline.weights.held import HeldState
from pipeline.weights.listing import set_apart
from pipeline.weights.manifest import build_manifest
from pipeline.weights.model_files import seed_store
from pipeline.weights.route import find_route
from pipeline.weights.series import SeriesSettings, VersionSeries
from pipeline.weights.state import decode_state
from schemas.errors import WeightsError
from schemas.records import Manifest, Version
from tests.unit.pipeline.weights.helpers import TOKEN, new_store
from topics.clock import Deadline


class Learner:
    """What a learner that began with a model directory publishes: the files, then steps."""

    def __init__(self, folder: Path, *, dtype: str = "float32", wire_dtype: str | None = None) -> None:
        self.model_dir = folder / "model"
        if not self.model_dir.exists():
            make_tiny_model(self.model_dir, seed=3)
        self.tensors, self.ties = named_state(load_model(self.model_dir, device="cpu", dtype=dtype))
        self.store = new_store(folder / "learner")
        self._target = StoreTarget(store=self.store, chunk_bytes=65_536)
        self._series = VersionSeries(
            SeriesSettings(anchor_every=9, max_delta_share=0.5, wire_dtype=wire_dtype), target=self._target
        )
        self.published: dict[Version, Manifest] = {}

    def publish(self) -> Manifest:
        version = Version(lineage=1, step=len(self.published))
        encoded = self._series.encode(self._series.snapshot(self.tensors, ties=self.ties), version=version)
        manifest = build_manifest(
            encoded.state, run="r", version=version, seeds=(), created_unix_ms=0, delta=encoded.delta
        )
        self.published[version] = manifest
        return manifest

    def change(self) -> None:
        self.tensors["model.norm.weight"][::7] += 0.5


@pytest.fixture
def here(tmp_path: Path) -> ChunkStore:
    """The store of an engine's host."""
    return new_store(tmp_path / "engine")


@pytest.mark.parametrize(
    ("dtype", "wire_dtype"), [("float32", None), ("float32", "BF16"), ("bfloat16", None), ("bfloat16", "F32")]
)
def test_the_files_are_version_0(tmp_path: Path, here: ChunkStore, dtype: str, wire_dtype: str | None) -> None:
    """A tied model in float32; what the learner casts is cast the same way here. The last case is rounded twice."""
    first = Learner(tmp_path, dtype=dtype, wire_dtype=wire_dtype).publish()
    assert any(entry.tied_to is not None for entry in first.tensors)
    twice = (dtype, wire_dtype) == ("bfloat16", "F32")
    assert seed_store(tmp_path / "model", first, store=here, owner="rollout.1.0") is not twice
    if twice:
        return
    assert all(here.verified(chunk.digest) for chunk in first.chunks)
    assert here.pins()["rollout.1.0"] == {chunk.digest for chunk in first.chunks}


def test_nothing_is_fetched_and_the_first_delta_goes_onto_the_files(tmp_path: Path, here: ChunkStore) -> None:
    """There is no peer at all for version 0. The base of the learner's first delta is the seeded state, by digest."""
    learner = Learner(tmp_path, wire_dtype="BF16")
    first = learner.publish()
    assert seed_store(learner.model_dir, first, store=here)
    result = fetch(first, store=here, client=ClientSettings(token=TOKEN), deadline=Deadline.after(5))
    assert (result.bytes_fetched, result.bytes_local) == (0, first.num_bytes)
    held = HeldState(decode_state)
    held.advance(first, find_route(first, published={}, held_digest=None), store=here)
    learner.change()
    second = learner.publish()
    route = find_route(second, published=learner.published, held_digest=held.digest)
    assert (route.anchor, len(route.deltas), second.base_digest) == (None, 1, first.state_digest)
    for chunk in second.chunks:
        here.put(learner.store.get(chunk.digest))
    state = held.advance(second, route, store=here)
    assert torch.equal(state["model.norm.weight"], learner.tensors["model.norm.weight"].bfloat16())


def test_files_of_an_index(tmp_path: Path, here: ChunkStore) -> None:
    learner = Learner(tmp_path)
    whole = learner.model_dir / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, learner.model_dir / file)
    places = {name: file for file, part in parts.items() for name in part}
    (learner.model_dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    whole.unlink()
    assert seed_store(learner.model_dir, learner.publish(), store=here)


def test_a_tied_tensor_kept_under_its_other_name(tmp_path: Path, here: ChunkStore) -> None:
    learner = Learner(tmp_path)
    _rewrite(learner.model_dir, renamed={"model.embed_tokens.weight": "lm_head.weight"})
    assert seed_store(learner.model_dir, learner.publish(), store=here)


def test_trained_weights_are_found_out_at_the_first_chunk(tmp_path: Path, here: ChunkStore) -> None:
    learner = Learner(tmp_path)
    learner.tensors["model.embed_tokens.weight"][0] += 1.0
    assert not seed_store(learner.model_dir, learner.publish(), store=here)
    assert here.num_bytes() == 0


def test_weights_that_differ_at_the_end_leave_chunks_that_need_not_be_fetched(tmp_path: Path, here: ChunkStore) -> None:
    learner = Learner(tmp_path)
    learner.change()
    manifest = learner.publish()
    assert not seed_store(learner.model_dir, manifest, store=here)
    num_there = sum(here.verified(chunk.digest) for chunk in manifest.chunks)
    assert num_there == len(manifest.chunks) - 1


def test_a_state_digest_that_the_chunks_do_not_give(tmp_path: Path, here: ChunkStore) -> None:
    learner = Learner(tmp_path)
    assert not seed_store(learner.model_dir, replace(learner.publish(), state_digest="00" * 32), store=here)


@pytest.mark.parametrize("damage", ["no directory", "no file", "cut", "absent tensor", "shape", "dtype", "bad index"])
def test_other_files_give_false(tmp_path: Path, here: ChunkStore, damage: str) -> None:
    learner = Learner(tmp_path)
    manifest = learner.publish()
    directory = learner.model_dir
    path = directory / "model.safetensors"
    match damage:
        case "no directory":
            directory = tmp_path / "nowhere"
        case "no file":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "absent tensor":
            _rewrite(directory, renamed={"model.norm.weight": "model.norm.scale"})
        case "shape":
            _rewrite(directory, changed={"model.norm.weight": torch.ones(63)})
        case "dtype":
            _rewrite(directory, changed={"model.norm.weight": torch.ones(64, dtype=torch.int32)})
        case "bad index":
            path.unlink()
            (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    assert not seed_store(directory, manifest, store=here)
    assert here.num_bytes() == 0


def test_only_an_open_anchor_can_be_seeded(tmp_path: Path, here: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(tmp_path)
    first = learner.publish()
    learner.change()
    assert not seed_store(learner.model_dir, learner.publish(), store=here)
    monkeypatch.setattr("pipeline.weights.listing.MAX_INLINE_BYTES", 10)
    apart = set_apart(first, target=StoreTarget(store=learner.store, chunk_bytes=65_536))
    assert not seed_store(learner.model_dir, apart, store=here)


def test_a_full_store_is_an_error(tmp_path: Path, here: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(tmp_path)
    first = learner.publish()

    def full(*_: object, **__: object) -> None:
        raise WeightsError("no space left")

    monkeypatch.setattr(ChunkStore, "put", full)
    with pytest.raises(WeightsError, match="no space left"):
        seed_store(learner.model_dir, first, store=here)


def _rewrite(
    directory: Path, *, renamed: Mapping[str, str] | None = None, changed: Mapping[str, torch.Tensor] | None = None
) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path) | dict(changed or {})
    names = renamed if renamed is not None else {}
    save_file({names.get(name, name): tensor.clone() for name, tensor in tensors.items()}, path)
