"""Rewards that are 0 or less: for completions that are too long, or repeat themselves.

Data in: samples; counted are the policy's own tokens. Data out: 0.0 down to -1.0.
Failure: `ValueError` for options that cannot work, or a sample whose arrays do not fit each other.
"""

from __future__ import annotations

from consumers.rewards.api import Sample
from consumers.rewards.own_tokens import own_tokens


class LengthPenalty:
    """0 up to `free_tokens`, then in a straight line down to -1 at `max_tokens` and beyond.

    DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), with its L_max - L_cache as `free_tokens`.

    Raises:
        ValueError: not 0 <= free_tokens < max_tokens.
    """

    name = "length_penalty"
    version = "1"

    def __init__(self, *, free_tokens: int, max_tokens: int) -> None:
        if not 0 <= free_tokens < max_tokens:
            raise ValueError(f"free_tokens = {free_tokens} must be 0 or more and below max_tokens = {max_tokens}")
        self._free, self._max = free_tokens, max_tokens

    def score(self, sample: Sample) -> float:
        """-1.0 to 0.0."""
        over = len(own_tokens(sample)) - self._free
        return -min(1.0, max(0.0, over / (self._max - self._free)))


class RepetitionPenalty:
    """Minus the share of n-grams of tokens that were there before; 0 when none was.

    The n-gram repetition penalty of arXiv 2502.03373, as a share of the completion.

    Raises:
        ValueError: ngram < 1.
    """

    name = "repetition_penalty"
    version = "1"

    def __init__(self, *, ngram: int = 4) -> None:
        if ngram < 1:
            raise ValueError(f"ngram = {ngram} must be 1 or more")
        self._ngram = ngram

    def score(self, sample: Sample) -> float:
        """-1.0 (excluded) to 0.0; 0.0 for completions shorter than an n-gram."""
        tokens = own_tokens(sample).tolist()
        grams = list(zip(*(tokens[at:] for at in range(self._ngram)), strict=False))
        return len(set(grams)) / len(grams) - 1.0 if grams else 0.0
