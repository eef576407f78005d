"""Scorers that tests plug in, as a user would write them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Sequence

from consumers.rewards.api import Sample, Transient, metadata

hang = threading.Event()  # set by tests at the end, so that a hung thread ends
tries: dict[int, int] = {}
down = threading.Event()  # while set, `remote` answers as a service that is away


def length(sample: Sample, *, factor: float = 1.0) -> float:
    return factor * len(sample.completion_text)


async def slow_length(sample: Sample) -> float:
    await asyncio.sleep(0.001)
    return float(len(sample.completion_text))


def bad_number(sample: Sample) -> object:
    return {"nan": float("nan"), "inf": float("inf"), "none": None, "true": True, "text": "1"}[sample.completion_text]


def raises_on_13(sample: Sample) -> float:
    if sample.group == 13:
        raise ZeroDivisionError("thirteen")
    return 1.0


def always_raises(sample: Sample) -> float:
    raise RuntimeError("no scorer today")


def alarm(sample: Sample) -> float:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # allowed on the main thread only
    return 1.0


def leaves(sample: Sample) -> float:
    raise SystemExit(3)


def flaky(sample: Sample) -> float:
    """A transient error twice per group, then a value."""
    tries[sample.group] = tries.get(sample.group, 0) + 1
    if tries[sample.group] <= 2:
        raise ConnectionResetError("503")
    return 1.0


def remote(sample: Sample) -> float:
    if down.is_set():
        raise Transient("503")
    return 1.0


def breaks_when_told(sample: Sample) -> float:
    if down.is_set():
        raise RuntimeError("broken")
    return 1.0


def hangs_on_1(sample: Sample) -> float:
    if sample.group == 1:
        hang.wait()
    return 1.0


class Batched:
    """Scores many at a time; one bad item spoils the call."""

    name = "batched"
    version = "7"

    def __init__(self, *, offset: float = 0.0) -> None:
        self.offset = offset

    def score_batch(self, samples: Sequence[Sample]) -> list[float]:
        if any(sample.completion_text == "bad" for sample in samples):
            raise ValueError("a bad item")
        return [len(sample.completion_text) + self.offset for sample in samples]


class ShortBatch:
    def score_batch(self, samples: Sequence[Sample]) -> list[float]:
        return []


def make(*, wanted: str) -> object:
    """A factory: takes options, returns a scorer."""

    def score(sample: Sample) -> float:
        return float(metadata(sample, "kind") == wanted)

    return score


class ScoresNothing:
    pass


not_a_scorer = 3
