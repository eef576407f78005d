"""What the tests of a real vLLM share: requests, running them out, and comparing with the learner's model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.base import Engine, Generation, GenerationRequest
from pipeline.engines.model_dir import load_model, named_state
from schemas.records import SamplingParams, Version
from topics.clock import Deadline

if TYPE_CHECKING:
    pass

LIMIT_S = 60.0
AGREES = 1e-3  # mean absolute difference of log-probabilities
PROMPT = (5, 9, 14, 21)


def request(
    name: str, *, prompt: tuple[int, ...] = PROMPT, sampling: SamplingParams | None = None, seed: int = 0
) -> GenerationRequest:
    chosen = sampling if sampling is not None else SamplingParams(max_tokens=8)
    return GenerationRequest(request_id=name, prompt_tokens=prompt, sampling=chosen, seed=seed)


def run_out(engine: Engine) -> list[Generation]:
    done: list[Generation] = []
    deadline = Deadline.after(LIMIT_S)
    while engine.num_running:
        deadline.check(f"{engine.num_running} requests")
        done += engine.step()
    return done


def version(step: int) -> Version:
    return Version(lineage=1, step=step)


def model_with(folder: Path, state: Mapping[str, Tensor]) -> PreTrainedModel:
    """The learner's view of a state."""
    model = load_model(folder, device="cpu", dtype="float32")
    own, _ = named_state(model)
    for name, tensor in own.items():
        tensor.copy_(state[name])
    return model


def logits(model: PreTrainedModel, prompt: tuple[int, ...], tokens: list[int]) -> Tensor:
    """Of each completion token's position, float32 [tokens, vocabulary]."""
    with torch.no_grad():
        output = model(torch.tensor([[*prompt, *tokens]])).logits[0].float()
    rows: Tensor = output[len(prompt) - 1 : len(prompt) + len(tokens) - 1]
    return rows


def differences(model: PreTrainedModel, done: list[Generation], *, prompt: tuple[int, ...] = PROMPT) -> list[float]:
    """Absolute differences of the log-probabilities of all sampled tokens."""
    found: list[float] = []
    for each in done:
        tokens = each.tokens.tolist()
        exact = torch.log_softmax(logits(model, prompt, tokens), dim=-1)[range(len(tokens)), tokens]
        found += np.abs(exact.numpy() - each.logprobs).tolist()
    return found
