"""Leases that end with their owners: what a killed process pinned does not stay for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.weights.chunks import ChunkStore
from schemas.errors import WeightsError
from schemas.records import ChunkRef

ROOT = Path(__file__).parents[4]
# Pins what it puts, says so, and waits to be killed.
OWNER = """
import sys
from pathlib import Path
from pipeline.weights.chunks import ChunkStore
store = ChunkStore(Path(sys.argv[1]), max_bytes=1)
with store.living("rollout-3"):
    store.put(b"chunk of another process", owner="rollout-3.1.7")
    print("pinned", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return ChunkStore(tmp_path, max_bytes=1)  # nothing stays that is not pinned


def put(store: ChunkStore, owner: str) -> ChunkRef:
    return store.put(f"chunk of {owner}".encode(), owner=owner)


def test_leases_of_a_killed_process_end_with_the_next_sweep(store: ChunkStore) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"pinned\n"
        assert store.sweep() == 0
        assert set(store.pins()) == {"rollout-3.1.7"}
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert store.sweep() == len(b"chunk of another process")
    assert store.pins() == {}
    assert not list((store.root / "living").iterdir())


def test_leases_of_the_living_and_of_names_never_given_stay(store: ChunkStore) -> None:
    kept = [put(store, owner) for owner in ("learner", "rollout-1.1.4", "rollout-1", "rollout-12.1.4")]
    with store.living("rollout-1"):
        store.sweep()
        assert all(store.verified(chunk.digest) for chunk in kept)
    store.sweep()
    assert set(store.pins()) == {"learner", "rollout-12.1.4"}
    assert [store.verified(chunk.digest) for chunk in kept] == [True, False, False, True]


def test_a_successor_under_the_same_name_keeps_what_its_predecessor_pinned(store: ChunkStore) -> None:
    chunk = put(store, "rollout-1.1.4")
    with store.living("rollout-1"):
        with store.living("rollout-1"):
            store.sweep()
        store.sweep()
        assert store.verified(chunk.digest)


def test_a_bad_name_is_refused(store: ChunkStore) -> None:
    with pytest.raises(WeightsError, match="lease owner"), store.living("../x"):
        pass
