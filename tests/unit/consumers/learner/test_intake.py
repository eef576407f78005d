"""Reading into the assembler: pause, deadlines against an unread log, positions and commits."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from consumers.learner import intake
from consumers.learner.assembler import Assembler
from consumers.learner.data import OneProcess
from consumers.learner.intake import Intake
from consumers.learner.settings import LearnerSettings
from pipeline.history import ClosedSet
from pipeline.settings import RunSettings
from pipeline.stage import StageContext, make_context
from schemas.errors import CheckpointError
from schemas.records import PromptGroup, Record, Reward, Sample, StageEvent, Version
from tests.unit.consumers.learner.material import G, assembler, fates, lineages, prompt, reward, sample, whole
from topics.catalog import DEAD_LETTERS, EVENTS, PROMPTS, REWARDS, SAMPLES, Topic, full_name
from topics.clock import Deadline, ManualClock
from topics.log import Positions, ReaderSettings, WriterSettings
from topics.memory import MemoryLog
from topics.memory.log import MemoryAdmin

P = 4
TOPIC_OF: dict[type, Topic] = {PromptGroup: PROMPTS, Sample: SAMPLES, Reward: REWARDS}


class Rig:
    """A learner's reading side over an in-memory log."""

    def __init__(self, *, buffer_bytes: int = 10**9, groups_per_step: int = 2) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(run="r", data_partitions=P, clock=self.clock)
        run = RunSettings(name="r", partitions=P, groups_per_step=groups_per_step, group_size=G)
        self.context: StageContext = make_context(self.log, run=run, stage="learner", clock=self.clock)
        self.settings = LearnerSettings(buffer_bytes=buffer_bytes)
        self.writer = self.log.writer(WriterSettings())
        self.begin(assembler(clock=self.clock, buffer_bytes=buffer_bytes), positions={})

    def begin(self, target: Assembler, *, positions: Positions) -> None:
        self.assembler = target
        self.intake = Intake(self.context, target, settings=self.settings, positions=positions)

    def write(self, records: Iterable[Record]) -> None:
        for record in records:
            self.writer.write(TOPIC_OF[type(record)], record)

    def pump(self, times: int = 1) -> int:
        return sum(self.intake.pump(deadline=Deadline.after(0, clock=self.clock)) for _ in range(times))

    def let_pass(self, seconds: float) -> None:
        self.assembler.tick(engine_ready=True)
        self.clock.advance(seconds)
        self.assembler.tick(engine_ready=True)

    def gauges(self) -> dict[str, float]:
        return self.context.metrics.snapshot()


def test_a_batch_comes_out_of_the_log_and_metrics_say_so() -> None:
    rig = Rig()
    rig.write([*whole(0), *whole(1), *whole(2)[:-1]])
    assert rig.pump(3) == 50
    batch = rig.assembler.cut(0, 2)
    assert batch is not None
    gauges = rig.gauges()
    assert gauges["records_read{topic=samples}"] == 24
    assert gauges["open_groups"] == 3
    assert gauges["ready_groups"] == 2
    assert gauges["buffered_bytes"] > 0


def test_a_batch_is_of_the_oldest_groups_however_few_records_a_poll_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are on different partitions, and these are read one after the other: what is cut early is not the oldest,
    which is then too old for the next batch."""
    monkeypatch.setattr(intake, "MAX_RECORDS", 5)
    rig = Rig()
    rig.begin(assembler(clock=rig.clock, step=2), positions={})
    births = {0: 2, 1: 2, 2: 0, 3: 1}
    for group, step in births.items():
        rig.write(whole(group, born=Version(lineage=1, step=step)))
    side = OneProcess(rig.assembler, rig.intake)
    side.read(step=2, engine_ready=True, wait_s=0.0)
    batch = side.cut(2, num_groups=2, allow_smaller=False)
    assert batch is not None
    assert [each.group for each in batch.groups] == [2, 3]
    side.close_trained(batch)
    side.read(step=3, engine_ready=True, wait_s=0.0)
    last = side.cut(3, num_groups=2, allow_smaller=False)
    assert last is not None
    assert [each.group for each in last.groups] == [0, 1], "none was dropped"


def test_a_deadline_does_not_drop_what_was_in_the_log_in_time() -> None:
    rig = Rig()
    rig.write([prompt(0)])
    rig.pump()
    rig.write(whole(0)[1:])
    rig.let_pass(1000)  # a long step: nothing was read meanwhile
    assert rig.assembler.has_expired
    rig.pump()
    assert rig.assembler.num_ready == 1
    assert rig.assembler.take_outcomes() == []


def test_a_deadline_ends_once_the_log_was_read_and_the_rest_is_late() -> None:
    rig = Rig()
    rig.write(whole(0)[:-1])
    rig.pump(2)
    rig.let_pass(100)
    rig.pump()
    assert fates(rig.assembler.take_outcomes()) == {0: "dropped(incomplete: 7/8)"}
    rig.write(whole(0)[-1:])
    rig.pump()
    assert rig.gauges()["late_records{topic=rewards}"] == 1


def _limited(groups_per_step: int, *, share: float) -> Rig:
    """A rig whose buffer holds about `share` groups."""
    probe = Rig()
    probe.write(whole(0))
    probe.pump(2)
    return Rig(buffer_bytes=int(probe.assembler.buffered_bytes * share), groups_per_step=groups_per_step)


def test_above_the_limit_samples_are_paused_and_read_after_the_batch_was_trained() -> None:
    rig = _limited(1, share=0.9)
    rig.write(whole(0))
    rig.pump(2)
    assert rig.assembler.over_limit
    rig.write(whole(1))
    rig.pump(3)
    assert rig.assembler.num_ready == 1
    assert rig.assembler.waiting().num_unsampled == 1
    rig.let_pass(1000)
    rig.pump(3)
    assert rig.assembler.take_outcomes() == [], "a paused reader drops nothing: the samples are in the log"
    batch = rig.assembler.cut(0, 1)
    assert batch is not None
    rig.assembler.mark_trained(batch)
    rig.pump(3)
    assert rig.assembler.num_ready == 1


def test_a_starved_reader_goes_on_and_a_hopeless_buffer_is_freed_by_deadlines() -> None:
    rig = _limited(2, share=0.9)
    rig.write([*whole(0), *whole(1)[:-1]])
    rig.pump(4)
    assert rig.assembler.num_ready == 1, "more than the limit, less than twice"
    assert rig.assembler.waiting().num_unsampled == 0
    tiny = _limited(2, share=0.1)
    tiny.write([prompt(0), prompt(1), *(sample(0, member) for member in range(4))])
    tiny.pump(2)
    tiny.write([*(sample(1, member) for member in range(8)), *(reward(1, member) for member in range(8))])
    tiny.pump(2)
    assert tiny.assembler.waiting().num_unsampled == 2, "paused"
    tiny.let_pass(100)
    tiny.pump()
    assert fates(tiny.assembler.take_outcomes()) == dict.fromkeys((0, 1), "dropped(incomplete: 0/8)")
    tiny.pump()
    assert tiny.gauges()["waits_over_limit{what=buffer_bytes}"] == 1
    tiny.pump()
    assert tiny.gauges()["late_records{topic=samples}"] == 8, "read on"


def test_positions_before_anything_was_read_are_those_of_the_checkpoint() -> None:
    rig = Rig()
    rig.write([*whole(0), *whole(4)])
    rig.begin(assembler(clock=rig.clock), positions={("samples", 0): 8, ("rewards", 0): 8, ("prompts", 0): 1})
    assert rig.intake.positions()["samples", 0] == 8
    rig.pump(2)
    assert rig.assembler.num_ready == 1
    assert rig.intake.positions()["samples", 0] == 8


def test_a_restart_from_positions_and_closed_set_trains_the_rest_once() -> None:
    rig = Rig()
    rig.write([*whole(0), *whole(1), *whole(2)])
    rig.pump(3)
    batch = rig.assembler.cut(0, 2)
    assert batch is not None
    rig.assembler.mark_trained(batch)
    rig.assembler.take_outcomes()
    rig.intake.commit_for_lag()
    assert rig.gauges()["groups_closed{result=trained}"] == 2
    lag = rig.log.admin().lag("rlweave.r.learner", [SAMPLES])
    assert {each.partition: each.lag_records for each in lag} == {0: 0, 1: 0, 2: 8, 3: 0}
    positions, closed = rig.intake.positions(), rig.assembler.closed
    rig.intake.close()
    rig.begin(assembler(clock=rig.clock, closed=closed, step=1, tree=lineages()), positions=positions)
    rig.pump(3)
    again = rig.assembler.cut(1, 2, allow_smaller=True)
    assert again is not None
    assert [group.group for group in again.groups] == [2]


def test_an_undecodable_record_is_a_dead_letter_and_the_next_one_is_read() -> None:
    rig = Rig()
    rig.writer.write_raw(SAMPLES, key=b"0", value=b"junk", partition=0)
    rig.write(whole(0))
    rig.pump(2)
    assert rig.assembler.num_ready == 1
    assert rig.log.admin().describe()[DEAD_LETTERS.name][0] == (0, 1)


def test_topic_ids_are_those_of_the_positions_topics() -> None:
    assert set(Rig().intake.topic_ids) == {"prompts", "samples", "rewards"}


def test_a_topic_that_was_not_known_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no later checkpoint has its id, and a restart takes the prompts for gone."""
    rig, whole_ids, away = Rig(), MemoryAdmin.topic_ids, True

    def partly(admin: MemoryAdmin) -> dict[str, str]:
        return {name: each for name, each in whole_ids(admin).items() if name != "prompts" or not away}

    monkeypatch.setattr(MemoryAdmin, "topic_ids", partly)
    assert set(rig.intake.topic_ids) == {"samples", "rewards"}
    away = False
    assert set(rig.intake.topic_ids) == {"prompts", "samples", "rewards"}


@pytest.mark.parametrize("name", ["id_conflict", "orphans_given_up"])
def test_notices_of_the_assembler_become_events(name: str) -> None:
    rig = Rig()
    rig.write([sample(3, 0), reward(3, 0)] if name == "orphans_given_up" else [])
    rig.write([prompt(1), sample(1, 0, text="x"), sample(1, 0, text="y")] if name == "id_conflict" else [])
    rig.pump(2)
    rig.let_pass(100)
    rig.pump()
    metric = {"id_conflict": "id_conflicts", "orphans_given_up": "orphans{topic=samples}"}[name]
    assert rig.gauges()[metric] == 1


def made_anew(rig: Rig, topic: Topic) -> None:
    rig.log.broker.delete_topic(full_name("r", topic))
    rig.log.admin().ensure_topics()


def test_samples_made_anew_are_read_from_their_beginning_and_positions_are_of_the_new_topic() -> None:
    rig = Rig()
    rig.write(whole(0))
    rig.pump(2)
    before = rig.intake.topic_ids
    made_anew(rig, SAMPLES)
    rig.write([prompt(4), *[record for record in whole(4) if not isinstance(record, PromptGroup)]])
    rig.pump(2)
    assert rig.assembler.num_ready == 2
    after = rig.intake.topic_ids
    assert {name for name in after if after[name] != before[name]} == {"samples"}
    assert after["samples"] == rig.log.admin().topic_ids()["samples"]
    assert rig.gauges()["topics_recreated{topic=samples}"] == P


def test_a_deadline_does_not_wait_for_the_end_of_a_topic_that_is_gone() -> None:
    rig = Rig()
    rig.write(whole(0)[:-1])
    rig.pump(2)
    reader = rig.intake._reader
    places = [place for place in reader.assignment() if place[0] == SAMPLES.name]
    reader.pause(places)
    rig.write([sample(4, member) for member in range(G)])
    rig.let_pass(100)
    rig.pump()
    assert rig.assembler.take_outcomes() == [], "not everything that was in the log has been read"
    made_anew(rig, SAMPLES)
    reader.resume(places)
    rig.pump(2)
    assert fates(rig.assembler.take_outcomes()) == {0: "dropped(incomplete: 7/8)"}


def test_prompts_made_anew_end_the_learner() -> None:
    """Their numbers are closed already, or open for other prompts."""
    rig = Rig()
    rig.write([prompt(0)])
    rig.pump()
    made_anew(rig, PROMPTS)
    with pytest.raises(CheckpointError, match=r"prompts that are gone.*would hide new groups behind old numbers"):
        rig.pump()


def test_prompts_deleted_before_a_restarted_learner_reads_them_hold_no_credit() -> None:
    """Groups 0, 4 and 8 are on one partition; 0 is closed. Of 4 and 8 only the samples of 8 are left."""
    rig = Rig()
    rig.write([*whole(0), prompt(4), prompt(8), *[each for each in whole(8) if not isinstance(each, PromptGroup)]])
    rig.log.delete_records({("prompts", 0): 3})
    rig.write([prompt(12)])
    closed = ClosedSet([0])
    rig.begin(assembler(clock=rig.clock, closed=closed), positions={("prompts", 0): 1})
    rig.pump(3)
    (notice,) = notices(rig, "prompts_lost")
    assert (notice.details["first"], notice.details["last"], notice.gauges["num_groups"]) == ("4", "8", 2.0)
    assert (rig.assembler.num_unclosed, rig.assembler.num_ready) == (3, 1), "what was made of 8 can be trained"
    rig.let_pass(200)
    rig.pump(2)
    assert fates(rig.assembler.take_outcomes()) == {4: f"dropped(incomplete: 0/{G})", 12: f"dropped(incomplete: 0/{G})"}


def test_a_restart_after_the_loss_finds_the_same_numbers_and_without_a_further_prompt_too() -> None:
    """The positions of the checkpoint lie beyond the loss. 5 was read, so 4 was admitted before it."""
    rig = Rig()
    rig.write([prompt(0), prompt(4), prompt(5)])
    rig.log.delete_records({("prompts", 0): 2})
    rig.begin(
        assembler(clock=rig.clock, closed=ClosedSet([0, 1, 2, 3, 5])), positions={("prompts", 0): 2, ("prompts", 1): 1}
    )
    rig.pump()
    assert notices(rig, "prompts_lost") == []
    for _ in range(2):  # the deadline of the gap, then that of the group
        rig.let_pass(200)
        rig.pump(2)
    (notice,) = notices(rig, "prompts_lost")
    assert (notice.details["partition"], notice.details["first"], notice.gauges["num_groups"]) == ("0", "4", 1.0)
    assert fates(rig.assembler.take_outcomes()) == {4: f"dropped(incomplete: 0/{G})"}


def test_a_restart_without_a_loss_finds_nothing_missing() -> None:
    rig = Rig()
    rig.write([prompt(0), prompt(4), prompt(8), prompt(1)])
    rig.begin(assembler(clock=rig.clock, closed=ClosedSet([0])), positions={("prompts", 0): 1})
    rig.pump(2)
    rig.let_pass(50)
    rig.pump(2)
    assert (notices(rig, "prompts_lost"), rig.assembler.num_unclosed) == ([], 3)


def test_a_foreign_prompt_with_a_huge_number_opens_no_more_than_the_credit() -> None:
    rig = Rig()
    rig.write([prompt(4 * 10**9)])
    rig.begin(assembler(clock=rig.clock), positions={("prompts", 0): 0})
    rig.pump(2)
    assert rig.assembler.num_unclosed == rig.context.run.credit_groups + 1


def notices(rig: Rig, name: str) -> list[StageEvent]:
    reader = rig.log.reader(ReaderSettings(topics=(EVENTS,)), hooks=rig.context.hooks())
    found = [each.record for each in reader.poll(10_000, deadline=Deadline.after(0))]
    return [each for each in found if isinstance(each, StageEvent) and each.name == name]
