"""An exported folder in a real vLLM, by vLLM's own loader: it computes what transformers computes from that folder."""

# ruff: noqa: PLC0415 - vllm is imported only where it is used

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import CHARACTERS, character_tokenizer
from pipeline.engines.vllm.exchange import EndedRequest, NewRequest
from pipeline.engines.vllm.settings import VllmSettings
from schemas.records import SamplingParams
from tests.engines import NEEDS_VLLM, random_state, step_model
from tests.integration.vllm_support import AGREES, LIMIT_S, logits
from tests.unit.ops.test_export import Run
from topics.clock import Deadline

if TYPE_CHECKING:
    from pipeline.engines.vllm.host import Host

pytestmark = NEEDS_VLLM
CONTEXT_TOKENS = 64
NUM_TOKENS = 16  # of each completion


def untied_model(folder: Path) -> None:
    model = step_model(context_tokens=CONTEXT_TOKENS, tied=False)
    own, _ = named_state(model)
    for name, tensor in random_state(own, seed=2).items():
        own[name].copy_(tensor)
    model.save_pretrained(folder)
    character_tokenizer(CHARACTERS, context_tokens=CONTEXT_TOKENS).save_pretrained(folder)


def greedy(folder: Path, prompts: list[tuple[int, ...]]) -> list[EndedRequest]:
    """What vLLM makes of the prompts with the weights in the folder; nothing is loaded over them."""
    with warnings.catch_warnings():  # of vLLM's own imports
        warnings.simplefilter("ignore")
        host = started(folder)
    try:
        return sorted(generate(host, prompts), key=lambda each: each.key)
    finally:
        host.close()


def started(folder: Path) -> Host:
    from pipeline.engines.vllm.host import Host, HostSettings

    host = Host(
        HostSettings(
            model_dir=folder,
            device="cpu",
            dtype="float32",
            max_sequences=32,
            context_tokens=CONTEXT_TOKENS,
            num_threads=1,
            vllm=VllmSettings(),
        )
    )
    host.start()
    return host


def generate(host: Host, prompts: list[tuple[int, ...]]) -> list[EndedRequest]:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    host.submit(
        [
            NewRequest(
                key=f"{number:03}",
                prompt_tokens=list(prompt),
                sampling=sampling,
                max_tokens=NUM_TOKENS,
                seed=0,
                stop_token_ids=[],
            )
            for number, prompt in enumerate(prompts)
        ]
    )
    done: list[EndedRequest] = []
    deadline = Deadline.after(LIMIT_S)
    while len(done) < len(prompts):
        deadline.check(f"{len(prompts) - len(done)} sequences of vLLM")
        done += host.take(wait_s=0.1)
    return done


@pytest.mark.parametrize(("wire_dtype", "tied"), [(None, False), ("BF16", True)])
def test_vllm_and_transformers_agree_on_an_exported_folder(tmp_path: Path, wire_dtype: str | None, tied: bool) -> None:
    """The version is a delta over an anchor. Both compute in float32, whatever the folder holds."""
    if not tied:
        untied_model(tmp_path / "model")
    run = Run(tmp_path, wire_dtype=wire_dtype)
    assert run.export().encoding == "delta"
    stored = {tensor.dtype for tensor in load_file(run.target / "model.safetensors").values()}
    assert stored == {torch.float32 if wire_dtype is None else torch.bfloat16}
    model = load_model(run.target, device="cpu", dtype="float32")
    assert bool(named_state(model)[1]) is tied
    draw = random.Random(3)
    prompts = [tuple(draw.randrange(4, 32) for _ in range(draw.randint(2, 12))) for _ in range(16)]
    found: list[float] = []
    for prompt, end in zip(prompts, greedy(run.target, prompts), strict=True):
        rows = logits(model, prompt, end.tokens)
        assert rows.argmax(dim=-1).tolist() == end.tokens
        exact = torch.log_softmax(rows, dim=-1)[range(len(end.tokens)), end.tokens].numpy()
        found += np.abs(exact - np.asarray(end.logprobs)).tolist()
    print(f"{len(found)} tokens: mean {np.mean(found):.2e}, max {max(found):.2e}")
    assert len(found) == len(prompts) * NUM_TOKENS
    assert max(found) <= AGREES
