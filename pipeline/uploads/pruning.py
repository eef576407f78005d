"""What is at a target: which checkpoints are whole there, and the removal of those that are not to be kept.

Role: for `uploader` and `restoring`.
Invariants: a checkpoint that goes loses its marker first, so what is half removed is not taken for whole. Remains of
uploads that were cut off go once a newer checkpoint is whole; newer ones may still be gone on with. A checkpoint of an
older lineage, of a later step than the newest lineage's first one that is known, is of a branch that was given up: that
lineage begins with a checkpoint of the step at which it branched off. It takes the place of none that survives.
Failure: `UploadError`; what is left goes the next time.
"""

from __future__ import annotations

from collections.abc import Collection

from pipeline.uploads.layout import MARKER, version_of
from pipeline.uploads.target import Target
from schemas.records import Version


def uploaded_versions(target: Target, *, run: str) -> list[Version]:
    """Checkpoints that are whole at the target, newest first.

    Raises:
        UploadError: the target cannot be listed.
    """
    return sorted((v for v in _versions(target, run=run) if _is_whole(target, run=run, version=v)), reverse=True)


def prune_uploads(target: Target, *, run: str, keep: int, known: Collection[Version] = ()) -> list[Version]:
    """Keep the newest whole checkpoints, and what is newer than all of them; gives what was removed.

    Args:
        known: checkpoints that the run has or had, uploaded or not: they tell where its newest lineage began.

    Raises:
        UploadError: the target failed.
    """
    found = _versions(target, run=run)
    whole = [version for version in found if _is_whole(target, run=run, version=version)]
    void = _given_up({*whole, *known})
    kept, removed = sorted((version for version in whole if version not in void), reverse=True)[:keep], []
    for version in found:
        if kept and version < kept[0] and version not in kept:
            if version in whole:
                target.remove(f"{run}/{version}/{MARKER}")
            target.remove(f"{run}/{version}", is_folder=True)
            removed.append(version)
    return removed


def _given_up(known: Collection[Version]) -> set[Version]:
    """Checkpoints of branches that the newest lineage did not grow out of, as far as their names tell."""
    newest = max((version.lineage for version in known), default=0)
    floor = min((version.step for version in known if version.lineage == newest), default=0)
    return {version for version in known if version.lineage < newest and version.step > floor}


def _versions(target: Target, *, run: str) -> list[Version]:
    return [version for name in target.folders(run) if (version := version_of(name)) is not None]


def _is_whole(target: Target, *, run: str, version: Version) -> bool:
    return MARKER in target.sizes(f"{run}/{version}")
