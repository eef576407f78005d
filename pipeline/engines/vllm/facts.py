"""What a model's directory says about the model, without reading its weights.

Role: the names, shapes, dtypes and ties a published state must have; tokenizer, end tokens, context, vocabulary.
Data in: a `transformers` causal LM directory. Data out: `ModelFacts`.
Invariants: names are those the learner uses for the same architecture (`named_state`); tensors are on the meta device.
Failure: `EngineError` for a directory at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from pipeline.engines.endings import Endings, eos_token_ids
from pipeline.engines.limits import context_tokens, embedding_rows
from pipeline.engines.model_dir import (
    LOADER_ERRORS,
    load_tokenizer,
    model_outline,
    named_state,
    parse_dtype,
    quiet_transformers,
)
from pipeline.engines.settings import TorchEngineSettings
from schemas.errors import ModelUnusable


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """See the module."""

    weights: Mapping[str, Tensor]  # meta tensors
    ties: Mapping[str, str]  # alias -> owner
    tokenizer: PreTrainedTokenizerBase
    endings: Endings
    eos_token_ids: tuple[int, ...]
    context_tokens: int
    vocab_size: int


def read_facts(path: Path, *, dtype: str, max_context_tokens: int | None) -> ModelFacts:
    """Read configuration and tokenizer of a model directory.

    Raises:
        EngineError: absent, not a causal language model, or the context setting is beyond it.
    """
    tokenizer = load_tokenizer(path)
    model = _skeleton(path, dtype=parse_dtype(dtype))
    weights, ties = named_state(model)
    settings = TorchEngineSettings(model_dir=path, max_context_tokens=max_context_tokens)
    return ModelFacts(
        weights=weights,
        ties=ties,
        tokenizer=tokenizer,
        endings=Endings(model, tokenizer),
        eos_token_ids=tuple(sorted(eos_token_ids(model, tokenizer))),
        context_tokens=context_tokens(model, settings),
        vocab_size=embedding_rows(model),
    )


def _skeleton(path: Path, *, dtype: torch.dtype) -> PreTrainedModel:
    model = model_outline(path, dtype=dtype)
    if (path / "generation_config.json").is_file():
        with quiet_transformers():
            try:
                model.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
            except LOADER_ERRORS as error:
                raise ModelUnusable(f"generation_config.json in {path} cannot be read: {error}") from error
    return model
