"""The built-in environment `guess`: find a number by asking, with "higher" and "lower" as answers.

Role: a small game that needs what was said before; an example of step rewards.
Data in: guesses as text; data out: `<` (the number is lower), `>` (higher) or `?` (no number seen).
Invariants: the number is drawn from the group's seed, so all members look for the same one.
Failure: none.
"""

from __future__ import annotations

import re
from random import Random

from pipeline.environments.base import Action, Observation, Task

_NUMBER = re.compile(r"\d+")


class GuessNumber:
    """See the module.

    Args:
        low, high: the number is one of low..high.
        lower, higher, unclear: what is answered.
        win: reward of the turn that finds it.
        miss: reward of any other turn.
    """

    def __init__(
        self,
        *,
        low: int = 0,
        high: int = 9,
        lower: str = "-",
        higher: str = "+",
        unclear: str = "?",
        win: float = 1.0,
        miss: float = -0.1,
    ) -> None:
        if high < low:
            raise ValueError(f"numbers from {low} to {high}: there is none")
        self._range = (low, high)
        self._lower, self._higher, self._unclear = lower, higher, unclear
        self._win, self._miss = win, miss
        self._number = low

    async def reset(self, task: Task) -> Observation:
        """Think of a number."""
        low, high = self._range
        self._number = Random(task.seed).randint(low, high)  # noqa: S311 - a game
        return Observation(facts={"number": str(self._number)})

    async def step(self, action: Action) -> Observation:
        """Compare the first number that was said."""
        found = _NUMBER.search(action.text)
        if found is None:
            return Observation(text=self._unclear, reward=self._miss)
        guess = int(found[0])
        if guess == self._number:
            return Observation(reward=self._win, done=True, facts={"won": str(action.turn + 1)})
        return Observation(text=self._lower if guess > self._number else self._higher, reward=self._miss)

    async def close(self) -> None:
        """Nothing is held."""
