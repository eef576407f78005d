"""Requests for the torch engine, and how to run and compare them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.engines.base import Generation, GenerationRequest
from pipeline.engines.torch_engine import TorchEngine
from schemas.records import SamplingParams, Version

V1, V2 = Version(lineage=1, step=1), Version(lineage=1, step=2)


def sharpen(state: dict[str, torch.Tensor], *, seed: int) -> dict[str, torch.Tensor]:
    """Weights with a peaked, seed-dependent distribution, so that sequences differ and greedy has no near ties."""
    generator = torch.Generator().manual_seed(seed)
    return {name: t + 0.2 * torch.randn(t.shape, generator=generator) for name, t in state.items()}


def prompts(*, num: int, longest: int = 9) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(5)
    return [tuple(rng.integers(4, 32, size=1 + index % longest).tolist()) for index in range(num)]


def request(name: str, prompt: tuple[int, ...], *, seed: int = 0, **sampling: object) -> GenerationRequest:
    params = SamplingParams(**{"max_tokens": 8, **sampling})  # type: ignore[arg-type]
    return GenerationRequest(request_id=name, prompt_tokens=prompt, sampling=params, seed=seed)


def run(engine: TorchEngine, requests: Sequence[GenerationRequest]) -> dict[str, Generation]:
    engine.submit(requests)
    done: list[Generation] = []
    while engine.num_running:
        done += engine.step()
    assert len({g.request_id for g in done}) == len(done)
    return {g.request_id: g for g in done}


def varied(num: int) -> list[GenerationRequest]:
    kinds: list[dict[str, object]] = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.8, "max_tokens": 3},
        {"temperature": 1.3, "top_k": 5, "max_tokens": 12},
        {"temperature": 0.0, "max_tokens": 5},
        {"stop": ("7", "+ 1")},
    ]
    return [
        request(f"r{index}", prompt, seed=1000 + index, **kinds[index % len(kinds)])
        for index, prompt in enumerate(prompts(num=num))
    ]


def assert_same(one: Generation, other: Generation) -> None:
    assert one.tokens.tolist() == other.tokens.tolist()
    assert (one.text, one.finish_reason, one.version_runs) == (other.text, other.finish_reason, other.version_runs)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)
