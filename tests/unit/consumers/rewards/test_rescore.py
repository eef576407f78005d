"""Scoring the past: to the end that was there, once per plug-in, and on with what is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from consumers.rewards.rescore import RescoreStage
from consumers.rewards.settings import OptionValue, RewardSettings
from schemas.errors import PluginError, SettingsError
from tests.unit.consumers.rewards.helpers import HERE, Rig, rewards_of, sample, turn_until, write_samples
from topics.catalog import REWARDS, SHADOW_REWARDS
from topics.clock import Deadline


@pytest.fixture
def rig() -> Rig:
    return Rig()


def past(
    rig: Rig, plugin: str, *, name: str = "new", options: Mapping[str, OptionValue] = MappingProxyType({})
) -> RescoreStage:
    settings = RewardSettings(plugin=plugin, weight=0.0, isolation="thread", options=dict(options))
    stage = RescoreStage(rig.context(), name=name, settings=settings)
    stage.start(deadline=Deadline.after(10))
    return stage


def to_its_end(rig: Rig, plugin: str, *, options: Mapping[str, OptionValue] = MappingProxyType({})) -> RescoreStage:
    stage = past(rig, plugin, options=options)
    turn_until(stage, lambda: stage.finished)
    stage.stop(deadline=Deadline.after(5))
    return stage


def test_all_that_is_there_is_scored_as_shadow_and_it_ends(rig: Rig) -> None:
    write_samples(rig.log, (sample(group, failure="engine_failed" if group == 3 else None) for group in range(100)))
    stage = to_its_end(rig, f"{HERE}:raises_on_13")
    scored = rewards_of(rig.log, SHADOW_REWARDS)
    assert {one.group for one in scored} == set(range(100)) - {3}
    assert [one.group for one in scored if one.value is None] == [13], "a failure is no number"
    assert rewards_of(rig.log, REWARDS) == []
    assert stage.report().startswith("reward new: 99 samples scored in ")
    assert stage.report().endswith("samples/s, 1 of them failures; all of the log is scored")
    (event,) = rig.events("rescored")
    assert event.gauges["num_samples"] == 99


def test_an_empty_log_is_scored_at_once(rig: Rig) -> None:
    assert to_its_end(rig, "exact_match").report() == "reward new: 0 samples scored; all of the log is scored"


def test_the_same_plug_in_goes_on_and_another_one_begins_anew(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(20)))
    to_its_end(rig, f"{HERE}:length")
    write_samples(rig.log, (sample(group) for group in range(20, 30)))
    again = to_its_end(rig, f"{HERE}:length")
    assert again.num_scored == (10, 0)
    other = to_its_end(rig, f"{HERE}:Batched")
    assert other.num_scored == (30, 0)


def test_a_reward_that_is_trained_on_is_refused() -> None:
    with pytest.raises(SettingsError, match="is trained on"):
        RescoreStage(Rig().context(), name="math", settings=RewardSettings(plugin="exact_match"))


def test_what_is_stopped_says_what_is_left(rig: Rig, tmp_path: Path) -> None:
    write_samples(rig.log, (sample(group) for group in range(10)))
    stage = past(rig, "exact_match")
    stage.stop(deadline=Deadline.after(5))
    assert stage.report() == "reward new: 0 samples scored; 10 records are left"


def test_a_scorer_that_fails_for_most_ends_with_an_error_that_says_why(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(100)))
    stage = past(rig, f"{HERE}:always_raises")
    with pytest.raises(PluginError, match="RuntimeError: no scorer today; the past is not scored"):
        turn_until(stage, lambda: stage.finished)
    stage.stop(deadline=Deadline.after(5))
    assert all(one.value is None for one in rewards_of(rig.log, SHADOW_REWARDS))
    result = stage.result()
    assert result.num_failed > 0
    assert result.took_s > 0, "a rate of 0 samples/s would be said"


def test_two_sets_of_options_are_told_apart_in_what_is_written(rig: Rig) -> None:
    write_samples(rig.log, [sample(0)])
    to_its_end(rig, "exact_match")
    to_its_end(rig, "exact_match", options={"ignore_case": True})
    to_its_end(rig, "exact_match", options={"ignore_case": False})
    plain, *others = [one.plugin_version for one in rewards_of(rig.log, SHADOW_REWARDS)]
    assert plain == "1"
    assert len(set(others)) == 2
    assert all(version.startswith("1+opt-") for version in others)


def test_two_that_share_the_work_score_each_sample_once(rig: Rig) -> None:
    """Verdicts are written in lumps: those of a partition that goes to another process meanwhile are its to give."""
    write_samples(rig.log, (sample(group) for group in range(40)))
    first = past(rig, f"{HERE}:length")
    first._settled_s = float("inf")  # nothing is due by time: it holds what it has scored
    turn_until(first, lambda: len(first._held) == 40)
    second = past(rig, f"{HERE}:length")

    def until_one_partition_went() -> bool:
        second.turn()
        return sum(second.num_scored) == 20

    turn_until(first, until_one_partition_went)
    first._settled_s = 0.0

    def until_both_are_through() -> bool:
        second.turn()
        return first.finished and second.finished

    turn_until(first, until_both_are_through)
    for stage in (first, second):
        stage.stop(deadline=Deadline.after(5))
    assert sorted(one.group for one in rewards_of(rig.log, SHADOW_REWARDS)) == list(range(40))
    assert sum(second.num_scored) == 20
