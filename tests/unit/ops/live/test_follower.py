"""A run as the follower sees it, from a log in memory."""

from __future__ import annotations

import orjson
import pytest

from ops.live.crew import told
from ops.live.flows import LagHistory
from ops.live.follower import ASK_S, Follower, FollowSettings
from ops.live.ids import Ids
from ops.live.picture import ProcessPicture, RunPicture
from ops.live.verdict import judge
from schemas.errors import LogUnavailable
from schemas.reasons import Result
from tests.unit.ops.little_run import RUN, little_run
from tests.unit.ops.report.made_run import PARTITIONS, START_MS, MadeRun, two_lineages, v
from topics.clock import Deadline, ManualClock
from topics.memory import MemoryLog

ROLLOUT, REWARD, LEARNER = "rollout-h-1-aaaaaa", "reward-h-2-aaaaaa", "learner-h-3-aaaaaa"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(unix_origin_ms=START_MS)


@pytest.fixture
def log(clock: ManualClock) -> MemoryLog:
    return MemoryLog(run=RUN, data_partitions=PARTITIONS, clock=clock)


def picture_of(log: MemoryLog, clock: ManualClock, **settings: int) -> RunPicture:
    with Follower(log, settings=FollowSettings(**settings), clock=clock) as follower:  # type: ignore[arg-type]
        assert follower.catch_up(limit_s=5)
        return follower.picture()


def the(picture: RunPicture, instance: str) -> ProcessPicture:
    return next(each for each in picture.processes if each.instance == instance)


def test_totals_are_those_of_the_history_that_survives(log: MemoryLog, clock: ManualClock) -> None:
    two_lineages(log)
    picture = picture_of(log, clock)
    totals = picture.totals
    assert (totals.lineage, totals.step, totals.trained, totals.dropped) == (2, 3, 6, 4)
    assert picture.drops == {"abandoned_branch": 2, "incomplete": 2}
    assert totals.ages == {"0": 4, "1": 2}
    assert {(each.group, each.reason) for each in picture.lost} == {(2, "abandoned_branch"), (4, "incomplete: 0/2")}
    assert picture.share_read == 1.0


def test_lost_and_trained_ids_change_with_the_history() -> None:
    ids = Ids()
    for topic, _, _, record in little_run():
        if topic.name == "ledger":
            ids.add(record)
    assert (ids.num(Result.TRAINED), ids.num(Result.DROPPED), ids.num(Result.FAILED)) == (8, 3, 1)
    assert ids.reasons() == {"never_arrived": 2, "engine_failed": 1, "group_dropped": 1}


def test_a_picture_is_json(log: MemoryLog, clock: ManualClock) -> None:
    two_lineages(log)
    found = orjson.loads(orjson.dumps(picture_of(log, clock)))
    assert found["totals"]["step"] == 3
    assert found["series"]["loss"]["bin_ms"] == 1000


def test_phases_are_spans_and_shares(log: MemoryLog, clock: ManualClock) -> None:
    clock.advance(8)
    run = MadeRun(log)
    run.event(LEARNER, "phase_began", name="waiting_for_data", at_s=0)
    run.event(LEARNER, "phase_ended", name="waiting_for_data", at_s=6)
    run.event(LEARNER, "phase_began", name="forward_backward", at_s=6)
    run.event(LEARNER, "heartbeat", name="heartbeat", at_s=8)
    run.end()
    learner = the(picture_of(log, clock), LEARNER)
    assert learner.shares == {"forward_backward": 0.25, "waiting_for_data": 0.75}
    assert learner.waits == {"waiting_for_data": 0.75}
    assert [(span.phase, span.began_ms - START_MS, span.ended_ms) for span in learner.spans] == [
        ("waiting_for_data", 0, START_MS + 6_000),
        ("forward_backward", 6_000, None),
    ]
    assert (learner.phase, learner.phase_since_ms) == ("forward_backward", START_MS + 6_000)
    assert (learner.host, learner.standing) == ("h", "at work")


def test_between_two_phases_a_process_is_in_the_one_before(log: MemoryLog, clock: ManualClock) -> None:
    """The end of one and the begin of the next are two records, and a look may come between them."""
    clock.advance(8)
    run = MadeRun(log)
    run.event(LEARNER, "phase_began", name="forward_backward", at_s=2)
    run.event(LEARNER, "phase_ended", name="forward_backward", at_s=7)
    run.end()
    assert the(picture_of(log, clock), LEARNER).phase == "forward_backward"


def test_rates_are_between_heartbeats(log: MemoryLog, clock: ManualClock) -> None:
    clock.advance(4)
    run = MadeRun(log)
    for at_s, made in ((0.0, 1_000.0), (2.0, 1_400.0), (4.0, 1_800.0)):
        run.event(ROLLOUT, "heartbeat", name="heartbeat", at_s=at_s, gauges={"tokens_generated": made})
    run.end()
    picture = picture_of(log, clock)
    assert the(picture, ROLLOUT).rates == {"tokens_generated": 200.0}
    assert picture.series["tokens_per_s"].values[-1] == 200.0


def test_who_is_silent_is_not_at_work_and_who_is_succeeded_is_gone(log: MemoryLog, clock: ManualClock) -> None:
    run = MadeRun(log)
    successor = "learner-h-9-bbbbbb"
    run.event(LEARNER, "heartbeat", name="heartbeat", at_s=0)
    run.event(ROLLOUT, "heartbeat", name="heartbeat", at_s=0)
    clock.advance(19)
    run.event(REWARD, "notice", name="stopped", at_s=18)
    run.event(successor, "heartbeat", name="heartbeat", at_s=19)
    run.end()
    picture = picture_of(log, clock)
    standings = {each.instance: each.standing for each in picture.processes}
    assert standings == {LEARNER: "gone", ROLLOUT: "not heard", REWARD: "stopped", successor: "at work"}
    assert [each.stage for each in picture.processes] == ["rollout", "reward", "learner", "learner"]


def test_a_stopped_process_says_why_and_one_with_a_successor_is_replaced(log: MemoryLog, clock: ManualClock) -> None:
    run = MadeRun(log)
    first, second = "scheduler-h-4-aaaaaa", "scheduler-h-5-bbbbbb"
    run.event(first, "heartbeat", name="heartbeat", at_s=0)
    run.event(first, "notice", name="stopped", at_s=2, details={"reason": "finished", "code": "1"})
    run.event(ROLLOUT, "notice", name="stopped", at_s=2, details={"reason": "SIGTERM", "code": "0"})
    clock.advance(3)
    run.event(second, "heartbeat", name="heartbeat", at_s=3)
    run.end()
    picture = picture_of(log, clock)
    assert (the(picture, first).ended, the(picture, first).is_replaced) == ("exit code 1", True)
    assert (the(picture, ROLLOUT).ended, the(picture, ROLLOUT).is_replaced) == ("SIGTERM", False)
    assert {each.text for each in picture.notices} == {"scheduler: stopped: exit code 1", "rollout: stopped: SIGTERM"}


def test_who_comes_late_is_told_since_when_it_is_so(log: MemoryLog, clock: ManualClock) -> None:
    run = MadeRun(log)
    run.event(LEARNER, "phase_began", name="waiting_for_data", at_s=0)
    for at_s in range(100):
        run.event(LEARNER, "heartbeat", name="heartbeat", at_s=at_s)
        clock.advance(1)
    run.end()
    picture = picture_of(log, clock)
    assert judge(picture).kind == "missing"
    assert judge(picture).since_ms == START_MS + 15_000


def test_the_time_before_the_first_step_is_no_waiting(log: MemoryLog, clock: ManualClock) -> None:
    run = MadeRun(log)
    clock.advance(32)
    run.event(LEARNER, "phase_began", name="waiting_for_data", at_s=0)
    run.event(LEARNER, "phase_began", name="forward_backward", at_s=30)
    run.event(LEARNER, "heartbeat", name="heartbeat", at_s=32)
    assert not picture_of(log, clock).is_settled
    clock.advance(20)
    run.event(LEARNER, "notice", name="step", at_s=32, gauges={"step": 1.0})
    run.event(LEARNER, "heartbeat", name="heartbeat", at_s=52)
    run.end()
    picture = picture_of(log, clock)
    assert (picture.is_settled, picture.window_s) == (True, 20.0)
    assert the(picture, LEARNER).waits == {}


def test_lag_grows_by_what_was_measured_since_the_first_step() -> None:
    lag = LagHistory(RUN)
    for at_s in range(20):
        name = f"lag_records{{group=rlweave.{RUN}.reward.sum,topic=samples}}"
        lag.add({name: 100.0 * min(at_s, 10)}, at_ms=at_s * 1000)
    assert lag.pictures(steps_per_s=1.0, since_ms=None)[0].records_per_s is None
    assert lag.pictures(steps_per_s=1.0, since_ms=10_000)[0].records_per_s == 0
    assert lag.pictures(steps_per_s=1.0)[0].records_per_s == pytest.approx(55)


def test_waves_of_weights_do_not_push_other_commands_out(log: MemoryLog, clock: ManualClock) -> None:
    run = MadeRun(log)
    scheduler = "scheduler-h-4-aaaaaa"
    run.event(scheduler, "notice", name="commanded", at_s=0, details={"kind": "credit", "target": "prompts"})
    for at_s in range(1, 300):
        run.event(scheduler, "notice", name="commanded", at_s=at_s, details={"kind": "publish", "target": "rollout"})
    run.end()
    commands = picture_of(log, clock, whole=1).commands
    assert (commands[0].kind, len(commands)) == ("credit", 129)


class Away(MemoryLog):
    """A log whose broker can be away."""

    away = False

    def connect(self, *, deadline: Deadline) -> None:
        if self.away:
            raise LogUnavailable("no Kafka broker answered")


def test_the_silence_of_a_broker_is_not_that_of_the_processes(clock: ManualClock) -> None:
    log = Away(run=RUN, data_partitions=PARTITIONS, clock=clock)
    run = MadeRun(log)
    run.event(LEARNER, "heartbeat", name="heartbeat", at_s=0)
    run.end()
    with Follower(log, clock=clock) as follower:
        assert follower.catch_up(limit_s=5)
        log.away = True
        for _ in range(10):
            clock.advance(ASK_S)
            follower.turn()
        seen = follower.picture()
        assert (the(seen, LEARNER).standing, seen.is_live, seen.now_ms) == ("at work", True, START_MS)
        assert judge(seen).kind == "trouble"
        assert "no Kafka broker answered" in judge(seen).text
        log.away = False
        clock.advance(ASK_S)
        follower.turn()
        assert (follower.picture().trouble, the(follower.picture(), LEARNER).standing) == ("", "at work")
        clock.advance(20)
        follower.turn()
        assert the(follower.picture(), LEARNER).standing == "not heard"


def test_a_version_is_followed_to_the_engines(log: MemoryLog, clock: ManualClock) -> None:
    clock.advance(6)
    run = MadeRun(log)
    run.event(LEARNER, "phase_began", name="forward_backward", at_s=0, version=v(1, 0))
    run.event(LEARNER, "phase_began", name="staging_weights", at_s=2, version=v(1, 0))
    run.manifest(v(1, 1))
    run.event(ROLLOUT, "heartbeat", name="heartbeat", at_s=3, version=v(1, 0))
    run.event(ROLLOUT, "notice", name="swapped", at_s=5, version=v(1, 1))
    run.event(ROLLOUT, "heartbeat", name="heartbeat", at_s=6, version=v(1, 1))
    run.end()
    version = picture_of(log, clock).versions[-1]
    assert version.version == v(1, 1)
    assert version.trained_ms == START_MS + 2_000
    assert version.served_ms == {ROLLOUT: START_MS + 5_000}


def test_of_a_live_run_the_last_events_are_read_and_the_whole_ledger(log: MemoryLog, clock: ManualClock) -> None:
    two_lineages(log)
    clock.advance(200)
    run = MadeRun(log)
    for second in range(200):
        run.event(ROLLOUT, "heartbeat", name="heartbeat", at_s=second)
    run.end()
    picture = picture_of(log, clock, look_back_events=150)
    assert {each.instance for each in picture.processes} == {ROLLOUT}
    assert picture.totals.trained == 6
    whole = picture_of(log, clock, look_back_events=150, whole=1)
    assert len(whole.processes) == 4


def test_of_a_run_that_ended_all_events_are_read(log: MemoryLog, clock: ManualClock) -> None:
    two_lineages(log)
    run = MadeRun(log)
    for second in range(200):
        run.event(ROLLOUT, "heartbeat", name="heartbeat", at_s=second)
    run.end()
    clock.advance(300)
    picture = picture_of(log, clock, look_back_events=150)
    assert len(picture.processes) == 4
    assert not picture.is_live
    assert picture.now_ms == START_MS + 199_000


def test_what_comes_later_is_folded_in(log: MemoryLog, clock: ManualClock) -> None:
    run = MadeRun(log)
    run.event(ROLLOUT, "phase_began", name="generating", at_s=0)
    with Follower(log, clock=clock) as follower:
        assert follower.catch_up(limit_s=5)
        assert the(follower.picture(), ROLLOUT).phase == "generating"
        run.event(ROLLOUT, "phase_began", name="swapping", at_s=1)
        run.end()
        clock.advance(1)
        follower.turn()
        assert the(follower.picture(), ROLLOUT).phase == "swapping"


def ended_run(log: MemoryLog) -> MadeRun:
    """A learner, a reward and a scheduler that measured lag, until second 10."""
    run, gauges = MadeRun(log), {f"lag_records{{group=rlweave.{RUN}.reward.sum,topic=samples}}": 512.0}
    run.event(LEARNER, "phase_began", name="waiting_for_data", at_s=0)
    run.event(REWARD, "phase_began", name="scoring", at_s=0)
    for at_s in range(1, 10):
        for instance in (LEARNER, REWARD, "scheduler-h-4-aaaaaa"):
            said = gauges if instance.startswith("scheduler") else {}
            run.event(instance, "heartbeat", name="heartbeat", at_s=at_s, gauges=said)
        run.event(LEARNER, "notice", name="step", at_s=at_s, gauges={"step": at_s, "num_samples": 4.0})
    for instance in (LEARNER, REWARD, "scheduler-h-4-aaaaaa"):
        run.event(instance, "notice", name="stopped", at_s=10)
    return run


def test_who_joins_after_the_end_changes_nothing_of_the_run(log: MemoryLog, clock: ManualClock) -> None:
    run = ended_run(log)
    clock.advance(12)
    usual = picture_of(log, clock)
    clock.advance(408)
    for number, began_s in ((8, 300), (9, 400)):
        instance = f"reward-h-{number}-dddddd"
        for at_s in range(began_s, began_s + 20):
            labels, counts = {"reward": "digits"}, {"records_written{topic=rewards}": 5.0 * at_s}
            run.event(instance, "heartbeat", name="heartbeat", at_s=at_s, details=labels, gauges=counts)
        if number == 8:
            run.event(instance, "notice", name="stopped", at_s=began_s + 20)
    run.end()
    again = picture_of(log, clock)
    assert not again.is_live
    assert again.now_ms == usual.now_ms == START_MS + 10_000
    assert [each.instance for each in again.processes] == [each.instance for each in usual.processes]
    assert (again.steps, again.series, again.notices) == (usual.steps, usual.series, usual.notices)
    late = [(each.name, each.standing) for each in again.afterwards]
    assert late == [("reward digits", "stopped"), ("reward digits", "at work")]
    assert told(again.afterwards) == "reward digits, twice"
    assert judge(again).kind == judge(usual).kind == "stopped"


def test_of_a_run_that_is_over_there_is_no_lag(log: MemoryLog, clock: ManualClock) -> None:
    run = ended_run(log)
    run.end()
    clock.advance(9)
    assert picture_of(log, clock).lag == ()
