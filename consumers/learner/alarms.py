"""When what is dropped, or how far log-probabilities are apart, says that something is wrong upstream.

Role: pure; the assembler's tally and the loop ask it, and turn what it says into notices.
Data in: the reason of each member that got an outcome; the mismatch of each step. Data out: whether to tell now.
Invariants: one notice when a limit is passed, the next one only after it was clearly kept again.
Failure: none.
"""

from __future__ import annotations

from collections import Counter, deque

from schemas.reasons import Reason

# What healthy stages hardly ever do. Being late, stale or in a group that was dropped is no fault of the sample.
FAULTS = frozenset(
    {
        Reason.NON_FINITE_LOGPROB,
        Reason.NON_FINITE_REWARD,
        Reason.MISSING_LOGPROBS,
        Reason.LENGTH_MISMATCH,
        Reason.BAD_LOSS_MASK,
        Reason.OUT_OF_VOCABULARY,
        Reason.BAD_SAMPLING,
        Reason.EMPTY_COMPLETION,
        Reason.BAD_GROUP_SIZE,
        Reason.TOO_LARGE,
        Reason.UNVERIFIED,
        Reason.PROMPT_INVALID,
        Reason.REWARD_FAILED,
        Reason.REFERENCE_FAILED,
        Reason.ENGINE_FAILED,
    }
)
WINDOW = 256  # members looked back on
FEWEST = 32  # of them, before anything is said
CALM = 0.5  # of a limit: below it, the next passing is told again


class DropAlarm:
    """Watches each fault's share of the latest members.

    Args:
        share: of one reason, above which it is told.
    """

    def __init__(self, *, share: float) -> None:
        self._limit = share
        self._window: deque[str] = deque()
        self._counts: Counter[str] = Counter()
        self._told: set[str] = set()

    def add(self, reason: str) -> float | None:
        """Take one member's reason, empty for none; its share when that is to be told now."""
        self._window.append(reason)
        self._counts[reason] += 1
        if len(self._window) > WINDOW:
            self._counts[self._window.popleft()] -= 1
        self._told -= {word for word in self._told if self._share(word) < CALM * self._limit}
        if reason not in FAULTS or reason in self._told or len(self._window) < FEWEST:
            return None
        share = self._share(reason)
        if share <= self._limit:
            return None
        self._told.add(reason)
        return share

    def _share(self, reason: str) -> float:
        return self._counts[reason] / len(self._window)


class MismatchAlarm:
    """Watches how far the sampler's log-probabilities are from the trainer's.

    Args:
        limit: mean over the tokens of a step, in nats, above which it is told.
    """

    def __init__(self, *, limit: float) -> None:
        self._limit = limit
        self._is_told = False

    def add(self, mismatch: float) -> bool:
        """Take one step's; whether to tell now."""
        if mismatch < CALM * self._limit:
            self._is_told = False
        tell = mismatch > self._limit and not self._is_told
        self._is_told = self._is_told or tell
        return tell
