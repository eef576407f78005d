"""What a repetition leaves: the trained state, and a model that loads.

Role: the last step of `rlweave retrain`.
Data in: a trainer. Data out: `state/model.safetensors` and `state/optimizer.safetensors`, byte for byte what a
checkpoint of the same state has; `model/`, a directory for `from_pretrained`, with the weights as they were trained.
Invariants: there is no `state.json`, so nobody can go on from it as from a checkpoint: it knows no positions.
Failure: `WeightsError` when the disk is full or failed.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from consumers.learner import checkpoint
from consumers.learner.recorded.retrain import no_state
from consumers.learner.recovery import snapshot_of
from consumers.learner.trainer import Trainer
from pipeline.model_folder import WEIGHTS_FILE, copy_model_files, safetensors_content, say_dtype
from pipeline.weights.arrays import wire_dtype_of
from schemas.errors import WeightsError


def write_output(folder: Path, trainer: Trainer, *, model: Path) -> None:
    """Write `state/` and `model/` into the folder of a repetition.

    Args:
        model: directory that the run began with: configuration and tokenizer.

    Raises:
        WeightsError: they cannot be written.
    """
    own = trainer.merged_state()
    try:
        (folder / "state").mkdir()
        checkpoint.write_tensors(folder / "state", snapshot_of(trainer, state=no_state()))
        target = folder / "model"
        copy_model_files(model, target)
        say_dtype(target / "config.json", {wire_dtype_of(tensor, wire_dtype=None) for tensor in own.values()})
        with (target / WEIGHTS_FILE).open("wb") as file:
            for piece in safetensors_content(own):
                file.write(piece)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"what was trained cannot be written to {folder}: {error}") from error
