"""What the join hands over, as the step computes with it: advantages by group, and losses that stay finite."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from consumers.learner.advantages import BUILT_IN, batch_advantages
from consumers.learner.batch import Batch
from consumers.learner.settings import LearnerSettings
from consumers.learner.trainer import Trainer
from pipeline.engines.tiny import make_tiny_model
from pipeline.settings import ModelSettings
from schemas.records import Record
from tests.unit.consumers.learner.material import (
    G,
    assembler,
    fates,
    feed,
    let_pass,
    prompt,
    results,
    reward,
    sample,
)
from topics.clock import ManualClock

ARRIVED = {0: 8, 1: 8, 2: 5, 3: 1}  # members of groups of eight
DRAW = random.Random(27)
REWARDS = {(group, member): DRAW.random() for group in ARRIVED for member in range(G)}


def records() -> list[Record]:
    found: list[Record] = [prompt(group) for group in ARRIVED]
    for group, number in ARRIVED.items():
        for member in range(number):
            found += [sample(group, member), reward(group, member, value=REWARDS[group, member])]
    return found


def advantages_of(batch: Batch) -> dict[int, list[float]]:
    values = batch_advantages(batch, BUILT_IN["grpo"])
    return {group.group: [float(next(values)[0]) for _ in group.members] for group in batch.groups}


def reference(group: int) -> list[float]:
    """(r - mean) / (std + eps) of one group alone, in float64."""
    values = np.array([REWARDS[group, member] for member in range(ARRIVED[group])])
    return list(map(float, (values - values.mean()) / (values.std() + 1e-6)))


@pytest.mark.parametrize("part_groups", [False, True])
def test_advantages_are_each_groups_own_in_any_order_of_arrival(part_groups: bool) -> None:
    """Case 27: of four groups one has 5 of 8 members and one has 1; both follow the setting, the others the formula."""
    seen: list[dict[int, list[float]]] = []
    for seed in range(6):
        shuffled = records()
        random.Random(seed).shuffle(shuffled)
        clock = ManualClock()
        target = assembler(clock=clock, min_group_members=1 if part_groups else None)
        feed(target, shuffled)
        let_pass(target, clock, 100)
        batch = target.cut(0, 4, allow_smaller=True)
        assert batch is not None
        target.mark_trained(batch)
        dropped = {group: fate for group, fate in fates(target.take_outcomes()).items() if fate != "trained"}
        assert dropped == ({} if part_groups else {2: "dropped(incomplete: 5/8)", 3: "dropped(incomplete: 1/8)"})
        seen.append(advantages_of(batch))
    assert all(each == seen[0] for each in seen), "order of arrival changed a bit"
    assert seen[0][0] == reference(0)
    assert seen[0][1] == reference(1)
    if part_groups:
        assert seen[0][2] == reference(2)
        assert seen[0][3] == [0.0]
    assert set(seen[0]) == ({0, 1, 2, 3} if part_groups else {0, 1})


def test_bad_log_probabilities_are_dropped_and_the_loss_of_the_rest_is_finite(tmp_path: Path) -> None:
    """Case 25: NaN, both infinities, none at all and a positive one, at one token each."""
    make_tiny_model(tmp_path, seed=3, context_tokens=32)
    trainer = Trainer(LearnerSettings(), ModelSettings(path=tmp_path), seed=11)
    target = assembler(min_group_members=3, vocab_size=trainer.vocab_size, context_tokens=trainer.context_tokens)
    bad = [(math.nan, -1.0), (-math.inf, -1.0), (math.inf, -1.0), (0.5, -1.0), None]
    feed(target, [prompt(0), *(sample(0, member, logprobs=values) for member, values in enumerate(bad))])
    feed(target, [sample(0, member) for member in range(5, 8)])
    feed(target, [reward(0, member, value=float(member % 2)) for member in range(8)])
    batch = target.cut(0, 1)
    assert batch is not None
    stats = trainer.step(batch)
    assert math.isfinite(stats.loss)
    assert math.isfinite(stats.grad_norm)
    target.mark_trained(batch)
    counted = results(target.take_outcomes())
    assert counted == {"trained": 3, "dropped(non_finite_logprob)": 4, "dropped(missing_logprobs)": 1}
