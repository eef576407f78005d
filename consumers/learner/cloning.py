"""Behaviour cloning: the first phase, before any version is published.

Role: demonstrations (prompts whose answer is the wanted completion) become token rows, a few at a time.
Data in: a prompt source. Data out: `Rows` whose completion is the answer followed by the end token.
Invariants: demonstration i of the run is item i of the source. No checkpoint is written before the last cloning step: a
learner that ends before begins again with the model as it was, and none is trained on twice.
Failure: `SettingsError` when the source has no answers; a demonstration that cannot be encoded is passed over, counted.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from consumers.learner.settings import CloningSettings
from consumers.learner.tensors import Rows, rows_of
from consumers.learner.trainer import Trainer
from pipeline.engines.prompts import encode_group
from pipeline.sources import Source, open_source
from schemas.errors import RecordInvalid, SettingsError
from schemas.packed import pack_f32, pack_i32, pack_u8
from schemas.records import PromptGroup, Sample, SamplingParams


class Demonstrations:
    """Encodes batches of demonstrations."""

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        *,
        settings: CloningSettings,
        context_tokens: int,
        device: torch.device,
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._settings = settings
        self._context_tokens = context_tokens
        self._device = device
        self.num_passed_over = 0

    @classmethod
    def open(cls, settings: CloningSettings, *, trainer: Trainer, seed: int) -> Demonstrations:
        """Open the source of `settings` for the trainer's model.

        Raises:
            SettingsError: no source is set, or it cannot be opened.
        """
        if settings.source is None:
            raise SettingsError("learner.cloning.num_steps is above 0 but learner.cloning.source is not set")
        return cls(
            open_source(settings.source, seed=seed),
            trainer.tokenizer,
            settings=settings,
            context_tokens=trainer.context_tokens,
            device=trainer.device,
        )

    def batch(self, step: int) -> Rows:
        """Rows of cloning step `step` (from 0).

        Raises:
            SettingsError: the source ends, or none of this batch can be used.
        """
        size = self._settings.batch_size
        num_items = self._source.num_items
        end = (step + 1) * size if num_items is None else min(num_items, (step + 1) * size)
        found = [self._sample(index) for index in range(step * size, end)]
        samples = [sample for sample in found if sample is not None]
        self.num_passed_over += size - len(samples)
        if not samples:
            raise SettingsError(
                f"learner.cloning.source gives no usable demonstration at step {step}",
                hint="give prompts with an `answer` that fit the model's context, allow more epochs, or clone less",
            )
        return rows_of(samples, device=self._device)

    def _sample(self, index: int) -> Sample | None:
        """The demonstration with this number, None when it cannot be used."""
        try:
            item = self._source.item(index)
        except RecordInvalid:
            return None
        if not item.answer:
            return None
        group = PromptGroup(
            run="",
            group=index,
            group_size=1,
            text=item.text,
            messages=item.messages,
            token_ids=item.token_ids,
            sampling=SamplingParams(),
            seed=0,
            source=self._source.name,
            source_index=item.source_index,
            epoch=item.epoch,
            created_unix_ms=0,
        )
        answer = self._answer_tokens(item.answer)
        try:
            prompt = encode_group(
                self._tokenizer,
                group,
                context_tokens=self._context_tokens - len(answer) + 1,
                vocab_size=len(self._tokenizer),
            )
        except RecordInvalid:
            return None
        return _as_sample(group, prompt=prompt.tokens, answer=answer)

    def _answer_tokens(self, answer: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(answer, add_special_tokens=False)
        end = self._tokenizer.eos_token_id
        return tokens if end is None else [*tokens, int(end)]


def _as_sample(group: PromptGroup, *, prompt: np.ndarray, answer: list[int]) -> Sample:
    count = len(answer)
    return Sample(
        run="",
        group=group.group,
        member=0,
        attempt="",
        producer="",
        prompt_tokens=pack_i32(prompt),
        completion_tokens=pack_i32(answer),
        logprobs=pack_f32(np.zeros(count, np.float32)),
        loss_mask=pack_u8(np.ones(count, np.uint8)),
        sampling=group.sampling,
        seed=0,
        started_unix_ms=0,
        finished_unix_ms=0,
    )
