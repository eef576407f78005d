"""The groups a learner knows: who is open, who is closed, and which records still have no prompt.

Role: the join and the dedup of the assembler; it knows nothing of time limits, staleness or batches.
Data in: envelopes of prompts, samples and rewards, in any order across partitions, any number of times.
Data out: open groups; a call when one gets a winner; counts and notices; positions.
Invariants: a record of a closed group is counted and ignored; records before their prompt are held and replayed when
it comes; the position of a partition is never above a record of a group without a taken outcome.
Failure: none; what is wrong with a record becomes a reason, a count or a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from consumers.learner.gaps import ASSUMED, Gap
from consumers.learner.groups import Joined, OpenGroup
from consumers.learner.reports import Tally
from pipeline.history import ClosedSet
from pipeline.reward_rule import RewardRule
from schemas.records import PromptGroup, ReferenceScore, Reward, Sample
from topics.log import Envelope, Positions, TopicPartition

_MEMBER_RECORDS = (Sample, Reward, ReferenceScore)  # a union would be built anew for every record
_COUNTERS = {
    Joined.DUPLICATE: "duplicates",
    Joined.CONFLICT: "id_conflicts",
    Joined.LATE: "late_records",
    Joined.UNKNOWN_REWARD: "unknown_rewards",
}


@dataclass(kw_only=True)
class Held:
    """Records of a group whose prompt was not read yet."""

    since_s: float
    envelopes: list[Envelope] = field(default_factory=list)


class GroupTable:
    """All groups without a taken outcome, by number.

    Args:
        rule: the required rewards.
        min_group_members: fewest valid members to be trained; None: all.
        closed: groups closed in the surviving history; taken over.
        needs_reference: members are final only once the reference model has scored them.
        first_group: groups below it are not joined, they are completed as they are.
        completed: called with a group the moment its winner is known.
    """

    def __init__(
        self,
        *,
        rule: RewardRule,
        min_group_members: int | None,
        closed: ClosedSet,
        completed: Callable[[OpenGroup], None],
        needs_reference: bool = False,
        first_group: int = 0,
    ) -> None:
        self._rule = rule
        self._needs_reference = needs_reference
        self._min_group_members = min_group_members
        self._first_group = first_group
        self._completed = completed
        self.closed = closed
        self.unclosed: dict[int, OpenGroup] = {}  # all without a decided outcome
        self.open: dict[int, OpenGroup] = {}  # of these, without a winner; in the order they were opened
        self.held: dict[int, Held] = {}  # in the order of their first record
        self.gaps: dict[int, Gap] = {}  # by partition, until the next prompt there shows which numbers are missing
        self.closing: dict[int, OpenGroup] = {}  # outcome decided and not taken
        self.tally = Tally()
        self.buffered_bytes = 0  # encoded, of records kept
        self.now_s = 0.0  # the deadline's clock, set by the owner

    def add_all(self, envelopes: Iterable[Envelope]) -> None:
        """Take records in the order they were read; those of other types are ignored."""
        unclosed = self.unclosed
        for envelope in envelopes:
            record = envelope.record
            if isinstance(record, _MEMBER_RECORDS):
                group = unclosed.get(record.group)
                if group is None:
                    self._without_group(envelope, record.group)
                    continue
                joined = _join(group, record)
                if joined is not Joined.NEW:
                    self._count(joined, envelope)
                    continue
                self._keep(group, envelope)
                if group.winner is not None:
                    self._completed(group)
            elif isinstance(record, PromptGroup):
                self._add_prompt(envelope, record)

    def forget(self, group: OpenGroup) -> None:
        """Move a group whose outcome is decided to `closing`."""
        del self.unclosed[group.number]
        self.open.pop(group.number, None)
        self.closing[group.number] = group
        self.buffered_bytes -= group.num_bytes

    def settle(self, numbers: Iterable[int]) -> None:
        """Move groups from `closing` to the closed set: their outcome was taken."""
        for number in numbers:
            del self.closing[number]
            self.closed.add(number)

    def give_up(self, number: int) -> None:
        """Forget records whose prompt never came, with a notice."""
        held = self.held.pop(number)
        self.buffered_bytes -= sum(each.num_bytes for each in held.envelopes)
        for envelope in held.envelopes:
            self.tally.count("orphans", envelope.topic)
        self.tally.notice("orphans_given_up", {"group": str(number)}, num_records=float(len(held.envelopes)))

    def expect_gap(self, gap: Gap) -> None:
        """Prompts of a partition may be gone."""
        gap.since_s, gap.bound = self.now_s, self._bound()
        self.gaps[gap.partition] = gap

    def has_gap_since(self, at_s: float) -> bool:
        """Whether one is open since `at_s` or longer, on the deadline's clock."""
        return any(gap.since_s <= at_s for gap in self.gaps.values())

    def end_gaps(self, at_s: float) -> None:
        """Open what is missing on partitions without a further prompt since `at_s`; they were read to their end."""
        for gap in self.gaps.values():
            if gap.since_s <= at_s:
                self._open_missing(gap, below=gap.bound)
                gap.since_s, gap.bound = self.now_s, self._bound()

    def positions(self, read: Positions) -> dict[TopicPartition, int]:
        """Lowest offset of a record of a group without a taken outcome, else what was read, per partition."""
        lowest = dict(read)
        for group in (*self.unclosed.values(), *self.closing.values()):
            for place, offset in group.first_offsets.items():
                lowest[place] = min(offset, lowest.get(place, offset))
        for held in self.held.values():
            for envelope in held.envelopes:
                place = (envelope.topic, envelope.partition)
                lowest[place] = min(envelope.offset, lowest.get(place, envelope.offset))
        return lowest

    def _add_prompt(self, envelope: Envelope, prompt: PromptGroup) -> None:
        number = prompt.group
        gap = self.gaps.pop(envelope.partition, None)
        if gap is not None:
            self._open_missing(gap, below=number)
        known = self.unclosed.get(number)
        if known is not None and known.prompt.source == ASSUMED:
            known.prompt = prompt
            self._keep(known, envelope)
            return
        if known is not None:
            self._count(Joined.DUPLICATE if known.prompt == prompt else Joined.CONFLICT, envelope)
            return
        if self._is_closed(number):
            self._count(Joined.LATE, envelope)
            return
        self._keep(self._open(prompt), envelope)
        self._join_held(prompt)

    def _open(self, prompt: PromptGroup) -> OpenGroup:
        at_least, size = self._min_group_members, prompt.group_size
        needed = size if at_least is None else min(at_least, size)
        group = OpenGroup(
            prompt,
            needed=needed,
            rule=self._rule,
            opened_s=self.now_s,
            needs_reference=self._needs_reference,
        )
        self.unclosed[prompt.group] = self.open[prompt.group] = group
        return group

    def _join_held(self, prompt: PromptGroup) -> None:
        """Let a group that was opened have what came before it."""
        if prompt.group_size < 1 or prompt.group < self._first_group:
            self._completed(self.unclosed[prompt.group])
        held = self.held.pop(prompt.group, None)
        if held is not None:
            self.buffered_bytes -= sum(each.num_bytes for each in held.envelopes)
            self.add_all(held.envelopes)

    def _open_missing(self, gap: Gap, *, below: int) -> None:
        """Groups without a prompt are open like all: what was made of them is joined, and their deadline ends them."""
        missing = gap.missing(first=self.closed.watermark, below=below, is_known=self._is_known)
        for number in missing:
            prompt = gap.prompt(number)
            self._open(prompt)
            self._join_held(prompt)
        if missing:
            details = {"partition": str(gap.partition), "first": str(missing[0]), "last": str(missing[-1])}
            self.tally.notice("prompts_lost", details, num_groups=float(len(missing)))

    def _is_known(self, number: int) -> bool:
        return number in self.unclosed or self._is_closed(number)

    def _bound(self) -> int:
        """Above every number that is known to have been admitted."""
        return max([self.closed.watermark - 1, *self.closed.above, *self.unclosed, *self.closing], default=-1) + 1

    def _without_group(self, envelope: Envelope, number: int) -> None:
        if self._is_closed(number):
            self._count(Joined.LATE, envelope)
            return
        held = self.held.get(number)
        if held is None:
            held = self.held[number] = Held(since_s=self.now_s)
        held.envelopes.append(envelope)
        self.buffered_bytes += envelope.num_bytes

    def _is_closed(self, number: int) -> bool:
        return number in self.closed or number in self.closing

    def _keep(self, group: OpenGroup, envelope: Envelope) -> None:
        group.mark((envelope.topic, envelope.partition), envelope.offset)
        group.num_bytes += envelope.num_bytes
        self.buffered_bytes += envelope.num_bytes

    def _count(self, joined: Joined, envelope: Envelope) -> None:
        self.tally.count(_COUNTERS[joined], envelope.topic)
        if joined is Joined.CONFLICT:
            place = f"{envelope.topic} [{envelope.partition}] at {envelope.offset}"
            key = "" if envelope.key is None else envelope.key.decode(errors="replace")
            self.tally.notice("id_conflict", {"group": key, "record": place})


def _join(group: OpenGroup, record: Sample | Reward | ReferenceScore) -> Joined:
    if isinstance(record, Sample):
        return group.add_sample(record)
    return group.add_reward(record) if isinstance(record, Reward) else group.add_reference(record)
