"""`rlweave bench swap`: how long generation stands still for new weights, with 64 requests in flight and with none.

Order, per engine: (1) a model of the size given is opened and two states are made; (2) in turns, so that both meet the
same noise: some loads with nothing in flight (the bare load), and some with 64 requests in flight, at random moments
between their steps; (3) everything in flight is run out and counted.
What is timed: in torch the whole call of `load`, since generation is the caller's own thread; in vLLM from the moment
at which it says that it has paused to the one at which it says that it goes on; what is staged before is not in it.
Invariants: bare and busy loads are the same code over the same states; the check of what was loaded is on.
Failure: an `RlweaveError` of the engine goes through; without vllm its part is left out and a note says so.
"""

from __future__ import annotations

import gc
import importlib.util
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ops.bench import result
from pipeline.collector import calm_collector
from pipeline.engines.backends import BackendSettings, open_backend
from pipeline.engines.base import FINISH_ABORT, Engine, Generation, GenerationRequest
from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.settings import ModelSettings
from schemas.records import SamplingParams, Version
from topics.clock import Deadline

ENGINES = ("torch", "vllm")
NUM_IN_FLIGHT = 64
LIMIT = 1.5  # wanted: the pause over the bare load
RUN_OUT_LIMIT_S = 120.0
CONTEXT_TOKENS = 256
_VOCABULARY = range(4, 32)
_RATIOS = ("pause_over_bare_p50", "pause_over_bare_p95", "pause_p95_over_bare_p50")

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class SwapSize:
    """How much is measured."""

    shape: TinyShape = field(
        default_factory=lambda: TinyShape(
            hidden_size=512, num_layers=6, num_heads=8, num_kv_heads=4, head_dim=64, initializer_range=0.04
        )
    )
    num_turns: int = 8
    num_bare: int = 5  # loads of a turn with nothing in flight
    num_busy: int = 15

    @classmethod
    def quick(cls) -> SwapSize:
        """Enough to see that it works."""
        shape = TinyShape(hidden_size=256, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=64)
        return cls(shape=shape, num_turns=2, num_bare=3, num_busy=10)


@dataclass
class Swaps:
    """What was seen of one engine."""

    bare_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    num_requests: int = 0
    num_lost: int = 0


def bench_swap(size: SwapSize, *, engines: tuple[str, ...] = ENGINES) -> result.BenchResult:
    """Measure the engines, one after the other.

    Raises:
        EngineError: an engine cannot be opened or failed.
        DeadlineExceeded: requests in flight do not come to an end.
    """
    noise = result.Noise()
    absent = [name for name in engines if name == "vllm" and importlib.util.find_spec("vllm") is None]
    found: dict[str, Swaps] = {}
    with tempfile.TemporaryDirectory(prefix="rlweave-bench-") as folder, _calm():
        make_tiny_model(Path(folder), seed=1, context_tokens=CONTEXT_TOKENS, shape=size.shape)
        states = _states(Path(folder))
        for name in engines:
            if name not in absent:
                with _opened(name, Path(folder)) as engine:
                    found[name] = _Bench(engine, states).run(size)
    return _result(size, found, absent=absent, noise=noise, num_bytes=sum(map(_num_bytes, states[0].values())))


def _states(folder: Path) -> list[State]:
    """The model's own weights, and the same a little off everywhere."""
    own, _ = named_state(load_model(folder, device="cpu", dtype="float32"))
    first = {name: tensor.clone() for name, tensor in own.items()}
    return [first, {name: tensor * 1.01 for name, tensor in first.items()}]


@contextmanager
def _calm() -> Iterator[None]:
    """Python's collector as in every stage process, for the while."""
    before = gc.get_threshold()
    calm_collector()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


@contextmanager
def _opened(name: str, folder: Path) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    settings = BackendSettings(model=ModelSettings(path=folder), max_sequences=2 * NUM_IN_FLIGHT, num_threads=1)
    engine = open_backend(name, settings).engine
    try:
        yield engine
    finally:
        engine.close()
        torch.set_num_threads(threads)


class _Bench:
    """Loads in turns into one engine."""

    def __init__(self, engine: Engine, states: list[State]) -> None:
        self._engine = engine
        self._states = states
        self._draw = random.Random(7)  # noqa: S311 - a workload
        self._num_loads = 0
        self._found = Swaps()
        self._done: list[Generation] = []

    def run(self, size: SwapSize) -> Swaps:
        """Measure; the first loads and requests only warm up."""
        self._turn(num_bare=2, num_busy=2)
        self._found.bare_s.clear()
        self._found.busy_s.clear()
        for _ in range(size.num_turns):
            self._turn(num_bare=size.num_bare, num_busy=size.num_busy)
        whole = {each.request_id for each in self._done if each.finish_reason != FINISH_ABORT}
        self._found.num_lost = self._found.num_requests - len(whole)
        return self._found

    def _turn(self, *, num_bare: int, num_busy: int) -> None:
        self._found.bare_s.extend(self._load() for _ in range(num_bare))
        for _ in range(num_busy):
            self._fill()
            for _ in range(self._draw.randint(1, 4)):
                self._done += self._engine.step()
            self._fill()
            self._found.busy_s.append(self._load())
        deadline = Deadline.after(RUN_OUT_LIMIT_S)
        while self._engine.num_running:
            deadline.check(f"{self._engine.num_running} requests in flight to end")
            self._done += self._engine.step()

    def _fill(self) -> None:
        """Requests of different lengths, so that some end between any two loads."""
        num_missing = NUM_IN_FLIGHT - self._engine.num_running
        self._engine.submit([self._request() for _ in range(num_missing)])

    def _request(self) -> GenerationRequest:
        self._found.num_requests += 1
        draw = self._draw
        return GenerationRequest(
            request_id=str(self._found.num_requests),
            prompt_tokens=tuple(draw.choices(_VOCABULARY, k=draw.randint(4, 32))),
            sampling=SamplingParams(max_tokens=draw.randint(8, 128)),
            seed=self._found.num_requests,
        )

    def _load(self) -> float:
        self._num_loads += 1
        state = self._states[self._num_loads % len(self._states)]
        began_s = time.perf_counter()
        self._engine.load(Version(lineage=1, step=self._num_loads), state)
        spent_s = time.perf_counter() - began_s
        pause_s: float | None = getattr(self._engine, "pause_s", None)
        return spent_s if pause_s is None else pause_s


@dataclass(frozen=True, kw_only=True)
class _Times:
    p50_ms: float
    p95_ms: float

    @classmethod
    def of(cls, times_s: list[float]) -> _Times:
        p50_s, p95_s = np.percentile(times_s, (50, 95))
        return cls(p50_ms=float(p50_s) * 1e3, p95_ms=float(p95_s) * 1e3)


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _result(
    size: SwapSize, found: Mapping[str, Swaps], *, absent: list[str], noise: result.Noise, num_bytes: int
) -> result.BenchResult:
    values: dict[str, result.Number] = {"swap_num_in_flight": NUM_IN_FLIGHT, "swap_state_bytes": num_bytes}
    rows = []
    for name, swaps in found.items():
        bare, pause = (_Times.of(times_s) for times_s in (swaps.bare_s, swaps.busy_s))
        values |= {
            f"{name}_bare_p50_ms": bare.p50_ms,
            f"{name}_bare_p95_ms": bare.p95_ms,
            f"{name}_pause_p50_ms": pause.p50_ms,
            f"{name}_pause_p95_ms": pause.p95_ms,
            f"{name}_pause_over_bare_p50": pause.p50_ms / bare.p50_ms,
            f"{name}_pause_over_bare_p95": pause.p95_ms / bare.p95_ms,
            f"{name}_pause_p95_over_bare_p50": pause.p95_ms / bare.p50_ms,
            f"{name}_requests": swaps.num_requests,
            f"{name}_requests_lost": swaps.num_lost,
        }
        times = [f"{value:.1f}" for value in (bare.p50_ms, bare.p95_ms, pause.p50_ms, pause.p95_ms)]
        ratios = [f"{values[f'{name}_{key}']:.2f}" for key in _RATIOS]
        rows.append((name, *times, *ratios, f"{swaps.num_lost} of {swaps.num_requests}"))
    notes = [
        f"wanted: the pause at most {LIMIT:g} x the bare load, requests lost 0",
        "p50/p50 and p95/p95 meet the same noise on both sides; p95/p50 has that of the machine on one side only",
    ]
    notes += [f"{name} is left out: it is not installed" for name in absent]
    times_of = ("bare p50 ms", "bare p95 ms", "pause p50 ms", "pause p95 ms")
    headers = ("engine", *times_of, "p50/p50", "p95/p95", "p95/p50", "lost")
    return result.BenchResult(
        name="swap",
        table=result.Table(
            title=f"Swaps of {num_bytes / 1e6:.0f} MB with {NUM_IN_FLIGHT} requests in flight",
            headers=headers,
            rows=tuple(rows),
        ),
        values=values,
        notes=tuple(notes),
        noise=noise.values(num_repeats=size.num_turns * size.num_busy),
    )
