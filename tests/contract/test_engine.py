"""What every engine must do, written once and run on each backend.

All backends are built so that the token they emit is the step of the weights they hold. A wrong version stamp then
shows as a token that differs from its stamp. vLLM computes between two steps, so tests that count tokens per step are
not for it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pipeline.engines.base import PROCESSED, Continuing, Engine, EngineState, Generation, GenerationRequest
from schemas.errors import EngineError, RecordInvalid
from schemas.reasons import Reason
from schemas.records import SamplingParams
from tests.contract.engines import (
    CONTEXT_TOKENS,
    FIRST_STEP,
    KINDS,
    LAST_STEP,
    SLOTS,
    Backend,
    State,
    group,
    requests,
    run_out,
    serve,
    stamps,
    version,
)


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    made: Backend = request.param(request)
    return made


@pytest.fixture
def stepwise(backend: Backend) -> Backend:
    """A backend that makes one token per step."""
    if not backend.stepwise:
        pytest.skip("this engine computes between two steps")
    return backend


@pytest.fixture
def engine(backend: Backend) -> Iterator[Engine]:
    made = backend.engine()
    yield made
    made.close()


def test_every_label_equals_the_truth_under_random_swaps(engine: Engine, backend: Backend) -> None:
    """Case 33."""
    rng = random.Random(33)
    order = [version(s, lineage=lineage) for lineage in range(1, 40) for s in range(FIRST_STEP, LAST_STEP)]
    upcoming = iter(order)

    def swap() -> None:
        following = next(upcoming)
        engine.load(following, backend.state(following.step))

    swap()
    waiting = [
        request for index in range(200) for request in requests(1, max_tokens=rng.randint(1, 9), prefix=f"{index}-")
    ]
    submitted = {request.request_id: request.sampling.max_tokens for request in waiting}
    done: list[Generation] = []
    while waiting or engine.num_running:
        for moment in range(3):  # before submit, between submit and step, between the last token and the reply
            if rng.random() < 0.4:
                swap()
            if moment == 0:
                num = min(rng.randint(0, 12), engine.num_free_slots, len(waiting))
                engine.submit(waiting[:num])
                del waiting[:num]
            if moment == 1:
                done += engine.step()
    assert {g.request_id: len(g.tokens) for g in done} == submitted
    assert len(done) == 200
    for generation in done:
        assert [stamp.step for stamp in stamps(generation)] == generation.tokens.tolist()
        assert stamps(generation) == sorted(stamps(generation))
    assert sum(len(g.version_runs) > 1 for g in done) > (100 if backend.stepwise else 20)


def test_a_swap_after_the_last_token_changes_no_label(engine: Engine, backend: Backend) -> None:
    """Case 33."""
    serve(engine, backend, step=5)
    engine.submit(requests(2, max_tokens=1))
    done = run_out(engine)
    serve(engine, backend, step=6)
    assert [stamps(g) for g in done] == [[version(5)]] * 2
    assert [g.tokens.tolist() for g in done] == [[5]] * 2


def test_follows_a_higher_lineage_to_a_lower_step(engine: Engine, backend: Backend, stepwise: Backend) -> None:
    serve(engine, backend, step=9)
    engine.submit(requests(1, max_tokens=2))
    engine.step()
    serve(engine, backend, step=5, lineage=2)
    assert engine.version == version(5, lineage=2)
    (done,) = engine.step()
    assert done.tokens.tolist() == [9, 5]
    assert stamps(done) == [version(9), version(5, lineage=2)]


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "dtype"])
def test_a_state_that_does_not_fit_changes_nothing(engine: Engine, backend: Backend, fault: str) -> None:
    serve(engine, backend, step=5)
    wrong: State = dict(backend.state(6))
    name = max(wrong)
    given = np.asarray(wrong[name])
    match fault:
        case "missing":
            del wrong[name]
        case "unknown":
            wrong["extra.weight"] = given
        case "shape":
            wrong[name] = np.zeros((*given.shape, 2), dtype=given.dtype)
        case "dtype":
            wrong[name] = given.astype(np.float16)
    with pytest.raises(EngineError, match="old version is still served") as caught:
        engine.load(version(6), wrong)
    assert (name if fault != "unknown" else "extra.weight") in caught.value.message
    assert engine.version == version(5)
    assert engine.state is EngineState.SERVING
    engine.submit(requests(1, max_tokens=1))
    (done,) = run_out(engine)
    assert done.tokens.tolist() == [5]


def test_numpy_states_and_read_only_views_are_loaded(engine: Engine, backend: Backend) -> None:
    state: State = {}
    for name, tensor in backend.state(8).items():
        array = np.asarray(tensor)
        state[name] = np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape)
    engine.load(version(8), state)
    engine.submit(requests(1, max_tokens=1))
    (done,) = run_out(engine)
    assert done.tokens.tolist() == [8]


def test_a_cold_engine_takes_nothing(engine: Engine) -> None:
    assert engine.state is EngineState.COLD
    assert engine.version is None
    with pytest.raises(EngineError, match="cold"):
        engine.submit(requests(1))
    with pytest.raises(EngineError, match="cold"):
        engine.step()


def test_slots_are_counted_and_kept(engine: Engine, backend: Backend) -> None:
    serve(engine, backend, step=5)
    assert engine.num_free_slots == SLOTS
    engine.submit(requests(SLOTS - 1))
    assert (engine.num_running, engine.num_free_slots) == (SLOTS - 1, 1)
    with pytest.raises(EngineError, match="2 requests for 1 free slots"):
        engine.submit(requests(2, prefix="more"))
    assert engine.num_running == SLOTS - 1
    assert len(run_out(engine)) == SLOTS - 1
    assert engine.num_free_slots == SLOTS


def test_bad_requests_are_refused_as_a_whole(engine: Engine, backend: Backend) -> None:
    serve(engine, backend, step=5)
    good = requests(1)
    bad = [
        requests(1, prefix="zero", max_tokens=0),
        requests(1, prefix="empty", prompt_tokens=()),
        requests(1, prefix="long", prompt_tokens=(5,) * CONTEXT_TOKENS),
        requests(1, prefix="negative", prompt_tokens=(-1,)),
        good,
    ]
    for wrong in bad:
        with pytest.raises(EngineError):
            engine.submit([*good, *wrong])
        assert engine.num_running == 0


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=-1.0),
        SamplingParams(temperature=float("nan")),
        SamplingParams(top_p=0.0),
        SamplingParams(top_p=1.5),
        SamplingParams(top_k=-1),
        SamplingParams(stop=("",)),
    ],
)
def test_bad_sampling_parameters_are_refused(engine: Engine, backend: Backend, sampling: SamplingParams) -> None:
    serve(engine, backend, step=5)
    with pytest.raises(EngineError, match="sampling has"):
        engine.submit([GenerationRequest(request_id="r", prompt_tokens=(5,), sampling=sampling, seed=0)])


def test_aborted_requests_come_back_once_with_what_they_had(
    engine: Engine, backend: Backend, stepwise: Backend
) -> None:
    serve(engine, backend, step=5)
    engine.submit(requests(3, max_tokens=6))
    engine.step()
    engine.step()
    engine.submit(requests(1, prefix="late"))
    engine.abort(["r1", "late0", "never seen"])
    engine.abort(["r1"])
    assert engine.num_running == 4
    with pytest.raises(EngineError, match="already in use"):
        engine.submit([requests(2)[1]])
    returned = {g.request_id: g for g in engine.step()}
    assert {name: (g.finish_reason, g.tokens.tolist()) for name, g in returned.items()} == {
        "r1": ("abort", [5, 5]),
        "late0": ("abort", []),
    }
    assert returned["late0"].version_runs == ()
    assert sorted(g.request_id for g in run_out(engine)) == ["r0", "r2"]


def test_a_sequence_goes_on_from_tokens_made_elsewhere(engine: Engine, backend: Backend) -> None:
    """It is as long as asked for in all; its text is of the whole; tokens and stamps are of what is added."""
    serve(engine, backend, step=9)
    assert isinstance(engine, Continuing)
    (begun,) = requests(1, max_tokens=12)
    assert engine.continues(begun.sampling, logprobs_kind=PROCESSED)
    made = [5, 5, 6]
    if engine.hands_over:
        engine.submit([begun])
        first = engine.step()
        engine.abort([begun.request_id])
        (part,) = [*first, *run_out(engine)]
        assert len(part.tokens) == len(part.logprobs) == len(stamps(part))
        made = part.tokens.tolist()[:11]  # it may have been through already
    follower = replace(begun, prompt_tokens=(*begun.prompt_tokens, *made), num_made=len(made))
    serve(engine, backend, step=10)
    engine.submit([follower])
    (rest,) = run_out(engine)
    assert rest.tokens.tolist() == [10] * (12 - len(made))
    assert stamps(rest) == [version(10)] * (12 - len(made))
    words = rest.text.split(" ")  # of numbers, or one of 12 characters
    assert len(words) == 12 or len(rest.text) == 12


def test_max_tokens_is_capped_by_the_context(engine: Engine, backend: Backend) -> None:
    serve(engine, backend, step=5)
    engine.submit(requests(1, max_tokens=1000, prompt_tokens=(5,) * (CONTEXT_TOKENS - 3)))
    (done,) = run_out(engine)
    assert len(done.tokens) == 3
    assert done.finish_reason == "length"


def test_results_have_the_shapes_and_dtypes_they_promise(engine: Engine, backend: Backend) -> None:
    serve(engine, backend, step=5)
    greedy = GenerationRequest(
        request_id="greedy", prompt_tokens=(5,), sampling=SamplingParams(temperature=0, max_tokens=3), seed=0
    )
    engine.submit([*requests(1, max_tokens=3), greedy])
    for done in run_out(engine):
        assert (done.tokens.dtype.name, done.logprobs.dtype.name) == ("int32", "float32")
        assert done.tokens.shape == done.logprobs.shape == (3,)
        assert np.isfinite(done.logprobs).all()
        assert (done.logprobs <= 0).all()
        assert done.logprobs_kind == ("raw" if done.request_id == "greedy" else "processed")
        assert [run.num_tokens for run in done.version_runs] == [3]


def test_prompts_that_leave_no_room_are_refused_with_their_reason(engine: Engine) -> None:
    packed = np.array([5, 6, 5], dtype="<i4").tobytes()
    encoded = engine.encode_prompt(group(token_ids=packed))
    assert encoded.tokens.tolist() == [5, 6, 5]
    assert encoded.tokens.dtype == np.int32
    assert len(engine.encode_prompt(group(text="4" * (CONTEXT_TOKENS - 1))).tokens) == CONTEXT_TOKENS - 1
    bad = [
        group(text=""),
        group(token_ids=b""),
        group(token_ids=packed[:-1]),
        group(text="4" * CONTEXT_TOKENS),
        group(),
        group(text="4", token_ids=packed),
    ]
    for prompt in bad:
        with pytest.raises(RecordInvalid) as caught:
            engine.encode_prompt(prompt)
        assert caught.value.reason == Reason.PROMPT_INVALID


def test_text_is_encoded_as_it_stands(engine: Engine) -> None:
    encoded = engine.encode_prompt(group(text="4 + 3 ="))
    assert encoded.text == "4 + 3 ="
    assert len(encoded.tokens) == 7


def test_a_closed_engine_says_so(engine: Engine, backend: Backend) -> None:
    serve(engine, backend, step=5)
    engine.submit(requests(1))
    engine.close()
    engine.close()
    assert engine.num_running == 0
    assert engine.version is None
    for call in (lambda: engine.submit(requests(1)), engine.step, lambda: serve(engine, backend, step=6)):
        with pytest.raises(EngineError, match="closed"):
            call()


def test_ids_may_be_used_again_after_they_came_back(engine: Engine, backend: Backend) -> None:
    serve(engine, backend, step=5)
    for _ in itertools.repeat(None, 3):
        engine.submit(requests(4))
        assert len(run_out(engine)) == 4
