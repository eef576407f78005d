"""Groups, lag, topics and the work queue: one suite for every log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from schemas.errors import Fenced, TopicMismatch
from tests.contract.logs import (
    Backend,
    LogContract,
    OnKafka,
    OnMemory,
    P,
    Told,
    drain,
    places,
    read,
    sample,
    settle,
    soon,
    take_until,
    until,
    write_samples,
)
from topics.catalog import BY_NAME, SAMPLES
from topics.clock import Deadline
from topics.log import (
    Envelope,
    Reader,
    ReaderSettings,
    WriterSettings,
)
from topics.queue import WorkQueue


class Groups(LogContract):
    """What members of a group share, commit and are behind by."""

    def test_a_restart_redelivers_only_the_uncommitted(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(40))
        reader = open_reader(self.group_settings(backend))
        assert len(drain(reader)) == 40
        reader.commit({("samples", 0): 10, ("samples", 1): 4})
        reader.close()
        again = drain(open_reader(self.group_settings(backend)))
        assert sorted(places(again)) == sorted(
            [(1, offset) for offset in range(4, 10)] + [(part, offset) for part in (2, 3) for offset in range(10)]
        )

    def test_pause_keeps_the_membership(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        told = Told()
        reader = open_reader(self.group_settings(backend), told)
        until(lambda: not reader.poll(1, deadline=Deadline.after(0.1)) and len(told.assigned) == P, what="assignment")
        reader.pause([("samples", 0), ("samples", 1)])
        write_samples(backend.log, range(40))
        others = read(reader, 20)
        assert {each.partition for each in others} == {2, 3}
        assert reader.poll(10, deadline=Deadline.after(0.3)) == []
        assert sorted(reader.assignment()) == [("samples", part) for part in range(P)]
        reader.resume([("samples", 0), ("samples", 1)])
        assert {each.partition for each in read(reader, 20)} == {0, 1}
        assert told.revoked == []

    def test_members_share_partitions_and_take_over(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        told = [Told(), Told()]
        first, second = (open_reader(self.group_settings(backend), each) for each in told)
        got: list[Envelope] = []

        def shared() -> bool:
            for reader in (first, second):
                got.extend(reader.poll(100, deadline=Deadline.after(0.1)))
            return len(first.assignment()) == len(second.assignment()) == P // 2

        until(shared, what="both members to hold half")
        assert not set(first.assignment()) & set(second.assignment())
        lost_to_first = set(second.assignment())
        with pytest.raises(Fenced, match="cannot commit"):
            first.commit(dict.fromkeys(lost_to_first, 0))
        write_samples(backend.log, range(40))
        until(lambda: shared() and len(got) == 40, what="all records")
        assert all((each.topic, each.partition) in {*first.assignment(), *second.assignment()} for each in got)
        num_revoked = len(told[1].revoked)  # while the group settled: the second may have had all of them for a moment
        second.close()
        assert set(told[1].revoked[num_revoked:]) == lost_to_first
        seen: list[Envelope] = []

        def taken_over() -> bool:
            seen.extend(first.poll(100, deadline=Deadline.after(0.1)))
            return len(first.assignment()) == P and len(seen) >= 20

        until(taken_over, what="the first to take over and get the uncommitted again")
        assert {(each.topic, each.partition) for each in seen} == lost_to_first

    # Lag (Case 47)

    def test_a_drained_transactional_topic_has_no_lag(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        """Case 47."""
        writer = backend.log.writer(WriterSettings(transactional_id=f"{backend.log.run}.tx"))
        for group in range(3):
            with writer.transaction(deadline=soon()):
                writer.write(SAMPLES, sample(group * P))
        writer.close(deadline=soon())
        reader = open_reader(self.group_settings(backend))
        assert len(drain(reader)) == 3
        reader.commit(reader.positions())
        lag = backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])
        assert [each.lag_records for each in lag] == [0] * P
        assert (lag[0].committed, lag[0].end) == (6, 6)

    def test_lag_without_commits_is_unknown(self, backend: Backend) -> None:
        """Case 47."""
        write_samples(backend.log, range(8))
        lag = backend.log.admin().lag(f"{backend.log.run}.nobody", [SAMPLES])
        assert [(each.committed, each.end, each.lag_records) for each in lag] == [(None, 2, None)] * P

    def test_lag_does_not_count_what_retention_removed(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        """Case 47."""
        write_samples(backend.log, range(0, 100 * P, P))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), group=f"{backend.log.run}.readers"))
        drain(reader)
        reader.commit({("samples", 0): 10})
        backend.delete_before({("samples", 0): 60})
        lag = backend.log.admin().lag(f"{backend.log.run}.readers", [SAMPLES])
        assert (lag[0].committed, lag[0].lag_records) == (10, 40)

    # Topics (Case 11)

    def test_topics_are_created_once_and_described(self, backend: Backend) -> None:
        admin = backend.log.admin()
        assert admin.ensure_topics() == []
        write_samples(backend.log, range(6))
        assert admin.describe()["samples"] == {0: (0, 2), 1: (0, 2), 2: (0, 1), 3: (0, 1)}
        assert len(admin.describe()) == len(admin.topic_ids()) == len(BY_NAME)

    def test_a_changed_partition_count_is_refused(self, backend: Backend) -> None:
        """Case 11."""
        backend.log.admin().check_partitions()
        backend.add_partitions(SAMPLES, count=8)

        def refused() -> bool:
            try:
                backend.log.admin().check_partitions()
            except TopicMismatch as error:
                return "samples has partitions = 8, this run needs 4" in error.message
            return False

        until(refused, what="the changed count to be refused")
        with pytest.raises(TopicMismatch):
            backend.log.admin().ensure_topics()

    def test_a_recreated_topic_has_another_id(self, backend: Backend) -> None:
        admin = backend.log.admin()
        before = admin.topic_ids()
        assert len(admin.delete_topics()) == len(BY_NAME)
        until(lambda: not admin.describe(), what="the topics to be gone")
        assert len(admin.ensure_topics()) == len(BY_NAME)
        after = admin.topic_ids()
        assert before.keys() == after.keys()
        assert not set(before.values()) & set(after.values())

    # Work queue

    def test_the_queue_hands_out_within_its_budget_and_commits_the_lowest_unfinished(self, backend: Backend) -> None:
        write_samples(backend.log, range(0, 10 * P, P))
        queue = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=3)
        taken: list[Envelope] = []
        take_until(queue, taken, num_records=3)
        assert queue.take(10, deadline=Deadline.after(0.3)) == []
        queue.done(taken[1])
        queue.done(taken[2])
        settle(queue)
        assert self.committed(backend) == 0
        take_until(queue, taken, num_records=5)
        queue.done(taken[0])
        settle(queue)
        assert self.committed(backend) == 3
        assert [each.offset for each in taken] == [0, 1, 2, 3, 4]
        assert queue.unfinished_over(0.0) == taken[3:]
        queue.close()
        again = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=100)
        redone: list[Envelope] = []
        take_until(again, redone, num_records=7)
        for envelope in redone:
            again.done(envelope)
        again.close()
        assert self.committed(backend) == 10

    def test_a_partition_that_was_paused_when_it_went_is_read_when_it_comes_back(self, backend: Backend) -> None:
        write_samples(backend.log, range(40))
        first = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=1)
        taken: list[Envelope] = []
        take_until(first, taken, num_records=1)
        assert first.take(9, deadline=Deadline.after(0.3)) == [], "full: everything is paused"
        second = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=1)

        def moved() -> bool:
            first.take(1, deadline=Deadline.after(0.1))
            second.take(0, deadline=Deadline.after(0.1))
            return len(second.reader.assignment()) == P // 2

        until(moved, what="half of the partitions to move")
        theirs = {partition for _, partition in second.reader.assignment()}
        second.close()
        seen = {(each.partition, each.offset) for each in taken}

        def all_read() -> bool:
            for envelope in taken:
                first.done(envelope)
            taken[:] = first.take(9, deadline=Deadline.after(0.1))
            seen.update((each.partition, each.offset) for each in taken)
            return len(seen) == 40

        until(all_read, what=f"all records, those of {theirs} as well")
        first.close()

    def test_work_in_flight_on_a_revoked_partition_is_no_longer_owned(self, backend: Backend) -> None:
        write_samples(backend.log, range(40))
        first = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=100)
        taken: list[Envelope] = []
        take_until(first, taken, num_records=40)
        for envelope in taken:
            if envelope.offset < 5:
                first.done(envelope)
        second = WorkQueue.open(backend.log, self.group_settings(backend), hooks=Told().hooks(), max_in_flight=100)
        redelivered: list[Envelope] = []

        def moved() -> bool:
            taken.extend(first.take(100, deadline=Deadline.after(0.1)))
            redelivered.extend(second.take(100, deadline=Deadline.after(0.1)))
            return len(second.reader.assignment()) == P // 2 and len(redelivered) == 10

        until(moved, what="half of the partitions to move, with what was unfinished on them")
        theirs = {partition for _, partition in second.reader.assignment()}
        assert {each.partition for each in redelivered} == theirs
        assert min(each.offset for each in redelivered) == 5
        for envelope in taken:
            assert first.is_owned(envelope) == (envelope.offset >= 5 and envelope.partition not in theirs)
        assert first.num_in_flight == 20
        first.close()
        second.close()


class TestGroupsInMemory(OnMemory, Groups):
    pass


class TestGroupsOnKafka(OnKafka, Groups):
    pass
