"""The scorers that are measured, each good or broken by an option.

Role: plug-ins, loaded where reward consumers run them; light, as what is measured is not how fast they compute, unless
told how long each sample is to take: at full speed a scorer that costs nothing would measure the consumer alone.
Invariants: none of them ever returns 0, so a 0 in the records was made up by somebody else; which samples a broken one
spoils follows from the sample alone (`spoils`).
Failure: on purpose.
"""

from __future__ import annotations

import math
import signal
import time

from consumers.rewards.api import Sample

GROUP_SIZE = 10
EVERY = {"hangs": 100, "raises": 20, "nan": 20}  # one in so many samples is spoiled by a broken one


def value_of(sample: Sample) -> float:
    """What each good scorer gives: 1 to 2."""
    return 1.0 + (sample.group % 97) / 97


def spoils(name: str, *, group: int, member: int) -> bool:
    """Whether the broken scorer of this name has no value for the sample."""
    every = EVERY.get(name)
    return every is not None and (group * GROUP_SIZE + member) % every == 7


def steady(sample: Sample, *, work_ms: float = 0.0) -> float:
    """Always good."""
    return _worked(sample, work_ms=work_ms)


def hangs(sample: Sample, *, broken: bool, work_ms: float = 0.0) -> float:
    """Computes for ever on some samples, and ignores signals."""
    if broken and spoils("hangs", group=sample.group, member=sample.member):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
    return _worked(sample, work_ms=work_ms)


def raises(sample: Sample, *, broken: bool, work_ms: float = 0.0) -> float:
    """Raises on some samples."""
    if broken and spoils("raises", group=sample.group, member=sample.member):
        raise RuntimeError("no idea")
    return _worked(sample, work_ms=work_ms)


def nan(sample: Sample, *, broken: bool, work_ms: float = 0.0) -> float:
    """Gives NaN for some samples."""
    if broken and spoils("nan", group=sample.group, member=sample.member):
        return math.nan
    return _worked(sample, work_ms=work_ms)


def brevity(sample: Sample) -> float:
    """A new reward for the past."""
    return 1.0 / (1 + len(sample.completion_text))


def _worked(sample: Sample, *, work_ms: float) -> float:
    """The value, after so much processor time."""
    until_s = time.process_time() + work_ms / 1000
    while time.process_time() < until_s:
        pass
    return value_of(sample)
