"""Groups given up to other engines, and taken over from them.

Role: lets a process leave, or an engine become free, without waiting for its longest completion: what was made of a
group goes on in another engine.
Data in: the scheduler's pack command, records of other processes. Data out: `partials` records; prompts given back to
the work queue, or kept until who took the group over has written it.
Order, when groups are given up: (1) all their members are ended where they are, whatever their length; (2) the record
is written and (3) confirmed by the broker; (4) only then is the prompt let go of: by a process that leaves, given back,
so that the next holder of its partition goes on; else kept here, since nothing may be committed past it, until the
group has an outcome, the taker says that it is written, or `lend_limit_s` is over and it goes on here.
Invariants: a prompt is acknowledged only when all samples of some attempt are durable, as by `output`; a hint that is
lost costs work and no sample. What cannot be handed over, as its environment stays where it is, has `anew_s` to end in
a process that leaves; then its prompts are given back as they came, and others begin anew.
Failure: `DeliveryError` ends the process, its prompts go to others. A group too large for a record is made afresh.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from pipeline.stage import StageContext
from producers.commands import CommandBoard
from producers.rollout.generator import Generator
from producers.rollout.groups import Finished, Parted
from producers.rollout.output import SampleOutput
from producers.rollout.partials import PACKED, RETIRED, RETURNED, Partials, partial_of, written_of
from producers.rollout.settings import RolloutSettings
from producers.rollout.tickets import Taken, Ticket
from schemas.errors import CodecError, RecordTooLarge
from schemas.records import Outcome, Partial, PromptGroup
from topics.catalog import PARTIALS
from topics.clock import Deadline
from topics.log import Envelope, Writer
from topics.queue import WorkQueue

_REMEMBERED = 4096  # prompts acknowledged last


@dataclass(frozen=True, kw_only=True)
class _Lent:
    """A group that another process goes on with; the prompt is ours."""

    envelope: Envelope
    partial: Partial
    due: Deadline


@dataclass(frozen=True, kw_only=True)
class HandOverParts:
    """What it stands between."""

    generator: Generator[Ticket]
    output: SampleOutput
    queue: WorkQueue
    writer: Writer
    partials: Partials
    commands: CommandBoard


class HandOver:
    """See the module.

    Args:
        anew_s: for groups in environments; None: there are none.
    """

    def __init__(
        self, parts: HandOverParts, *, context: StageContext, settings: RolloutSettings, anew_s: float | None = None
    ) -> None:
        self._parts = parts
        self._anew_s = anew_s
        self._anew_due: Deadline | None = None  # when a process that leaves gives back what others begin anew
        self._context = context
        self._settings = settings
        self._leave_due: Deadline | None = None  # when a process that leaves gives up what it has
        self._takers: dict[int, str] = {}  # of groups being given up; empty: whoever gets the prompt
        self._lent: dict[int, _Lent] = {}
        self._offers: list[Partial] = []
        self._packed = (0, 0)  # (epoch, seq) of the pack command looked at last
        self._done: OrderedDict[tuple[int, int], Partial] = OrderedDict()  # by (partition, offset), acknowledged last
        self._given_back: dict[int, int] = {}  # lowest offset by partition
        parts.output.on_done = self._remember

    @property
    def is_settled(self) -> bool:
        """Whether no group of anybody's is worked on here."""
        return not (self._parts.generator.num_groups or self._offers or self._lent)

    def advance(self, *, may_generate: bool) -> None:
        """Follow the news, and give up what is to be given up.

        Args:
            may_generate: a version is served whose samples can be trained.
        """
        for partial in self._parts.partials.news():
            self._hear(partial)
        if self._context.retire.requested:
            self._leave()
        else:
            self._pack()
            if may_generate:
                self._take_over()
        self._take_back()

    def closed(self, outcome: Outcome) -> bool:
        """A group has an outcome; whether its prompt was lent, and is acknowledged now."""
        self._parts.partials.forget(outcome.group)
        lent = self._lent.pop(outcome.group, None)
        if lent is not None:
            self._parts.queue.done(lent.envelope)
        return lent is not None

    def holds(self, group: int) -> bool:
        """Whether the group is lent."""
        return group in self._lent

    def renew(self, group: int, envelope: Envelope) -> None:
        """The prompt of a lent group was delivered again: the newer delivery counts."""
        older = self._lent[group]
        self._lent[group] = replace(older, envelope=envelope)
        self._parts.queue.done(older.envelope)

    def settle(self) -> None:
        """(2) to (4) for what has come to rest."""
        parted = self._parts.generator.parted()
        if not parted:
            return
        written = [(each, self._write(each)) for each in parted]
        limit = Deadline.after(self._settings.flush_limit_s, clock=self._context.clock)
        self._parts.writer.flush(deadline=limit)  # (3)
        for each, partial in written:
            self._let_go(each, partial)
        reason = RETIRED if self._context.retire.requested else PACKED
        self._context.metrics.count("groups_handed_over", len(parted), reason=reason)
        self._context.events.notice("handed_over", details={"reason": reason}, num_groups=len(parted))

    def leave(self, *, deadline: Deadline) -> None:
        """Tell the next holders of the prompts given back which ones behind these are written already."""
        behind = [
            marker
            for (partition, offset), marker in self._done.items()
            if offset > self._given_back.get(partition, offset)
        ]
        for marker in behind:
            self._parts.writer.write(PARTIALS, marker)
        if behind:
            self._parts.writer.flush(deadline=deadline)  # before the prompts go to others

    def _hear(self, partial: Partial) -> None:
        """What another process says of a group."""
        group, me = partial.group, self._context.instance
        if partial.producer == me:
            return
        if partial.written:
            if self._parts.partials.counts(partial):
                self._end(group)
        elif group in self._lent:
            if partial.taker in ("", me):  # it comes back
                self._resume(self._lent.pop(group), partial)
        elif partial.taker == me and not self._parts.generator.holds(group):
            self._offers.append(partial)

    def _end(self, group: int) -> None:
        """Another process has written it."""
        lent = self._lent.pop(group, None)
        if lent is not None:
            self._parts.queue.done(lent.envelope)
        elif self._parts.generator.holds(group) and group not in self._takers:
            ticket = self._parts.generator.drop(group)
            if not isinstance(ticket, Taken):
                self._parts.queue.done(ticket)

    def _leave(self) -> None:
        """Of a process that leaves: offers go back at once, groups in the engine when their time is over."""
        for partial in self._offers:
            self._return(partial)
        self._offers.clear()
        if self._leave_due is None:
            self._leave_due = Deadline.after(self._settings.hand_over_s, clock=self._context.clock)
        if self._anew_s is not None:
            self._leave_for_others(self._anew_s)
        if not self._leave_due.expired:
            return
        if self._parts.generator.hands_over:
            self._give_up(dict.fromkeys(self._parts.generator.groups(), ""))
        for group in list(self._lent):
            self._give_back(self._lent.pop(group).envelope)

    def _leave_for_others(self, anew_s: float) -> None:
        """Give back what is not through in time and cannot be handed over."""
        if self._anew_due is None:
            self._anew_due = Deadline.after(anew_s, clock=self._context.clock)
        groups = self._parts.generator.groups() if self._anew_due.expired else ()
        for group in groups:
            ticket = self._parts.generator.drop(group)
            if not isinstance(ticket, Taken):
                self._give_back(ticket)
        if groups:
            self._context.metrics.count("groups_given_back", len(groups))
            self._context.events.notice("given_back", num_groups=len(groups), limit_s=anew_s)

    def _pack(self) -> None:
        """Obey a pack command, once; not when there is work for our own slots by now."""
        command, generator = self._parts.commands.latest("pack"), self._parts.generator
        if command is None or (command.epoch, command.seq) <= self._packed:
            return
        self._packed = (command.epoch, command.seq)
        takers = dict(zip(command.targets, command.waves, strict=False)).get(self._context.instance, ())
        if not takers or generator.num_waiting or not generator.hands_over:
            return
        self._give_up({group: takers[at % len(takers)] for at, group in enumerate(generator.groups())})

    def _give_up(self, takers: dict[int, str]) -> None:
        """(1)"""
        new = {group: taker for group, taker in takers.items() if group not in self._takers}
        self._takers = {group: taker for group, taker in self._takers.items() if self._parts.generator.holds(group)}
        self._takers.update(new)
        self._parts.generator.give_up(new)

    def _write(self, parted: Parted[Ticket]) -> Partial | None:
        """(2); None: it cannot be handed over."""
        ticket, me = parted.ticket, self._context.instance
        holder = ticket.holder if isinstance(ticket, Taken) else me
        taker = self._takers.pop(parted.attempt.prompt.group, "")
        leaving = self._context.retire.requested
        partial = partial_of(
            parted,
            producer=me,
            holder="" if leaving and holder == me else holder,
            taker=holder if leaving and holder != me else taker,
            reason=RETIRED if leaving else PACKED,
            unix_ms=self._context.clock.unix_ms(),
        )
        try:
            self._parts.writer.write(PARTIALS, partial)
        except (RecordTooLarge, CodecError) as error:
            details = {"group": str(partial.group), "error": error.message}
            self._context.events.notice("hand_over_refused", details=details)
            return None
        return partial

    def _let_go(self, parted: Parted[Ticket], partial: Partial | None) -> None:
        """(4)"""
        ticket = parted.ticket
        if isinstance(ticket, Taken):
            return
        if self._context.retire.requested:
            self._give_back(ticket)
        elif partial is None:
            self._add(parted.attempt.prompt, ticket=ticket, partial=None)
        else:
            due = Deadline.after(self._settings.lend_limit_s, clock=self._context.clock)
            self._lent[partial.group] = _Lent(envelope=ticket, partial=partial, due=due)

    def _give_back(self, envelope: Envelope) -> None:
        if self._parts.queue.is_owned(envelope):
            before = self._given_back.get(envelope.partition, envelope.offset)
            self._given_back[envelope.partition] = min(before, envelope.offset)
        self._parts.queue.give_back(envelope)

    def _take_over(self) -> None:
        """Go on with what others gave up for us; what is of no use goes back to who answers for it."""
        offers, self._offers = self._offers, []
        for partial in offers:
            if self._parts.generator.holds(partial.group):  # its prompt came here since: it goes on under that
                continue
            if partial.prompt is not None and self._parts.partials.usable(partial.group) is partial:
                self._add(partial.prompt, ticket=Taken(holder=partial.holder), partial=partial)
            else:
                self._return(partial)

    def _return(self, partial: Partial) -> None:
        me = self._context.instance
        self._parts.writer.write(PARTIALS, replace(partial, producer=me, taker=partial.holder, reason=RETURNED))

    def _take_back(self) -> None:
        """Groups that did not come back in time."""
        late = [group for group, lent in self._lent.items() if lent.due.expired]
        for group in late:
            lent = self._lent.pop(group)
            details = {"group": str(group), "taker": lent.partial.taker}
            self._context.events.notice("lent_too_long", details=details, limit_s=self._settings.lend_limit_s)
            self._resume(lent, lent.partial)

    def _resume(self, lent: _Lent, partial: Partial) -> None:
        """Go on with a group of our own, unless its prompt is somebody else's by now."""
        prompt = lent.partial.prompt
        if prompt is None or not self._parts.queue.is_owned(lent.envelope):
            self._parts.queue.done(lent.envelope)
        elif self._context.retire.requested:
            self._give_back(lent.envelope)
        else:
            usable = partial if self._parts.partials.counts(partial) else None
            self._add(prompt, ticket=lent.envelope, partial=usable)

    def _add(self, prompt: PromptGroup, *, ticket: Ticket, partial: Partial | None) -> None:
        finished = self._parts.generator.add(prompt, ticket=ticket, partial=partial)
        if finished is not None:
            self._parts.output.write(finished)

    def _remember(self, finished: Finished[Ticket]) -> None:
        """All samples of a group are durable: its holder is told, or it is remembered for the next holder."""
        unix_ms = self._context.clock.unix_ms()
        marker = written_of(finished, producer=self._context.instance, unix_ms=unix_ms)
        if isinstance(finished.ticket, Taken):
            self._parts.writer.write(PARTIALS, marker)
            return
        self._done[finished.ticket.partition, finished.ticket.offset] = marker
        if len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)
