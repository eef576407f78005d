"""Checkpoints as files: what uploads see of them."""

from __future__ import annotations

import random
from pathlib import Path

from pipeline.traffic.permit import Permit
from pipeline.traffic.sender import HostSender
from pipeline.uploads.layout import FILES
from pipeline.uploads.sending import UploadJob

SIZES = (50_000, 100_000, 700, 300)
PART_BYTES = 10_000
TOTAL = sum(SIZES)


def make_checkpoint(folder: Path, version: str) -> Path:
    """A folder with the files of a checkpoint, which appears whole, as the learner's do; other bytes in each."""
    aside = folder / f".tmp-{version}"
    aside.mkdir(parents=True)
    for name, num_bytes in zip(FILES, SIZES, strict=True):
        (aside / name).write_bytes(random.Random(f"{version}/{name}").randbytes(num_bytes))
    return aside.rename(folder / version)


def free_sender() -> HostSender:
    """Nothing holds it up."""
    return HostSender(Permit())


def job(checkpoint: Path, target: Path, *, run: str = "r") -> UploadJob:
    """To a directory."""
    return UploadJob(
        folder=checkpoint, url=f"file://{target}", name=f"{run}/{checkpoint.name}", part_bytes=PART_BYTES, parallel=3
    )


def same_files(one: Path, other: Path) -> bool:
    """Whether two folders have the same checkpoint."""
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in FILES)
