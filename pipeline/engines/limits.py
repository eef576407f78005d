"""What one model and its settings allow: context, vocabulary, size of a prefill.

Role: the numbers an engine checks requests against, worked out once.
Data in: model, settings, requests; data out: numbers and batches.
Failure: `EngineError` for a model that does not say, or a setting outside the model's bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.base import GenerationRequest
from pipeline.engines.settings import TorchEngineSettings
from schemas.errors import EngineError


def context_tokens(model: PreTrainedModel, settings: TorchEngineSettings) -> int:
    """Most tokens of one sequence: the setting, bounded by what the model was made for.

    Raises:
        EngineError: neither is known, or the setting is above the model's bound or below 2.
    """
    own: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    wanted = settings.max_context_tokens
    if wanted is None:
        if own is None:
            raise EngineError("the model does not say how long its context is", hint="set max_context_tokens")
        return own
    if wanted < 2 or (own is not None and wanted > own):
        limit = "no upper limit known" if own is None else f"at most {own}"
        raise EngineError(f"max_context_tokens is {wanted}; allowed are at least 2 and {limit}")
    return wanted


def embedding_rows(model: PreTrainedModel) -> int:
    """How many token ids the model can read.

    Raises:
        EngineError: the model has no input embedding.
    """
    weight = model.get_input_embeddings().weight
    if not isinstance(weight, Tensor):
        raise EngineError(f"{type(model).__name__} has no input embedding, so it cannot read token ids")
    return int(weight.shape[0])


def split_prefill(requests: Sequence[GenerationRequest], *, max_tokens: int) -> Iterator[list[GenerationRequest]]:
    """Cut requests, in order, into batches whose distinct prompts, padded, stay within `max_tokens`.

    A single longer prompt is a batch of its own.
    """
    batch: list[GenerationRequest] = []
    distinct: set[bytes] = set()
    longest = 0
    for request in requests:
        prompt = np.asarray(request.prompt_tokens, dtype=np.int32)
        key = prompt.tobytes()
        grown = max(longest, len(prompt)) * (len(distinct) + (key not in distinct))
        if batch and grown > max_tokens:
            yield batch
            batch, distinct, longest = [], set(), 0
        batch.append(request)
        distinct.add(key)
        longest = max(longest, len(prompt))
    if batch:
        yield batch
