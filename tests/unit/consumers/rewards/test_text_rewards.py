"""The rewards that look at form, length and repetition, and mathematical equality."""

from __future__ import annotations

import pytest

from consumers.rewards.math_match import MathVerify
from consumers.rewards.penalties import LengthPenalty, RepetitionPenalty
from consumers.rewards.text_checks import RegexMatch, TagFormat
from schemas.packed import pack_i32, pack_u8
from schemas.records import Sample
from tests.unit.consumers.rewards.helpers import sample


def text(completion: str, answer: str | None = "4") -> Sample:
    return sample(completion_text=completion, answer=answer)


def tokens(*ids: int, mask: list[int] | None = None) -> Sample:
    return sample(completion_tokens=pack_i32(list(ids)), loss_mask=b"" if mask is None else pack_u8(mask))


@pytest.mark.parametrize(
    ("options", "completion", "value"),
    [
        ({"pattern": r"\d+"}, "it is 4", 1.0),
        ({"pattern": r"\d+"}, "it is four", 0.0),
        ({"pattern": r"\d+", "full": True}, " 4\n", 1.0),
        ({"pattern": r"\d+", "full": True}, "it is 4", 0.0),
        ({"pattern": "IT IS", "ignore_case": True}, "it is 4", 1.0),
        ({"pattern": r"<a>(.*?)</a>", "group": 1}, "<a>5</a> no, <a>\n4 </a>", 1.0),
        ({"pattern": r"<a>(.*?)</a>", "group": 1}, "<a>4</a> no, <a>5</a>", 0.0),
        ({"pattern": r"(x)?y", "group": 1}, "y", 0.0),
    ],
)
def test_regex(options: dict[str, object], completion: str, value: float) -> None:
    assert RegexMatch(**options).score(text(completion)) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(("pattern", "group"), [("(", 0), ("a", 1), ("(a)", -1)])
def test_a_pattern_that_cannot_work_is_refused(pattern: str, group: int) -> None:
    with pytest.raises(ValueError, match=r"pattern|group"):
        RegexMatch(pattern=pattern, group=group)


def test_a_regex_that_compares_needs_an_answer() -> None:
    with pytest.raises(ValueError, match="no reference answer"):
        RegexMatch(pattern="(a)", group=1).score(text("b", None))


@pytest.mark.parametrize(
    ("completion", "strict", "value"),
    [
        ("<think>so</think>\n<answer>4</answer>\n", True, 1.0),
        ("<think>so</think> hence <answer>4</answer>", True, 0.0),
        ("<think>so</think> hence <answer>4</answer>", False, 1.0),
        ("<answer>4</answer><think>so</think>", False, 0.0),
        ("<think>so<answer>4</answer></think>", False, 0.0),
        ("<think>so</think><answer>4</answer><answer>5</answer>", False, 0.0),
        ("<think>so</think><answer>4", False, 0.0),
        ("", False, 0.0),
    ],
)
def test_format(completion: str, strict: bool, value: float) -> None:
    assert TagFormat(strict=strict).score(text(completion)) == value


@pytest.mark.parametrize(("num", "value"), [(0, 0.0), (4, 0.0), (5, -0.25), (8, -1.0), (20, -1.0)])
def test_length_penalty(num: int, value: float) -> None:
    assert LengthPenalty(free_tokens=4, max_tokens=8).score(tokens(*range(num))) == value


def test_tokens_of_an_environment_are_not_counted() -> None:
    assert LengthPenalty(free_tokens=1, max_tokens=3).score(tokens(1, 2, 3, 4, mask=[1, 0, 0, 1])) == -0.5
    assert RepetitionPenalty(ngram=1).score(tokens(7, 7, 7, 8, mask=[1, 0, 0, 1])) == 0.0


@pytest.mark.parametrize(
    ("ids", "value"), [((1, 2, 1, 2, 1), -0.5), ((1, 2, 3), 0.0), ((1,), 0.0), ((), 0.0), ((5, 5, 5, 5, 5), -0.75)]
)
def test_repetition_penalty(ids: tuple[int, ...], value: float) -> None:
    assert RepetitionPenalty(ngram=2).score(tokens(*ids)) == value


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [
        (r"so it is $\frac{1}{2}$", "0.5", 1.0),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
        ("43", "42", 0.0),
        ("no idea", "42", 0.0),
    ],
)
def test_math_verify(completion: str, answer: str, value: float) -> None:
    assert MathVerify().score(text(completion, answer)) == value


def test_an_answer_without_mathematics_is_a_failure_and_no_0() -> None:
    with pytest.raises(ValueError, match="no mathematical expression"):
        MathVerify().score(text("4", "???"))
