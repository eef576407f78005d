"""Rank 0's view of the groups of all ranks: it asks, decides and tells (`consumers.learner.data.DataSide`).

    rank 0:  command --> own part does it --> answers of all --> decision
    others:  command --> own part does it --> answer

Role: makes several ranks look like one to the loop. A batch is cut over the offers of all ranks by the rules that one
process has: oldest birth first, then the lower number.
Data in: summaries, reports. Data out: commands; batches that hold rank 0's own share and the plan of the whole.
Invariants: every command is answered before the next; counts are of the last `read`; a group's outcome is taken once,
whichever rank holds it. Rank 0 alone writes: nothing of the others reaches the ledger but through here.
Failure: `RankLost`; what a rank says twice or against its schema is a bug, and raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consumers.learner.batch import Batch
from consumers.learner.intake import Intake
from consumers.learner.outcomes import OutcomeDraft
from consumers.learner.ranks.group import RankGroup
from consumers.learner.ranks.messages import Command, Summary, Taken, pack_report, unpack_report, waiting_of
from consumers.learner.ranks.part import Part
from consumers.learner.reports import Waiting
from pipeline.history import ClosedSet
from pipeline.stage import StageContext
from schemas.reasons import Reason
from topics.log import Positions

UNAGREED = ""  # no topic has this id
WAIT_S = 0.05  # longest wait for records in one round: the slowest rank's wait is everyone's


def agreed(topic_ids: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The ids on which all agree, else `UNAGREED`; rank 0's come first."""
    return {
        name: own if all(other.get(name) == own for other in topic_ids) else UNAGREED
        for name, own in topic_ids[0].items()
    }


class RankedData:
    """See the module.

    Args:
        context: of rank 0.
        group: connected to the others, which follow.
        part: rank 0's own.
        intake: of that part; commits for all.
        positions: where the ranks began to read.
        closed: groups that were closed at the start.
    """

    def __init__(
        self,
        context: StageContext,
        group: RankGroup,
        *,
        part: Part,
        intake: Intake,
        positions: Positions,
        closed: ClosedSet,
    ) -> None:
        self._context = context
        self._group = group
        self._part = part
        self._intake = intake
        self._positions = dict(positions)
        self._ids: Sequence[Mapping[str, str]] = ()  # by rank, of what `positions` gives
        self._closed = closed.copy()
        self._news: list[int] = []  # closed since the last command that said so
        self._summaries: Sequence[Summary] = [Summary()] * group.num_ranks
        self._num_seen = len(closed)
        self._is_between = True  # the others wait for a command, and are in the middle of none

    @property
    def num_completed(self) -> int:
        return sum(each.num_completed for each in self._summaries)

    @property
    def num_open(self) -> int:
        return sum(each.num_open for each in self._summaries)

    @property
    def num_unclosed(self) -> int:
        return sum(each.num_unclosed for each in self._summaries)

    @property
    def num_seen(self) -> int:
        return self._num_seen

    def waiting(self) -> Waiting:
        return waiting_of(self._summaries)

    def read(self, *, step: int, engine_ready: bool, wait_s: float) -> None:
        news, self._news = self._news, []
        command = Command(
            do="read",
            step=step,
            engine_ready=engine_ready,
            wait_s=min(wait_s, WAIT_S),
            num_ready=self._num_ready,
            closed=tuple(news),
        )
        self._tell(command)
        own = self._part.read(command)
        answers = self._group.gather(own.to_bytes())
        self._is_between = True
        self._summaries = [own, *(Summary.parse(answer) for answer in answers[1:])]
        self._num_seen = len(self._closed) + sum(each.num_unsettled for each in self._summaries)
        self._report()
        for rank, summary in enumerate(self._summaries):
            if summary.stop:
                self._context.stop.request(f"rank {rank}: {summary.stop}")

    def cut(self, step: int, *, num_groups: int, allow_smaller: bool) -> Batch | None:
        least = 1 if allow_smaller else num_groups
        if self._num_ready < least or any(each.blocked for each in self._summaries):
            return None
        offers = sorted((offer for each in self._summaries for offer in each.offers()), key=lambda offer: offer.order)
        chosen = sorted(offers[:num_groups], key=lambda offer: offer.group)
        if len(chosen) < least:
            return None
        groups = tuple((offer.group, offer.size, offer.absent) for offer in chosen)
        command = Command(do="train", step=step, groups=groups)
        self._tell(command)
        return self._part.take(command)

    def close_trained(self, batch: Batch) -> list[OutcomeDraft]:
        return self._collect(self._part.close_trained(batch))

    def take_outcomes(self) -> list[OutcomeDraft]:
        if not any(each.num_unwritten for each in self._summaries):
            return []
        self._tell(Command(do="take"))
        return self._collect(self._part.outcomes())

    def close_open(self, reason: Reason) -> list[OutcomeDraft]:
        self._tell(Command(do="close", text=reason.value))
        return self._collect(self._part.close_open(reason))

    def positions(self) -> Positions:
        return self._positions

    @property
    def topic_ids(self) -> dict[str, str]:
        """Of a topic made anew that not every rank has seen to be: one that no topic has, for some positions are of
        the old one. A restart reads such a topic from its earliest record."""
        return agreed(self._ids) if self._ids else self._intake.topic_ids

    @property
    def closed(self) -> ClosedSet:
        return self._closed.copy()

    def commit_for_lag(self) -> None:
        self._intake.commit(self._positions)

    def clone(self, number: int) -> None:
        self._tell(Command(do="clone", step=number))
        self._is_between = True  # when the step is done, which ends on all ranks or on none

    def cloned(self) -> None:
        self._tell(Command(do="cloned"))
        self._is_between = True

    def greet(self) -> None:
        self._tell(Command(do="greet"))
        self._is_between = True

    def close(self, *, in_order: bool) -> None:
        if self._is_between:  # else they do not listen, and find out by themselves
            last = Command(do="leave") if in_order else Command(do="failed", text="its log says why")
            self._group.send_last(last.to_bytes())
        self._group.close()
        self._part.close()

    @property
    def _num_ready(self) -> int:
        return sum(each.num_ready for each in self._summaries)

    def _tell(self, command: Command) -> None:
        self._is_between = False
        self._group.send(command.to_bytes())

    def _collect(self, own: Taken) -> list[OutcomeDraft]:
        """The outcomes of all ranks, by rank, together with ours; takes note of positions and closed groups.

        Raises:
            ValueError: a group has an outcome already, so one more would be a second one.
        """
        answers = self._group.gather(pack_report(own))
        self._is_between = True
        everyone = [own, *map(unpack_report, answers[1:])]
        self._ids = [taken.topic_ids for taken in everyone]
        for taken in everyone:
            self._positions.update(taken.positions)
        drafts = [draft for taken in everyone for draft in taken.drafts]
        for draft in drafts:
            if draft.group in self._closed:
                raise ValueError(f"group {draft.group} was closed before; a rank gave a second outcome for it")
            self._closed.add(draft.group)
        self._news += [draft.group for draft in drafts]
        return drafts

    def _report(self) -> None:
        metrics = self._context.metrics
        metrics.gauge("open_groups", self.num_unclosed)
        metrics.gauge("ready_groups", self._num_ready)
