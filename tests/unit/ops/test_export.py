"""A published version as a model directory: loads elsewhere, bit for bit, or is not there at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ops.export import export_version
from pipeline.engines.model_dir import load_model, named_state, quiet_transformers
from pipeline.engines.tiny import make_tiny_model
from pipeline.weights import listing
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.delta_state import StoreTarget
from pipeline.weights.listing import set_apart
from pipeline.weights.manifest import build_manifest
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.series import SeriesSettings, VersionSeries
from pipeline.weights.tokens import load_or_create_token
from schemas.errors import WeightsError
from schemas.records import Manifest, Version


class Run:
    """A run's folder with three versions: an anchor and two deltas. A model directory that is there is taken."""

    def __init__(self, root: Path, *, wire_dtype: str | None, seeds: tuple[str, ...] = ()) -> None:
        self.folder, self.model_dir, self.target = root / "run", root / "model", root / "out"
        if not self.model_dir.exists():
            make_tiny_model(self.model_dir, seed=1)
        self.model = load_model(self.model_dir, device="cpu", dtype="float32")
        self.store = ChunkStore(self.folder / "weights" / "learner", max_bytes=2**30)
        target = StoreTarget(store=self.store, chunk_bytes=65_536)
        series = VersionSeries(
            SeriesSettings(anchor_every=9, max_delta_share=0.5, wire_dtype=wire_dtype), target=target
        )
        self.published: dict[Version, Manifest] = {}
        self.truth: dict[Version, dict[str, torch.Tensor]] = {}
        for step in range(3):
            tensors, ties = named_state(self.model)
            for tensor in tensors.values():
                tensor.view(-1)[:: 50 + step].add_(0.25)
            version = Version(lineage=1, step=step)
            encoded = series.encode(series.snapshot(tensors, ties=ties), version=version)
            manifest = build_manifest(
                encoded.state, run="r", version=version, seeds=seeds, created_unix_ms=0, delta=encoded.delta
            )
            self.published[version] = set_apart(manifest, target=target)
            self.truth[version] = {name: tensor.clone() for name, tensor in tensors.items()}

    def export(self, version: Version | None = None) -> Manifest:
        return export_version(self.published, version, target=self.target, model=self.model_dir, folder=self.folder)


@pytest.mark.parametrize(("wire_dtype", "dtype"), [(None, torch.float32), ("BF16", torch.bfloat16)])
def test_transformers_loads_it_bit_for_bit(tmp_path: Path, wire_dtype: str | None, dtype: torch.dtype) -> None:
    run = Run(tmp_path, wire_dtype=wire_dtype)
    done = run.export()
    assert done.version == Version(lineage=1, step=2)
    assert done.encoding == "delta"
    with quiet_transformers():
        loaded: object = AutoModelForCausalLM.from_pretrained(
            run.target, local_files_only=True, dtype="auto", output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(run.target, local_files_only=True)
    model, info = cast("tuple[PreTrainedModel, dict[str, set[str]]]", loaded)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    own, ties = named_state(model)
    assert own["model.embed_tokens.weight"].dtype == dtype
    assert ties == {"lm_head.weight": "model.embed_tokens.weight"}
    for name, tensor in run.truth[done.version].items():
        assert torch.equal(own[name], tensor.to(dtype)), name
    assert len(tokenizer) == 32
    assert json.loads((run.target / "rlweave.json").read_text())["state_digest"] == done.state_digest
    assert load_model(run.target, device="cpu", dtype="float32")


def test_a_version_is_chosen_by_its_number(tmp_path: Path) -> None:
    run = Run(tmp_path, wire_dtype=None)
    wanted = Version(lineage=1, step=1)
    run.export(wanted)
    own, _ = named_state(load_model(run.target, device="cpu", dtype="float32"))
    assert torch.equal(own["model.norm.weight"], run.truth[wanted]["model.norm.weight"])


@pytest.mark.parametrize("inline_bytes", [listing.MAX_INLINE_BYTES, 10])
def test_chunks_that_are_not_on_this_machine_come_from_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    """Another machine's run folder, with the run's token; once with manifests that are listed apart."""
    monkeypatch.setattr(listing, "MAX_INLINE_BYTES", inline_bytes)
    remote = ChunkStore(tmp_path / "remote" / "run" / "weights" / "learner", max_bytes=2**30)
    token = load_or_create_token(tmp_path / "run" / "peer-token")
    peer = PeerServer(PeerSettings(stores=[remote], token=token))
    try:
        there = Run(tmp_path / "remote", wire_dtype=None, seeds=(peer.start(),))
        here = tmp_path / "here"
        export_version(there.published, None, target=here, model=there.model_dir, folder=tmp_path / "run")
        assert load_model(here, device="cpu", dtype="float32")
    finally:
        peer.stop()


def test_a_version_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    run = Run(tmp_path, wire_dtype=None)
    with pytest.raises(WeightsError, match=r"version 2\.9 is not published") as caught:
        run.export(Version(lineage=2, step=9))
    assert "1.0, 1.1, 1.2" in caught.value.hint
    run.published.clear()
    with pytest.raises(WeightsError, match="no version is published"):
        run.export()


def test_a_version_whose_manifest_is_listed_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_INLINE_BYTES", 10)
    run = Run(tmp_path, wire_dtype="BF16")
    record = run.published[Version(lineage=1, step=2)]
    assert record.listing
    assert run.export().state_digest == record.state_digest
    own, _ = named_state(load_model(run.target, device="cpu", dtype="bfloat16"))
    assert torch.equal(own["model.norm.weight"], run.truth[record.version]["model.norm.weight"].bfloat16())


def test_nothing_is_overwritten_and_nothing_is_left_behind(tmp_path: Path) -> None:
    run = Run(tmp_path, wire_dtype=None)
    run.target.mkdir()
    run.export()  # an empty one is taken
    with pytest.raises(WeightsError, match="is there already"):
        run.export()
    assert not list(tmp_path.glob(".out*"))


def test_an_altered_chunk_is_no_export(tmp_path: Path) -> None:
    run = Run(tmp_path, wire_dtype=None)
    path = run.store.path_of(run.published[Version(lineage=1, step=2)].chunks[0].digest)
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(WeightsError, match="no peer"):
        run.export()
    assert not run.target.exists()
