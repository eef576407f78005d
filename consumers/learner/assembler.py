"""From three streams to batches: join, dedup, complete groups, deadlines, staleness, and one outcome for each group.

    prompt ------> open --all members final--> ready --cut--> in batch --mark_trained--> closed (trained)
    sample, reward  |                            |
                    '- deadline, evict, too few -+- over the bound, unfit members -----> closed (dropped)

Role: the heart of the learner, and pure: no I/O, no torch; the clock is handed in.
Data in: envelopes of prompts, samples and rewards, in any order across partitions, any number of times.
Data out: `Batch`es to train, `OutcomeDraft`s to write, the closed set and positions for the checkpoint.
Invariants:
- a group that was closed stays closed: its records are counted and ignored, so nothing is trained twice (promise 2);
- an outcome is decided once per group and names every member id once (promises 1 and 8);
- the age bound is enforced in `cut` and only there (promise 7); `evict` and deadlines free what cannot be trained;
- the closed set and `positions` move together, when outcomes are taken: write what `take_outcomes` gave in the same
  transaction as the step, and a checkpoint made right after it is consistent;
- deadlines run on time in which an engine was ready (promise 13); memory is bounded by `over_limit` and the intake.
Failure: none of its own; what is wrong with a record becomes a reason, a count or a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import takewhile

from consumers.learner.assembler_settings import AssemblerSettings
from consumers.learner.batch import Batch, TrainGroup
from consumers.learner.gaps import Gap
from consumers.learner.groups import Attempt, OpenGroup
from consumers.learner.outcomes import OutcomeDraft, dropped_draft, trained_draft
from consumers.learner.ready import ModelLimits, Offer, ReadyGroups, incomplete, offer_of, train_group
from consumers.learner.reports import Tally, Waiting, waiting_of
from consumers.learner.signal import SignalFilter
from consumers.learner.staleness import age_of
from consumers.learner.table import GroupTable
from pipeline.history import ClosedSet, Lineages
from schemas.reasons import Reason
from schemas.records import Version
from topics.clock import Clock
from topics.log import Envelope, Positions, TopicPartition


class Assembler:
    """Joins, ages and cuts.

    Args:
        settings: see there.
        clock: monotonic time for deadlines.
        lineages: which versions survive; may learn of more later.
        closed: groups closed in the surviving history up to `step` (of the checkpoint); copied.
        step: of the learner.
    """

    def __init__(
        self,
        settings: AssemblerSettings,
        *,
        clock: Clock,
        lineages: Lineages,
        closed: ClosedSet | None = None,
        step: int = 0,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._lineages = lineages
        self._step = step
        self._table = GroupTable(
            rule=settings.rewards,
            min_group_members=settings.min_group_members,
            closed=ClosedSet() if closed is None else closed.copy(),
            completed=self._complete,
            needs_reference=settings.needs_reference,
            first_group=settings.first_group,
        )
        limits = ModelLimits(
            vocab_size=settings.vocab_size, context_tokens=settings.context_tokens, unverified=settings.unverified
        )
        self._signal = signal = SignalFilter(limit=settings.no_signal_limit, by_step=settings.steps_are_signal)
        self._ready = ReadyGroups(settings.staleness, lineages=lineages, limits=limits, signal=signal, unfit=self._drop)
        self.ready_ages: Callable[[], list[int]] = lambda: self._ready.ages(self._step)  # of waiting groups
        self._in_batch: dict[int, OpenGroup] = {}
        self._drafts: list[OutcomeDraft] = []
        self._last_tick: tuple[float, bool] | None = None  # (time, engine ready)
        self.num_completed = 0  # groups that became ready; only grows
        self.blocked_by: int | None = None  # the group the last `cut` waited for (on_stale="wait")

    def add(self, envelope: Envelope) -> None:
        """Take one record."""
        self._table.add_all((envelope,))

    def add_all(self, envelopes: Iterable[Envelope]) -> None:
        """Take records in the order they were read."""
        self._table.add_all(envelopes)

    def tick(self, *, engine_ready: bool) -> None:
        """Let the deadline's clock run: time counts when an engine was ready at both ends of the interval."""
        now_s = self._clock.monotonic()
        if self._last_tick is not None and engine_ready and self._last_tick[1]:
            self._table.now_s += now_s - self._last_tick[0]
        self._last_tick = (now_s, engine_ready)

    @property
    def ready_time_s(self) -> float:
        """The deadline's clock: seconds in which an engine was ready."""
        return self._table.now_s

    @property
    def has_expired(self) -> bool:
        """Whether a group, or records without a prompt, are past their deadline. Their records may still be in the
        log, unread: read up to its present end before `close_expired`."""
        oldest = next(iter(self._table.open.values()), None)
        held = next(iter(self._table.held.values()), None)
        return (
            (oldest is not None and self._is_expired(oldest.opened_s, self.ready_time_s))
            or (held is not None and self._is_expired(held.since_s, self.ready_time_s))
            or self._table.has_gap_since(self.ready_time_s - self._settings.deadline_s)
        )

    def close_expired(self, *, at_s: float | None = None) -> None:
        """End what was past its deadline at `at_s` on the deadline's clock (default: now).

        The best attempt so far counts: with enough valid members the group is ready as it is, else it is dropped.
        Records whose prompt never came are given up with a notice.
        """
        limit_s = self.ready_time_s if at_s is None else at_s
        # Both tables are in order of time, so the expired ones come first.
        groups = self._table.open.values()
        for group in list(takewhile(lambda each: self._is_expired(each.opened_s, limit_s), groups)):
            group.freeze()
            self._complete(group)
        held = self._table.held.items()
        for number, _ in list(takewhile(lambda item: self._is_expired(item[1].since_s, limit_s), held)):
            self._table.give_up(number)
        self._table.end_gaps(limit_s - self._settings.deadline_s)

    def expect_gap(self, gap: Gap) -> None:
        """Prompts of a partition may be gone: what the next one there shows to be missing is open from then on, and
        ends by its deadline as every group does."""
        self._table.expect_gap(gap)

    def evict(self, step: int) -> None:
        """Close incomplete groups that can only end as stale: saves their credit, decides nothing `cut` would not."""
        self._step = step
        for group in list(self._table.open.values()):
            births = self._births(group)
            if births and self._settings.staleness.is_hopeless(max(births), step=step):
                self._drop(group, Reason.STALE)

    def cut(self, step: int, num_groups: int, *, allow_smaller: bool = False) -> Batch | None:
        """The batch that takes the learner from `step` to `step + 1`; None when there is none to be had now.

        Groups over the bound, and those with too few members of surviving versions, are closed on the way.

        Args:
            step: of the learner now: ages are `step` minus birth step.
            num_groups: groups in the batch.
            allow_smaller: take what is there, at least one group (at the end of the data).
        """
        self._step = step
        self._ready.drop_stale(step)
        least = 1 if allow_smaller else num_groups
        self.blocked_by = self.blocking(step) if len(self._ready) >= least else None
        if self.blocked_by is not None or len(self._ready) < least:
            return None
        chosen = self._ready.take(num_groups, step=step)
        if len(chosen) < least:
            for group in chosen:
                self._ready.push(group)
            return None
        return Batch(step=step + 1, groups=self._to_batch(chosen, step=step))

    def offers(self, step: int, num_groups: int) -> list[Offer]:
        """The first `num_groups` groups that a cut at `step` could take, in its order; nothing is taken.

        As in `cut`, groups over the bound and those with too few members are closed on the way.
        """
        self._step = step
        self._ready.drop_stale(step)
        first = self._ready.take(num_groups, step=step)
        for group in first:
            self._ready.push(group)
        return [offer_of(group) for group in first]

    def take(self, step: int, numbers: Collection[int]) -> tuple[TrainGroup, ...]:
        """Take these of the groups that were offered at `step` into a batch, as `cut` does with those it chooses.

        Raises:
            ValueError: one of them is not ready; nothing was taken.
        """
        self._step = step
        return self._to_batch(self._ready.take_named(numbers), step=step)

    def mark_trained(self, batch: Batch) -> None:
        """Close the groups of a batch that `cut` gave, as trained by step `batch.step`.

        Raises:
            ValueError: a group of it is not waiting for that; nothing was closed.
        """
        unknown = [each.group for each in batch.groups if each.group not in self._in_batch]
        if unknown:
            raise ValueError(f"groups {unknown} are in no batch that was cut and not marked")
        for trained in batch.groups:
            group = self._in_batch.pop(trained.group)
            self._close(group, trained_draft(group, trained, age_of=self._age_of))
        self._step = batch.step
        self._signal.stepped()

    def blocking(self, step: int) -> int | None:
        """A healthy open group that one more step would push over the bound, when that is to be waited for."""
        rule = self._settings.staleness
        if rule.on_stale != "wait":
            return None
        for group in self._table.open.values():
            if any(rule.must_wait_for(birth, step=step) for birth in self._births(group)):
                return group.number
        return None

    def close_open(self, reason: Reason) -> None:
        """Drop every group that has no outcome and is in no batch, for example at the last step (`RUN_ENDED`)."""
        for number in list(self._table.held):
            self._table.give_up(number)
        for group in [each for each in self._table.unclosed.values() if each.number not in self._in_batch]:
            self._close(group, dropped_draft(group, reason, age_of=self._age_of, valid_reason=lambda _: reason))
        self._ready.clear()

    def take_outcomes(self) -> list[OutcomeDraft]:
        """Outcomes decided since the last call, each once. From here on their groups are in the closed set."""
        drafts, self._drafts = self._drafts, []
        self._table.settle(draft.group for draft in drafts)
        return drafts

    def learn_closed(self, numbers: Iterable[int]) -> None:
        """Groups that another rank closed: they are closed here as well, and the set stays a watermark."""
        for number in numbers:
            self._table.closed.add(number)

    @property
    def num_unwritten(self) -> int:
        """Outcomes decided and not taken."""
        return len(self._drafts)

    @property
    def num_seen(self) -> int:
        """Groups known of: closed ones, and those whose prompt was read."""
        return len(self._table.closed) + self.num_unsettled

    @property
    def num_unsettled(self) -> int:
        """Groups whose prompt was read and whose outcome was not taken."""
        return len(self._table.closing) + len(self._table.unclosed)

    @property
    def closed(self) -> ClosedSet:
        """A copy of the closed set: groups whose outcome was taken."""
        return self._table.closed.copy()

    def positions(self, read: Positions) -> dict[TopicPartition, int]:
        """Where a restart must read from: the lowest offset of a record of an unclosed group, else of what was `read`
        (the next offset per partition, `Reader.positions`)."""
        return self._table.positions(read)

    @property
    def tally(self) -> Tally:
        """Counts and notices, to be taken."""
        return self._table.tally

    @property
    def num_unclosed(self) -> int:
        """Groups whose prompt was read and whose outcome is not decided."""
        return len(self._table.unclosed)

    @property
    def num_open(self) -> int:
        """Of these, the ones that wait for records."""
        return len(self._table.open)

    @property
    def num_ready(self) -> int:
        """Of these, the ones that wait for a batch."""
        return len(self._ready)

    @property
    def num_orphans(self) -> int:
        """Groups of which records are held and no prompt was read."""
        return len(self._table.held)

    @property
    def oldest_open_s(self) -> float:
        """Time the oldest group that waits for records has been open, on the deadline's clock; 0 without one."""
        first = next(iter(self._table.open.values()), None)
        return 0.0 if first is None else self.ready_time_s - first.opened_s

    @property
    def buffered_bytes(self) -> int:
        """Encoded bytes of the records that are kept."""
        return self._table.buffered_bytes

    @property
    def over_limit(self) -> bool:
        """Whether the buffer holds more than it should; the intake then pauses the samples."""
        return self._table.buffered_bytes > self._settings.buffer_bytes

    def waiting(self) -> Waiting:
        """What incomplete groups lack."""
        return waiting_of(list(self._table.open.values()))

    def _to_batch(self, chosen: list[OpenGroup], *, step: int) -> tuple[TrainGroup, ...]:
        chosen.sort(key=lambda group: group.number)
        self._in_batch.update((group.number, group) for group in chosen)
        return tuple(train_group(group, step=step) for group in chosen)

    def _complete(self, group: OpenGroup) -> None:
        """Make a group that gets no better ready, or drop it; its other attempts are forgotten."""
        if self._table.open.pop(group.number, None) is None:
            return
        winner, is_past = group.winner, group.number < self._settings.first_group
        if is_past or winner is None or not group.is_trainable(winner):
            self._drop(group, Reason.RUN_ENDED if is_past else incomplete(group))
            return
        group.attempts = {winner.name: winner}
        self.num_completed += 1
        if self._signal.drops(group):
            self._drop(group, Reason.NO_SIGNAL)
        else:
            self._ready.push(group)

    def _drop(self, group: OpenGroup, reason: str) -> None:
        reason_of = self._settings.staleness.reason_of
        self._close(group, dropped_draft(group, reason, age_of=self._age_of, valid_reason=reason_of))

    def _close(self, group: OpenGroup, draft: OutcomeDraft) -> None:
        self._table.forget(group)
        self._drafts.append(draft)
        self._table.tally.closed(draft)

    def _is_expired(self, since_s: float, at_s: float) -> bool:
        return since_s + self._settings.deadline_s <= at_s

    def _age_of(self, version: Version | None) -> int | None:
        return age_of(version, lineages=self._lineages, step=self._step)

    def _births(self, group: OpenGroup) -> list[int]:
        """Birth step of each attempt that may still be trained: the oldest of its surviving members read so far."""
        births = (self._birth(attempt) for attempt in group.hopeful_attempts())
        return [birth for birth in births if birth is not None]

    def _birth(self, attempt: Attempt) -> int | None:
        versions = [slot.version for slot in attempt.slots.values() if slot.verdict() is None]
        ages = [age for age in map(self._age_of, versions) if age is not None]
        return self._step - max(ages) if ages else None
