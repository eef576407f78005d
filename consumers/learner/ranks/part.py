"""What one rank holds: the groups of its partitions, and the deeds that rank 0 asks of every rank.

Role: the same on all ranks; `lead` and `follow` call it, and only they talk to the others.
Data in: commands, and the records of the rank's partitions. Data out: summaries, shares of batches, outcome drafts.
Invariants: a group is on one partition number of every topic, so no other rank knows of it; drafts and positions are
of one moment. Truth about what is closed elsewhere comes with the commands.
Failure: errors of the reader go through.
"""

from __future__ import annotations

from consumers.learner.assembler import Assembler
from consumers.learner.batch import Batch, BatchPlan
from consumers.learner.intake import Intake
from consumers.learner.ranks.messages import Command, Summary, Taken
from consumers.learner.reports import Waiting
from pipeline.stage import StageContext
from schemas.reasons import Reason
from topics.catalog import partition_of

_WAITING_EVERY_S = 1.0  # what groups lack is looked up so often: it takes a look at every open group


def partitions_of(rank: int, *, num_ranks: int, num_partitions: int) -> tuple[int, ...]:
    """The partitions that a rank reads: p mod N."""
    return tuple(range(rank, num_partitions, num_ranks))


class Part:
    """See the module."""

    def __init__(
        self, context: StageContext, assembler: Assembler, *, intake: Intake, partitions: tuple[int, ...]
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._assembler = assembler
        self._intake = intake
        self._waiting = Waiting(num_open=0, num_unsampled=0, num_unscored={})
        self._waiting_due_s = 0.0

    def read(self, command: Command) -> Summary:
        """Take in records, evict what is hopeless, and say what there is now."""
        assembler = self._assembler
        assembler.learn_closed(command.closed)
        assembler.tick(engine_ready=command.engine_ready)
        elsewhere = max(0, command.num_ready - assembler.num_ready)
        self._intake.read(wait_s=command.wait_s, num_ready_elsewhere=elsewhere)
        assembler.evict(command.step)
        offers = assembler.offers(command.step, self._context.run.groups_per_step)
        return Summary(
            num_ready=assembler.num_ready,
            num_open=assembler.num_open,
            num_unclosed=assembler.num_unclosed,
            num_unsettled=assembler.num_unsettled,
            num_completed=assembler.num_completed,
            num_unwritten=assembler.num_unwritten,
            blocked=assembler.blocking(command.step) is not None,
            oldest_open_s=assembler.oldest_open_s,
            unsampled=self._lacking().num_unsampled,
            unscored=dict(self._lacking().num_unscored),
            offered=tuple((offer.birth_step, offer.group, offer.size, offer.absent) for offer in offers),
            stop=self._context.stop.reason if self._context.stop.requested else "",
        )

    def take(self, command: Command) -> Batch:
        """Our share of the batch that rank 0 cut.

        Raises:
            ValueError: a group of it is not ready here.
        """
        groups = command.plan()
        run = self._context.run
        numbers = [each.group for each in groups if partition_of(each.group, run.partitions) in self._partitions]
        share = self._assembler.take(command.step, numbers)
        return Batch(step=command.step + 1, groups=share, plan=BatchPlan(run=run.name, groups=groups))

    def close_trained(self, batch: Batch) -> Taken:
        """Close our share of a batch; with all other outcomes decided and not taken yet."""
        self._assembler.mark_trained(batch)
        return self.outcomes()

    def close_open(self, reason: Reason) -> Taken:
        """Drop every group of ours that has no outcome."""
        self._assembler.close_open(reason)
        return self.outcomes()

    def outcomes(self) -> Taken:
        """Outcomes decided and not taken yet."""
        intake = self._intake
        return Taken(drafts=self._assembler.take_outcomes(), positions=intake.positions(), topic_ids=intake.topic_ids)

    def close(self) -> None:
        """Stop reading."""
        self._intake.close()

    def _lacking(self) -> Waiting:
        now_s = self._context.clock.monotonic()
        if now_s >= self._waiting_due_s:
            self._waiting_due_s = now_s + _WAITING_EVERY_S
            self._waiting = self._assembler.waiting()
        return self._waiting
