"""Sequences that go on from tokens made before: the same result as if nobody had stopped them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.engines.base import (
    FINISH_ABORT,
    PROCESSED,
    RAW,
    Continuing,
    GenerationRequest,
    TokenArray,
    first_tokens,
)
from pipeline.engines.endings import Endings, num_until_stop
from pipeline.engines.http.exchange import Meaning
from pipeline.engines.http.results import Judged, completed, within_stop
from pipeline.engines.model_dir import load_model, load_tokenizer, named_state
from pipeline.engines.randomness import seeds_of, stream_starts
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import make_tiny_model
from pipeline.engines.torch_engine import TorchEngine, open_torch_engine
from pipeline.engines.vllm.exchange import EndedRequest
from pipeline.engines.vllm.results import generations
from schemas.errors import EngineError
from schemas.records import SamplingParams, Version, VersionRun
from tests.unit.pipeline.engines.requests import V1, V2, request, run, sharpen, varied


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(path, seed=0)
    return path


def opened(model_dir: Path) -> TorchEngine:
    engine = open_torch_engine(TorchEngineSettings(model_dir=model_dir), version=V1)
    engine.load(V1, sharpen(named_state(load_model(model_dir, device="cpu", dtype="float32"))[0], seed=1))
    return engine


def later(begun: GenerationRequest, made: TokenArray) -> GenerationRequest:
    tokens = np.concatenate([np.asarray(begun.prompt_tokens, dtype=np.int32), made])
    return replace(begun, prompt_tokens=tokens, num_made=len(made))


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_what_one_torch_engine_began_another_ends_as_the_first_would_have(model_dir: Path, num_steps: int) -> None:
    """Greedy, sampled, filtered and with stop strings, in one batch; nobody's draws, text or limit begin anew."""
    first, second = opened(model_dir), opened(model_dir)
    requests = varied(30)
    undisturbed = run(first, requests)
    first.submit(requests)
    done = {each.request_id: each for _ in range(num_steps) for each in first.step()}
    first.abort([each.request_id for each in requests])
    left = {each.request_id: each for each in first.step()}
    assert {each.finish_reason for each in left.values()} == {FINISH_ABORT}
    assert done.keys() | left.keys() == undisturbed.keys()
    by_id = {each.request_id: each for each in requests}
    resumed = run(second, [later(by_id[name], each.tokens) for name, each in left.items()])
    for name, part in left.items():
        whole, rest = undisturbed[name], resumed[name]
        assert [*part.tokens, *rest.tokens] == whole.tokens.tolist()
        np.testing.assert_allclose(np.concatenate([part.logprobs, rest.logprobs]), whole.logprobs, atol=2e-5)
        assert (rest.text, rest.finish_reason) == (whole.text, whole.finish_reason)
        assert sum(each.num_tokens for each in rest.version_runs) == len(rest.tokens)
    assert sum(len(each.tokens) for each in resumed.values()) > 30


def test_new_tokens_are_of_the_version_that_makes_them(model_dir: Path) -> None:
    engine = opened(model_dir)
    begun = request("r", (5, 6), max_tokens=6)
    engine.submit([begun])
    engine.step()
    engine.abort(["r"])
    (part,) = engine.step()
    engine.load(V2, sharpen(named_state(load_model(model_dir, device="cpu", dtype="float32"))[0], seed=2))
    rest = run(engine, [later(begun, part.tokens)])["r"]
    assert [each.version for each in (*part.version_runs, *rest.version_runs)] == [V1, V2]


def test_a_request_that_has_all_its_tokens_already_is_refused(model_dir: Path) -> None:
    engine = opened(model_dir)
    for num_made in (8, 3, -1):
        bad = replace(request("r", (5, 6, 7), max_tokens=8), num_made=num_made)
        with pytest.raises(EngineError, match=f"goes on from {num_made} tokens"):
            engine.submit([bad])


def test_who_says_so_continues_for_its_own_kind_of_logprobs(model_dir: Path) -> None:
    engine = opened(model_dir)
    assert isinstance(engine, Continuing)
    assert engine.hands_over
    assert engine.continues(SamplingParams(), logprobs_kind=PROCESSED)
    assert not engine.continues(SamplingParams(), logprobs_kind=RAW)
    assert engine.continues(SamplingParams(temperature=0.0), logprobs_kind=RAW)


def test_a_generator_without_positions_gets_another_seed_for_what_goes_on() -> None:
    begun = [request(f"r{seed}", (1, 2, 3, 4), seed=seed) for seed in range(3)]
    again = [replace(each, num_made=num) for each in begun for num in (1, 2)]
    assert np.array_equal(seeds_of(begun), stream_starts(range(3)))
    assert len({*seeds_of(begun).tolist(), *seeds_of(again).tolist()}) == 9
    assert np.array_equal(seeds_of(again), seeds_of(again))


@pytest.fixture(scope="module")
def endings(model_dir: Path) -> Endings:
    return Endings(load_model(model_dir, device="cpu", dtype="float32"), load_tokenizer(model_dir))


def ids(endings: Endings, text: str) -> TokenArray:
    return np.array(endings._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)


@pytest.mark.parametrize(
    ("made", "tokens", "kept"),
    [("1 +", " 2 + 3", 2), ("1 + 3", " + 2 + 3", 4), ("1", "23", 2), ("", "1 + 2", 5)],
    ids=["begins in the old ones", "is among the new ones", "none", "nothing old"],
)
def test_a_stop_string_that_began_in_the_old_tokens_ends_the_new_ones(
    endings: Endings, made: str, tokens: str, kept: int
) -> None:
    """Of servers that see the new ones only."""
    stop = ("+ 2",)
    old, new = ids(endings, made), ids(endings, tokens)
    if not made:
        assert num_until_stop(endings, made=old, tokens=new, stop=stop) == len(new), "the server saw to it"
        return
    num = num_until_stop(endings, made=old, tokens=new, stop=stop)
    assert num == (kept if made != "1 + 3" else min(len(new), num))
    begun = GenerationRequest(
        request_id="r",
        prompt_tokens=np.concatenate([np.array([5], dtype=np.int32), old]),
        sampling=SamplingParams(stop=stop, max_tokens=32),
        seed=0,
        num_made=len(old),
    )
    logprobs = [-0.5] * len(new)
    ended = EndedRequest(
        key="k", tokens=new.tolist(), logprobs=logprobs, versions=[("1.1", len(new))], finish_reason="length",
        num_cached_tokens=0,
    )  # fmt: skip
    (by_vllm,) = generations([(begun, ended)], endings=endings, labels={"1.1": V1})
    runs = (VersionRun(num_tokens=len(new), version=V1),)
    judged = within_stop(
        Judged(request=begun, tokens=new, logprobs=logprobs, runs=runs, finish_reason="length"), endings=endings
    )
    text = endings.texts([judged.whole])[0]
    by_http = completed(judged, text=text, cut=None, meaning=Meaning.PROCESSED)
    for each in (by_vllm, by_http):
        assert len(each.tokens) == len(each.logprobs) == num
        assert sum(one.num_tokens for one in each.version_runs) == num
    whole = made + tokens
    assert by_vllm.text == (whole[: whole.find("+ 2")] if "+ 2" in whole else whole)


def test_the_first_tokens_of_runs() -> None:
    runs = tuple(VersionRun(num_tokens=2, version=Version(lineage=1, step=step)) for step in range(3))
    assert [[run.num_tokens for run in first_tokens(runs, num=num)] for num in range(7)] == [
        [], [1], [2], [2, 1], [2, 2], [2, 2, 1], [2, 2, 2],
    ]  # fmt: skip
