"""What came of scoring one sample: a value, or why there is none.

Role: the only place where a plug-in's answer or exception becomes the content of a Reward record.
Invariants: value or failure, never both, never neither; a value is a finite number; an exception is never 0.
Failure: none; everything has a verdict.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Literal

from consumers.rewards.api import Transient
from pipeline.plugins import told

NON_FINITE = "non_finite"
NOT_A_NUMBER = "not_a_number"
TIMEOUT = "timeout"
DIED = "died"
MAX_FAILURE_CHARS = 500
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Exactly one of the two is set."""

    value: float | None = None
    failure: str | None = None  # a word, or the class of the error, then `: detail`


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why a call gave no values.

    `kind` says who may be tried again: `error` never, `transient` as often as the settings say, `lost` (no answer in
    time, or the process that scored is gone) a few times, as each try may cost a process and a time limit.
    """

    said: str  # a word, or the class of the error, then `: detail`
    kind: Literal["error", "transient", "lost"] = "error"


def of_value(raw: object) -> Verdict:
    """The verdict of what a plug-in returned; an exception in place of a number is a failure of that sample.

    Booleans are refused: True where 0.9 was meant hides a bug.
    """
    if isinstance(raw, BaseException):
        return Verdict(failure=of_error(raw).said)
    if isinstance(raw, bool) or not isinstance(raw, numbers.Real):
        return Verdict(failure=_plain(f"{NOT_A_NUMBER}: got {raw!r:.80} ({type(raw).__name__})"))
    try:
        value = float(raw)
    except OverflowError:
        return Verdict(failure=f"{NON_FINITE}: too large for a float")
    if not math.isfinite(value):
        return Verdict(failure=f"{NON_FINITE}: {value}")
    return Verdict(value=value)


def of_error(error: BaseException) -> Trouble:
    """What a plug-in raised."""
    return Trouble(
        said=_plain(" ".join(told(error).split()))[:MAX_FAILURE_CHARS],
        kind="transient" if _is_transient(error) else "error",
    )


def no_answer(limit_s: float) -> Trouble:
    """The time of a call was up."""
    return Trouble(said=f"{TIMEOUT}: no value within {limit_s:g} s", kind="lost")


def process_died(how: str) -> Trouble:
    """The process that scored ended in the middle."""
    return Trouble(said=f"{DIED}: {how}", kind="lost")


def of_trouble(trouble: Trouble, *, num_retries: int) -> Verdict:
    """The verdict when there is no further try."""
    tries = f" (after {num_retries} retries)" if num_retries else ""
    return Verdict(failure=trouble.said[: MAX_FAILURE_CHARS - len(tries)] + tries)


def _plain(text: str) -> str:
    """Text that can be encoded: an error may hold half a character."""
    return text.encode("utf-8", "replace").decode()


def _is_transient(error: BaseException) -> bool:
    """Whether another try may succeed: what the plug-in says is so, and trouble of connections and the system."""
    return isinstance(error, Transient | OSError) and not isinstance(error, _PERMANENT)
