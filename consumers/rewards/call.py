"""One call of a plug-in: samples in, a verdict for each or the trouble that came instead.

Role: the boundary to user code, in whichever thread or process it runs.
Invariants: one verdict per sample, or none and a trouble; an async call ends at its time limit.
Failure: whatever the plug-in raises comes out as trouble, hence the broad handlers; `SystemExit` is included, or a
scorer that exits would silently take a thread with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from consumers.rewards import verdict
from consumers.rewards.verdict import Trouble, Verdict
from schemas.records import Sample

_log = logging.getLogger(__name__)
Call: TypeAlias = Callable[[Sequence[Sample]], Sequence[object]]
AsyncCall: TypeAlias = Callable[[Sequence[Sample]], Awaitable[Sequence[object]]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a call gave: one verdict per sample, or trouble."""

    verdicts: tuple[Verdict, ...] = ()
    trouble: Trouble | None = None
    duration_ms: float = 0.0


def call_now(call: Call, samples: Sequence[Sample]) -> Answer:
    """Run a call to its end, however long that takes."""
    began_s = time.monotonic()
    try:
        verdicts = _verdicts(call(samples), num_samples=len(samples))
    except BaseException as error:  # noqa: BLE001 - user code, see the module docstring
        return Answer(trouble=verdict.of_error(error), duration_ms=_since_ms(began_s))
    return Answer(verdicts=verdicts, duration_ms=_since_ms(began_s))


async def call_within(call: AsyncCall, samples: Sequence[Sample], *, limit_s: float) -> Answer:
    """Run an async call to its end, or cancel it when its time is up."""
    began_s = time.monotonic()
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            values = await call(samples)
        verdicts = _verdicts(values, num_samples=len(samples))
    except BaseException as error:  # noqa: BLE001 - user code, see the module docstring
        late = isinstance(error, TimeoutError) and limit.expired()
        trouble = verdict.no_answer(limit_s) if late else verdict.of_error(error)
        return Answer(trouble=trouble, duration_ms=_since_ms(began_s))
    return Answer(verdicts=verdicts, duration_ms=_since_ms(began_s))


async def call_close(close: Callable[[], Awaitable[object]], *, limit_s: float) -> None:
    """Let a plug-in end what it opened; that it fails, or takes longer, changes no verdict."""
    try:
        async with asyncio.timeout(limit_s):
            await close()
    except BaseException as error:  # noqa: BLE001 - user code, see the module docstring
        _log.warning("the plug-in's aclose failed: %s", verdict.of_error(error).said)


def _verdicts(values: object, *, num_samples: int) -> tuple[Verdict, ...]:
    """One for each sample. What was given is the plug-in's, and so is the code that looking at it runs.

    Raises:
        ValueError: there is not one value per sample.
    """
    given = values if isinstance(values, Sequence) and not isinstance(values, str | bytes) else _listed(values)
    if given is None or len(given) != num_samples:
        seen = type(values).__name__ if given is None else f"{len(given)} values"
        raise ValueError(f"score_batch returned {seen} for {num_samples} samples")
    return tuple(verdict.of_value(raw) for raw in given)


def _listed(values: object) -> Sequence[object] | None:
    """Arrays and tensors as a list, without knowing their library."""
    convert: object = getattr(values, "tolist", None)
    listed: object = convert() if callable(convert) else None
    return listed if isinstance(listed, list) else None


def _since_ms(began_s: float) -> float:
    return (time.monotonic() - began_s) * 1000
