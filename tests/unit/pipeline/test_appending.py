"""Lines that a death or a full disk cut short spoil no other."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumers.learner.batch import Batch, BatchPlan, PlannedGroup
from consumers.learner.oracle import OracleFile
from ops.chaos.oracle import oracle_lines
from schemas.errors import LearnerFileError

FULL_BYTES = 2**20
BATCH = Batch(step=3, groups=(), plan=BatchPlan(run="r", groups=(PlannedGroup(group=0, size=4),)))


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """As on a disk that is full: the bytes that still fit are taken, and the next one is refused."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_witness_that_fits_in_part_is_an_error_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "oracle.jsonl"
    path.write_bytes(b"#" * (FULL_BYTES - 5) + b"\n")
    oracle, ids = OracleFile(path), list(BATCH.sample_ids())
    with files_of_at_most(FULL_BYTES), pytest.raises(LearnerFileError, match=r"oracle file .* cannot be written"):
        oracle.append(BATCH, lineage=1)
    assert path.stat().st_size == FULL_BYTES, "a part of it was taken"
    oracle.append(BATCH, lineage=2)
    assert oracle_lines(path) == {(2, 3): ids}


def test_a_line_that_a_death_cut_short_leaves_the_next_one_whole(tmp_path: Path) -> None:
    path, ids = tmp_path / "oracle.jsonl", list(BATCH.sample_ids())
    oracle = OracleFile(path)
    oracle.append(BATCH, lineage=1)
    path.write_bytes(path.read_bytes() + b'{"lineage":1,"st')
    oracle.append(BATCH, lineage=2)
    assert oracle_lines(path) == {(lineage, 3): ids for lineage in (1, 2)}
