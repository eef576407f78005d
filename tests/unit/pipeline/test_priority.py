"""Standing back for others: the policy of the process and the share of its session, and giving the latter back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pipeline.priority import LOWEST, OwnWait, session_nice, set_idle, set_session_nice, waited_s

needs_groups = pytest.mark.skipif(session_nice() is None, reason="this kernel has no scheduling group per session")
_SCRIPT = """
import os, sys
from pipeline.priority import session_nice, stand_back
before = session_nice()
give_back = stand_back({arguments})
print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.getpriority(os.PRIO_PROCESS, 0), session_nice())
give_back()
print(session_nice() == before)
"""


def said(*, arguments: str, new_session: bool) -> list[str]:
    """What a process of its own says after it stood back."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(arguments=arguments)],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=new_session,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    return done.stdout.split()


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process in a session of its own."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait(10)


@needs_groups
def test_a_session_of_ones_own_stands_back_for_good() -> None:
    idle, _, nice, restored = said(arguments="", new_session=True)
    assert (idle, nice, restored) == ("True", str(LOWEST), "False")


@needs_groups
def test_a_niceness_is_that_of_the_session_too() -> None:
    _, own, nice, _ = said(arguments="niceness=10", new_session=True)
    assert nice == "10"
    assert int(own) >= 10


@needs_groups
def test_a_session_that_was_there_before_gets_its_share_back() -> None:
    assert said(arguments="", new_session=False)[2:] == [str(LOWEST), "True"]


@needs_groups
def test_the_session_of_another_process_can_stand_back_and_come_back(sleeper: int) -> None:
    assert set_session_nice(LOWEST, pid=sleeper)
    assert session_nice(sleeper) == LOWEST
    deadline = 50
    while not set_session_nice(0, pid=sleeper) and deadline:  # ten times a second without privileges
        deadline -= 1
    assert session_nice(sleeper) == 0


def test_the_policy_of_another_process_is_changed_and_restored(sleeper: int) -> None:
    assert set_idle(True, pid=sleeper)
    assert os.sched_getscheduler(sleeper) == os.SCHED_IDLE
    assert set_idle(False, pid=sleeper)
    assert os.sched_getscheduler(sleeper) == os.SCHED_OTHER


def test_of_a_process_that_is_gone_nothing_is_known_or_changed() -> None:
    process = subprocess.Popen(["true"])
    process.wait(10)
    assert session_nice(process.pid) is None
    assert waited_s(process.pid) is None
    assert not set_session_nice(0, pid=process.pid)
    assert not set_idle(True, pid=process.pid)


def test_the_time_a_process_had_to_wait_is_known() -> None:
    waited = waited_s(os.getpid())
    assert waited is None or waited >= 0


def test_ones_own_wait_is_what_others_see_of_it() -> None:
    wait = OwnWait()
    before, seen, after = wait.seconds(), waited_s(os.getpid()) or 0.0, wait.seconds()
    assert before <= seen <= after or seen == 0
    wait.close()
    assert wait.seconds() == 0.0
