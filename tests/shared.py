"""What many tests share and is heavy even when idle ends with the last test that uses it, not with the session.

Role: three brokers, a secure broker or a vLLM take processor time from all other tests as long as they run.
Data in: collected tests; what ends a fixture. Data out: none.
Invariants: all users of one of these run on the same worker (`tests.parallel`), in the order in which they were
collected; what ended is not started again. A fixture ends at the session's end in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

HEAVY = ("cluster", "secure_services", "shared_vllm")  # fixtures
_LAST = pytest.StashKey[dict[str, list[str]]]()  # test -> fixtures of which it is the last user
_ENDS = pytest.StashKey[dict[str, ExitStack]]()


def note_last_users(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Remember who uses each of them last; call with the tests in the order in which they run."""
    last = {name: item.nodeid for item in items for name in HEAVY if _uses(item, name)}
    by_test = config.stash[_LAST] = {}
    for name, nodeid in last.items():
        by_test.setdefault(nodeid, []).append(name)


@contextmanager
def ending_early(config: pytest.Config, name: str) -> Iterator[ExitStack]:
    """What the fixture leaves behind on this stack is ended after its last user, or at the end of the block."""
    with ExitStack() as ends:
        config.stash.setdefault(_ENDS, {})[name] = ends
        yield ends


def end_after(item: pytest.Item) -> None:
    """Call when a test is torn down."""
    for name in item.config.stash.get(_LAST, {}).get(item.nodeid, ()):
        ends = item.config.stash.get(_ENDS, {}).pop(name, None)
        if ends is not None:
            ends.close()


def _uses(item: pytest.Item, name: str) -> bool:
    if name == "shared_vllm":  # some ask for it by its name only while they run
        return item.get_closest_marker("vllm") is not None
    return name in getattr(item, "fixturenames", ())
