"""Checkpoints: one atomic unit of everything a learner needs to go on.

Role: written right after a step's transaction, read at start.
Data in and out: `Snapshot`: tensors (model, optimizer, generator) and `LearnerState` (positions, closed set, lineage).
Layout: `checkpoints/<lineage>.<step>/` with `model.safetensors`, `optimizer.safetensors`, `state.json` and
`manifest.json`, which names size and blake3 digest of the others.
Protocol of `save`: (1) write the files into `.tmp-*` beside the target; (2) sync each; (3) write and sync the manifest,
last; (4) rename the folder; (5) sync the parent. `prune` removes what retention no longer keeps.
Invariants: a folder without a matching manifest is never restored; the newest valid one wins, a higher lineage first,
since it grew out of a lower one; paths carry the lineage, so a fenced learner cannot overwrite its successor's. A
folder counts only while the ledger says that its (lineage, step) survives: one that a learner wrote after it had been
replaced is as good as absent, whatever it knew when it wrote it. Prune only after a transaction that came after the
save: its success proves that nobody restored from what goes.
Failure: `CheckpointError`; a failed save leaves earlier checkpoints whole and removes its own remains.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

import orjson
import torch
from blake3 import blake3
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.history import ClosedSet
from schemas.errors import CheckpointError
from schemas.records import Version

FORMAT = 1
_NAME = re.compile(r"(\d+)\.(\d+)\Z")
_TENSORS, _STATE = ("model.safetensors", "optimizer.safetensors"), "state.json"
_FILES = (*_TENSORS, _STATE)
_Entries: TypeAlias = Mapping[str, Mapping[str, int | str]]  # size and digest by file name


@dataclass(frozen=True, kw_only=True)
class LearnerState:
    """Where the learner is in the log and in history."""

    lineage: int
    step: int
    positions: Mapping[str, int]  # "topic/partition" -> lowest offset of an unclosed group
    topic_ids: Mapping[str, str]  # topics these positions belong to
    closed: Mapping[str, int | list[int]]  # ClosedSet.to_json
    num_cloning_steps: int  # done so far
    threads: int  # part of what makes a run repeatable
    first_anchor: str  # state digest of the first version of this history
    ranks: int = 1  # that trained it; part of what makes a run repeatable
    base_digest: str = ""  # of the frozen base, when the model in here is adapters; empty: it is a whole model


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The content of one checkpoint."""

    state: LearnerState
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]  # "<moment>.<parameter index>", and "generator"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What was found, and what had to be passed over."""

    snapshot: Snapshot
    path: Path
    skipped: tuple[str, ...] = field(default=())  # newer ones that were not whole or do not survive, with the reason


Survives: TypeAlias = Callable[[Version], bool]  # whether a version is part of the present history


def save(folder: Path, snapshot: Snapshot) -> Path:
    """Write one checkpoint; the numbers are those of the module text.

    Raises:
        CheckpointError: the disk is full or failed; nothing half-written remains.
    """

    def write(aside: Path) -> _Entries:
        write_tensors(aside, snapshot)
        return {}

    return _save(folder, snapshot.state, write=write)


def save_again(folder: Path, state: LearnerState, *, like: Path) -> Path:
    """Write one with the tensors of another one, which was whole when it was read: its files are linked, not copied.

    Raises:
        CheckpointError: the file system links no files, or failed; nothing half-written remains.
    """

    def write(aside: Path) -> _Entries:
        entries: _Entries = orjson.loads((like / "manifest.json").read_bytes())["files"]
        for name in _TENSORS:
            (aside / name).hardlink_to(like / name)
        return {name: entries[name] for name in _TENSORS}

    return _save(folder, state, write=write)


def _save(folder: Path, state: LearnerState, *, write: Callable[[Path], _Entries]) -> Path:
    """`write` puts the tensors into a folder; it gives what a manifest says of them, as far as it is known."""
    target = folder / f"{state.lineage}.{state.step}"
    aside = folder / f".tmp-{target.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        known = write(aside)  # (1)
        (aside / _STATE).write_bytes(orjson.dumps(asdict(state), option=orjson.OPT_INDENT_2))
        for name in _FILES:  # (2)
            _sync(aside / name)
        _write_manifest(aside, known)  # (3)
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)  # (4)
        _sync(folder)  # (5)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"checkpoint {target} was not written: {error}; the earlier ones are whole",
            hint="free disk space, or lower learner.checkpoint.keep",
        ) from error
    return target


def prune(folder: Path, *, keep: int, survives: Survives) -> None:
    """Remove those that do not survive, and all but the `keep` newest of the others."""
    newest = _newest_first(folder)
    void = [path for path in newest if not survives(_version(path))]
    for old in (*void, *[path for path in newest if path not in void][keep:]):
        shutil.rmtree(old, ignore_errors=True)


def newest_valid(folder: Path, *, survives: Survives) -> Restored | None:
    """The newest whole checkpoint of the present history, or None when there is none at all.

    Raises:
        CheckpointError: there are checkpoints, but none is whole; starting anew would retrain what they cover.
    """
    _remove_remains(folder)
    skipped: list[str] = []
    broken: list[str] = []
    for path in _newest_first(folder):
        if not survives(_version(path)):
            skipped.append(f"checkpoint {path} is of a branch that the ledger says was left")
            continue
        try:
            return Restored(snapshot=load(path), path=path, skipped=tuple(skipped))
        except CheckpointError as error:
            skipped.append(error.message)
            broken.append(error.message)
    if broken:
        raise CheckpointError(
            f"no checkpoint in {folder} is whole: {'; '.join(broken)}",
            hint="restore one from a copy, or move the folder away to train this run from its beginning",
        )
    return None


def load(path: Path) -> Snapshot:
    """Read and verify one checkpoint.

    Raises:
        CheckpointError: a file is absent, altered, cut short or of another format, or the folder has the name of
            another version.
    """
    try:
        manifest = orjson.loads((path / "manifest.json").read_bytes())
        _check_manifest(path, manifest)
        state = _read_state((path / "state.json").read_bytes())
        if _NAME.match(path.name) and _version(path) != Version(lineage=state.lineage, step=state.step):
            raise CheckpointError(f"checkpoint {path} is of version {state.lineage}.{state.step}, not of its name")
        return Snapshot(
            state=state,
            model=load_file(path / "model.safetensors"),
            optimizer=load_file(path / "optimizer.safetensors"),
        )
    except (OSError, ValueError, SafetensorError, TypeError, KeyError, RuntimeError) as error:
        # torch, which maps the tensors, says RuntimeError of a file that another process has removed by now.
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error


def write_tensors(folder: Path, snapshot: Snapshot) -> None:
    """Write what of a checkpoint is tensors: the same bytes for the same state.

    Raises:
        OSError, SafetensorError: they cannot be written.
    """
    for name, tensors in (("model", snapshot.model), ("optimizer", snapshot.optimizer)):
        save_file({key: t.detach().cpu().contiguous() for key, t in tensors.items()}, folder / f"{name}.safetensors")


def versions(folder: Path) -> list[Version]:
    """Versions with a checkpoint folder, newest first, whole or not."""
    return [_version(path) for path in _newest_first(folder)]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of an optimizer as named tensors: `<key>.<parameter index>`."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        f"{key}.{index}": value
        for index, parameter in enumerate(parameters)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def digest_of_tensors(state: Mapping[str, Tensor]) -> bytes:
    """Digest of named tensors, 32 bytes."""
    hasher = blake3()
    for name, tensor in sorted(state.items()):
        hasher.update(name.encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.digest()


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave.

    Raises:
        CheckpointError: the tensors belong to another set of parameters.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in tensors.items():
        key, _, index = name.rpartition(".")
        if not index.isdigit() or int(index) >= len(parameters):
            raise CheckpointError(f"optimizer state {name!r} does not belong to this model")
        parameter = parameters[int(index)]
        if value.ndim > 0 and value.shape != parameter.shape:
            raise CheckpointError(
                f"optimizer state {name!r} has shape {list(value.shape)}, its parameter {list(parameter.shape)}"
            )
        place = value.to(parameter.device) if value.ndim > 0 else value
        optimizer.state[parameter][key] = place.clone()


def restore_generator(generator: torch.Generator, state: Tensor | None) -> None:
    """Put back what its `get_state` gave.

    Raises:
        CheckpointError: it is absent, or no state of such a generator.
    """
    if state is None:
        raise CheckpointError("the state of the random generator is absent")
    try:
        generator.set_state(state)
    except (TypeError, RuntimeError) as error:
        raise CheckpointError(f"the state of the random generator cannot be restored: {error}") from error


def _read_state(content: bytes) -> LearnerState:
    """Raises ValueError when it is not one; fields that a later version added are left out."""
    state = TypeAdapter(LearnerState).validate_json(content, strict=True)
    ClosedSet.from_json(state.closed)
    if not all(place.rpartition("/")[2].isdecimal() for place in state.positions):
        raise ValueError(f"positions are of the form topic/partition, got {sorted(state.positions)!r:.200}")
    return state


def _write_manifest(aside: Path, known: _Entries) -> None:
    files = {name: known[name] if name in known else _entry(aside / name) for name in _FILES}
    path = aside / "manifest.json"
    path.write_bytes(orjson.dumps({"format": FORMAT, "files": files}, option=orjson.OPT_INDENT_2))
    _sync(path)
    _sync(aside)


def _entry(path: Path) -> Mapping[str, int | str]:
    return {"num_bytes": path.stat().st_size, "blake3": _digest(path)}


def _check_manifest(path: Path, manifest: object) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        seen = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise CheckpointError(f"checkpoint {path} is of format {seen!r:.40}, this release reads format {FORMAT}")
    for name in _FILES:
        entry = manifest["files"][name]
        size = (path / name).stat().st_size
        if size != entry["num_bytes"]:
            raise CheckpointError(f"{path / name} has {size} bytes, its manifest says {entry['num_bytes']}")
        if _digest(path / name) != entry["blake3"]:
            raise CheckpointError(f"{path / name} was altered: its digest differs from the manifest's")


def _digest(path: Path) -> str:
    hasher = blake3()
    hasher.update_mmap(path)
    return hasher.hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _version(path: Path) -> Version:
    lineage, _, step = path.name.partition(".")
    return Version(lineage=int(lineage), step=int(step))


def _newest_first(folder: Path) -> list[Path]:
    return sorted(_folders(folder), key=_version, reverse=True)


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir() and _NAME.match(path.name))


def _remove_remains(folder: Path) -> None:
    """Folders a killed save left behind; the learner is the only writer, and it holds its fence by now."""
    if folder.is_dir():
        for path in folder.glob(".tmp-*"):
            shutil.rmtree(path, ignore_errors=True)
