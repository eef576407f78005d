"""The rewards that come along."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from consumers.rewards.builtin import ExactMatch, NumberMatch, ReasoningGym, last_number
from tests.unit.consumers.rewards.helpers import sample


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("the answer is 42", "42"),
        ("42.", "42"),
        ("3 + 4 = 7", "7"),
        ("5-3", "3"),
        ("x = -3", "-3"),
        ("x = \u22123", "-3"),
        ("(5)-3", "3"),
        ("it costs $1,234.50 now", "1234.50"),
        ("1,2", "2"),
        (".5", "0.5"),
        ("2e3", "2000"),
        ("+7", "7"),
        ("1/2", "2"),
    ],
)
def test_last_number(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "-", ".", "1e99999999999999999999"])
def test_no_number(text: str) -> None:
    assert last_number(text) is None


def test_numbers_are_compared_as_decimals() -> None:
    score = NumberMatch().score
    assert score(sample(completion_text="so 0.30", answer="0.3")) == 1.0
    # Equal as floats:
    assert score(sample(completion_text="9007199254740993", answer="9007199254740992")) == 0.0
    assert score(sample(completion_text="no idea", answer="4")) == 0.0


@pytest.mark.parametrize("answer", [None, "four"])
def test_without_a_reference_number_there_is_no_score(answer: str | None) -> None:
    with pytest.raises(ValueError, match="reference answer"):
        NumberMatch().score(sample(answer=answer))


def test_exact_match() -> None:
    assert ExactMatch().score(sample(completion_text=" Yes\n", answer="Yes")) == 1.0
    assert ExactMatch().score(sample(completion_text="yes", answer="Yes")) == 0.0
    assert ExactMatch(ignore_case=True).score(sample(completion_text="yes", answer="Yes")) == 1.0


def test_reasoning_gym_uses_the_tasks_own_scorer() -> None:
    entry = json.dumps({"question": "4 + 3 =", "answer": "7", "metadata": {}})
    metadata = {"task": "chain_sum", "entry": entry}
    score = ReasoningGym().score
    assert score(sample(completion_text=" 7 ", metadata=metadata)) == 1.0
    assert score(sample(completion_text="8", metadata=metadata)) < 1.0


def test_reasoning_gym_names_missing_metadata() -> None:
    with pytest.raises(KeyError, match="no task metadata 'task'; there is: none"):
        ReasoningGym().score(sample())
