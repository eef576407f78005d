"""A real vLLM: swaps under load, agreement with the learner's model, caches, faults. See also the contract suite."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
import torch

from pipeline.engines.base import Engine, EngineState, Generation
from pipeline.engines.model_dir import load_tokenizer
from pipeline.engines.pressure import pressure_of
from pipeline.engines.sampling import keep_likely
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.torch_engine import TorchEngine
from pipeline.engines.vllm.plugin import BROKEN
from schemas.errors import EngineError
from schemas.records import SamplingParams, Version
from tests.engines import NEEDS_VLLM, SharedVllm, random_state, step_state
from tests.integration.vllm_support import (
    AGREES,
    PROMPT,
    differences,
    logits,
    model_with,
    request,
    run_out,
    version,
)
from topics.clock import Deadline

pytestmark = NEEDS_VLLM
if TYPE_CHECKING:
    from pipeline.engines.vllm.engine import VllmEngine


@pytest.fixture
def engine(shared_vllm: SharedVllm) -> Iterator[VllmEngine]:
    made = shared_vllm.engine()
    yield made
    made.close()


def test_swaps_at_random_moments_under_load(engine: Engine, shared_vllm: SharedVllm) -> None:
    """Case 33: of 64 requests in flight none is lost or mislabelled, and a pause is not much longer than the load."""
    draw = random.Random(37)
    states = {step: step_state(shared_vllm.weights, step) for step in range(4, 60)}
    host = shared_vllm.host
    idle_s: list[float] = []
    for step in range(4, 24):
        engine.load(version(step), states[step])
        idle_s.append(host.pause_s)
    done: list[Generation] = []
    busy_s: list[float] = []
    submitted = 0
    order = iter(Version(lineage=lineage, step=step) for lineage in (2, 3) for step in states)
    while len(busy_s) < 60:
        while engine.num_running < 64:
            tokens = draw.randint(1, 60)
            engine.submit([request(f"r{submitted}", sampling=SamplingParams(max_tokens=tokens), seed=submitted)])
            submitted += 1
        for _ in range(draw.randint(0, 3)):
            done += engine.step()
        following = next(order)
        engine.load(following, states[following.step])
        busy_s.append(host.pause_s)
    done += run_out(engine)
    assert len(done) == submitted, "requests lost"
    wrong = 0
    for each in done:
        labels = [run.version.step for run in each.version_runs for _ in range(run.num_tokens)]
        wrong += sum(label != token for label, token in zip(labels, each.tokens.tolist(), strict=True))
    assert wrong == 0
    assert sum(len(each.version_runs) > 1 for each in done) > 50
    p50, p95 = (statistics.quantiles(busy_s, n=20)[at] * 1e3 for at in (9, 18))
    print(f"pause: idle p50 {statistics.median(idle_s) * 1e3:.1f} ms; 64 in flight p50 {p50:.1f} p95 {p95:.1f} ms")


def test_agrees_with_the_learners_model_before_and_after_20_swaps(engine: Engine, shared_vllm: SharedVllm) -> None:
    for step in range(21):
        state = random_state(shared_vllm.weights, seed=step)
        engine.load(version(step), state)
        if step in (0, 20):
            engine.submit([request(str(index), seed=index) for index in range(32)])
            found = differences(model_with(shared_vllm.folder, state), run_out(engine))
            print(f"after {step} swaps: mean {np.mean(found):.2e}, max {max(found):.2e}")
            assert np.mean(found) <= AGREES
    noise = torch.Generator().manual_seed(5)
    for name in state:  # the check sees one tensor that is a little off
        wrong = {**state, name: state[name] + torch.randn(state[name].shape, generator=noise)}
        engine.load(version(30), wrong)
        engine.submit([request(str(index), seed=index) for index in range(32)])
        assert np.mean(differences(model_with(shared_vllm.folder, state), run_out(engine))) > AGREES, name


def test_it_says_how_loaded_it_is(engine: Engine, shared_vllm: SharedVllm) -> None:
    engine.load(version(1), random_state(shared_vllm.weights, seed=1))
    told_before, deadline = pressure_of(shared_vllm.host), Deadline.after(60)
    num_before = 0 if told_before is None or told_before.tokens is None else told_before.tokens
    submitted = num_tokens = 0
    while (told := pressure_of(shared_vllm.host)) is None or told == told_before or not told.running:
        deadline.check("what vLLM says of its load")
        while engine.num_running < 64:
            sampling = SamplingParams(max_tokens=200)
            engine.submit([request(f"r{submitted}", sampling=sampling, seed=submitted)])
            submitted += 1
        num_tokens += sum(len(each.tokens) for each in engine.step())
    num_tokens += sum(len(each.tokens) for each in run_out(engine))
    assert told.kv_use_share is not None
    assert told.tokens is not None
    assert 0 < told.kv_use_share < 1
    assert (told.queued, told.preemptions) == (0, 0), "there is room for all of them"
    assert 0 < told.running <= 64
    assert 0 < told.tokens - num_before <= num_tokens


def test_the_prefix_cache_never_outlives_its_weights(engine: VllmEngine, shared_vllm: SharedVllm) -> None:
    """Case 34: the same long prompts before and after a swap."""
    prompt = tuple(4 + index % 50 for index in range(300))
    for step in (1, 2, 1, 2):
        state = random_state(shared_vllm.weights, seed=step)
        engine.load(Version(lineage=step, step=step), state)
        before = engine.num_cached_tokens
        engine.submit([request("first", prompt=prompt)])
        first = run_out(engine)
        assert engine.num_cached_tokens == before, "tokens of other weights were read from the cache"
        engine.submit([request(str(index), prompt=prompt, seed=index) for index in range(4)])
        more = run_out(engine)
        assert engine.num_cached_tokens - before == 4 * 256, "the cache works within a version"
        assert np.mean(differences(model_with(shared_vllm.folder, state), first + more, prompt=prompt)) <= AGREES


@pytest.mark.parametrize("on_swap", ["keep", "recompute", "abort"])
def test_requests_in_flight_at_a_swap(
    engine: Engine, shared_vllm: SharedVllm, on_swap: Literal["keep", "recompute", "abort"]
) -> None:
    old, new = (random_state(shared_vllm.weights, seed=seed) for seed in (1, 2))
    client = shared_vllm.host.client
    client.on_swap = on_swap
    try:
        engine.load(version(1), old)
        sampling = SamplingParams(max_tokens=400)
        engine.submit([request(str(index), sampling=sampling, seed=index) for index in range(32)])
        done = engine.step()
        engine.load(version(2), new)
        done += run_out(engine)
    finally:
        client.on_swap = "keep"
    assert len(done) == 32
    across = [each for each in done if len(each.version_runs) == 2]
    if on_swap == "abort":
        assert not across
        of_old = [each for each in done if not each.version_runs or each.version_runs[0].version == version(1)]
        assert "abort" in {each.finish_reason for each in of_old}  # without runs: aborted before its first token
        return
    assert across, "no request was in flight"
    model = model_with(shared_vllm.folder, new)
    later = []
    for each in across:
        num_old = each.version_runs[0].num_tokens
        tokens = each.tokens.tolist()
        exact = torch.log_softmax(logits(model, PROMPT, tokens), dim=-1)[range(len(tokens)), tokens].numpy()
        later += np.abs(exact - each.logprobs)[num_old + 1 :].tolist()
    mean = float(np.mean(later))
    assert (mean <= AGREES) == (on_swap == "recompute"), f"{on_swap}: {mean}"


def test_more_prompt_tokens_than_one_step_takes(engine: Engine, shared_vllm: SharedVllm) -> None:
    engine.load(version(1), random_state(shared_vllm.weights, seed=1))
    draw = random.Random(5)
    prompts = [tuple(draw.randrange(4, 60) for _ in range(draw.randint(200, 500))) for _ in range(100)]
    engine.submit([request(str(index), prompt=prompt, seed=index) for index, prompt in enumerate(prompts)])
    assert len(run_out(engine)) == 100


def test_same_seed_same_tokens_in_any_batch(engine: Engine, shared_vllm: SharedVllm) -> None:
    engine.load(version(1), random_state(shared_vllm.weights, seed=1))
    engine.submit([request("alone", seed=2**63 + 11)])
    (alone,) = run_out(engine)
    engine.submit([request(str(index), seed=2**63 + index) for index in range(24)])
    crowd = {each.request_id: each.tokens.tolist() for each in run_out(engine)}
    assert crowd["11"] == alone.tokens.tolist()
    assert len({tuple(tokens) for tokens in crowd.values()}) > 10


def test_same_meaning_as_the_torch_engine(engine: Engine, shared_vllm: SharedVllm) -> None:
    """Greedy tokens, ends, stop strings and text; and what a log-probability is of."""
    state = random_state(shared_vllm.weights, seed=4)
    model = model_with(shared_vllm.folder, state)
    settings = TorchEngineSettings(model_dir=shared_vllm.folder)
    other = TorchEngine(model, load_tokenizer(shared_vllm.folder), settings=settings)
    prompts = [tuple(draw.randrange(4, 32) for _ in range(6)) for draw in map(random.Random, range(24))]
    for made in (engine, other):
        made.load(version(1), state)
    done: list[dict[str, Generation]] = []
    for made in (engine, other):
        for index, prompt in enumerate(prompts):
            stop = ("1", "2 ", "=") if index % 2 else ()
            sampling = SamplingParams(temperature=0.0, max_tokens=24, stop=stop)
            made.submit([request(str(index), prompt=prompt, sampling=sampling)])
        done.append({each.request_id: each for each in run_out(made)})
    for name, mine in done[0].items():
        theirs = done[1][name]
        assert mine.tokens.tolist() == theirs.tokens.tolist()
        assert (mine.text, mine.finish_reason, mine.logprobs_kind) == (theirs.text, theirs.finish_reason, "raw")
        assert np.abs(mine.logprobs - theirs.logprobs).mean() <= AGREES
    assert {each.finish_reason for each in done[0].values()} == {"stop", "length"}
    drawn = SamplingParams(temperature=0.7, top_k=12, top_p=0.8, max_tokens=8)
    engine.submit([request(str(index), sampling=drawn, seed=index) for index in range(32)])
    for each in run_out(engine):
        tokens = each.tokens.tolist()
        rows = logits(model, PROMPT, tokens) / 0.7
        count = len(tokens)
        kept = keep_likely(
            rows, top_k=torch.full((count, 1), 12), top_p=torch.full((count, 1), 0.8, dtype=torch.float64)
        )
        exact = torch.log_softmax(kept, dim=-1)[range(count), tokens].numpy()
        assert np.abs(exact - each.logprobs).mean() <= AGREES
        assert each.logprobs_kind == "processed"
    with pytest.raises(EngineError, match="temperature"):
        engine.submit([request("cold", sampling=SamplingParams(temperature=0.001))])


def test_a_pause_is_a_lease(engine: Engine, shared_vllm: SharedVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The updater hangs between pause and load: generation goes on by itself, with the old version."""
    engine.load(version(5), step_state(shared_vllm.weights, 5))
    engine.submit([request(str(index), sampling=SamplingParams(max_tokens=200)) for index in range(16)])
    engine.step()

    pause = shared_vllm.host.client.pause

    async def pause_and_hang() -> None:
        await pause()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(shared_vllm.host.client, "pause", pause_and_hang)
        patch.setattr(shared_vllm.host, "lease_s", 5.0)  # for the resume too, on a busy machine
        with pytest.raises(EngineError, match="the old version is still served"):
            engine.load(version(6), step_state(shared_vllm.weights, 6))
    assert engine.state is EngineState.SERVING
    done = run_out(engine)
    assert {(token, len(each.version_runs)) for each in done for token in each.tokens.tolist()} == {(5, 1)}
    assert len(done) == 16


def test_a_load_that_fails_half_way_is_undone(
    engine: Engine, shared_vllm: SharedVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 37: the new weights are in, the check fails; the old ones come back before anything is generated."""
    client = shared_vllm.host.client
    real = client.update
    engine.load(version(5), step_state(shared_vllm.weights, 5))
    engine.submit([request(str(index), sampling=SamplingParams(max_tokens=200)) for index in range(16)])
    engine.step()

    async def broken(info: dict[str, object], *, label: str) -> None:
        await real(info, label="1.5")
        monkeypatch.setattr(client, "update", real)
        raise RuntimeError(f"{BROKEN}lm_head.weight holds other values than those published")

    monkeypatch.setattr(client, "update", broken)
    with pytest.raises(EngineError, match=r"1\.5 was put back"):
        engine.load(version(6), step_state(shared_vllm.weights, 6))
    assert (engine.state, engine.version) == (EngineState.SERVING, version(5))
    done = run_out(engine)
    assert {token for each in done for token in each.tokens.tolist()} == {5}
    assert len(done) == 16


def test_a_mix_of_weights_generates_nothing_until_a_whole_load(
    engine: Engine, shared_vllm: SharedVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.load(version(5), step_state(shared_vllm.weights, 5))
    engine.submit([request(str(index), sampling=SamplingParams(max_tokens=400)) for index in range(16)])
    engine.step()

    async def broken(info: dict[str, object], *, label: str) -> None:
        raise RuntimeError(f"{BROKEN}for the test")

    with monkeypatch.context() as patch:
        patch.setattr(shared_vllm.host.client, "update", broken)
        with pytest.raises(EngineError, match="quarantined"):
            engine.load(version(6), step_state(shared_vllm.weights, 6))
    assert (engine.state, engine.version) == (EngineState.QUARANTINED, None)
    engine.load(version(7), step_state(shared_vllm.weights, 7))  # before the next step: those in flight go on
    done = run_out(engine)
    assert len(done) == 16
    assert {token for each in done for token in each.tokens.tolist()} <= {5, 7}
    for each in done:
        labels = [run.version.step for run in each.version_runs for _ in range(run.num_tokens)]
        assert labels == each.tokens.tolist()


def test_what_the_worker_refuses_changes_nothing(
    engine: Engine, shared_vllm: SharedVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that vLLM's model does not have gets past our own check only here."""
    engine.load(version(5), step_state(shared_vllm.weights, 5))
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.engines.vllm.engine.check_state", lambda *args, **kwargs: None)
        wrong = step_state(shared_vllm.weights, 6)
        wrong["model.layers.0.self_attn.k_projection.weight"] = wrong.pop("model.layers.0.self_attn.k_proj.weight")
        with pytest.raises(EngineError, match=r"k_projection.*old version is still served"):
            engine.load(version(6), wrong)
    engine.submit([request("after")])
    (done,) = run_out(engine)
    assert set(done.tokens.tolist()) == {5}
