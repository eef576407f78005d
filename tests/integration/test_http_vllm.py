"""The HTTP engine over a real vLLM server: agreement with torch, swaps under load, routes, a killed server."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from pipeline.engines.base import EngineState, Generation
from pipeline.engines.http.engine import HttpEngine
from pipeline.engines.http.exchange import Meaning
from pipeline.engines.http.opening import open_http_engine
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.model_dir import load_tokenizer, named_state
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import CHARACTERS, character_tokenizer
from pipeline.engines.torch_engine import TorchEngine
from schemas.errors import EngineError
from schemas.records import SamplingParams, Version
from tests.engines import NEEDS_VLLM, VLLM_CONTEXT_TOKENS, random_state, step_model, step_state
from tests.integration.http_vllm_support import START_LIMIT_S, VllmServer
from tests.integration.vllm_support import AGREES, differences, model_with, request, run_out, version

pytestmark = [*NEEDS_VLLM, pytest.mark.timeout(2 * START_LIMIT_S)]


@dataclass(frozen=True)
class Served:
    """A server and the model it has."""

    server: VllmServer
    folder: Path
    weights: dict[str, Tensor]

    def state(self, step: int) -> dict[str, Tensor]:
        """Weights with which the greedy token is `step`."""
        return step_state(self.weights, step)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests of this module; it begins with weights that are random."""
    folder = tmp_path_factory.mktemp("http-vllm")
    model = step_model(context_tokens=VLLM_CONTEXT_TOKENS)
    own, _ = named_state(model)
    weights = {name: tensor.clone() for name, tensor in own.items()}
    for name, tensor in random_state(weights, seed=11).items():
        own[name].copy_(tensor)
    model.save_pretrained(folder)
    character_tokenizer(CHARACTERS, context_tokens=VLLM_CONTEXT_TOKENS).save_pretrained(folder)
    server = VllmServer(folder, log=folder.with_name("server.log"))
    server.start()
    yield Served(server=server, folder=folder, weights=weights)
    server.stop()


@pytest.fixture
def connect(served: Served) -> Iterator[Callable[..., HttpEngine]]:
    """Opens engines over it."""
    made: list[HttpEngine] = []

    def open_one(**settings: Any) -> HttpEngine:
        chosen = HttpSettings(**{"base_urls": (served.server.url,), **settings})
        made.append(open_http_engine(served.folder, max_sequences=64, settings=chosen))
        return made[-1]

    yield open_one
    for engine in made:
        engine.close()


def test_agrees_with_the_torch_engine_before_and_after_swaps(
    served: Served, connect: Callable[..., HttpEngine], tmp_path: Path
) -> None:
    """Tokens, text, ends and log-probabilities, over the plug-in and over a folder."""
    prompts = [tuple(draw.randrange(4, 32) for _ in range(6)) for draw in map(random.Random, range(16))]
    for settings in ({}, {"update_dir": tmp_path}):
        engine = connect(**settings)
        facts = engine._host.facts
        assert (facts.kind, facts.meaning) == ("vllm", Meaning.PROCESSED)
        assert facts.update == ("disk" if settings else "plugin")
        for step in range(6):
            state = random_state(served.weights, seed=step)
            engine.load(version(step), state)
            assert engine.verified
        model = model_with(served.folder, state)
        torch_engine = TorchEngine(
            model,
            load_tokenizer(served.folder),
            settings=TorchEngineSettings(model_dir=served.folder),
            version=version(5),
        )
        done: list[dict[str, Generation]] = []
        for made in (engine, torch_engine):
            for index, prompt in enumerate(prompts):
                stop = ("1", "2 ", "=") if index % 2 else ()
                made.submit(
                    [
                        request(
                            str(index),
                            prompt=prompt,
                            sampling=SamplingParams(temperature=0.0, max_tokens=24, stop=stop),
                        )
                    ]
                )
            done.append({each.request_id: each for each in run_out(made)})
        for name, mine in done[0].items():
            theirs = done[1][name]
            assert (mine.failure, mine.tokens.tolist()) == ("", theirs.tokens.tolist())
            assert (mine.text, mine.finish_reason, mine.logprobs_kind) == (theirs.text, theirs.finish_reason, "raw")
            assert mine.version_runs == theirs.version_runs
            assert np.abs(mine.logprobs - theirs.logprobs).max() <= AGREES
        engine.submit([request(str(index), seed=index) for index in range(32)])
        found = differences(model, run_out(engine))
        print(f"{facts.update}: mean {np.mean(found):.2e}, max {max(found):.2e}")
        assert max(found) <= AGREES
        engine.close()


def test_swaps_at_random_moments_under_load(served: Served, connect: Callable[..., HttpEngine]) -> None:
    """Case 33: nothing is lost, and no token, which is the step of the weights that made it, has another version."""
    draw = random.Random(37)
    engine = connect()
    states = {step: served.state(step) for step in range(4, 60)}
    order = iter(Version(lineage=lineage, step=step) for lineage in (1, 2, 3) for step in states)
    first = next(order)
    engine.load(first, states[first.step])
    done: list[Generation] = []
    pauses_s: list[float] = []
    submitted = 0
    while len(pauses_s) < 40:
        while engine.num_running < 48:
            sampling = SamplingParams(max_tokens=draw.randint(1, 60))
            engine.submit([request(f"r{submitted}", sampling=sampling, seed=submitted)])
            submitted += 1
        for _ in range(draw.randint(0, 3)):
            done += engine.step()
        following = next(order)
        engine.load(following, states[following.step])
        pauses_s.append(engine.pause_s)
    done += run_out(engine)
    assert len(done) == submitted, "requests lost"
    assert {each.failure for each in done} == {""}
    wrong = 0
    for each in done:
        labels = [run.version.step for run in each.version_runs for _ in range(run.num_tokens)]
        wrong += sum(label != token for label, token in zip(labels, each.tokens.tolist(), strict=True))
    assert wrong == 0
    assert sum(len(each.version_runs) > 1 for each in done) > 40, "hardly any sequence was in flight at a swap"
    p50, p95 = (statistics.quantiles(pauses_s, n=20)[at] * 1e3 for at in (9, 18))
    print(f"pause with 48 in flight: p50 {p50:.1f} ms, p95 {p95:.1f} ms; {submitted} sequences")


@pytest.mark.parametrize("on_swap", ["recompute", "abort", "drain"])
def test_requests_in_flight_at_a_swap(served: Served, connect: Callable[..., HttpEngine], on_swap: str) -> None:
    engine = connect(on_swap=on_swap)
    old, new = (random_state(served.weights, seed=seed) for seed in (1, 2))
    engine.load(version(1), old)
    engine.submit([request(str(index), sampling=SamplingParams(max_tokens=480), seed=index) for index in range(16)])
    done = engine.step()
    engine.load(version(2), new)
    done += run_out(engine)
    assert len(done) == 16
    across = [each for each in done if len(each.version_runs) == 2]
    if on_swap != "recompute":
        assert not across
        assert ("abort" in {each.finish_reason for each in done}) == (on_swap == "abort")
        return
    assert across, "no request was in flight"


def test_a_successor_lets_a_paused_server_go_on(served: Served, connect: Callable[..., HttpEngine]) -> None:
    served.server.post("/pause?mode=keep&clear_cache=false")
    served.server.post("/start_weight_update")  # the predecessor was killed here
    engine = connect()
    assert engine.state is EngineState.COLD
    engine.load(version(7), served.state(7))
    engine.submit([request("a")])
    (done,) = run_out(engine)
    assert set(done.tokens.tolist()) == {7}


def test_what_the_worker_refuses_changes_nothing(
    served: Served, connect: Callable[..., HttpEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that vLLM's model does not have gets past our own check only here."""
    engine = connect()
    engine.load(version(5), served.state(5))
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.engines.http.engine.check_state", lambda *args, **kwargs: None)
        wrong = served.state(6)
        wrong["model.layers.0.self_attn.k_projection.weight"] = wrong.pop("model.layers.0.self_attn.k_proj.weight")
        with pytest.raises(EngineError, match=r"k_projection.*old version is still served"):
            engine.load(version(6), wrong)
    engine.submit([request("after")])
    (done,) = run_out(engine)
    assert set(done.tokens.tolist()) == {5}


def test_a_killed_server_fails_what_it_held_and_is_found_again(
    served: Served, connect: Callable[..., HttpEngine]
) -> None:
    """Last of this module: the server that follows begins with its directory's weights, which nobody may be served."""
    engine = connect()
    engine.load(version(9), served.state(9))
    engine.submit([request(str(index), sampling=SamplingParams(max_tokens=400)) for index in range(16)])
    engine.step()
    served.server.kill()
    with pytest.raises(EngineError, match="requests are lost"):
        run_out(engine)
    assert (engine.state, engine.version) == (EngineState.QUARANTINED, None)
    with pytest.raises(EngineError, match="does not answer"):
        engine.load(version(10), served.state(10))
    served.server.start()
    with pytest.raises(EngineError, match="no version is loaded as a whole"):
        engine.submit([request("too early")])
    engine.load(version(10), served.state(10))
    engine.submit([request("after")])
    (done,) = run_out(engine)
    assert set(done.tokens.tolist()) == {10}
    assert [run.version for run in done.version_runs] == [version(10)]
