"""From samples to padded tensors, and from a model to log-probabilities of completion tokens.

Role: the only place that knows how prompt and completion become one row.
Data in: packed arrays of samples. Data out: tensors of shape [rows, columns], right-padded.
Invariants: rows keep the order given; a row's completion columns are found by its mask, so padding trains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from schemas.packed import unpack_f32, unpack_i32, unpack_mask
from schemas.records import Sample


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Token rows on a device; every field has shape [rows, columns]."""

    input_ids: Tensor  # int64
    attention: Tensor  # int64, 1 where a token is
    completion: Tensor  # bool, True on completion tokens
    loss_mask: Tensor  # float32, on completion tokens
    behaviour_logprobs: Tensor  # float32, of tokens that train; 0 elsewhere
    temperature: Tensor  # float32, [rows, 1]; 1 for raw log-probabilities

    def slice(self, begin: int, end: int) -> Rows:
        """Rows begin..end-1, with the columns they need."""
        columns = int(self.attention[begin:end].sum(dim=1).max())
        return Rows(
            input_ids=self.input_ids[begin:end, :columns],
            attention=self.attention[begin:end, :columns],
            completion=self.completion[begin:end, :columns],
            loss_mask=self.loss_mask[begin:end, :columns],
            behaviour_logprobs=self.behaviour_logprobs[begin:end, :columns],
            temperature=self.temperature[begin:end],
        )


def rows_of(samples: Sequence[Sample], *, device: torch.device) -> Rows:
    """Rows of samples that passed `schemas.validation.check_sample`."""
    prompts = [unpack_i32(sample.prompt_tokens) for sample in samples]
    completions = [unpack_i32(sample.completion_tokens) for sample in samples]
    shape = (len(samples), max(len(p) + len(c) for p, c in zip(prompts, completions, strict=True)))
    ids, attention = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    completion, mask = np.zeros(shape, np.bool_), np.zeros(shape, np.float32)
    behaviour = np.zeros(shape, np.float32)
    for row, (sample, prompt, tokens) in enumerate(zip(samples, prompts, completions, strict=True)):
        begin, end = len(prompt), len(prompt) + len(tokens)
        ids[row, :begin], ids[row, begin:end] = prompt, tokens
        attention[row, :end] = 1
        completion[row, begin:end] = True
        trains = unpack_mask(sample.loss_mask, num_tokens=len(tokens))
        mask[row, begin:end] = trains
        logprobs = unpack_f32(sample.logprobs if sample.logprobs is not None else b"")
        behaviour[row, begin:end] = np.where(trains, logprobs, 0)  # the environment's tokens have none
    temperature = np.array([[_temperature(sample)] for sample in samples], np.float32)
    return Rows(
        input_ids=torch.from_numpy(ids).to(device),
        attention=torch.from_numpy(attention).to(device),
        completion=torch.from_numpy(completion).to(device),
        loss_mask=torch.from_numpy(mask).to(device),
        behaviour_logprobs=torch.from_numpy(behaviour).to(device),
        temperature=torch.from_numpy(temperature).to(device),
    )


def completion_logprobs(model: PreTrainedModel, rows: Rows) -> Tensor:
    """Log-probabilities of the completion tokens, shape [tokens] in row order, float32.

    Logits are divided by the sampling temperature, as the sampler did. Truncation by top-p or top-k is not repeated:
    its renormalisation shows up as a weight below its cap (see `losses.grpo_loss`).
    """
    logits = model(input_ids=rows.input_ids, attention_mask=rows.attention, use_cache=False).logits
    # The logits at column c predict column c + 1.
    chosen = rows.completion[:, 1:]
    predicted = logits[:, :-1][chosen].float()
    temperature = rows.temperature.expand(-1, chosen.shape[1])[chosen]
    targets = rows.input_ids[:, 1:][chosen]
    scaled = predicted / temperature[:, None]
    return torch.log_softmax(scaled, dim=-1).gather(1, targets[:, None]).squeeze(1)


def micro_batches(rows: Rows, *, max_tokens: int) -> Iterator[tuple[int, int]]:
    """Spans of rows whose padded size stays within `max_tokens`; a single longer row stands alone."""
    lengths = rows.attention.sum(dim=1).tolist()
    begin, widest = 0, 0
    for row, length in enumerate(lengths):
        if row > begin and max(widest, length) * (row - begin + 1) > max_tokens:
            yield begin, row
            begin, widest = row, 0
        widest = max(widest, length)
    yield begin, len(lengths)


def _temperature(sample: Sample) -> float:
    if sample.logprobs_kind == "raw" or sample.sampling.temperature == 0:
        return 1.0
    return sample.sampling.temperature
