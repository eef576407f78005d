"""The plan of a repetition while the run goes on, and of a ledger that names a group twice in one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from consumers.learner.recorded.history import RecordedHistory, read_history
from schemas.errors import NotRepeatable
from schemas.reasons import Result
from schemas.records import LineageStarted, MemberOutcome, Outcome
from topics.catalog import LEDGER, partition_of
from topics.clock import Deadline
from topics.log import TopicPartition, Writer, WriterSettings
from topics.memory import MemoryLog
from topics.memory.reader import MemoryReader

P = 2


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog(run="r", data_partitions=P)
    made.admin().ensure_topics()
    with writing(made, "learner") as writer:
        for partition in range(P):
            started = LineageStarted(run="r", lineage=1, parent=0, branch_step=0, seq=0, holder="h", started_unix_ms=0)
            writer.write(LEDGER, started, partition=partition)
        for group in range(P):
            trained(writer, group, step=1, seq=1)
    return made


@contextmanager
def writing(log: MemoryLog, name: str) -> Iterator[Writer]:
    writer = log.writer(WriterSettings(transactional_id=name))
    writer.start(deadline=Deadline.after(5))
    with writer.transaction(deadline=Deadline.after(5)):
        yield writer


def trained(writer: Writer, group: int, *, step: int, seq: int) -> None:
    member = MemberOutcome(member=0, attempt="a", result=Result.TRAINED)
    outcome = Outcome(
        run="r",
        group=group,
        lineage=1,
        step=step,
        seq=seq,
        result=Result.TRAINED,
        attempt="a",
        members=(member,),
        closed_unix_ms=0,
    )
    writer.write(LEDGER, outcome, partition=partition_of(group, P))


def groups(history: RecordedHistory) -> list[list[int]]:
    return [[group.group for group in step.groups] for step in history.steps]


def test_a_step_that_is_just_being_written_is_whole_or_not_there(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a transaction reaches one partition before the other: here, step 2 partition 0, then partition 1 with
    a part of step 3."""
    ends, rounds = MemoryReader.end_positions, 0
    with writing(log, "marked") as writer:
        trained(writer, 2, step=2, seq=2)

    def then_the_rest(reader: MemoryReader) -> dict[TopicPartition, int]:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            with writing(log, "late") as writer:
                trained(writer, 3, step=2, seq=2)
                trained(writer, 5, step=3, seq=3)
        return ends(reader)

    monkeypatch.setattr(MemoryReader, "end_positions", then_the_rest)
    assert groups(read_history(log)) == [[0, 1], [2, 3]]


def test_a_group_that_is_twice_in_one_step_is_refused_with_its_number(log: MemoryLog) -> None:
    with writing(log, "again") as writer:
        trained(writer, 2, step=2, seq=2)
        trained(writer, 2, step=2, seq=3)
    with pytest.raises(NotRepeatable, match="group 2 was trained by steps 2 and 2; steps 1 to 1 can be repeated"):
        read_history(log)
