"""Reward consumers on a real broker: fan-out, `kill -9`, group ids, SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from consumers.rewards.rescore import RescoreStage
from consumers.rewards.settings import RewardSettings, group_id
from consumers.rewards.stage import RewardStage
from ops.services.model import ServicesInfo
from pipeline.exit_codes import ExitCode
from pipeline.settings import RunSettings
from pipeline.stage import make_context
from tests.conftest import DATA_PARTITIONS
from tests.unit.consumers.rewards.helpers import rewards_of, sample, turn_until, write_samples
from topics.catalog import REWARDS, SAMPLES, SHADOW_REWARDS
from topics.clock import Deadline
from topics.kafka import KafkaLog

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
APART = "tests.unit.consumers.rewards.apart"
SLOW = '{"plugin": "tests.integration.reward_process:slow", "num_workers": 1}'


def wait_until(done: Callable[[], bool], *, what: str, limit_s: float = 60.0) -> None:
    """Wait for a condition; it is asked again at once, and asking takes time itself."""
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(0.05)


@dataclass
class Rewards:
    """Reward stages of one run, in this process and in others."""

    log: KafkaLog
    bootstrap: str
    stages: list[RewardStage] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def stage(self, name: str, settings: RewardSettings) -> RewardStage:
        run = RunSettings(name=self.log.run, partitions=DATA_PARTITIONS)
        stage = RewardStage(make_context(self.log, run=run, stage="reward"), name=name, settings=settings)
        stage.start(deadline=Deadline.after(20))
        self.stages.append(stage)
        return stage

    def process(self, name: str, settings: str) -> subprocess.Popen[str]:
        module = "tests.integration.reward_process"
        command = [sys.executable, "-m", module, self.bootstrap, self.log.run, name, settings]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def is_drained(self, group: str) -> bool:
        return all(each.lag_records == 0 for each in self.log.admin().lag(group, [SAMPLES]))


@pytest.fixture
def rewards(kafka_log: KafkaLog, services: ServicesInfo) -> Iterator[Rewards]:
    rewards = Rewards(log=kafka_log, bootstrap=services.kafka_bootstrap)
    yield rewards
    for stage in rewards.stages:
        stage.stop(deadline=Deadline.after(10))
    for process in rewards.processes:
        process.kill()
        process.communicate(timeout=20)


def test_two_rewards_score_every_sample_each_and_a_late_shadow_too(rewards: Rewards) -> None:
    """Case 7."""
    log = rewards.log
    write_samples(log, (sample(group, run=log.run) for group in range(50)))
    stages = [
        rewards.stage("exact", RewardSettings(plugin="exact_match")),
        rewards.stage("number", RewardSettings(plugin="number_match", weight=0.5)),
    ]
    write_samples(log, (sample(group, run=log.run) for group in range(50, 100)))

    def turn_all(number: int) -> bool:
        for stage in stages:
            stage.turn()
        return len(rewards_of(log, REWARDS)) >= number

    wait_until(lambda: turn_all(200), what="200 rewards")
    stages.append(rewards.stage("late", RewardSettings(plugin="exact_match", weight=0.0)))
    wait_until(lambda: turn_all(200) and len(rewards_of(log, SHADOW_REWARDS)) >= 100, what="the late reward")
    for topic, names in ((REWARDS, ("exact", "number")), (SHADOW_REWARDS, ("late",))):
        found = rewards_of(log, topic)
        for name in names:
            assert sorted(one.group for one in found if one.name == name) == list(range(100))
        assert {one.value for one in found} == {1.0}


@pytest.mark.slow
def test_kill_9_in_the_middle_loses_no_reward(rewards: Rewards) -> None:
    log = rewards.log
    wanted = {(group, member) for group in range(200) for member in range(3)}  # 12 s of work: a late look is no end
    write_samples(log, (sample(group, member, run=log.run) for group, member in sorted(wanted)))
    group = group_id(log.run, "slow", settings=RewardSettings(plugin="x"))
    first = rewards.process("slow", SLOW)
    wait_until(lambda: len(rewards_of(log, REWARDS)) >= 60, what="the first rewards")
    first.kill()
    first.wait(timeout=60)
    before = len(rewards_of(log, REWARDS))
    assert before < len(wanted), "killed too late to show anything"
    second = rewards.process("slow", SLOW)
    wait_until(lambda: rewards.is_drained(group), what="the rest of the rewards")
    found = rewards_of(log, REWARDS)
    assert {(one.group, one.member) for one in found} == wanted
    # Scored again at most what was in flight or not yet committed; the copies say the same.
    assert len(found) - len(wanted) < before
    assert len({(one.group, one.member, one.attempt, one.name, one.value) for one in found}) == len(wanted)
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == ExitCode.OK
    assert rewards.is_drained(group)


def test_another_plugin_under_a_live_group_id_exits_with_the_reason(rewards: Rewards) -> None:
    """Case 7."""
    write_samples(rewards.log, [sample(0, run=rewards.log.run)])
    first = rewards.stage("one", RewardSettings(plugin="exact_match", group=f"{rewards.log.run}-shared"))

    def scored() -> bool:
        first.turn()
        return len(rewards_of(rewards.log, REWARDS)) == 1

    wait_until(scored, what="the first reward")
    second = rewards.process("two", f'{{"plugin": "number_match", "group": "{rewards.log.run}-shared"}}')
    _, said = second.communicate(timeout=60)
    assert second.returncode == ExitCode.REFUSED
    assert f"error: consumer group '{rewards.log.run}-shared' is in use by" in said
    assert "@one#" in said
    assert "Traceback" not in said
    assert {one.name for one in rewards_of(rewards.log, REWARDS)} == {"one"}


def test_scorers_that_hang_cost_no_membership_and_polling_goes_on(rewards: Rewards) -> None:
    """Case 21: three of three hundred loop for ever and ignore signals; beside them the consumer goes on as ever."""
    log, hung_s = rewards.log, 3.0
    plugin = f"{APART}:loops_on_1_in_100"
    settings = RewardSettings(
        plugin=plugin, isolation="process", num_workers=4, timeout_s=hung_s, timeout_retries=0, breaker_failures=1.0
    )
    stage = rewards.stage("math", settings)
    group = group_id(log.run, "math", settings=settings)
    turns_s: list[float] = []

    def turn() -> bool:
        began_s = time.monotonic()
        stage.turn()
        turns_s.append(time.monotonic() - began_s)
        return True

    wait_until(lambda: turn() and len(members(rewards, group)) == 1, what="the consumer to be a member")
    before = members(rewards, group)
    write_samples(log, (sample(number, run=log.run) for number in range(300)))
    wait_until(lambda: turn() and rewards.is_drained(group), what="all to be scored")
    found = rewards_of(log, REWARDS)
    assert len(found) == 300
    assert {one.group for one in found if one.failure is not None} == {7, 107, 207}
    assert members(rewards, group) == before, "it left and joined again"
    assert sum(turn_s < hung_s / 3 for turn_s in turns_s) > 10, "turns waited for what hangs"


def members(rewards: Rewards, group: str) -> list[str]:
    """Ids that the broker gave to the members; a new one for each joining."""
    client = AdminClient({"bootstrap.servers": rewards.bootstrap})
    try:
        return [each.member_id for each in client.describe_consumer_groups([group])[group].result().members]
    except KafkaException:  # no such group yet
        return []


def test_sigterm_commits_what_was_scored(rewards: Rewards) -> None:
    log = rewards.log
    write_samples(log, (sample(group, run=log.run) for group in range(40)))
    process = rewards.process("slow", SLOW)
    wait_until(lambda: len(rewards_of(log, REWARDS)) >= 5, what="the first rewards")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == ExitCode.OK
    lags = log.admin().lag(group_id(log.run, "slow", settings=RewardSettings(plugin="x")), [SAMPLES])
    assert sum(each.committed or 0 for each in lags) == len(rewards_of(log, REWARDS))


def test_the_past_is_scored_to_its_end_and_once(rewards: Rewards) -> None:
    write_samples(rewards.log, (sample(group, member) for group in range(100) for member in range(4)))
    run = RunSettings(name=rewards.log.run, partitions=DATA_PARTITIONS)
    for expected in (400, 0):
        context = make_context(rewards.log, run=run, stage="reward")
        stage = RescoreStage(context, name="new", settings=RewardSettings(plugin="exact_match", weight=0.0))
        stage.start(deadline=Deadline.after(20))
        turn_until(stage, lambda stage=stage: stage.finished, limit_s=60.0)  # type: ignore[misc]
        stage.stop(deadline=Deadline.after(10))
        assert stage.num_scored == (expected, 0)
    assert len(rewards_of(rewards.log, SHADOW_REWARDS)) == 400
