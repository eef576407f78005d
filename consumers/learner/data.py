"""The loop's view of the groups: one process that holds all of them, or several ranks that hold some each.

Role: the loop reads, cuts and closes through these names; how many processes take part is not its business.
Data in: records of the data topics. Data out: batches, outcome drafts, positions and the closed set.
Invariants: `positions` and `closed` are those of the moment in which outcomes were last taken or groups last closed.
Failure: errors of the readers go through; with several ranks also `RankLost` (consumers.learner.ranks).
"""

from __future__ import annotations

from typing import Protocol

from consumers.learner.assembler import Assembler
from consumers.learner.batch import Batch
from consumers.learner.intake import Intake
from consumers.learner.outcomes import OutcomeDraft
from consumers.learner.reports import Waiting
from pipeline.history import ClosedSet
from schemas.reasons import Reason
from topics.log import Positions


class GroupCounts(Protocol):
    """How far the groups are, over all ranks."""

    @property
    def num_completed(self) -> int:
        """Groups that became ready; only grows."""
        ...

    @property
    def num_open(self) -> int:
        """Groups that wait for records."""
        ...

    @property
    def num_unclosed(self) -> int:
        """Groups whose prompt was read and whose outcome is not decided."""
        ...

    @property
    def num_seen(self) -> int:
        """Groups known of: closed ones, and those whose prompt was read."""
        ...

    def waiting(self) -> Waiting:
        """What incomplete groups lack."""
        ...


class DataSide(GroupCounts, Protocol):
    """See the module."""

    def read(self, *, step: int, engine_ready: bool, wait_s: float) -> None:
        """Take in what is there, waiting for something at most `wait_s`; then evict what is hopeless at `step`."""
        ...

    def cut(self, step: int, *, num_groups: int, allow_smaller: bool) -> Batch | None:
        """The next batch, or None when there is none to be had now; see `Assembler.cut`. It must be trained."""
        ...

    def close_trained(self, batch: Batch) -> list[OutcomeDraft]:
        """Close the groups of a batch that was trained; gives all outcomes decided and not taken yet."""
        ...

    def take_outcomes(self) -> list[OutcomeDraft]:
        """Outcomes decided since the last call."""
        ...

    def close_open(self, reason: Reason) -> list[OutcomeDraft]:
        """Drop every group that has no outcome; gives all outcomes not taken yet."""
        ...

    def positions(self) -> Positions:
        """Where a restart must read from."""
        ...

    @property
    def topic_ids(self) -> dict[str, str]:
        """Broker ids of the topics the positions belong to."""
        ...

    @property
    def closed(self) -> ClosedSet:
        """A copy of the closed set."""
        ...

    def commit_for_lag(self) -> None:
        """Commit positions for people and the scheduler."""
        ...

    def clone(self, number: int) -> None:
        """Cloning step `number` (from 0) is next; `cloned` ends the cloning."""
        ...

    def cloned(self) -> None:
        """There are no more cloning steps."""
        ...

    def greet(self) -> None:
        """Say that the learner is at work, in a wait that has nothing to do with data."""
        ...

    def close(self, *, in_order: bool) -> None:
        """Stop reading. `in_order`: not after an error."""
        ...


class OneProcess:
    """All partitions and all groups in this process."""

    def __init__(self, assembler: Assembler, intake: Intake) -> None:
        self._assembler = assembler
        self._intake = intake

    @property
    def num_completed(self) -> int:
        return self._assembler.num_completed

    @property
    def num_open(self) -> int:
        return self._assembler.num_open

    @property
    def num_unclosed(self) -> int:
        return self._assembler.num_unclosed

    @property
    def num_seen(self) -> int:
        return self._assembler.num_seen

    def waiting(self) -> Waiting:
        return self._assembler.waiting()

    def read(self, *, step: int, engine_ready: bool, wait_s: float) -> None:
        self._assembler.tick(engine_ready=engine_ready)
        self._intake.read(wait_s=wait_s)
        self._assembler.evict(step)

    def cut(self, step: int, *, num_groups: int, allow_smaller: bool) -> Batch | None:
        return self._assembler.cut(step, num_groups, allow_smaller=allow_smaller)

    def close_trained(self, batch: Batch) -> list[OutcomeDraft]:
        self._assembler.mark_trained(batch)
        return self._assembler.take_outcomes()

    def take_outcomes(self) -> list[OutcomeDraft]:
        return self._assembler.take_outcomes()

    def close_open(self, reason: Reason) -> list[OutcomeDraft]:
        self._assembler.close_open(reason)
        return self._assembler.take_outcomes()

    def positions(self) -> Positions:
        return self._intake.positions()

    @property
    def topic_ids(self) -> dict[str, str]:
        return self._intake.topic_ids

    @property
    def closed(self) -> ClosedSet:
        return self._assembler.closed

    def commit_for_lag(self) -> None:
        self._intake.commit_for_lag()

    def clone(self, number: int) -> None:
        """Nobody else clones."""

    def cloned(self) -> None:
        """Nobody else cloned."""

    def greet(self) -> None:
        """Nobody else waits."""

    def close(self, *, in_order: bool) -> None:  # noqa: ARG002 - nobody else is told
        self._intake.close()
