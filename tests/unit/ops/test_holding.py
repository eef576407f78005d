"""Of two launches of a run in one moment exactly one goes on, and a holder that died holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.holding import hold, hold_off
from schemas.errors import LeaseHeld, SettingsError

ALL = ("prompts", "rollout", "learner", "scheduler")
WENT_ON = "went on"
HOLDS = """
import sys
from pathlib import Path
from ops.holding import hold
with hold(Path(sys.argv[1]), stages=["learner"]):
    print("held", flush=True)
    sys.stdin.read()
"""


def is_held(folder: Path, stage: str) -> bool:
    with hold_off(folder, stage=stage) as is_free:
        return not is_free


class Pair:
    """Two launches that begin together; the one that goes on stays until the other has seen it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begin, self.end = threading.Barrier(2), threading.Barrier(2)

    def launch(self, side: str) -> str:
        self.begin.wait(10)
        try:
            with hold(self.folder, stages=ALL):
                (self.folder / "settings.json").write_text(side)
                self.end.wait(10)
                return WENT_ON
        except LeaseHeld as error:
            self.end.wait(10)
            return error.message


def test_of_two_in_the_same_moment_exactly_one_goes_on_20_times(tmp_path: Path) -> None:
    """Case 30: what one of them wrote before stays as it is."""
    for number in range(20):
        pair = Pair(tmp_path / f"run-{number}")
        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(pair.launch, ("a", "b")))
        assert sorted(each == WENT_ON for each in said) == [False, True], said
        assert (pair.folder / "settings.json").read_text() == "ab"[said.index(WENT_ON)]
        (refused,) = (each for each in said if each != WENT_ON)
        assert "nothing was started" in refused


def test_the_holder_is_named_and_other_stages_are_free(tmp_path: Path) -> None:
    with hold(tmp_path, stages=["learner", "prompts"]):
        with pytest.raises(LeaseHeld, match=f"process {os.getpid()}.*stage prompts"), hold(tmp_path, stages=ALL[:2]):
            pass
        with hold(tmp_path, stages=["rollout"]):
            assert is_held(tmp_path, "rollout")
        assert is_held(tmp_path, "learner")
    assert not is_held(tmp_path, "learner")
    assert not is_held(tmp_path, "never")


def test_after_kill_9_a_successor_holds_at_once(tmp_path: Path) -> None:
    """Case 30."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeld, match=f"process {holder.pid}"), hold(tmp_path, stages=["learner"]):
            pass
        holder.kill()
        holder.wait(10)
    with hold(tmp_path, stages=["learner"]):
        assert is_held(tmp_path, "learner")


def test_who_is_held_off_begins_when_that_ends(tmp_path: Path) -> None:
    with hold_off(tmp_path, stage="learner") as is_free:
        assert is_free
        with pytest.raises(LeaseHeld), hold(tmp_path, stages=["learner"]):
            pass
        with hold(tmp_path, stages=["rollout"]):
            pass
    with hold(tmp_path, stages=["learner"]), hold_off(tmp_path, stage="learner") as is_free:
        assert not is_free


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "locks").touch()
    with pytest.raises(SettingsError, match=r"learner\.lock cannot be made"), hold(tmp_path, stages=["learner"]):
        pass


def test_what_a_lock_file_says_does_no_harm(tmp_path: Path) -> None:
    """A full disk takes no pid, and what stands there may be anything."""
    lock = tmp_path / "locks" / "learner.lock"
    lock.parent.mkdir()
    lock.write_bytes(b"\xff\xfe")
    with (
        hold_off(tmp_path, stage="learner"),
        pytest.raises(LeaseHeld, match="it begins just now"),
        hold(tmp_path, stages=["learner"]),
    ):
        pass
    lock.unlink()
    lock.symlink_to("/dev/full")
    with hold(tmp_path, stages=["learner"]):
        assert is_held(tmp_path, "learner")
