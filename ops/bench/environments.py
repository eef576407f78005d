"""`rlweave bench environments`: trajectories that wait for a slow tool, parked against held; learning by steps.

Order: one engine after the other, opened anew: `held` keeps the slot of a trajectory while its tool works, `parked`
gives it to others. The rest is the real thing: `producers.rollout`'s generator and episodes over a real engine, an
environment in its event loop, groups taken on as a rollout producer takes them.
What is measured, after a warm-up: sequences in the engine, trajectories in flight and parked, own tokens and turns per
second, and tokens of earlier turns that the engine had to compute again, per turn. The same seeds in both.
Then (`ops.bench.acting`) a tiny model learns to guess a number with an advantage per trajectory, and with one per step.
Failure: an `RlweaveError` of the engine goes through.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from random import Random

from consumers.learner.loss_settings import AlgorithmName
from ops.bench import result
from ops.bench.acting import Arena, Curve
from ops.bench.admission import SHAPE, sharp_state
from ops.run_file import load_run_file
from pipeline.engines.backends import BackendSettings, open_backend
from pipeline.engines.base import Engine
from pipeline.engines.tiny import CHARACTERS, make_tiny_model
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.environments.base import Action, Observation, Task
from pipeline.environments.episodes import Episodes, open_episodes
from pipeline.environments.settings import EnvironmentSettings
from pipeline.settings import ModelSettings, RunSettings
from pipeline.stage import StageContext, make_context
from producers.rollout.generator import Generator
from schemas.records import PromptGroup, SamplingParams, Version
from topics.clock import Deadline, SystemClock
from topics.memory import MemoryLog

GROUP_SIZE = 8
PROMPT_TOKENS, TURN_TOKENS, TOOL_TOKENS = 128, 48, 32
TURNS = 4
CONTEXT_TOKENS = 512
HELD, PARKED = "held", "parked"
ALGORITHMS: tuple[AlgorithmName, ...] = ("grpo", "step_grpo")
_NEVER_S = 1e6
_END_LIMIT_S = 60.0
_RUN = "bench"
_COUNTERS = ("tokens_generated", "turns_made", "tokens_prefilled_again", "episodes_ended{how=turns}")


class SlowTool:
    """Answers each turn with as many characters, after a while.

    Args:
        latency_s: of each answer.
    """

    def __init__(self, *, latency_s: float) -> None:
        self._latency_s = latency_s
        self._text = ""

    async def reset(self, task: Task) -> Observation:
        """Nothing is said before the first turn."""
        draw = Random(task.seed + task.member)  # noqa: S311 - a workload
        self._text = "".join(draw.choices(CHARACTERS, k=TOOL_TOKENS))
        return Observation()

    async def step(self, action: Action) -> Observation:
        """Work, then answer."""
        await asyncio.sleep(self._latency_s)
        return Observation(text=self._text[action.turn :] + self._text[: action.turn])

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentsSize:
    """How much is measured."""

    latency_s: float = 2.0
    slots: int = 32
    max_parked: int = 256
    warm_s: float = 15.0
    over_s: float = 45.0
    learn_steps: int = 40

    @classmethod
    def quick(cls) -> EnvironmentsSize:
        """Enough to see that it works."""
        return cls(latency_s=1.0, slots=16, max_parked=64, warm_s=3.0, over_s=8.0, learn_steps=3)


@dataclass
class Seen:
    """What came of one way."""

    running: list[int] = field(default_factory=list)  # sequences in the engine
    parked: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)  # trajectories
    counts: dict[str, float] = field(default_factory=dict)  # after the warm-up
    spent_s: float = 0.0


def bench_environments(size: EnvironmentsSize, *, engine: str, say: Callable[[str], None]) -> result.BenchResult:
    """Measure; `say` gets a line per way.

    Args:
        engine: "torch" or "vllm".

    Raises:
        PluginError: the engine is not installed.
        EngineError: it cannot be opened or failed.
    """
    noise = result.Noise()
    found: dict[str, Seen] = {}
    with tempfile.TemporaryDirectory(prefix="rlweave-bench-") as folder:
        make_tiny_model(Path(folder), seed=1, context_tokens=CONTEXT_TOKENS, shape=SHAPE)
        state = sharp_state(Path(folder))
        for way in (HELD, PARKED):
            with _opened(Path(folder), name=engine, slots=size.slots) as opened:
                opened.load(Version(lineage=1, step=0), state)
                found[way] = Work(opened, way=way, size=size, folder=Path(folder)).run()
            say(f"{way}: {statistics.fmean(found[way].running):.1f} sequences in the engine")
        curves = learned(Path(folder), num_steps=size.learn_steps, say=say)
    return result_of(size, found, curves=curves, engine=engine, noise=noise)


def learned(folder: Path, *, num_steps: int, say: Callable[[str], None]) -> list[Curve]:
    """The demo `guess`, from the same cloned weights with each kind of advantage."""
    run_file = load_run_file(Path(str(files("ops") / "demo_guess.toml")))
    arena = Arena(run_file, folder=folder / "guess")
    curves = []
    for algorithm in ALGORITHMS:
        curves.append(arena.learn(algorithm, num_steps=num_steps))
        start, end = curves[-1].ends()
        say(f"guess, {algorithm}: reward {start:.3f} -> {end:.3f}")
    return curves


@contextmanager
def _opened(folder: Path, *, name: str, slots: int) -> Iterator[Engine]:
    settings = BackendSettings(
        model=ModelSettings(path=folder), max_sequences=slots, num_threads=1, vllm=VllmSettings(kv_cache_blocks=1024)
    )
    engine = open_backend(name, settings).engine
    try:
        yield engine
    finally:
        engine.close()


class Work:
    """Groups without an end, one way."""

    def __init__(self, engine: Engine, *, way: str, size: EnvironmentsSize, folder: Path) -> None:
        self._engine = engine
        self._size = size
        self._context = _context(folder)
        settings = EnvironmentSettings(
            plugin="ops.bench.environments:SlowTool",
            options={"latency_s": size.latency_s},
            max_turns=TURNS,
            park_after_s=_NEVER_S if way == HELD else 0.05,
            max_parked=size.max_parked,
        )
        self._episodes: Episodes = open_episodes(settings, engine=engine, context=self._context)
        self._generator = Generator[int](engine, context=self._context, max_failures=1, episodes=self._episodes)
        self._num_groups = 0

    def run(self) -> Seen:
        """Measure."""
        seen = Seen()
        begin_s = time.monotonic() + self._size.warm_s
        before: dict[str, float] | None = None
        while (now_s := time.monotonic()) < begin_s + self._size.over_s:
            self._fill()
            self._generator.advance()
            if now_s >= begin_s:
                before = self._counts() if before is None else before
                self._look(seen)
        after = self._counts()
        seen.spent_s = self._size.over_s
        seen.counts = {name: after[name] - (0.0 if before is None else before[name]) for name in _COUNTERS}
        self._run_out()
        return seen

    def _fill(self) -> None:
        while self._generator.num_free_slots > 0:
            self._generator.add(_prompt(self._num_groups), ticket=self._num_groups)
            self._num_groups += 1

    def _look(self, seen: Seen) -> None:
        running = self._engine.num_running
        seen.running.append(running)
        seen.parked.append(len(self._episodes.parked))
        seen.in_flight.append(running + self._generator.num_waiting + self._episodes.num_waiting)

    def _counts(self) -> dict[str, float]:
        told = self._context.metrics.snapshot()
        return {name: told.get(name, 0.0) for name in _COUNTERS}

    def _run_out(self) -> None:
        """Give up what is in flight."""
        for group in self._generator.groups():
            self._generator.drop(group)
        deadline = Deadline.after(_END_LIMIT_S)
        while self._engine.num_running:
            deadline.check(f"{self._engine.num_running} requests to be given up")
            self._engine.step()
        self._episodes.close()


def _context(folder: Path) -> StageContext:
    run = RunSettings(name=_RUN, dir=folder / "runs", group_size=GROUP_SIZE)
    return make_context(MemoryLog(run=_RUN, data_partitions=1), run=run, stage="rollout", clock=SystemClock())


def _prompt(number: int) -> PromptGroup:
    draw = Random(number)  # noqa: S311 - a workload
    return PromptGroup(
        run=_RUN,
        group=number,
        group_size=GROUP_SIZE,
        text="".join(draw.choices(CHARACTERS, k=PROMPT_TOKENS)),
        sampling=SamplingParams(max_tokens=TURN_TOKENS),
        seed=number * GROUP_SIZE,
        source=_RUN,
        source_index=number,
        epoch=0,
        created_unix_ms=0,
    )


def result_of(
    size: EnvironmentsSize, found: dict[str, Seen], *, curves: Sequence[Curve], engine: str, noise: result.Noise
) -> result.BenchResult:
    """Numbers of both ways, and of learning."""
    values: dict[str, result.Number] = {}
    for curve in curves:
        values[f"guess_{curve.algorithm}_reward_start"], values[f"guess_{curve.algorithm}_reward_end"] = curve.ends()
    rows = []
    for way, seen in found.items():
        turns = seen.counts["turns_made"]
        own = {
            "running": statistics.fmean(seen.running),
            "in_flight": statistics.fmean(seen.in_flight),
            "parked": statistics.fmean(seen.parked),
            "tokens_per_s": seen.counts["tokens_generated"] / seen.spent_s,
            "turns_per_s": turns / seen.spent_s,
            "prefilled_again_per_turn": seen.counts["tokens_prefilled_again"] / max(1.0, turns),
        }
        values |= {f"{way}_{name}": value for name, value in own.items()}
        rows.append((way, *(f"{value:,.1f}" for value in own.values())))
    for name in ("tokens_per_s", "running", "in_flight"):
        held, parked = (values[f"{way}_{name}"] or 0.0 for way in (HELD, PARKED))
        values[f"parked_over_held_{name}"] = parked / held if held else None
    return result.BenchResult(
        name="environments",
        table=result.Table(
            title=f"{engine}, {size.slots} slots, {TURNS} turns of {TURN_TOKENS} tokens, a tool that takes "
            f"{size.latency_s:g} s, {size.over_s:g} s after {size.warm_s:g} s",
            headers=("", "generating", "in flight", "parked", "tokens/s", "turns/s", "prefilled again/turn"),
            rows=tuple(rows),
        ),
        values=values,
        notes=("In flight: generating, waiting for a slot, or waiting for the tool.", *map(_said, curves)),
        noise=noise.values(num_repeats=1),
    )


def _said(curve: Curve) -> str:
    start, end = curve.ends()
    return f"Guessing a number over {len(curve.rewards)} steps with {curve.algorithm}: reward {start:.3f} -> {end:.3f}."
