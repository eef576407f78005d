"""A reward consumer whose topic is deleted and made anew."""

from __future__ import annotations

import pytest

from tests.unit.consumers.rewards.helpers import Rig, rewards_of, sample, turn_until, write_samples
from topics.catalog import REWARDS, SAMPLES, full_name
from topics.clock import Deadline


@pytest.mark.parametrize("alive", [True, False], ids=["while it reads", "before a successor reads"])
def test_every_sample_of_the_new_topic_is_scored_and_the_loss_is_told(alive: bool) -> None:
    """The new topic has grown past the committed offset when it is looked at."""
    rig = Rig()
    stage = rig.stage(plugin="exact_match")
    write_samples(rig.log, [sample(group * 2) for group in range(5)])
    turn_until(stage, lambda: rig.lag() == 0)
    committed = dict(rig.log.broker.group("rlweave.r.reward.math").committed)
    if not alive:
        stage.stop(deadline=Deadline.after(5))
    rig.log.broker.delete_topic(full_name("r", SAMPLES))
    rig.log.admin().ensure_topics()
    rig.log.broker.group("rlweave.r.reward.math").committed.update(committed)  # of a commit just after the deletion
    write_samples(rig.log, [sample(100 + group * 2) for group in range(8)])
    if not alive:
        stage = rig.stage(plugin="exact_match")
    turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) == 13)
    turn_until(stage, lambda: rig.lag() == 0)
    assert sorted({reward.group for reward in rewards_of(rig.log, REWARDS)})[5:] == list(range(100, 116, 2))
    told = {event.details["partition"]: event for event in rig.events("topic_recreated")}
    assert told.keys() == {"0", "1"}
    assert told["0"].details["topic"] == "samples"
    assert told["0"].details["lost"].startswith("what the old topic held from offset 5 on")
    assert told["0"].details["now"] == rig.log.admin().topic_ids()["samples"]
    stage.stop(deadline=Deadline.after(5))
