"""The two engines under test, and what the behaviour suite shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from pipeline.engines.base import Engine, Generation, GenerationRequest, StateTensor
from pipeline.engines.model_dir import named_state
from pipeline.engines.scripted import ScriptedEngine, scripted_state
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import CHARACTERS, character_tokenizer
from pipeline.engines.torch_engine import TorchEngine
from schemas.records import PromptGroup, SamplingParams, Version

SLOTS = 64
CONTEXT_TOKENS = 32
FIRST_STEP, LAST_STEP = 4, 60  # below are the special tokens of the character tokenizer

State = dict[str, StateTensor]


def step_model() -> PreTrainedModel:
    """A real model whose residual stream is constant, so that its output row alone decides the token."""
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
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
    own["lm_head.weight"].zero_()
    return model


class TorchBackend:
    def engine(self) -> Engine:
        model = step_model()
        self._state = {name: tensor.clone() for name, tensor in named_state(model)[0].items()}
        settings = TorchEngineSettings(model_dir=Path("unused"), max_concurrent_sequences=SLOTS)
        return TorchEngine(model, character_tokenizer(CHARACTERS, context_tokens=CONTEXT_TOKENS), settings=settings)

    def state(self, step: int) -> State:
        head = torch.zeros_like(self._state["lm_head.weight"])
        head[step] = 4.0
        return {**self._state, "lm_head.weight": head}


class ScriptedBackend:
    def engine(self) -> Engine:
        return ScriptedEngine(max_concurrent_sequences=SLOTS, context_tokens=CONTEXT_TOKENS)

    def state(self, step: int) -> State:
        return {**scripted_state(step)}


Backend = TorchBackend | ScriptedBackend


def version(step: int, *, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def serve(engine: Engine, backend: Backend, *, step: int, lineage: int = 1) -> None:
    engine.load(version(step, lineage=lineage), backend.state(step))


def requests(
    num: int, *, max_tokens: int = 4, prefix: str = "r", prompt_tokens: tuple[int, ...] = (5, 6, 7)
) -> list[GenerationRequest]:
    sampling = SamplingParams(max_tokens=max_tokens)
    return [
        GenerationRequest(request_id=f"{prefix}{index}", prompt_tokens=prompt_tokens, sampling=sampling, seed=index)
        for index in range(num)
    ]


def group(
    *, text: str | None = None, token_ids: bytes | None = None, sampling: SamplingParams | None = None
) -> PromptGroup:
    return PromptGroup(
        run="r",
        group=7,
        group_size=2,
        text=text,
        token_ids=token_ids,
        sampling=sampling if sampling is not None else SamplingParams(),
        seed=0,
        source="test",
        source_index=0,
        epoch=0,
        created_unix_ms=0,
    )


def run_out(engine: Engine) -> list[Generation]:
    done: list[Generation] = []
    for _ in range(2 * CONTEXT_TOKENS):
        if not engine.num_running:
            return done
        done += engine.step()
    raise AssertionError(f"{engine.num_running} requests never ended")


def stamps(generation: Generation) -> list[Version]:
    return [run.version for run in generation.version_runs for _ in range(run.num_tokens)]
