"""`rlweave bench lora`: adapters beside the whole model on the demo task: bytes per publish, and what is learned.

Every version goes the way of a run: the learner's publisher, a chunk store, an engine's decoder that merges and checks
digests; samples are drawn with what comes out. Left out: the network, and processes of their own.
Bytes per publish: what an engine that keeps up fetches, the delta where there is one; mean of all versions after the
first. Rewards: mean of the first and last five steps, staleness 1, both from the same cloned weights.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consumers.learner.lora import base_of
from consumers.learner.lora_settings import LoraSettings
from consumers.learner.loss_settings import LossSettings
from consumers.learner.publisher import Publisher
from consumers.learner.trainer import Trainer
from ops.bench import result
from ops.bench.algorithms.playground import Playground, Variant, demo_settings
from pipeline.engines.tiny import make_tiny_model
from pipeline.settings import WeightsSettings
from pipeline.weights.adapters import Merger
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.held import HeldState
from pipeline.weights.manifest import as_delta, transfer_bytes
from pipeline.weights.route import find_route
from pipeline.weights.state import decode_state
from schemas.records import Manifest, Version
from topics.clock import SystemClock

_ENDS = 5  # steps at either end that rewards are averaged over
_CONTEXT_TOKENS = 32
VARIANTS = (
    Variant(name="full", algorithm="grpo", loss=LossSettings()),
    Variant(
        name="lora",
        algorithm="grpo",
        loss=LossSettings(),
        learning_rate=5e-3,
        lora=LoraSettings(rank=4, alpha=8.0),
        note="rank 4, alpha 8, all linear layers",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LoraSize:
    """How much is measured."""

    num_steps: int = 40

    @classmethod
    def quick(cls) -> LoraSize:
        """Some seconds: few steps show nothing of learning."""
        return cls(num_steps=3)


class Way:
    """From a trainer to the tensors that an engine serves."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "peer.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')  # nobody is asked
        self._store = ChunkStore(folder / "store", max_bytes=2**30)
        self._settings = WeightsSettings()
        self._publisher: Publisher | None = None
        self._held: HeldState[Tensor] | None = None
        self._published: dict[Version, Manifest] = {}
        self.num_bytes: list[int] = []  # of each version
        self.staging_s: list[float] = []
        self.loading_s: list[float] = []

    def serve(self, trainer: Trainer, step: int) -> Mapping[str, Tensor]:
        """Publish and take in a version."""
        if self._publisher is None or self._held is None:
            adapting = trainer.adapting(wire_dtype=None)
            self._publisher = Publisher(
                self._settings, store=self._store, run="bench", clock=SystemClock(), adapting=adapting
            )
            self._held = HeldState(decode_state, merge=Merger(lambda: base_of(trainer.model, wire_dtype=None)))
        staged = self._publisher.stage(trainer.model, version=Version(lineage=1, step=step))
        self.staging_s.append(staged.figures.snapshot_s + staged.figures.encode_s)
        self._published[staged.manifest.version] = staged.manifest
        for version in staged.retired:
            del self._published[version]
        self._publisher.release()
        delta = as_delta(staged.manifest)
        self.num_bytes.append(transfer_bytes(staged.manifest if delta is None else delta))
        began_s = time.thread_time()
        route = find_route(staged.manifest, published=self._published, held_digest=self._held.digest)
        state = self._held.advance(staged.manifest, route, store=self._store)
        self.loading_s.append(time.thread_time() - began_s)
        return state

    def close(self) -> None:
        """Let go of the publisher's thread."""
        if self._publisher is not None:
            self._publisher.close()


def bench_lora(size: LoraSize, *, say: Callable[[str], None]) -> result.BenchResult:
    """Both ways of training."""
    noise = result.Noise()
    torch.set_num_threads(1)
    values: dict[str, result.Number] = {}
    figures: dict[str, dict[str, float]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run_file = demo_settings(Path(folder))
        make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=_CONTEXT_TOKENS)
        playground = Playground(run_file)
        for variant in VARIANTS:
            way = Way(Path(folder) / variant.name)
            rewards = list(playground.learn(variant, num_steps=size.num_steps, serve=way.serve))
            way.close()
            found = figures[variant.name] = _figures(rewards, way)
            values |= {f"{variant.name}_{name}": value for name, value in found.items()}
            start, end = found["reward_start"], found["reward_end"]
            cells = (f"{found['publish_bytes']:,.0f}", f"{found['first_bytes']:,.0f}", f"{start:.3f}", f"{end:.3f}")
            rows.append((variant.name, *cells, f"{found['loading_s'] * 1e3:.1f}", variant.note))
            say(f"{variant.name}: {cells[0]} bytes per publish, reward {start:.3f} -> {end:.3f}")
    share = figures["lora"]["publish_bytes"] / figures["full"]["publish_bytes"]
    values["bytes_share"] = share
    return result.BenchResult(
        name="lora",
        table=result.Table(
            title=f"demo task over {size.num_steps} steps of 32 x 16 samples, float32",
            headers=("training", "bytes per publish", "first", "reward start", "reward end", "load ms", "note"),
            rows=tuple(rows),
        ),
        values=values,
        notes=(
            f"adapters take {share:.1%} of the bytes; the model has 125,376 parameters in narrow "
            "matrices, of which adapters are a large part; docs/guides/lora.md has the share of larger models",
            "every version was merged and its digest compared before samples were drawn with it",
            "load ms: decoding, merging and checking, processor time of one version",
        ),
        noise=noise.values(num_repeats=1),
    )


def _figures(rewards: list[float], way: Way) -> dict[str, float]:
    ends = max(1, min(_ENDS, len(rewards) // 2))
    return {
        "publish_bytes": float(np.mean(way.num_bytes[1:])),
        "first_bytes": float(way.num_bytes[0]),
        "reward_start": float(np.mean(rewards[:ends])),
        "reward_end": float(np.mean(rewards[-ends:])),
        "staging_s": float(np.mean(way.staging_s)),
        "loading_s": float(np.mean(way.loading_s)),
    }
