"""Prompts and demonstrations for the built-in environments: sources of kind `plugin`.

Role: `guesses` and `sums` are named in a run file as `prompts.source.plugin`, and with `demonstrations = true` as
`learner.cloning.source.plugin`.
Data in: a seed and a config; data out: rows with `question` and `answer`.
Invariants: row i is a function of seed, config and i. Demonstrations show the form only, played at random: what is to
be said when is left to learn.
Failure: `ValueError` for a config out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Row = dict[str, str]


class Drawn:
    """So many rows, each drawn by itself."""

    def __init__(self, draw: Callable[[Random], Row], *, seed: int, size: int) -> None:
        self._draw = draw
        self._seed = seed
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Row:
        """Row `index`; IndexError beyond the last one."""
        if not 0 <= index < self._size:
            raise IndexError(index)
        return self._draw(Random(self._seed * 1_000_003 + index))  # noqa: S311 - tasks, no secrets


def guesses(
    *, seed: int, low: int = 0, high: int = 9, turns: int = 4, size: int = 20_000, demonstrations: bool = False
) -> Drawn:
    """Prompts `low-high?` for `guess`; a demonstration is a game of so many turns with random numbers and answers."""

    def draw(random: Random) -> Row:
        said = "".join(f"{random.randint(low, high)}{random.choice('+-')}" for _ in range(random.randrange(turns)))
        answer = f"{said}{random.randint(low, high)}" if demonstrations else ""
        return {"question": f"{low}-{high}?", "answer": answer}

    return Drawn(draw, seed=seed, size=size)


def sums(
    *,
    seed: int,
    most: int = 9,
    size: int = 20_000,
    demonstrations: bool = False,
    right: float = 0.0,
    end: str = "<eos>",
) -> Drawn:
    """Prompts `a+b` with a, b up to `most` for `calculator`.

    A demonstration is one turn: the call, or after a call and its value, an answer. That is the value in a share
    `right` of them, else any number.

    Args:
        end: how the model's end token is written, where it ended a turn.
    """
    if most < 1 or not 0 <= right <= 1:
        raise ValueError(f"most {most} and right {right}; allowed are 1 and up, and 0 to 1")

    def draw(random: Random) -> Row:
        one, other = random.randint(0, most), random.randint(0, most)
        question, value = f"{one}+{other}", one + other
        if not demonstrations:
            return {"question": question, "answer": str(value)}
        if random.random() < 0.5:
            return {"question": question, "answer": f"{question}="}
        answer = value if random.random() < right else random.randint(0, 2 * most)
        return {"question": f"{question}{question}={end}{value}", "answer": str(answer)}

    return Drawn(draw, seed=seed, size=size)
