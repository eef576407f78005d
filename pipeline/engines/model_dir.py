"""Load a model and its tokenizer from a local directory, for engines and the learner alike.

Role: the one adapter over the loaders of transformers.
Data in: the path of a `transformers` causal LM directory with safetensors weights.
Data out: the model, its tokenizer, its weights under canonical names.
Invariants: nothing is downloaded, no code of the directory is run, no pickle is read, no weight is left random.
Failure: `ModelUnusable` that names the path, what is missing and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import ERROR as LOG_ERRORS_ONLY
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from schemas.errors import EngineError, ModelUnusable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
# What the loaders raise for a directory at fault: unreadable files, bad JSON, unknown architectures, other shapes.
LOADER_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError)


class _Logging(Protocol):
    """The switches of transformers' logging module, which are untyped there."""

    def is_progress_bar_enabled(self) -> bool: ...
    def disable_progress_bar(self) -> None: ...
    def enable_progress_bar(self) -> None: ...
    def get_verbosity(self) -> int: ...
    def set_verbosity(self, verbosity: int) -> None: ...


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no warnings of transformers inside the block; the settings are put back after it."""
    switches = cast(_Logging, transformers_logging)
    bars = switches.is_progress_bar_enabled()
    verbosity = switches.get_verbosity()
    switches.disable_progress_bar()
    switches.set_verbosity(LOG_ERRORS_ONLY)
    try:
        yield
    finally:
        switches.set_verbosity(verbosity)
        if bars:
            switches.enable_progress_bar()


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Where a model goes, and what it is to messages."""

    device: torch.device
    dtype: torch.dtype
    what: str
    hint: str = "use the complete model directory"  # when tensors are missing


def load_model(path: Path, *, device: str, dtype: str) -> PreTrainedModel:
    """Load a causal LM with all its weights, in eval mode.

    Args:
        path: a local directory with `config.json` and safetensors weights.
        device: "cpu", "cuda" or "cuda:<n>".
        dtype: a key of `DTYPES`.

    Raises:
        ModelUnusable: absent or not a model, weights missing or of another shape, no such device or dtype.
        EngineError: its files cannot be read.
    """
    _check_directory(path)
    where = Loading(device=parse_device(device), dtype=parse_dtype(dtype), what="causal language model")
    return load_whole(AutoModelForCausalLM.from_pretrained, path, where=where)


def load_whole(load: Callable[..., object], path: Path, *, where: Loading) -> PreTrainedModel:
    """Load a model with all its tensors, from safetensors and without code of its own, in eval mode.

    Raises:
        ModelUnusable: not such a model, or tensors are missing or of another shape.
        EngineError: its files cannot be read.
    """
    with quiet_transformers():
        try:
            loaded = load(
                path,
                dtype=where.dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except LOADER_ERRORS as error:
            # a disk that does not answer may do so later; transformers' own OSErrors have no number
            kind = EngineError if isinstance(error, OSError) and error.errno is not None else ModelUnusable
            raise kind(
                f"no {where.what} can be loaded from {path}: {error}",
                hint="give a directory written by save_pretrained, with safetensors weights and no code of its own",
            ) from error
    model, info = cast("tuple[PreTrainedModel, dict[str, set[str]]]", loaded)
    absent = sorted(info["missing_keys"])
    if absent:
        raise ModelUnusable(
            f"{path} lacks {len(absent)} of the model's tensors, {absent[0]} among them; they would be random",
            hint=where.hint,
        )
    on_device: PreTrainedModel = nn.Module.to(model, where.device)
    on_device.train(False)
    return on_device


def model_outline(path: Path, *, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The model that a directory describes, on the meta device: names, shapes and ties, and no weights.

    Args:
        dtype: of the parameters; None: as config.json says.

    Raises:
        ModelUnusable: it describes no causal LM, or one with code of its own.
    """
    construct = cast("Callable[..., PreTrainedModel]", AutoModelForCausalLM.from_config)
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            with torch.device("meta"):
                return construct(config, dtype=dtype, trust_remote_code=False)
        except LOADER_ERRORS as error:
            raise ModelUnusable(
                f"no causal language model is described in {path}: {error}",
                hint="give a directory written by save_pretrained, without code of its own",
            ) from error


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model directory.

    Raises:
        ModelUnusable: the directory or the tokenizer is absent or unreadable.
    """
    _check_directory(path)
    hint = "save the tokenizer into the model directory (tokenizer.save_pretrained)"
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ModelUnusable(f"{path} has no tokenizer; looked for {', '.join(TOKENIZER_FILES)}", hint=hint)
    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except LOADER_ERRORS as error:
            raise ModelUnusable(f"the tokenizer in {path} cannot be loaded: {error}", hint=hint) from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ModelUnusable(f"{path} gives {type(tokenizer).__name__}, which is no tokenizer", hint=hint)
    return tokenizer


def named_state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The weights of a model in canonical order.

    Returns:
        the own tensors by name, sorted by name; they share memory with the model, without gradient.
        the ties: other names of the same tensor -> the name that owns it, which is the one registered first (for a
        tied language model the input embedding owns and `lm_head.weight` is the other name).
    """
    owners: dict[int, str] = {}
    own: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        owner = owners.setdefault(id(tensor), name)
        if owner == name:
            own[name] = tensor.detach()
        else:
            ties[name] = owner
    return dict(sorted(own.items())), dict(sorted(ties.items()))


def parse_dtype(name: str) -> torch.dtype:
    """Raises: ModelUnusable: not one of `DTYPES`."""
    if name not in DTYPES:
        raise ModelUnusable(f"dtype {name!r} is not known; allowed are {', '.join(DTYPES)}")
    return DTYPES[name]


def parse_device(name: str) -> torch.device:
    """Raises: ModelUnusable: not a device name, or no such device on this machine."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelUnusable(f"{name!r} is no device; allowed are cpu, cuda and cuda:<n>") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelUnusable(f"device {name!r} is not supported; allowed are cpu, cuda and cuda:<n>")
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index if device.index is not None else 0) >= num_gpus:
        raise ModelUnusable(f"device {name!r} was asked for and torch sees {num_gpus} GPUs", hint="use device cpu")
    return device


def _check_directory(path: Path) -> None:
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise ModelUnusable(
            f"model directory {path} {what}",
            hint="give the path of a local model directory; models are never downloaded",
        )
    if not (path / "config.json").is_file():
        raise ModelUnusable(
            f"{path} has no config.json, so it is not a model directory",
            hint="give a directory written by save_pretrained",
        )
