"""Topics that are deleted and made anew under their readers: one suite for every log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.errors import OffsetsLost
from tests.contract.logs import (
    Backend,
    LogContract,
    OnKafka,
    OnMemory,
    P,
    Told,
    drain,
    groups_of,
    read,
    settle,
    take_until,
    until,
    write_samples,
)
from topics.catalog import SAMPLES
from topics.clock import Deadline
from topics.log import Envelope, Reader, ReaderSettings, RecreatedTopic
from topics.queue import WorkQueue

CHECK_S = 0.5


def recreate(backend: Backend) -> str:
    """Delete the samples and make them anew; gives the new id."""
    admin = backend.log.admin()
    before = admin.topic_ids()["samples"]
    backend.delete_topic(SAMPLES)
    until(lambda: "samples" not in admin.topic_ids(), what="the topic to go")
    admin.ensure_topics()
    after = admin.topic_ids()["samples"]
    assert after != before
    return after


class Recreated(LogContract):
    """A position in a topic that is gone is never used in the new one."""

    def quick(self, backend: Backend) -> ReaderSettings:
        return replace(self.group_settings(backend), topic_check_s=CHECK_S)

    def test_a_committed_offset_of_the_old_topic_is_not_used(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        """The new topic has grown past it: nothing but the id tells."""
        write_samples(backend.log, range(0, 20 * P, P))
        reader = open_reader(replace(self.group_settings(backend), topic_check_s=1e9))
        read(reader, 10)
        now = recreate(backend)
        write_samples(backend.log, range(0, 30 * P, P))
        reader.commit({("samples", 0): 10})
        reader.close()
        told = Told()
        envelopes = drain(open_reader(self.group_settings(backend), told))
        assert [each.offset for each in envelopes if each.partition == 0] == list(range(30))
        (recreated,) = told.recreated
        assert recreated == RecreatedTopic(topic="samples", partition=0, held=10, resumed_at=0, topic_id=now)
        assert told.lost == []

    def test_a_committed_offset_beyond_the_new_end_is_no_crash(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(0, 20 * P, P))
        reader = open_reader(replace(self.group_settings(backend), topic_check_s=1e9))
        read(reader, 20)
        recreate(backend)
        write_samples(backend.log, [0])
        reader.commit({("samples", 0): 20})
        reader.close()
        told = Told()
        assert groups_of(drain(open_reader(self.group_settings(backend), told))) == [0]
        assert [(each.partition, each.held) for each in told.recreated] == [(0, 20)]

    @pytest.mark.parametrize("num_new", [3, 30])
    def test_while_reading(self, backend: Backend, open_reader: Callable[..., Reader], num_new: int) -> None:
        """The new topic is shorter, or longer, than where the reader stands."""
        write_samples(backend.log, range(0, 10 * P, P))
        told = Told()
        reader = open_reader(self.quick(backend), told)
        read(reader, 10)
        recreate(backend)
        write_samples(backend.log, range(0, num_new * P, P), member=1)
        seen: set[int] = set()

        def all_seen() -> bool:
            envelopes = reader.poll(1000, deadline=Deadline.after(0.2))
            seen.update(each.offset for each in envelopes if each.partition == 0)
            return len(told.recreated) == P and seen == set(range(num_new))

        until(all_seen, what="all of the new topic")
        assert [(each.held >= 10) for each in told.recreated if each.partition == 0] == [True]
        reader.commit(reader.positions())
        reader.close()
        again = Told()
        assert drain(open_reader(self.quick(backend), again)) == []
        assert (again.recreated, again.lost) == ([], [])

    def test_while_reading_without_a_group(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, range(0, 10 * P, P))
        told = Told()
        settings = ReaderSettings(topics=(SAMPLES,), partitions=(0,), start="latest", topic_check_s=CHECK_S)
        reader = open_reader(settings, told)
        until(lambda: not reader.poll(1, deadline=Deadline.after(0.2)) and bool(reader.positions()), what="the start")
        recreate(backend)
        write_samples(backend.log, range(0, 30 * P, P))
        seen: set[int] = set()

        def all_seen() -> bool:
            seen.update(each.offset for each in reader.poll(1000, deadline=Deadline.after(0.2)))
            return seen == set(range(30))

        until(all_seen, what="all of the new topic")
        assert [(each.partition, each.resumed_at) for each in told.recreated] == [(0, 0)]

    def test_on_lost_stop_refuses(self, backend: Backend, open_reader: Callable[..., Reader]) -> None:
        write_samples(backend.log, range(0, 10 * P, P))
        reader = open_reader(ReaderSettings(topics=(SAMPLES,), partitions=(0,), on_lost="stop", topic_check_s=CHECK_S))
        read(reader, 10)
        recreate(backend)
        write_samples(backend.log, range(0, 30 * P, P))
        with pytest.raises(OffsetsLost, match=r"offset \d+ of samples \[0\] belongs to a topic that was deleted"):
            read(reader, 1000)

    def test_an_offset_without_an_id_counts_as_of_the_present_topic(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        """Of older releases, and of tools that set offsets."""
        write_samples(backend.log, range(0, 20 * P, P))
        backend.commit_without_id(self.group_settings(backend), 15)
        told = Told()
        envelopes = drain(open_reader(self.group_settings(backend), told))
        assert [each.offset for each in envelopes if each.partition == 0] == list(range(15, 20))
        assert (told.recreated, told.lost) == ([], [])

    def test_an_offset_without_an_id_beyond_the_end_is_of_another_topic(
        self, backend: Backend, open_reader: Callable[..., Reader]
    ) -> None:
        write_samples(backend.log, range(0, 20 * P, P))
        backend.commit_without_id(self.group_settings(backend), 25)
        told = Told()
        assert len(drain(open_reader(self.group_settings(backend), told))) == 20
        assert [(each.partition, each.held, each.resumed_at) for each in told.recreated] == [(0, 25, 0)]

    def test_work_of_the_old_topic_is_finished_and_not_committed(self, backend: Backend) -> None:
        write_samples(backend.log, range(0, 10 * P, P))
        told = Told()
        queue = WorkQueue.open(backend.log, self.quick(backend), hooks=told.hooks(), max_in_flight=100)
        old: list[Envelope] = []
        take_until(queue, old, num_records=10)
        recreate(backend)
        write_samples(backend.log, range(0, 4 * P, P), member=1)
        new: list[Envelope] = []

        def taken() -> bool:
            new.extend(queue.take(100, deadline=Deadline.after(0.2)))
            return [each.offset for each in new if queue.is_owned(each)] == [0, 1, 2, 3]

        until(taken, what="the new topic's records")
        for envelope in [*old, new[-4]]:
            queue.done(envelope)
        settle(queue)
        assert self.committed(backend) == 1
        assert queue.num_in_flight == len(new) - 1
        queue.close()

    def test_a_group_that_begins_at_the_end_begins_a_new_topic_at_its_beginning(self, backend: Backend) -> None:
        """Also when the reader leaves the group for a moment before it has read anything there."""
        write_samples(backend.log, range(0, 40 * P, P))
        settings = replace(self.quick(backend), start="latest")
        told = Told()
        queue = WorkQueue.open(backend.log, settings, hooks=told.hooks(), max_in_flight=100)
        until(lambda: not queue.take(1, deadline=Deadline.after(0.2)) and bool(queue.reader.positions()), what="it")
        recreate(backend)
        write_samples(backend.log, range(0, 30 * P, P))
        seen: set[int] = set()

        def all_seen() -> bool:
            seen.update(each.offset for each in queue.take(100, deadline=Deadline.after(0.2)))
            return seen == set(range(30))

        until(all_seen, what="all of the new topic")
        assert {(each.topic, each.resumed_at) for each in told.recreated} == {("samples", 0)}
        queue.close()


class TestRecreatedInMemory(OnMemory, Recreated):
    pass


class TestRecreatedOnKafka(OnKafka, Recreated):
    pass
