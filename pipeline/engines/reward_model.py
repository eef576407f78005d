"""A sequence classifier that scores texts.

Role: the adapter over `AutoModelForSequenceClassification`, for rewards.
Data in: texts. Data out: one float per text, or the error of it.
Invariants: nothing is downloaded, no code of the folder is run, no pickle is read, no weight is left random; a text is
scored the same in any batch, but for rounding (padding is masked).
Failure: `EngineError` that names the folder and what is missing; a text over the context gives a `ValueError` in the
place of its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import blake3
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from pipeline.engines.model_dir import Loading, load_tokenizer, load_whole, parse_device, parse_dtype
from schemas.errors import EngineError


class RewardModel:
    """See the module.

    Args:
        device: "cpu", "cuda" or "cuda:<n>".
        dtype: of the weights, a key of `pipeline.engines.model_dir.DTYPES`.
        label: which output to take; with several, its probability after softmax.
        threads: of torch on a CPU, for this process.

    Raises:
        EngineError: no such model, device, dtype or label.
    """

    def __init__(self, path: Path, *, device: str, dtype: str, label: int, threads: int) -> None:
        self._device = parse_device(device)
        torch.set_num_threads(threads)
        self._tokenizer = load_tokenizer(path)
        where = Loading(
            device=self._device,
            dtype=parse_dtype(dtype),
            what="sequence classifier",
            hint="use the directory of a trained reward model, not of a language model",
        )
        self._model = load_whole(AutoModelForSequenceClassification.from_pretrained, path, where=where)
        self._num_labels = len(self._model.config.id2label or {0: ""})
        if not 0 <= label < self._num_labels:
            raise EngineError(f"label = {label}: the model in {path} has outputs 0 to {self._num_labels - 1}")
        self._label = label
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.config.pad_token_id = self._tokenizer.pad_token_id
        self._context = getattr(self._model.config, "max_position_embeddings", None)
        self.digest = _digest(path)

    def score(self, texts: Sequence[str]) -> list[float | ValueError]:
        """One value per text, in order; a text over the model's context gives the error that says so."""
        lengths = [len(self._tokenizer(text)["input_ids"]) for text in texts]
        fits = [self._context is None or 0 < length <= self._context for length in lengths]
        taken = [text for text, fit in zip(texts, fits, strict=True) if fit]
        values = iter(self._forward(taken) if taken else ())
        return [
            next(values) if fit else ValueError(f"a text of {length} tokens, the model takes 1 to {self._context}")
            for fit, length in zip(fits, lengths, strict=True)
        ]

    def _forward(self, texts: Sequence[str]) -> list[float]:
        given = self._tokenizer(list(texts), return_tensors="pt", padding=True)
        inputs = {name: given[name].to(self._device) for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            logits = cast("Tensor", self._model(**inputs).logits).float()
        outputs = logits if self._num_labels == 1 else torch.softmax(logits, dim=-1)
        values: list[float] = outputs[:, self._label].tolist()
        return values


def _digest(path: Path) -> str:
    """Of the weights as they are on disk: another model shows in the records."""
    digest = blake3.blake3()
    for file in sorted(path.glob("*.safetensors")):
        digest.update_mmap(file)
    return digest.hexdigest()
