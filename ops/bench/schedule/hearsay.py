"""What the scheduler hears of a simulated run, and what it commands then.

Role: between the simulator and the policies; signals, standing commands and `decide` are the scheduler's own.
Data in: a plant. Data out: orders.
Invariants: the policy sees events and lag only, never the plant; what it commands besides replicas is noted as given
(`publish` follows the engines anyway).
Failure: as the policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from consumers.scheduler.policy import Policy
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.signals import Signals
from consumers.scheduler.snapshot import LagKey, Scalable
from consumers.scheduler.standing import StandingCommands
from ops.bench.schedule.plant import Engine, Plant
from ops.bench.schedule.pool import Order
from pipeline.history import LedgerView
from schemas.reasons import Result
from schemas.records import LineageStarted, Outcome, StageEvent, Version
from topics.catalog import PROMPTS, SAMPLES

_RUN, _GROUP = "simulated", "rlweave.simulated.rollout"
_LINEAGE = 1
RATE_WINDOW_S = 60.0  # model seconds: two steps
SETTINGS = SchedulerSettings(rate_window_s=RATE_WINDOW_S)


def fleet(slots: int, *, rollouts: int) -> tuple[Scalable, ...]:
    """Both sides of a pool, each with one process at least."""
    return (
        Scalable(target="rollout", group=_GROUP, least=1, most=slots - 1, initial=rollouts),
        Scalable(target="learner", group="", least=1, most=slots - 1, initial=slots - rollouts),
    )


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What a process says."""

    stage: str
    instance: str
    kind: str
    name: str
    version: Version | None = None


def _rank(instance: str, kind: str, *, name: str) -> _Said:
    return _Said(stage="learner", instance=instance, kind=kind, name=name)


class Hearsay:
    """The scheduler of a simulated run; call it as the plant's observer.

    Args:
        policy: decides.
        settings: in model seconds.
    """

    def __init__(self, policy: Policy, *, settings: SchedulerSettings) -> None:
        self._policy = policy
        self._settings = settings
        self._ledger = LedgerView(1)
        begun = LineageStarted(
            run=_RUN, lineage=_LINEAGE, parent=0, branch_step=0, seq=0, holder="learner", started_unix_ms=0
        )
        self._ledger.add(0, begun)
        self._signals = Signals(began_s=0.0, ledger=self._ledger, rate_window_s=settings.rate_window_s)
        self._commands = StandingCommands(run=_RUN)
        self._seqs: dict[str, itertools.count[int]] = {}
        self._phase = ("waiting_for_data", 0.0)
        self._engines: set[str] = set()
        self._step = -1
        self._ranks: list[str] = []  # instances of the learner
        self._num_ranks = 0  # there ever were

    def entered(self, plant: Plant, phase: str) -> None:
        """The learner goes from one phase to the next."""
        before, since_s = self._phase
        self._phase = (phase, plant.now_s)
        for rank in self._ranks:
            self._say(_rank(rank, "phase_ended", name=before), now_s=plant.now_s, spent_s=plant.now_s - since_s)
            self._say(_rank(rank, "phase_began", name=phase), now_s=plant.now_s)

    def orders(self, plant: Plant) -> list[Order]:
        """Heartbeats of all, then a decision."""
        self._hear(plant)
        snapshot = replace(
            self._signals.snapshot(now_s=plant.now_s, lag=self._lag(plant), standing=self._commands.standing),
            fleet=fleet(plant.workload.slots, rollouts=plant.rules.rollouts),
            slots=plant.workload.slots,
            groups_per_step=plant.workload.groups_per_step,
            group_size=plant.workload.group_size,
            max_steps=plant.num_steps,
        )
        drafts = self._policy(snapshot, self._settings)
        for draft in drafts:
            self._commands.issued(draft, now_s=plant.now_s)
        return [
            Order(target=draft.target, replicas=draft.replicas, reason=draft.reason)
            for draft in drafts
            if draft.kind == "scale" and draft.replicas is not None
        ]

    def _lag(self, plant: Plant) -> Mapping[LagKey, int | None]:
        return {(_GROUP, PROMPTS.name): plant.num_unstarted + sum(map(_in_flight, plant.engines))}

    def _hear(self, plant: Plant) -> None:
        self._hear_ranks(plant)
        if plant.learner.step != self._step:
            self._hear_step(plant)
        for engine in plant.engines:
            self._hear_engine(plant, engine)
        here = {f"rollout.{engine.number}" for engine in plant.engines}
        for gone in self._engines - here:
            self._say(_Said(stage="rollout", instance=gone, kind="notice", name="stopped"), now_s=plant.now_s)
        self._engines = here

    def _hear_ranks(self, plant: Plant) -> None:
        if plant.pool.ranks != len(self._ranks):  # all ranks end, and start again as so many
            self._phase = (plant.learner.phase, plant.now_s)
            for gone in self._ranks:
                self._say(_rank(gone, "notice", name="stopped"), now_s=plant.now_s)
            begin = self._num_ranks
            self._num_ranks += plant.pool.ranks
            self._ranks = [f"learner.{number}" for number in range(begin, self._num_ranks)]
            for rank in self._ranks:
                self._say(_rank(rank, "phase_began", name=plant.learner.phase), now_s=plant.now_s)
        for rank in self._ranks:
            self._say(_rank(rank, "heartbeat", name="heartbeat"), now_s=plant.now_s)

    def _hear_step(self, plant: Plant) -> None:
        self._step = step = plant.learner.step
        self._signals.add_manifest(Version(lineage=_LINEAGE, step=step))
        if step:
            outcome = Outcome(
                run=_RUN,
                group=step,
                lineage=_LINEAGE,
                step=step,
                seq=step,
                result=Result.TRAINED,
                members=(),
                closed_unix_ms=0,
            )
            self._ledger.add(0, outcome)
        self._say(_rank(self._ranks[0], "notice", name="step"), now_s=plant.now_s, step=float(step))

    def _hear_engine(self, plant: Plant, engine: Engine) -> None:
        said = _Said(
            stage="rollout",
            instance=f"rollout.{engine.number}",
            kind="heartbeat",
            name="heartbeat",
            version=Version(lineage=_LINEAGE, step=engine.version),
        )
        self._say(
            said,
            now_s=plant.now_s,
            free_slots=float(max(0, engine.places - len(engine.running))),
            running_sequences=float(len(engine.running)),
            prompts_in_flight=float(_in_flight(engine)),
            **{f"records_written{{topic={SAMPLES.name}}}": float(engine.num_made)},
        )

    def _say(self, said: _Said, *, now_s: float, **gauges: float) -> None:
        event = StageEvent(
            run=_RUN,
            stage=said.stage,
            instance=said.instance,
            kind=said.kind,
            name=said.name,
            seq=next(self._seqs.setdefault(said.instance, itertools.count())),
            gauges=gauges,
            version=said.version,
            monotonic_s=now_s,
            unix_ms=0,
        )
        self._signals.add_event(event, now_s=now_s)


def _in_flight(engine: Engine) -> int:
    """Groups that an engine has taken and not finished."""
    return len({id(one.group) for one in engine.running} | {id(group) for group in engine.pending})
