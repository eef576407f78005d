"""What a dead maker left is told from what a living one made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.netlab import leftovers
from ops.netlab.leftovers import new_name, remove_leftovers


def _name_of_a_dead_process() -> str:
    code = "from ops.netlab.leftovers import new_name; print(new_name())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_folders_of_dead_makers_are_removed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_NAMESPACES", tmp_path / "none")
    own, dead = new_name(), _name_of_a_dead_process()
    others = ("rlweave-lab", "rlweave-lab.x.1.ab", f"{dead}-of-somebody", "else")
    for name in (own, dead, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert remove_leftovers(tmp_path) == [dead]
    assert {path.name for path in tmp_path.iterdir()} == {own, *others}


def test_a_process_number_in_use_again_is_not_its_former_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_NAMESPACES", tmp_path / "none")
    prefix, pid, start, end = new_name().split(".")
    assert int(pid) == os.getpid()
    former = f"{prefix}.{pid}.{int(start) - 1}.{end}"
    (tmp_path / former).mkdir()
    assert remove_leftovers(tmp_path) == [former]


def test_names_are_new_each_time() -> None:
    assert len({new_name() for _ in range(50)}) == 50
