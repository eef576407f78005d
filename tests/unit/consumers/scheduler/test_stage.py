"""The scheduler over the memory log: publishing, fencing, going on after a restart."""

from __future__ import annotations

import pytest

from consumers.rewards.settings import RewardSettings
from consumers.rewards.stage import RewardStage
from consumers.scheduler.stage import load_policy, version_of_key
from schemas.codec import encode
from schemas.errors import Fenced, PluginError
from schemas.records import Command, Version
from tests.unit.consumers.rewards import plugins
from tests.unit.consumers.rewards.helpers import HERE, read_all, sample, write_samples
from tests.unit.consumers.scheduler.rig import Rig, turn_until
from topics.catalog import COMMANDS, WEIGHTS
from topics.clock import Deadline
from topics.log import WriterSettings


def test_each_newest_staged_version_is_published_once(rig: Rig) -> None:
    scheduler = rig.scheduler()
    for step in range(3):
        rig.stage_version(1, step)
        scheduler.turn()
    turn_until(scheduler, lambda: len(rig.commands("heartbeat")) >= 2)
    assert rig.published() == ["1.0", "1.1", "1.2"]
    commands = [record for record in read_all(rig.log, COMMANDS) if isinstance(record, Command)]
    assert [command.seq for command in commands] == list(range(len(commands)))
    assert {command.epoch for command in commands} == {1}
    assert all(command.reason for command in commands)


def test_of_many_staged_at_once_only_the_newest_goes_out(rig: Rig) -> None:
    for step in range(5):
        rig.stage_version(1, step)
    scheduler = rig.scheduler()
    scheduler.turn()
    assert rig.published() == ["1.4"]


def test_a_pruned_version_is_not_published(rig: Rig) -> None:
    rig.stage_version(1, 4)
    writer = rig.log.writer(WriterSettings())
    writer.write_raw(WEIGHTS, key=b"1.4", value=None, partition=0)
    writer.flush(deadline=Deadline.after(5))
    scheduler = rig.scheduler()
    scheduler.turn()
    assert rig.published() == []


def test_a_restored_learner_goes_to_a_lower_step_of_a_higher_lineage(rig: Rig) -> None:
    scheduler = rig.scheduler()
    for lineage, step in ((1, 9), (2, 4), (2, 5)):
        rig.stage_version(lineage, step)
        scheduler.turn()
    assert rig.published() == ["1.9", "2.4", "2.5"]


def test_a_restart_has_a_higher_epoch_and_repeats_nothing_that_stands(rig: Rig) -> None:
    rig.stage_version(1, 3)
    first = rig.scheduler()
    first.turn()
    second = rig.scheduler()
    turn_until(second, lambda: any(command.epoch == 2 for command in rig.commands("heartbeat")))
    assert rig.published() == ["1.3"]
    rig.stage_version(1, 4)
    turn_until(second, lambda: rig.published() == ["1.3", "1.4"])
    assert rig.commands("publish")[-1].epoch == 2
    assert rig.commands("publish")[-1].seq == 1


def test_a_predecessor_can_command_nothing_more(rig: Rig) -> None:
    first = rig.scheduler()
    first.turn()
    rig.scheduler()
    rig.stage_version(1, 7)
    with pytest.raises(Fenced):
        turn_until(first, lambda: False)
    assert rig.published() == []
    rig.started.remove(first)


def test_admission_pauses_with_the_breaker_and_goes_on_afterwards(rig: Rig) -> None:
    """Case 20: admission is paused while the breaker of a required reward is open, over a restart too."""
    plugins.down.set()
    write_samples(rig.log, (sample(group) for group in range(400)))
    settings = RewardSettings(
        plugin=f"{HERE}:breaks_when_told", isolation="thread", breaker_window=5, breaker_pause_s=0.2, num_workers=1
    )
    reward_context = rig.context("reward")
    reward = RewardStage(reward_context, name="math", settings=settings)
    reward.start(deadline=Deadline.after(5))
    rig.started.append(reward)
    scheduler = rig.scheduler()

    def rates() -> list[float | None]:
        reward.turn()
        reward_context.events.heartbeat()  # the run loop's own thread does so in a process
        return [command.rate for command in rig.commands("rate")]

    turn_until(scheduler, lambda: rates() == [0.0])
    again = rig.scheduler()
    turn_until(again, lambda: len(rates()) == 1 and len(rig.commands("heartbeat")) > 6)
    plugins.down.clear()
    turn_until(again, lambda: rates() == [0.0, None])
    assert rig.commands("rate")[0].reason.startswith("pause admission: breaker of math in reward-")


def test_lag_of_rewards_becomes_a_gauge(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(6)))
    context = rig.context("reward")
    reward = RewardStage(context, name="math", settings=RewardSettings(plugin="exact_match"))
    reward.start(deadline=Deadline.after(5))
    rig.started.append(reward)
    scheduler = rig.scheduler()
    name = "lag_records{group=rlweave.r.reward.math,topic=samples}"

    def gauge() -> float | None:
        reward.turn()
        context.events.heartbeat()
        return scheduler._context.metrics.snapshot().get(name)

    turn_until(scheduler, lambda: gauge() == 0.0)
    assert gauge() == 0.0, "a lag that is known stays shown"


def test_commands_of_a_lower_epoch_on_the_topic_are_ignored(rig: Rig) -> None:
    writer = rig.log.writer(WriterSettings())
    for epoch, step in ((5, 8), (4, 9)):  # under keys of their own, so that both stay
        version = Version(lineage=1, step=step)
        command = Command(
            run="r",
            target="rollout",
            kind="publish",
            epoch=epoch,
            seq=0,
            reason="x",
            version=version,
            issued_unix_ms=0,
        )
        writer.write_raw(COMMANDS, key=b"k%d" % epoch, value=encode(command), partition=0)
    writer.flush(deadline=Deadline.after(5))
    rig.stage_version(1, 9)
    scheduler = rig.scheduler()
    scheduler.turn()
    assert (rig.published()[-1], rig.commands("publish")[-1].epoch) == ("1.9", 6)


def test_a_policy_is_a_plugin() -> None:
    assert load_policy("static").__name__ == "decide"  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="no plug-in 'clever'"):
        load_policy("clever")
    with pytest.raises(PluginError, match="is a int"):
        load_policy(f"{HERE}:not_a_scorer")


@pytest.mark.parametrize(("key", "found"), [(b"2.14", Version(lineage=2, step=14)), (b"x", None), (b"\xff.1", None)])
def test_version_of_key(key: bytes, found: Version | None) -> None:
    assert version_of_key(key) == found
