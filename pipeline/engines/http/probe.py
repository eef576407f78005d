"""The published weights' own log-probabilities of fixed prompts, by a forward pass in torch.

Role: what a server's answers are compared with.
Data in: a verified state. Data out: log-probabilities of the prompts' tokens.
Invariants: no copy of the weights: the model computes with the state's own tensors and lets go of them afterwards. The
prompts are the same for the same vocabulary and context.
Failure: `EngineError`, with the old version still served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import cast

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pipeline.engines.http.verdict import Logprobs
from pipeline.engines.model_dir import LOADER_ERRORS, named_state, quiet_transformers
from schemas.errors import EngineError

NUM_PROMPTS = 4
PROMPT_TOKENS = 24


def probe_prompts(*, vocab_size: int, context_tokens: int) -> list[list[int]]:
    """Fixed prompts of random tokens, short enough for one more token."""
    draw = Random(vocab_size)  # noqa: S311 - the same ones each time is the point
    length = max(1, min(PROMPT_TOKENS, context_tokens - 1))
    return [[draw.randrange(vocab_size) for _ in range(length)] for _ in range(NUM_PROMPTS)]


class Reference:
    """See the module.

    Args:
        model_dir: its configuration; its weights are not read.
    """

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._model: PreTrainedModel | None = None

    def logprobs(self, own: Mapping[str, Tensor], prompts: list[list[int]]) -> Logprobs:
        """Of every token but the first of each prompt, under these weights.

        Raises:
            EngineError: the model cannot be computed here.
        """
        tensors = {name: tensor.detach().to("cpu") for name, tensor in own.items()}
        try:
            model = self._bound(tensors)
            with torch.inference_mode():
                logits = model(torch.tensor(prompts), use_cache=False).logits[:, :-1].float()
            chosen = torch.tensor(prompts)[:, 1:, None]
            found: list[list[float]] = torch.log_softmax(logits, dim=-1).gather(2, chosen).squeeze(2).tolist()
        except LOADER_ERRORS as error:
            self._model = None
            raise EngineError(
                f"the probe cannot compute this model in torch: {type(error).__name__}: {error}",
                hint="set rollout.http.probe = 'never'; samples are then marked unverified unless the server checks",
            ) from error
        finally:
            self._let_go()
        return found

    def _bound(self, tensors: Mapping[str, Tensor]) -> PreTrainedModel:
        """The model, its parameters being the given tensors."""
        if self._model is None:
            self._model = self._made(tensors)
            self._model.train(False)
        own, _ = named_state(self._model)
        with torch.no_grad():
            for name, tensor in tensors.items():
                _parameter(self._model, name).data = tensor
        if set(own) != set(tensors):
            raise ValueError("the model has other parameters than the state")
        return self._model

    def _made(self, tensors: Mapping[str, Tensor]) -> PreTrainedModel:
        construct = cast("Callable[..., PreTrainedModel]", AutoModelForCausalLM.from_config)
        dtype = next((each.dtype for each in tensors.values() if each.is_floating_point()), torch.float32)
        with quiet_transformers():
            config = AutoConfig.from_pretrained(self._model_dir, local_files_only=True, trust_remote_code=False)
            with torch.device("meta"):
                made = type(construct(config, trust_remote_code=False))
            load = cast("Callable[..., PreTrainedModel]", made.from_pretrained)
            return load(None, config=config, state_dict=dict(tensors), dtype=dtype)

    def _let_go(self) -> None:
        if self._model is not None:
            for parameter in self._model.parameters():
                parameter.data = torch.empty(0, dtype=parameter.dtype)


def _parameter(model: PreTrainedModel, name: str) -> Tensor:
    module, _, leaf = name.rpartition(".")
    found: Tensor = getattr(model.get_submodule(module), leaf)
    return found
