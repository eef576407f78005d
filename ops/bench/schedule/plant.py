"""A simulated run: engines, a learner, a link and the rules between them, in model seconds.

Role: what the policies command when there is no cluster to try them on. Policies are the real ones, and see the run
through the scheduler's own signals (`hearsay`).
Data in: a workload, the split at the start, what decides. Data out: `Figures`.
Invariants: the rules are those of the stages: groups are taken whole, from the head of the queue, by engines with room;
credit bounds the open groups; the oldest groups are cut first, those beyond the staleness bound never; a slot that
leaves finishes what it has; ranks change between two steps. Nothing is drawn: the same input gives the same run.
Failure: `RuntimeError` when nothing can happen any more.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ops.bench.schedule.figures import Figures, Tally
from ops.bench.schedule.link import CHECKPOINTS, WEIGHTS, Link
from ops.bench.schedule.pool import Order, PoolState
from ops.bench.schedule.workload import Workload

WARM_UP_STEPS = 4  # before the figures begin


@dataclass(eq=False)
class Group:
    """A group that is open."""

    number: int
    lengths: tuple[int, ...]
    num_started: int = 0
    num_done: int = 0
    birth: int = 0  # step of the oldest version that made a token of it
    ready_s: float = math.inf


@dataclass(eq=False)
class Running:
    """A sequence in an engine."""

    group: Group
    end_s: float


@dataclass(eq=False)
class Engine:
    """A rollout slot."""

    number: int
    places: int
    version: int = 0
    is_leaving: bool = False
    num_made: int = 0  # samples
    running: list[Running] = field(default_factory=list)
    pending: deque[Group] = field(default_factory=deque)  # taken, with members that wait for a place
    next_end_s: float = math.inf  # of what runs

    @property
    def num_free(self) -> int:
        """Places for sequences that none waits for."""
        waiting = sum(len(group.lengths) - group.num_started for group in self.pending)
        return self.places - len(self.running) - waiting

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing in hand."""
        return not self.running and not self.pending


@dataclass(kw_only=True)
class Learner:
    """What trains."""

    step: int = 0
    phase: str = "waiting_for_data"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a run is carried on."""

    rollouts: int
    ranks: int
    slots: int | None  # shared; None: both sides have what they have (lockstep of all slots)
    max_staleness: int
    publish_lag: int  # d of the credit
    extra_s: float = 0.0  # of each step
    managed: bool = True


class Observer(Protocol):
    """The scheduler of a run."""

    def entered(self, plant: Plant, phase: str) -> None:
        """The learner goes from one phase to the next."""
        ...

    def orders(self, plant: Plant) -> list[Order]:
        """What is to change."""
        ...


class Plant:
    """See the module.

    Args:
        workload: what happens.
        rules: how.
        num_steps: steps to the end.
        observer: asked every `tick_s`, and at each step; gives the orders that are new.
    """

    def __init__(
        self, workload: Workload, rules: Rules, *, num_steps: int, observer: Observer | None = None, tick_s: float = 1.0
    ) -> None:
        self.workload = workload
        self.rules = rules
        self.num_steps = num_steps
        self.now_s = 0.0
        self.learner = Learner()
        self.pool = PoolState(rollouts=rules.rollouts, ranks=rules.ranks, slots=rules.slots)
        self.engines = [Engine(number=number, places=workload.sequences_per_slot) for number in range(rules.rollouts)]
        self.queue: deque[Group] = deque()
        self.ready: list[Group] = []
        self.tally = Tally()
        self.notes: list[str] = []  # orders
        self._observer = observer
        self._tick_s = tick_s
        self._numbers = itertools.count()
        self._num_engines = rules.rollouts
        self._num_open = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._link = Link(bytes_s=workload.link_bytes_s, managed=rules.managed)
        self._speed = workload.tokens_per_s(step=0, num_steps=num_steps)
        self._measured_from_s = 0.0

    @property
    def credit(self) -> int:
        """Groups that may be open."""
        rules = self.rules
        return max(1, rules.max_staleness + 1 - rules.publish_lag) * self.workload.groups_per_step

    @property
    def num_unstarted(self) -> int:
        """Groups that no engine has taken."""
        return len(self.queue)

    def run(self, policy: str) -> Figures:
        """To the last step."""
        self._admit()
        self._tick()
        while self.learner.step < self.num_steps:
            self._next()
        over_s = self.now_s - self._measured_from_s
        return self.tally.figures(policy, over_s=over_s, num_steps=self.num_steps - WARM_UP_STEPS)

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (when_s, next(self._order), what))

    def _next(self) -> None:
        """Go to the next thing that happens."""
        ends_s = min((engine.next_end_s for engine in self.engines), default=math.inf)
        due_s = min(self._events[0][0] if self._events else math.inf, ends_s, self._link.next_s())
        if math.isinf(due_s):
            raise RuntimeError(f"nothing can happen any more at {self.now_s:g} s, step {self.learner.step}")
        self._pass(due_s)
        self._link.advance(due_s)
        if ends_s <= due_s:
            self._finish()
        while self._events and self._events[0][0] <= due_s:
            heapq.heappop(self._events)[2]()
        self._work()

    def _pass(self, to_s: float) -> None:
        spent_s = to_s - self.now_s
        if self.learner.phase == "waiting_for_data":
            self.tally.waited_s += spent_s
        self.tally.used_s += spent_s * sum(len(engine.running) for engine in self.engines)
        self.tally.room_s += spent_s * sum(engine.places for engine in self.engines)
        self.now_s = to_s

    def _work(self) -> None:
        """All that follows from what has happened, without time passing."""
        self._admit()
        self._take()
        self._retire()
        if self.learner.phase == "waiting_for_data":
            self._cut()

    def _admit(self) -> None:
        while self._num_open < self.credit:
            number = next(self._numbers)
            self.queue.append(Group(number=number, lengths=self.workload.lengths(number)))
            self._num_open += 1

    def _take(self) -> None:
        size = self.workload.group_size
        takers = [engine for engine in self.engines if not engine.is_leaving and self._may_take(engine)]
        while self.queue and (taker := max(takers, key=lambda one: one.num_free, default=None)) is not None:
            if taker.num_free <= 0:
                break
            for _ in range(min(len(self.queue), -(-taker.num_free // size))):
                taker.pending.append(self.queue.popleft())
                self._start(taker)
        for engine in self.engines:
            self._start(engine)

    def _may_take(self, engine: Engine) -> bool:
        """An engine takes nothing that would be too old at once."""
        return self.learner.step - engine.version <= self.rules.max_staleness

    def _start(self, engine: Engine) -> None:
        while engine.pending and len(engine.running) < engine.places:
            group = engine.pending[0]
            if not group.num_started:
                group.birth = engine.version
            group.birth = min(group.birth, engine.version)
            tokens = group.lengths[group.num_started]
            end_s = self.now_s + tokens / self._speed
            engine.running.append(Running(group=group, end_s=end_s))
            engine.next_end_s = min(engine.next_end_s, end_s)
            group.num_started += 1
            if group.num_started == len(group.lengths):
                engine.pending.popleft()

    def _finish(self) -> None:
        for engine in [each for each in self.engines if each.next_end_s <= self.now_s]:
            done = [one for one in engine.running if one.end_s <= self.now_s]
            engine.running = [one for one in engine.running if one.end_s > self.now_s]
            engine.next_end_s = min((one.end_s for one in engine.running), default=math.inf)
            for one in done:
                one.group.num_done += 1
                engine.num_made += 1
                if one.group.num_done == len(one.group.lengths):
                    one.group.ready_s = self.now_s
                    self.ready.append(one.group)

    def _retire(self) -> None:
        """Engines that have finished go; their slots come to the learner after a while."""
        for engine in [one for one in self.engines if one.is_leaving and one.is_empty]:
            self.engines.remove(engine)
            self.pool.left()
            self.at(self.now_s + self.workload.switch_s, self.pool.rank_came)

    def _cut(self) -> None:
        workload, learner = self.workload, self.learner
        fresh = [group for group in self.ready if learner.step - group.birth <= self.rules.max_staleness]
        stale = len(self.ready) - len(fresh)
        self.ready, self._num_open = fresh, self._num_open - stale
        self.tally.num_stale += stale * workload.group_size
        if stale:
            self._admit()
        if len(fresh) < workload.groups_per_step:
            return
        fresh.sort(key=lambda group: (group.birth, group.number))
        batch, self.ready = fresh[: workload.groups_per_step], fresh[workload.groups_per_step :]
        self.tally.max_age = max(self.tally.max_age, *(learner.step - group.birth for group in batch))
        self.tally.delays_s += [self.now_s - group.ready_s for group in batch]
        num_tokens = sum(sum(group.lengths) for group in batch)
        self._enter("forward_backward")
        self.at(self.now_s + workload.training_s(num_tokens, ranks=self.pool.ranks), self._stage)

    def _stage(self) -> None:
        self._enter("staging_weights")
        self.at(self.now_s + self.workload.fixed_s + self.rules.extra_s, self._publish)

    def _publish(self) -> None:
        workload, learner = self.workload, self.learner
        learner.step += 1
        self._num_open -= workload.groups_per_step
        self.tally.num_trained += workload.groups_per_step * workload.group_size
        self._enter("waiting_for_data")
        self._set_speed(workload.tokens_per_s(step=learner.step, num_steps=self.num_steps))
        if learner.step % workload.checkpoint_every == 0:
            self._link.send(CHECKPOINTS, workload.checkpoint_bytes, now_s=self.now_s, done=lambda _: None)
        step, beside = learner.step, self._link.busy(CHECKPOINTS)
        self._link.send(
            WEIGHTS,
            workload.publish_bytes,
            now_s=self.now_s,
            done=lambda took_s: self._served(step, took_s=took_s, beside=beside),
        )
        if learner.step == WARM_UP_STEPS:
            self.tally, self._measured_from_s = Tally(num_commands=self.tally.num_commands), self.now_s
        self._obey()

    def _served(self, step: int, *, took_s: float, beside: bool) -> None:
        self.tally.publishes_s[beside].append(took_s)
        for engine in self.engines:
            engine.version = max(engine.version, step)

    def _set_speed(self, speed: float) -> None:
        if speed == self._speed:
            return
        for engine in self.engines:
            for one in engine.running:
                left = (one.end_s - self.now_s) * self._speed
                one.end_s = self.now_s + left / speed
            engine.next_end_s = min((one.end_s for one in engine.running), default=math.inf)
        self._speed = speed

    def _enter(self, phase: str) -> None:
        self.learner.phase = phase
        if self._observer is not None:
            self._observer.entered(self, phase)

    def _tick(self) -> None:
        self._obey()
        self.at(self.now_s + self._tick_s, self._tick)

    def _obey(self) -> None:
        for order in self._observer.orders(self) if self._observer is not None else ():
            self.tally.num_commands += 1
            self.notes.append(f"{self.now_s:.0f} s, step {self.learner.step}: {order.target} {order.reason}")
            self.pool.order(order)
        if self.learner.phase == "waiting_for_data":
            self._change_ranks()
        for _ in range(self.pool.num_to_retire(sum(not engine.is_leaving for engine in self.engines))):
            max((one for one in self.engines if not one.is_leaving), key=lambda one: one.number).is_leaving = True

    def _change_ranks(self) -> None:
        """Between two steps, and while it waits for data: give slots back, or use those that have come."""
        for _ in range(self.pool.change_ranks()):
            self.at(self.now_s + self.workload.switch_s, self._arrive)

    def _arrive(self) -> None:
        self.pool.engine_came()
        engine = Engine(number=self._num_engines, places=self.workload.sequences_per_slot, version=self.learner.step)
        self._num_engines += 1
        self.engines.append(engine)
