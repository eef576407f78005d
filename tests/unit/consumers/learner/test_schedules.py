"""Learning rates by step."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from consumers.learner.schedules import learning_rate
from consumers.learner.settings import OptimizerSettings


def rates(settings: OptimizerSettings, *steps: int) -> list[float]:
    return [learning_rate(settings, step) for step in steps]


def test_constant_after_the_warm_up() -> None:
    settings = OptimizerSettings(learning_rate=0.4, warmup_steps=3)
    assert rates(settings, 1, 2, 3, 4, 900) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_linear_goes_down_to_its_share_and_stays() -> None:
    settings = OptimizerSettings(
        learning_rate=1.0, warmup_steps=1, schedule="linear", schedule_steps=12, final_share=0.5
    )
    assert rates(settings, 1, 2, 7, 12, 50) == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.5])


def test_cosine_is_half_a_wave() -> None:
    settings = OptimizerSettings(learning_rate=1.0, schedule="cosine", schedule_steps=5)
    assert rates(settings, 1, 2, 3, 4, 5, 6) == pytest.approx(
        [1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0.0, 0.0]
    )


@pytest.mark.parametrize("steps", [None, 4])
def test_a_schedule_without_an_end_is_refused(steps: int | None) -> None:
    with pytest.raises(ValidationError, match="schedule_steps above warmup_steps = 4"):
        OptimizerSettings(schedule="linear", schedule_steps=steps, warmup_steps=4)
