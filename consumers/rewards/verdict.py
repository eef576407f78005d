"""What came of scoring one sample: a value, or why there is none.

Role: the only place where a plug-in's answer or exception becomes the content of a Reward record.
Invariants: value or failure, never both, never neither; a value is a finite number; an exception is never 0.
Failure: none; everything has a verdict.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from consumers.rewards.api import Transient

NON_FINITE = "non_finite"
NOT_A_NUMBER = "not_a_number"
MAX_FAILURE_CHARS = 500
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Exactly one of the two is set."""

    value: float | None = None
    failure: str | None = None  # a word, or the class of the error, then `: detail`


def of_value(raw: object) -> Verdict:
    """The verdict of what a plug-in returned. Booleans are refused: True where 0.9 was meant hides a bug."""
    if isinstance(raw, bool) or not isinstance(raw, numbers.Real):
        return Verdict(failure=f"{NOT_A_NUMBER}: got {raw!r:.80} ({type(raw).__name__})")
    try:
        value = float(raw)
    except OverflowError:
        return Verdict(failure=f"{NON_FINITE}: too large for a float")
    if not math.isfinite(value):
        return Verdict(failure=f"{NON_FINITE}: {value}")
    return Verdict(value=value)


def of_error(error: BaseException, *, num_retries: int) -> Verdict:
    """The verdict of what a plug-in raised, after `num_retries` further tries."""
    tries = f" (after {num_retries} retries)" if num_retries else ""
    said = " ".join(str(error).split())
    head = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return Verdict(failure=head[: MAX_FAILURE_CHARS - len(tries)] + tries)


def is_transient(error: BaseException) -> bool:
    """Whether another try may succeed: what the plug-in says is so, and trouble of connections and the system."""
    return isinstance(error, Transient | OSError) and not isinstance(error, _PERMANENT)
