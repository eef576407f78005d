"""A tiny model, a server over it, and engines that ask that server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.engines.base import Generation, GenerationRequest
from pipeline.engines.http.engine import HttpEngine
from pipeline.engines.http.opening import open_http_engine
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.model_dir import load_model, load_tokenizer, named_state
from pipeline.engines.tiny import make_tiny_model
from schemas.records import SamplingParams, Version
from tests.inference_server import InferenceServer
from topics.clock import Deadline

CONTEXT_TOKENS = 48
V1, V2, V3 = (Version(lineage=1, step=step) for step in (1, 2, 3))
START_LIMIT_S = 60.0  # for a server that comes
SHORT_S = 3.0  # for one that does not


def make_folder(folder: Path) -> Path:
    """A tiny model directory."""
    make_tiny_model(folder, seed=1, context_tokens=CONTEXT_TOKENS)
    return folder


def state_of(folder: Path, *, seed: int) -> dict[str, Tensor]:
    """The directory's weights, shifted by a seed; the output layer is tied to the embedding and left out."""
    own, _ = named_state(load_model(folder, device="cpu", dtype="float32"))
    generator = torch.Generator().manual_seed(seed)
    return {name: t + 0.05 * torch.randn(t.shape, generator=generator) for name, t in own.items()}


def start_server(folder: Path, **options: Any) -> InferenceServer:
    """A server over the directory's own weights."""
    model, tokenizer = load_model(folder, device="cpu", dtype="float32"), load_tokenizer(folder)
    return InferenceServer(model, tokenizer, **options).start()


def open_engine(folder: Path, server: InferenceServer, **settings: Any) -> HttpEngine:
    """An engine over the server; cold."""
    chosen = HttpSettings(**{"base_urls": (server.url,), "start_limit_s": START_LIMIT_S, **settings})
    return open_http_engine(folder, max_sequences=64, settings=chosen)


def request(name: str, *, seed: int = 0, prompt: tuple[int, ...] = (5, 9, 14), **sampling: Any) -> GenerationRequest:
    """One request; eight tokens if nothing else is said."""
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    return GenerationRequest(request_id=name, prompt_tokens=prompt, sampling=params, seed=seed)


def run_out(engine: HttpEngine) -> dict[str, Generation]:
    """Step until everything has come back."""
    done: list[Generation] = []
    deadline = Deadline.after(30)
    while engine.num_running:
        deadline.check(f"{engine.num_running} requests")
        done += engine.step()
    assert len({each.request_id for each in done}) == len(done)
    return {each.request_id: each for each in done}


def run(engine: HttpEngine, requests: Sequence[GenerationRequest]) -> dict[str, Generation]:
    """Submit and run out."""
    engine.submit(requests)
    return run_out(engine)
