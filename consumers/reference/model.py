"""The frozen reference model: from samples to log-probabilities of their completions.

Role: the same rows, temperature and arithmetic as the trainer's, so that a policy equal to the reference has no
divergence from it.
Data in: samples that passed `schemas.validation.check_sample`. Data out: packed float32, one per completion token.
Invariants: weights never change; a sample's result does not depend on the company it is scored in, but for rounding.
Failure: `EngineError` when the model cannot be loaded; a sample that the model cannot take has a reason instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from consumers.learner.forward import Forward
from consumers.learner.ready import ModelLimits
from consumers.learner.tensors import micro_batches, rows_of
from consumers.reference.settings import ReferenceSettings
from pipeline.engines.model_dir import load_model, named_state, parse_device
from pipeline.settings import ModelSettings
from pipeline.weights.state import stream_digest
from schemas.packed import pack_f32
from schemas.records import Sample


class ReferenceModel:
    """See the module.

    Raises:
        EngineError: the model directory cannot be loaded.
    """

    def __init__(self, settings: ReferenceSettings, model: ModelSettings) -> None:
        torch.set_num_threads(settings.threads)
        path = model.path if settings.path is None else settings.path
        device = model.device if settings.device is None else settings.device
        self._device = parse_device(device)
        self._batch_tokens = settings.batch_tokens
        loaded = load_model(path, device=device, dtype=model.dtype if settings.dtype is None else settings.dtype)
        own, ties = named_state(loaded)
        self.digest = stream_digest(own, ties=ties, wire_dtype=None)
        self._forward = Forward(loaded)
        self._limits = ModelLimits(
            vocab_size=int(loaded.config.vocab_size), context_tokens=int(loaded.config.max_position_embeddings)
        )

    def problem(self, sample: Sample) -> str:
        """Why the model cannot take a sample; empty: it can."""
        found = self._limits.problem(sample)
        return "" if found is None else f"the reference model cannot take it: {found}"

    def score(self, samples: Sequence[Sample]) -> list[bytes]:
        """Packed float32 log-probabilities of each sample's completion tokens."""
        if not samples:
            return []
        rows = rows_of(samples, device=self._device)
        found: list[bytes] = []
        with torch.no_grad():
            for begin, end in micro_batches(rows, max_tokens=self._batch_tokens):
                part = rows.slice(begin, end)
                lengths = part.completion.sum(dim=1).tolist()
                for each in torch.split(self._forward.logprobs(part), lengths):
                    found.append(pack_f32(each.cpu().numpy()))
        return found
