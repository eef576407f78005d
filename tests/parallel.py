"""Which tests run on the same worker when several run side by side (pytest-xdist, `--dist loadgroup`).

Role: the workers know the marks and fixtures of tests, the process that hands tests out knows names only; a file tells
it the groups. pytest-xdist's own groups are part of a test's name, which pytest 9.2 does not let it change.
Data in: collected tests. Data out: a group for those that share something heavy; all others stand alone.
Invariants: every worker collects the same tests, so they all write the same file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

HEAVY = ("cluster", "secure_services")  # fixtures that are started once
_FILE = "groups.json"
_PARSES = ("tests/unit/shape/", "tests/unit/docs/test_runbook.py", "tests/unit/ops/reference/")  # every file of ours


def group_of(item: pytest.Item) -> str | None:
    """What a test shares with others: vLLM, which is large and slow to start, a heavy fixture, or what was parsed."""
    if item.get_closest_marker("vllm") is not None:
        return "vllm"
    if any(part in item.nodeid for part in _PARSES):
        return "source"
    used = set(getattr(item, "fixturenames", ()))
    return next((name for name in HEAVY if name in used), None)


def write_groups(folder: Path, items: Sequence[pytest.Item]) -> None:
    """Tell the process that hands tests out."""
    groups = {item.nodeid: group for item in items if (group := group_of(item)) is not None}
    aside = folder / f".{_FILE}.{os.getpid()}"
    aside.write_text(json.dumps(groups))
    aside.replace(folder / _FILE)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """Hands out a group as a whole, the largest first, then single tests in the order of the workers."""

    def __init__(self, config: pytest.Config, log: Producer | None, *, folder: Path) -> None:
        super().__init__(config, log)
        self._folder = folder

    @cached_property
    def _groups(self) -> Mapping[str, str]:
        groups: dict[str, str] = json.loads((self._folder / _FILE).read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)
