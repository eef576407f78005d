"""From samples to padded tensors.

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
    reference_logprobs: Tensor | None = None  # float32, of the frozen reference model, 0 elsewhere; None: no reference

    def to(self, device: torch.device) -> Rows:
        """The same on a device."""
        reference = self.reference_logprobs
        return Rows(
            input_ids=self.input_ids.to(device),
            attention=self.attention.to(device),
            completion=self.completion.to(device),
            loss_mask=self.loss_mask.to(device),
            behaviour_logprobs=self.behaviour_logprobs.to(device),
            temperature=self.temperature.to(device),
            reference_logprobs=None if reference is None else reference.to(device),
        )

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
            reference_logprobs=None
            if self.reference_logprobs is None
            else self.reference_logprobs[begin:end, :columns],
        )


def rows_of(samples: Sequence[Sample], *, device: torch.device, references: Sequence[bytes | None] = ()) -> Rows:
    """Rows of samples that passed `schemas.validation.check_sample`.

    Args:
        references: packed float32, log-probabilities of each one's completion tokens by the reference model; empty, or
            one of them None: there are none.
    """
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
    reference = None
    if references and all(each is not None for each in references):
        reference = np.zeros(shape, np.float32)
        for row, (prompt, tokens, each) in enumerate(zip(prompts, completions, references, strict=True)):
            reference[row, len(prompt) : len(prompt) + len(tokens)] = unpack_f32(each if each is not None else b"")
    return Rows(
        input_ids=torch.from_numpy(ids).to(device),
        attention=torch.from_numpy(attention).to(device),
        completion=torch.from_numpy(completion).to(device),
        loss_mask=torch.from_numpy(mask).to(device),
        behaviour_logprobs=torch.from_numpy(behaviour).to(device),
        temperature=torch.from_numpy(temperature).to(device),
        reference_logprobs=None if reference is None else torch.from_numpy(reference).to(device),
    )


def micro_batches(rows: Rows, *, max_tokens: int, packing: bool = False) -> Iterator[tuple[int, int]]:
    """Spans of rows whose size stays within `max_tokens`, padded, or with `packing` without padding; a single longer
    row stands alone."""
    lengths = rows.attention.sum(dim=1).tolist()
    begin, widest, filled = 0, 0, 0
    for row, length in enumerate(lengths):
        size = filled + length if packing else max(widest, length) * (row - begin + 1)
        if row > begin and size > max_tokens:
            yield begin, row
            begin, widest, filled = row, 0, 0
        widest, filled = max(widest, length), filled + length
    yield begin, len(lengths)


def _temperature(sample: Sample) -> float:
    if sample.logprobs_kind == "raw" or sample.sampling.temperature == 0:
        return 1.0
    return sample.sampling.temperature
