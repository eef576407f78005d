"""`rlweave bench admission`: sequences kept in a real vLLM, all it takes against as many as its pressure allows.

Order: two sizes of the KV cache, a small one that holds a fraction of the sequences and one that holds them all; for
each, an engine with `admission = "fixed"` and one with `"pressure"` (`producers.rollout.pressure`), one after the
other, with work that never ends: groups of eight of one prompt and log-normal lengths.
What is measured: completion tokens of sequences that ended, per second, after a warm-up; how often vLLM preempted one;
how long a sequence took. The same seeds make the same requests in all of them.
Failure: an `RlweaveError` of the engine goes through; without vLLM there is nothing to measure.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ops.bench import result
from pipeline.engines.backends import BackendSettings, open_backend
from pipeline.engines.base import Engine, GenerationRequest
from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.pressure import pressure_of
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.settings import ModelSettings
from producers.rollout.pressure import PressureControl
from producers.rollout.settings import PressureSettings
from schemas.records import SamplingParams, Version
from topics.clock import Deadline

GROUP_SIZE = 8
MAX_SEQUENCES = 128
CONTEXT_TOKENS = 2048
MEDIAN_TOKENS, SIGMA, MOST_TOKENS = 512, 0.5, 1536
SHAPE = TinyShape(hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64)
_VOCABULARY = range(4, 32)
_SHARPER = 4.0  # of the output layer, so that the end token is all but never drawn and lengths are those asked for
_END_TOKEN = 2
_END_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class AdmissionSize:
    """How much is measured."""

    blocks: tuple[tuple[str, int], ...] = (("small cache", 160), ("large cache", 1024))  # of 128 tokens each
    warm_s: float = 50.0
    over_s: float = 50.0

    @classmethod
    def quick(cls) -> AdmissionSize:
        """Enough to see that it works."""
        return cls(blocks=(("small cache", 160),), warm_s=5.0, over_s=10.0)


@dataclass
class Seen:
    """What came of one engine."""

    num_tokens: int = 0
    waited_s: list[float] = field(default_factory=list)  # of sequences
    num_preempted: int = 0  # after the warm-up
    num_preempted_before: int = 0
    limits: list[int] = field(default_factory=list)


def bench_admission(size: AdmissionSize, *, say: Callable[[str], None]) -> result.BenchResult:
    """Measure; `say` gets a line per engine.

    Raises:
        PluginError: vLLM is not installed.
        EngineError: it cannot be opened or failed.
    """
    noise = result.Noise()
    found: dict[tuple[str, str], Seen] = {}
    with tempfile.TemporaryDirectory(prefix="rlweave-bench-") as folder:
        make_tiny_model(Path(folder), seed=1, context_tokens=CONTEXT_TOKENS, shape=SHAPE)
        state = sharp_state(Path(folder))
        for cache, num_blocks in size.blocks:
            for admission in ("fixed", "pressure"):
                with _opened(Path(folder), num_blocks=num_blocks) as engine:
                    engine.load(Version(lineage=1, step=0), state)
                    seen = _Work(engine, admission=admission).run(size)
                found[cache, admission] = seen
                say(f"{cache}, {admission}: {seen.num_tokens} tokens, {seen.num_preempted} preempted")
    return _result(size, found, noise=noise)


def sharp_state(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a tiny model that all but never draws its end token: completions are as long as asked for."""
    own, _ = named_state(load_model(folder, device="cpu", dtype="float32"))
    state = {name: tensor.clone() for name, tensor in own.items()}
    name = "lm_head.weight" if "lm_head.weight" in state else "model.embed_tokens.weight"
    state[name] *= _SHARPER
    state[name][_END_TOKEN] = 0
    return state


@contextmanager
def _opened(folder: Path, *, num_blocks: int) -> Iterator[Engine]:
    settings = BackendSettings(
        model=ModelSettings(path=folder),
        max_sequences=MAX_SEQUENCES,
        num_threads=1,
        vllm=VllmSettings(kv_cache_blocks=num_blocks, prefix_caching=False),
        watch_pressure=True,
    )
    engine = open_backend("vllm", settings).engine
    try:
        yield engine
    finally:
        engine.close()


class _Work:
    """Groups without an end for one engine."""

    def __init__(self, engine: Engine, *, admission: str) -> None:
        self._engine = engine
        self._control: PressureControl | None = None
        if admission == "pressure":
            self._control = PressureControl(PressureSettings(), group_size=GROUP_SIZE, most=MAX_SEQUENCES)
        self._draw = random.Random(7)  # noqa: S311 - a workload
        self._begun_s: dict[str, float] = {}

    def run(self, size: AdmissionSize) -> Seen:
        """Measure one engine."""
        seen = Seen()
        begin_s = time.monotonic() + size.warm_s
        while (now_s := time.monotonic()) < begin_s + size.over_s:
            if now_s < begin_s:
                seen.num_preempted_before = self._num_preempted()
            self._fill(seen, now_s=now_s)
            for done in self._engine.step():
                waited_s = now_s - self._begun_s.pop(done.request_id)
                if now_s >= begin_s:
                    seen.num_tokens += len(done.tokens)
                    seen.waited_s.append(waited_s)
        seen.num_preempted = self._num_preempted() - seen.num_preempted_before
        self._run_out()
        return seen

    def _run_out(self) -> None:
        """Give up what is in flight: an engine that is at work takes long to end."""
        self._engine.abort(list(self._begun_s))
        deadline = Deadline.after(_END_LIMIT_S)
        while self._engine.num_running:
            deadline.check(f"{self._engine.num_running} requests to be given up")
            self._engine.step()

    def _fill(self, seen: Seen, *, now_s: float) -> None:
        held, limit = self._engine.num_running, MAX_SEQUENCES
        if self._control is not None:
            limit = self._control.look(pressure_of(self._engine), held=held, now_s=now_s)
        seen.limits.append(limit)
        for _ in range((limit - held) // GROUP_SIZE):
            self._engine.submit(self._group(now_s))

    def _group(self, now_s: float) -> list[GenerationRequest]:
        prompt = tuple(self._draw.choices(_VOCABULARY, k=16))
        requests = []
        for _ in range(GROUP_SIZE):
            num_tokens = int(MEDIAN_TOKENS * self._draw.lognormvariate(0, SIGMA))
            request = GenerationRequest(
                request_id=str(len(self._begun_s)) + f"-{self._draw.random()}",
                prompt_tokens=prompt,
                sampling=SamplingParams(max_tokens=min(max(num_tokens, 8), MOST_TOKENS)),
                seed=self._draw.randrange(2**31),
            )
            self._begun_s[request.request_id] = now_s
            requests.append(request)
        return requests

    def _num_preempted(self) -> int:
        seen = pressure_of(self._engine)
        return 0 if seen is None or seen.preemptions is None else seen.preemptions


def _result(size: AdmissionSize, found: dict[tuple[str, str], Seen], *, noise: result.Noise) -> result.BenchResult:
    values: dict[str, result.Number] = {}
    rows = []
    for (cache, admission), seen in found.items():
        per_s = seen.num_tokens / size.over_s
        p95_s = statistics.quantiles([*seen.waited_s, 0.0], n=20)[-1] if seen.waited_s else None  # None: none ended
        key = f"{cache.partition(' ')[0]}_{admission}"
        values |= {
            f"{key}_tokens_per_s": per_s,
            f"{key}_preempted": seen.num_preempted,
            f"{key}_preempted_in_warm_up": seen.num_preempted_before,
            f"{key}_sequence_p95_s": p95_s,
            f"{key}_last_limit": seen.limits[-1],
        }
        numbers = (
            f"{seen.num_preempted_before}",
            f"{seen.num_preempted}",
            "-" if p95_s is None else f"{p95_s:.1f}",
            f"{seen.limits[-1]}",
        )
        rows.append((f"{cache}, {admission}", result.rate(per_s), *numbers))
    for cache, _ in size.blocks:
        name = cache.partition(" ")[0]
        fixed, steered = (values[f"{name}_{each}_tokens_per_s"] for each in ("fixed", "pressure"))
        values[f"{name}_pressure_over_fixed"] = (steered or 0.0) / (fixed or 1.0)
    return result.BenchResult(
        name="admission",
        table=result.Table(
            title=f"vLLM with at most {MAX_SEQUENCES} sequences, {size.over_s:g} s after {size.warm_s:g} s",
            headers=("", "tokens/s", "preempted in warm-up", "preempted", "sequence p95 s", "limit at the end"),
            rows=tuple(rows),
        ),
        values=values,
        notes=tuple(f"{key} = {value:.3g}" for key, value in values.items() if key.endswith("over_fixed") and value),
        noise=noise.values(num_repeats=1),
    )
