"""A checked state in the form in which a server reads it: a sealed file in memory, or a model directory.

Role: everything of a load that can be done while the server still generates (promise 10).
Data in: tensors by name; data out: a `Staged` with its `Source`.
Invariants: the tensors staged are the ones that were checked; a tied name with other values than its owner is refused;
folders are whole when they appear, and at most the one served and the one being loaded are kept.
Failure: `EngineError`, with the old version still served.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pipeline.engines.base import StateTensor
from pipeline.engines.http.exchange import Folder, SealedFile, Source
from pipeline.engines.live_weights import as_tensor
from pipeline.engines.vllm.sealed import PRINTS_PREFIX, SealedState, seal
from pipeline.engines.vllm.verifying import prints_of
from pipeline.model_folder import WEIGHTS_FILE, copy_model_files, safetensors_content, say_dtype
from pipeline.weights.arrays import same_content, wire_dtype_of
from schemas.errors import EngineError, WeightsError
from schemas.records import Version


@dataclass(frozen=True, kw_only=True, eq=False)
class Staged:
    """A state that a server can be told to load, for as long as this is kept."""

    source: Source
    sealed: SealedState | None = None
    folder: Path | None = None

    def release(self) -> None:
        """Give memory or disk back; a second call does nothing."""
        if self.sealed is not None:
            self.sealed.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def own_arrays(state: Mapping[str, StateTensor], *, ties: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of a state without tied names.

    Raises:
        EngineError: one is no tensor, or a tied name has other values than its owner.
    """
    own = {name: as_tensor(name, value) for name, value in state.items()}
    for alias, owner in ties.items():
        tied = own.pop(alias, None)
        if tied is not None and not same_content(tied, own[owner]):
            raise EngineError(
                f"{alias} is tied to {owner} in this model and the state gives them different values; the old version "
                "is still served",
                hint=f"leave {alias} out, or untie the model",
            )
    return own


def stage_sealed(own: Mapping[str, Tensor], *, version: Version, ties: Mapping[str, str]) -> Staged:
    """Stage for the plug-in, with what its check will compare with.

    Raises:
        EngineError: no memory.
    """
    matrices = {name: tensor for name, tensor in own.items() if tensor.ndim == 2 and tensor.is_floating_point()}
    prints = {f"{PRINTS_PREFIX}{name}": prints_of(tensor) for name, tensor in matrices.items()}
    sealed = seal({**own, **prints}, name=str(version))
    return Staged(source=SealedFile(path=sealed.path, ties=ties), sealed=sealed)


def stage_folder(own: Mapping[str, Tensor], *, version: Version, model: Path, parent: Path) -> Staged:
    """Stage as a model directory under `parent`.

    Args:
        model: directory the run began with; its tokenizer and configuration go along.

    Raises:
        EngineError: it cannot be written.
    """
    target = parent / f"{version}-{uuid.uuid4().hex[:8]}"
    aside = target.with_name(f".{target.name}")
    try:
        copy_model_files(model, aside)
        say_dtype(aside / "config.json", {wire_dtype_of(tensor, wire_dtype=None) for tensor in own.values()})
        with (aside / WEIGHTS_FILE).open("wb") as file:
            for piece in safetensors_content(own):
                file.write(piece)
        aside.replace(target)
    except (OSError, WeightsError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise EngineError(
            f"version {version} cannot be written to {parent}: {error}; the old version is still served",
            hint="rollout.http.update_dir must be writable here and hold two copies of the weights",
        ) from error
    return Staged(source=Folder(path=target.absolute()), folder=target)


def clear_folders(parent: Path) -> None:
    """Remove what an earlier process of this slot left; nobody loads from it any more.

    Raises:
        EngineError: the folder cannot be made.
    """
    shutil.rmtree(parent, ignore_errors=True)
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(f"{parent} (rollout.http.update_dir) cannot be made: {error}") from error
