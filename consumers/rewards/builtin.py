"""The rewards rlweave ships: which there are, and exact match, number match and the reasoning-gym scorer.

Role: written as a user would write them. The others are in modules of their own, imported when they are used.
Invariants: numbers are compared as decimals, not as floats; a completion without an answer scores 0, a task without
a reference answer is a failure, since nothing can be said of the completion.
Failure: exceptions, which the consumer turns into failures of the sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import cast

from consumers.rewards.api import Sample, answer, completion_text, metadata, metadata_json
from pipeline.sources.reasoning_library import reasoning_library

# A sign belongs to the number unless a digit, letter or bracket stands before it: "5-3" ends in 3, "= -3" in -3.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])[-+\u2212])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII
)
BUILTINS = {
    "environment": "consumers.rewards.environment:EnvironmentReturn",
    "exact_match": "consumers.rewards.builtin:ExactMatch",
    "number_match": "consumers.rewards.builtin:NumberMatch",
    "reasoning_gym": "consumers.rewards.builtin:ReasoningGym",
    "regex": "consumers.rewards.text_checks:RegexMatch",
    "format": "consumers.rewards.text_checks:TagFormat",
    "math_verify": "consumers.rewards.math_match:MathVerify",
    "length_penalty": "consumers.rewards.penalties:LengthPenalty",
    "repetition_penalty": "consumers.rewards.penalties:RepetitionPenalty",
    "remote_http": "consumers.rewards.remote:RemoteHttp",
    "llm_judge": "consumers.rewards.judge:LlmJudge",
    "neural": "consumers.rewards.neural:NeuralReward",
}
# What may compute for ever on some text, or needs torch, runs in processes like a user's own.
APART = frozenset({"regex", "math_verify", "neural"})


class ExactMatch:
    """1 if the completion is the reference answer, white space around it aside; else 0."""

    name = "exact_match"
    version = "1"

    def __init__(self, *, ignore_case: bool = False) -> None:
        self._fold: Callable[[str], str] = str.casefold if ignore_case else str

    def score(self, sample: Sample) -> float:
        """1.0 where the text equals the answer, else 0.0."""
        return float(self._fold(completion_text(sample)) == self._fold(answer(sample)))


class NumberMatch:
    """1 if the last number in the completion equals the last one in the reference answer; else 0."""

    name = "number_match"
    version = "1"

    def score(self, sample: Sample) -> float:
        """1.0 where the last number of the text is the answer's, else 0.0.

        Raises:
            ValueError: the reference answer has no number.
        """
        wanted = last_number(answer(sample))
        if wanted is None:
            raise ValueError(f"the reference answer {answer(sample)!r:.80} has no number")
        return float(last_number(sample.completion_text) == wanted)


class ReasoningGym:
    """What the task's own scorer says (reasoning-gym, `score_answer`), 0 to 1.

    The task's name and entry come with the prompt, as metadata `task` and `entry` (JSON).
    """

    name = "reasoning_gym"
    version = "1"

    def __init__(self) -> None:
        library = reasoning_library()  # an extra, and slow to import
        self._scorer_of = cast("Callable[[str], Callable[[str, object], float]]", library.get_score_answer_fn)
        self._scorers: dict[str, Callable[[str, object], float]] = {}

    def score(self, sample: Sample) -> float:
        """What the scorer of the sample's task gives."""
        task = metadata(sample, "task")
        if task not in self._scorers:
            self._scorers[task] = self._scorer_of(task)
        return self._scorers[task](completion_text(sample), metadata_json(sample, "entry"))


def last_number(text: str) -> Decimal | None:
    """The last number in a text, commas between thousands taken out; None if there is none."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    try:
        return Decimal(cast("str", found[-1]).replace(",", "").replace("\u2212", "-"))
    except InvalidOperation:  # an exponent beyond what decimals hold
        return None
