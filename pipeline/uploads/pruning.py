"""What is at a target: which checkpoints are whole there, and the removal of those that are not to be kept.

Role: for `uploader` and `restoring`.
Invariants: a checkpoint that goes loses its marker first, so what is half removed is not taken for whole. Remains of
uploads that were cut off go once a newer checkpoint is whole; newer ones may still be gone on with.
Failure: `UploadError`; what is left goes the next time.
"""

from __future__ import annotations

from pipeline.uploads.layout import MARKER, version_of
from pipeline.uploads.target import Target
from schemas.records import Version


def uploaded_versions(target: Target, *, run: str) -> list[Version]:
    """Checkpoints that are whole at the target, newest first.

    Raises:
        UploadError: the target cannot be listed.
    """
    return sorted((v for v in _versions(target, run=run) if _is_whole(target, run=run, version=v)), reverse=True)


def prune_uploads(target: Target, *, run: str, keep: int) -> list[Version]:
    """Keep the newest whole checkpoints, and what is newer than all of them; gives what was removed.

    Raises:
        UploadError: the target failed.
    """
    found = _versions(target, run=run)
    whole = [version for version in found if _is_whole(target, run=run, version=version)]
    kept, removed = sorted(whole, reverse=True)[:keep], []
    for version in found:
        if kept and version < kept[0] and version not in kept:
            if version in whole:
                target.remove(f"{run}/{version}/{MARKER}")
            target.remove(f"{run}/{version}", is_folder=True)
            removed.append(version)
    return removed


def _versions(target: Target, *, run: str) -> list[Version]:
    return [version for name in target.folders(run) if (version := version_of(name)) is not None]


def _is_whole(target: Target, *, run: str, version: Version) -> bool:
    return MARKER in target.sizes(f"{run}/{version}")
