"""The built-in environments, played through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.environments import tasks, testing
from pipeline.environments.base import Environment, Observation
from pipeline.environments.calculator import Calculator, evaluate
from pipeline.environments.guess import GuessNumber


def play(environment: Environment, *texts: str, prompt: str = "2+3=", seed: int = 5) -> list[Observation]:
    return testing.play(environment, *texts, task=replace(testing.TASK, prompt=prompt, seed=seed))


def test_guesses_are_answered_with_the_direction() -> None:
    number = int(play(GuessNumber(low=3, high=6))[0].facts["number"])
    assert 3 <= number <= 6
    said = play(GuessNumber(low=3, high=6), "what", str(number - 1), f"{number + 1}.", f"= {number}")
    assert [each.text for each in said[1:]] == ["?", "+", "-", ""]
    assert [each.reward for each in said[1:]] == [-0.1, -0.1, -0.1, 1.0]
    assert [each.done for each in said[1:]] == [False, False, False, True]
    assert said[-1].facts == {"won": "4"}


def test_the_number_is_that_of_the_groups_seed() -> None:
    numbers = [play(GuessNumber(), seed=seed)[0].facts["number"] for seed in range(40)]
    assert numbers == [play(GuessNumber(), seed=seed)[0].facts["number"] for seed in range(40)]
    assert len(set(numbers)) == 10


def test_a_call_gives_the_value_and_the_right_answer_the_reward_part_of_it_to_the_call() -> None:
    said = play(Calculator(credit=0.25), "2+3=", "5")
    assert [each.text for each in said] == ["", "5", ""]
    assert (said[2].reward, said[2].done, said[2].earlier) == (1.0, True, {0: 0.25})
    assert said[2].facts == {"right": "yes", "used_tool": "yes"}


def test_a_wrong_answer_and_a_call_that_is_none() -> None:
    said = play(Calculator(), "what=", "2+2=", "4")
    assert [each.text for each in said] == ["", "?", "4", ""]
    assert (said[3].reward, said[3].done, said[3].facts["right"], said[3].facts["used_tool"]) == (0.0, True, "no", "no")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3", 5),
        ("12*(3-5)=", -24),
        ("-4", -4),
        ("2**3", None),
        ("2/3", None),
        ("", None),
        ("()", None),
        ("9" * 30, None),
        ("2+", None),
        ("0x1", None),
        ("import", None),
    ],
)
def test_expressions_are_integers_with_three_operations(text: str, value: int | None) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize("draw", [tasks.guesses, tasks.sums])
def test_tasks_are_a_function_of_seed_and_place(draw: Callable[..., tasks.Drawn]) -> None:
    assert [draw(seed=3)[at] for at in range(50)] == [draw(seed=3)[at] for at in reversed(range(50))][::-1]
    assert draw(seed=3)[0] != draw(seed=3, demonstrations=True)[0]
    with pytest.raises(IndexError):
        draw(seed=3, size=5)[5]


def test_demonstrations_show_calls_that_the_calculator_takes() -> None:
    rows = [tasks.sums(seed=1, demonstrations=True, right=1.0)[at] for at in range(40)]
    calls = [row for row in rows if row["answer"].endswith("=")]
    assert 0 < len(calls) < 40
    assert all(evaluate(row["answer"]) == evaluate(row["question"]) for row in calls)
    answers = [row for row in rows if not row["answer"].endswith("=")]
    assert all(row["question"].endswith(f"=<eos>{row['answer']}") for row in answers)
