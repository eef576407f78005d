"""Names that say which process made a network, and removal of what a killed one left behind.

A name is `rlweave-lab.<pid>.<start>.<random>`; start is the process's start in clock ticks since boot, so a process
number that is in use again is not mistaken for the maker.
Invariants: what a living process made is left alone, and so are processes.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from ops.netlab.tools import NetlabError, run_tool

_NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"(rlweave-lab\.([0-9]+)\.([0-9]+)\.[0-9a-f]+)(?:\.[A-Za-z0-9]+)?")


def new_name() -> str:
    """A prefix for all names of one network of this process."""
    pid = os.getpid()
    return f"rlweave-lab.{pid}.{_start_ticks(pid)}.{secrets.token_hex(3)}"


def remove_named(prefix: str) -> None:
    """Remove the namespaces of one network, with all devices in them.

    Raises:
        NetlabError: one cannot be removed.
    """
    for name in list(_entries(_NAMESPACES)):
        if name.startswith(f"{prefix}."):
            run_tool(["ip", "netns", "delete", name])


def remove_leftovers(folder: Path) -> list[str]:
    """Remove namespaces, and entries of `folder`, whose maker is dead. Gives their names.

    Raises:
        NetlabError: a namespace cannot be removed.
    """
    removed = []
    for name in list(_entries(_NAMESPACES)):
        if _is_dead(name):
            _delete(name)
            removed.append(name)
    for name in list(_entries(folder)):
        if _is_dead(name):
            shutil.rmtree(folder / name, ignore_errors=True)
            removed.append(name)
    return removed


def _delete(namespace: str) -> None:
    """Two that begin at once find the same leftovers: who comes second finds one gone, and that is what it wants."""
    try:
        run_tool(["ip", "netns", "delete", namespace])
    except NetlabError:
        if namespace in _entries(_NAMESPACES):
            raise


def _entries(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        yield from (path.name for path in folder.iterdir())


def _is_dead(name: str) -> bool:
    """Whether the name is one of ours and its maker does not live any more."""
    match = _NAME.fullmatch(name)
    return match is not None and _start_ticks(int(match[2])) != int(match[3])


def _start_ticks(pid: int) -> int:
    """When a process started; -1: there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(stat.rpartition(")")[2].split()[19])
