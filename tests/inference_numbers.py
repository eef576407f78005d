"""The log-probabilities that an inference server of the tests gives, by what it means with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.base import Generation
from pipeline.engines.sampling import keep_likely
from schemas.records import SamplingParams

Meaning: TypeAlias = Literal["raw", "tempered", "processed"]


class Numbers:
    """Log-probabilities of one model, by a forward pass."""

    def __init__(self, model: PreTrainedModel, *, meaning: Meaning) -> None:
        self._model = model
        self._meaning = meaning

    def of_tokens(self, done: Generation, prompt: list[int], *, sampling: SamplingParams) -> list[float]:
        """Log-probabilities as this server means them."""
        tokens = done.tokens.tolist()
        if self._meaning == "processed" or sampling.temperature == 0 or not tokens:
            return [float(value) for value in done.logprobs]
        rows = self._logits([*prompt, *tokens])[len(prompt) - 1 : -1]
        scaled = rows / (sampling.temperature if self._meaning == "tempered" else 1.0)
        found: list[float] = torch.log_softmax(scaled, dim=-1)[range(len(tokens)), tokens].tolist()
        return found

    def top(self, prompt: list[int], sampling: SamplingParams) -> list[float]:
        """The three largest log-probabilities of the first token; -9999 for those that are filtered out."""
        rows = self._logits(prompt)[-1:]
        if self._meaning != "raw" and sampling.temperature > 0:
            rows = rows / sampling.temperature
        if self._meaning == "processed":
            top_k = torch.tensor([[sampling.top_k if sampling.top_k > 0 else 2**31 - 1]])
            top_p = torch.tensor([[sampling.top_p if sampling.top_p < 1 else float("inf")]], dtype=torch.float64)
            rows = keep_likely(rows, top_k=top_k, top_p=top_p)
        found: list[float] = torch.log_softmax(rows, dim=-1)[0].topk(3).values.clamp(min=-9999.0).tolist()
        return found

    def of_prompt(self, prompt: list[int]) -> list[float]:
        """Of every token of a prompt but the first."""
        rows = torch.log_softmax(self._logits(prompt), dim=-1)[:-1]
        found: list[float] = rows[range(len(prompt) - 1), prompt[1:]].tolist()
        return found

    def _logits(self, tokens: list[int]) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self._model(torch.tensor([tokens])).logits[0].float()
        return logits


def sampling_of(params: Mapping[str, Any], *, limit: str) -> SamplingParams:
    """The parameters of a request; `limit` is what the route calls the number of tokens."""
    return SamplingParams(
        temperature=params["temperature"],
        top_p=params.get("top_p", 1.0),
        top_k=max(0, params.get("top_k", 0)),
        max_tokens=params[limit],
        stop=tuple(params.get("stop", ())),
    )
