"""What is missing is said, before anything is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.netlab.lab import open_lab
from ops.netlab.plan import Host, LabPlan
from ops.netlab.tools import NetlabError, run_tool

PLAN = LabPlan(hosts=(Host(name="one", domain="a"),), domains=("a",), rate_mbit=10.0)


def _tools(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\necho 'RTNETLINK answers: Operation not permitted' >&2; exit 2\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_missing_programs_are_named_with_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tools(tmp_path, monkeypatch, "ip")
    with pytest.raises(NetlabError, match="tc, ss not found") as caught, open_lab(PLAN):
        pytest.fail("a network was made without tools")
    assert "iproute2" in caught.value.hint


def test_other_users_are_told_that_it_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tools(tmp_path, monkeypatch, "ip", "tc", "ss")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NetlabError, match="need root, this is user 1000") as caught, open_lab(PLAN):
        pytest.fail("a network was made without rights")
    assert "sudo" in caught.value.hint


def test_root_without_its_rights_is_told_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without privileges."""
    _tools(tmp_path, monkeypatch, "ip", "tc", "ss")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NetlabError, match="Operation not permitted") as caught, open_lab(PLAN):
        pytest.fail("a network was made without rights")
    assert "CAP_NET_ADMIN" in caught.value.hint


def test_too_little_room_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tools(tmp_path, monkeypatch, "ip", "tc", "ss")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NetlabError, match="bytes are needed"), open_lab(PLAN, room_bytes=10**18):
        pytest.fail("a network was made")


def test_a_program_that_is_not_there_is_an_error_of_ours() -> None:
    with pytest.raises(NetlabError, match="did not run"):
        run_tool(["rlweave-no-such-program"])
