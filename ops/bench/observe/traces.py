"""`rlweave bench trace`: half a second that is planted at one hop, and whether `rlweave trace` finds it there.

Order: (1) servers of its own; (2) the demo's stages, each in a process, with planted prompts and plug-ins
(`ops.bench.observe.delays`); (3) when all planted groups are closed, each is traced as `rlweave trace RUN GROUP/MEMBER`
does; those with a delay are held against those of the same fate without one.
What is found: by how much a hop is longer than without the delay, median over the repeats, of every hop; the one that
grew most is where the trace finds the delay.
Invariants: only what was started here is ended, on an interrupt, too.
Failure: `ServicesError`; `BenchError` when the run does not begin to train, ends by itself, or does not close them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ops.bench import result
from ops.bench.observe.delays import MEMBER, PLANTS, Plant, Planted, overrides, took_s
from ops.bench.observe.stages import Running, running, served, set_up
from ops.bench.soak import BenchError
from ops.replay.sources import KafkaSource, Source, decode
from ops.trace.gather import gather_group
from ops.trace.groups import sample_life
from ops.trace.life import Life
from schemas.records import Outcome, PromptGroup
from topics.catalog import LEDGER, PROMPTS
from topics.clock import Deadline
from topics.kafka.raw import RawLog

WITHIN = 0.1  # of the delay: as good as found
_RUN = "observe-trace"
_LOOK_S = 0.5
_CLOSE_S = 300.0  # a busy machine; a quiet one takes a tenth of it

Hops = Mapping[str, float]  # name -> seconds


@dataclass(frozen=True, kw_only=True)
class TraceSize:
    """How often each plant comes."""

    repeats: int = 7

    @classmethod
    def quick(cls) -> TraceSize:
        """Enough to see that it works."""
        return cls(repeats=1)


@dataclass(frozen=True, kw_only=True)
class Traced:
    """The lives of one plant."""

    plant: Plant
    delayed: tuple[Hops, ...]
    usual: tuple[Hops, ...]  # of the same fate, without a delay
    planted_s: tuple[float, ...]  # what the delays really took
    ends: tuple[str, ...]  # what became of those that were delayed

    @property
    def injected_s(self) -> float:
        """The delay, median."""
        return median(self.planted_s)

    @property
    def usual_s(self) -> float:
        """What the hop takes without it, median."""
        return median(hops.get(self.plant.hop, 0.0) for hops in self.usual)

    @property
    def found_s(self) -> float:
        """By how much the hop is longer with it, median."""
        return self.grown()[self.plant.hop]

    @property
    def error(self) -> float:
        """Of what was found, as a share of the delay."""
        return self.found_s / self.injected_s - 1

    @property
    def found_at(self) -> str:
        """The hop that grew most."""
        grown = self.grown()
        return max(grown, key=lambda name: grown[name])

    @property
    def share_within(self) -> float:
        """Share of the single lives in which it is found within `WITHIN`."""
        hop = self.plant.hop
        near = [
            abs(hops.get(hop, 0.0) - self.usual_s - planted_s) <= WITHIN * planted_s
            for hops, planted_s in zip(self.delayed, self.planted_s, strict=True)
        ]
        return sum(near) / len(near)

    def grown(self) -> dict[str, float]:
        """Hop -> seconds by which its median is longer with the delay."""
        names = {self.plant.hop, *(name for hops in self.delayed for name in hops)}
        return {name: _median(self.delayed, name) - _median(self.usual, name) for name in sorted(names)}


def bench_trace(size: TraceSize, *, say: Callable[[str], None]) -> result.BenchResult:
    """See the module.

    Raises:
        ServicesError: the servers do not start.
        BenchError: see the module.
    """
    noise = result.Noise()
    with served() as (folder, servers):  # (1)
        say("the servers are up")
        planted = folder / "planted"
        run_file = set_up(_RUN, folder, servers=servers, overrides=overrides(planted, repeats=size.repeats))
        with running(run_file) as run:  # (2)
            say("the learner is at work")
            source = KafkaSource(RawLog(servers.bootstrap), run=_RUN)
            groups = _await_closed(run, source, num_groups=2 * len(PLANTS) * size.repeats)
            say(f"{len(groups)} planted groups are closed")
        lives = traced(source, groups, took=took_s(planted))  # (3)
    return trace_result(lives, noise=noise)


def traced(source: Source, groups: Mapping[int, Planted], *, took: Mapping[int, float]) -> list[Traced]:
    """Every planted group, by plant.

    Args:
        took: group -> seconds that its delay really took.
    """
    lives = {group: sample_life(gather_group(source, group), MEMBER, run=source.run) for group in groups}
    found = []
    for plant in PLANTS:
        delayed = [group for group, each in groups.items() if each.plant == plant and each.delay_s]
        usual = [group for group, each in groups.items() if each.plant == plant and not each.delay_s]
        found.append(
            Traced(
                plant=plant,
                delayed=tuple(_hops(lives[group]) for group in delayed),
                usual=tuple(_hops(lives[group]) for group in usual),
                planted_s=tuple(took[group] for group in delayed),
                ends=tuple(lives[group].end for group in delayed),
            )
        )
    return found


def trace_result(lives: Sequence[Traced], *, noise: result.Noise) -> result.BenchResult:
    """The table and the numbers."""
    values: dict[str, result.Number] = {}
    for each in lives:
        values |= {
            f"{each.plant.name}_injected_s": round(each.injected_s, 4),
            f"{each.plant.name}_usual_s": round(each.usual_s, 4),
            f"{each.plant.name}_found_s": round(each.found_s, 4),
            f"{each.plant.name}_error_share": round(each.error, 4),
            f"{each.plant.name}_within_share": round(each.share_within, 3),
            f"{each.plant.name}_is_at_its_hop": int(each.found_at == each.plant.hop),
            f"{each.plant.name}_fate_share": round(_fate_share(each), 3),
        }
    table = result.Table(
        title="a delay at one hop of a sample, and what its trace says",
        headers=("fate", "delayed hop", "injected, s", "usual, s", "found, s", "error", "within 10 %", "hop found"),
        rows=tuple(_row(each) for each in lives),
    )
    notes = (
        "Found: by how much the hop is longer than without the delay; medians. Within: share of the single samples.",
        *(f"{each.plant.fate}, {each.plant.at}: {each.ends[0]}" for each in lives),
    )
    repeats = len(lives[0].delayed) if lives else 0
    return result.BenchResult(
        name="trace", table=table, values=values, notes=notes, noise=noise.values(num_repeats=repeats)
    )


def _hops(life: Life) -> Hops:
    """What each hop took; of several of a name, as of several engines, the longest."""
    found: dict[str, float] = {}
    for hop in life.hops:
        found[hop.name] = max(hop.took_s, found.get(hop.name, 0.0))
    return found


def _row(each: Traced) -> tuple[str, ...]:
    return (
        each.plant.fate,
        each.plant.hop,
        f"{each.injected_s:.3f}",
        f"{each.usual_s:.3f}",
        f"{each.found_s:.3f}",
        f"{each.error:+.1%}",
        f"{each.share_within:.0%}",
        each.found_at,
    )


def _fate_share(each: Traced) -> float:
    return sum(end.startswith(each.plant.fate) for end in each.ends) / len(each.ends)


def _median(lives: Sequence[Hops], name: str) -> float:
    return median(hops.get(name, 0.0) for hops in lives)


def _await_closed(run: Running, source: Source, *, num_groups: int) -> dict[int, Planted]:
    """Planted groups; all have an outcome."""
    deadline = Deadline.after(_CLOSE_S)
    while True:
        groups = dict(sorted(_planted(source).items())[:num_groups])
        missing = groups.keys() - _closed(source)
        if len(groups) == num_groups and not missing:
            return groups
        run.check()
        if deadline.expired:
            raise BenchError(
                f"{num_groups - len(groups) + len(missing)} of {num_groups} planted groups are not closed after "
                f"{_CLOSE_S:g} s",
                hint="is the machine very busy?",
            )
        time.sleep(_LOOK_S)


def _planted(source: Source) -> dict[int, Planted]:
    records = (decode(PROMPTS, raw) for raw in source.read(PROMPTS, source.window(PROMPTS)))
    said = {record.group: Planted.of(record.metadata) for record in records if isinstance(record, PromptGroup)}
    return {group: planted for group, planted in said.items() if planted is not None}


def _closed(source: Source) -> set[int]:
    records = (decode(LEDGER, raw) for raw in source.read(LEDGER, source.window(LEDGER)))
    return {record.group for record in records if isinstance(record, Outcome)}
