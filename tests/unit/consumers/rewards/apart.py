"""Scorers that misbehave in ways only a process of their own can stand."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from consumers.rewards.api import Sample
from pipeline.priority import session_nice


def loops_on_1_in_100(sample: Sample) -> float:
    """Never returns for some, whatever it is sent."""
    if sample.group % 100 == 7:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass
    return float(sample.group)


def waits_on_1_in_100(sample: Sample, *, file: str) -> float:
    """Computes until the test lets it go on, and is right in the end."""
    while sample.group % 100 == 57 and not Path(file).exists():
        pass
    return float(sample.group)


def session_share(sample: Sample) -> float:
    """Nice value of the session it runs in."""
    return float(session_nice() or 0)


def pid(sample: Sample) -> float:
    return float(os.getpid())


def dies_on_3(sample: Sample) -> float:
    if sample.group == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return 1.0


def starts_a_child(sample: Sample, *, session: bool = False) -> float:
    """Leaves a process behind, perhaps in a session of its own, and hangs on it."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=session)
    sys.stderr.write(f"child {child.pid}\n")
    sys.stderr.flush()
    return float(child.wait())


def starts_a_session(sample: Sample) -> float:
    return starts_a_child(sample, session=True)


def leaves_a_session(sample: Sample) -> float:
    """Leaves a process behind in a session of its own, and is done."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    sys.stderr.write(f"child {child.pid}\n")
    sys.stderr.flush()
    return 1.0


def prints(sample: Sample) -> float:
    print("a word from the scorer")  # must not get into what the process says
    return 1.0


def alarms(sample: Sample) -> float:
    """A timer as scorers have it: on the main thread it is allowed."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return 1.0


def path(sample: Sample) -> float:
    """1 when it finds the environment of the consumer, without the secrets of the run."""
    secrets = {"RLWEAVE_KAFKA_PASSWORD", "RLWEAVE_PEER_TOKEN"} & set(os.environ)
    return float(os.environ.get("PYTHONPATH") == sample.completion_text and not secrets)


class Batched:
    """Hangs for the whole batch that holds group 13."""

    def score_batch(self, samples: Sequence[Sample]) -> list[float]:
        while any(sample.group == 13 for sample in samples):
            time.sleep(60)
        return [float(len(samples))] * len(samples)


async def waits_on_2(sample: Sample) -> float:
    await asyncio.sleep(600 if sample.group == 2 else 0.001)
    return 1.0


async def blocks_on_2(sample: Sample) -> float:
    """Blocks the event loop, and with it all others."""
    await asyncio.sleep(0.001)
    if sample.group == 2:
        time.sleep(600)
    return 1.0


class Unloadable:
    def __init__(self) -> None:
        os._exit(9)

    def score(self, sample: Sample) -> float:
        return 0.0


class SlowToLoad:
    def __init__(self) -> None:
        time.sleep(600)

    def score(self, sample: Sample) -> float:
        return 0.0


class OnlyOne:
    """To be loaded in one process."""

    max_workers = 1

    async def score(self, sample: Sample) -> float:
        return float(os.getpid())
