"""A server that misbehaves: each bad answer fails its own sequence, nothing hangs, a lost server is found again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.base import FINISH_FAILED, EngineState
from pipeline.engines.http.engine import HttpEngine
from schemas.errors import EngineError
from tests.inference_faults import CUT_BEFORE, HANG, Body, Fault
from tests.inference_server import InferenceServer
from tests.unit.pipeline.engines.http.support import (
    SHORT_S,
    V1,
    V2,
    open_engine,
    request,
    run,
    run_out,
    start_server,
    state_of,
)
from topics.clock import Deadline

Serve = Callable[..., InferenceServer]
Connect = Callable[..., HttpEngine]
VLLM, SGLANG = "/inference/v1/generate", "/generate"


def choice(change: Callable[[Body], object]) -> Fault:
    def spoil(body: Body) -> Body:
        change(body["choices"][0])
        return body

    return Fault(spoil=spoil)


def content(change: Callable[[list[Body]], object]) -> Fault:
    return choice(lambda each: change(each["logprobs"]["content"]))


def info(change: Callable[[Body], None]) -> Fault:
    def spoil(body: Body) -> Body:
        change(body["meta_info"])
        return body

    return Fault(spoil=spoil)


BAD: list[Any] = [
    pytest.param(Fault(status=500), "answered 500: it went wrong", id="500"),
    pytest.param(Fault(status=400, text="bad prompt"), "answered 400: bad prompt", id="400"),
    pytest.param(Fault(status=302, headers={"Location": "http://127.0.0.1:1/"}), "answered 302", id="redirect"),
    pytest.param(Fault(keep_bytes=40), "is not JSON", id="truncated"),
    pytest.param(Fault(text="<html>"), "is not JSON", id="html"),
    pytest.param(Fault(text="[1]"), "not an object", id="other JSON"),
    pytest.param(Fault(text='{"choices": []}'), "not a list of at least one", id="no choice"),
    pytest.param(Fault(cut_after_bytes=40), "ended before the answer was whole", id="cut"),
    pytest.param(CUT_BEFORE, "ended before the answer was whole", id="cut at once"),
    pytest.param(Fault(endless=True), "longer than 1000000 bytes", id="endless"),
    pytest.param(content(lambda each: each.pop()), "7 log-probabilities", id="one log-probability less"),
    pytest.param(content(lambda each: each[2].update(logprob=float("nan"))), "is not JSON", id="NaN"),
    pytest.param(content(lambda each: each[2].update(logprob=None)), "[2] is None", id="null"),
    pytest.param(content(lambda each: each[2].update(logprob=-9999.0)), "logits were not finite", id="-9999"),
    pytest.param(content(lambda each: each[2].update(logprob=0.5)), "log-probability of 0.5", id="positive"),
    pytest.param(content(lambda each: each[2].update(logprob="-1")), "not a finite number", id="text"),
    pytest.param(content(lambda each: each[2].pop("logprob")), "every element has 'logprob'", id="missing"),
    pytest.param(choice(lambda each: each.update(logprobs=None)), "no log-probabilities", id="no log-probabilities"),
    pytest.param(choice(lambda each: each.update(token_ids=None)), "no token ids", id="no token ids"),
    pytest.param(choice(lambda each: each["token_ids"].__setitem__(1, 32)), "allowed are 0 to 31", id="vocabulary"),
    pytest.param(choice(lambda each: each["token_ids"].__setitem__(1, -1)), "allowed are 0 to 31", id="negative"),
    pytest.param(choice(lambda each: each["token_ids"].__setitem__(1, 2.5)), "not a whole number", id="half"),
    pytest.param(choice(lambda each: each.update(finish_reason="tired")), "ended with 'tired'", id="finish reason"),
    pytest.param(choice(lambda each: each["weight_versions"].pop()), "says of 0 tokens", id="no label"),
    pytest.param(
        choice(lambda each: each["weight_versions"][0].update(end=3)), "says of 3 tokens", id="label of a part"
    ),
    pytest.param(
        choice(lambda each: each["weight_versions"][0].update(start=3)), "of tokens 3 to 8", id="label with a gap"
    ),
]


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[tuple[InferenceServer, HttpEngine]]:
    """A server and an engine that serves, for tests that leave both as they are."""
    server = start_server(folder)
    engine = open_engine(folder, server, max_answer_bytes=1_000_000)
    engine.load(V1, state_of(folder, seed=1))
    yield server, engine
    engine.close()
    server.close()


@pytest.mark.parametrize(("fault", "said"), BAD)
def test_a_bad_answer_fails_its_own_sequence(pair: tuple[InferenceServer, HttpEngine], fault: Fault, said: str) -> None:
    server, engine = pair
    server.faults[VLLM].append(fault)
    done = run(engine, [request("bad", temperature=0.0, max_tokens=8)])
    assert (done["bad"].finish_reason, len(done["bad"].tokens), done["bad"].version_runs) == (FINISH_FAILED, 0, ())
    assert said in done["bad"].failure
    assert (engine.state, engine.num_running) == (EngineState.SERVING, 0)
    assert run(engine, [request("good")])["good"].failure == ""


def test_an_answer_that_never_comes_fails_its_own_sequence(folder: Path, serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server, request_limit_s=8.0)
    engine.load(V1, state_of(folder, seed=1))
    server.faults[VLLM].append(HANG)
    done = run(engine, [request("never"), request("good")])
    assert "gave no answer within 8 s" in done["never"].failure or "gave no answer within 8 s" in done["good"].failure
    assert sorted(each.finish_reason == FINISH_FAILED for each in done.values()) == [False, True]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (info(lambda each: each["output_token_logprobs"].pop()), "7 log-probabilities for 8 tokens"),
        (info(lambda each: each["output_token_logprobs"][1].__setitem__(0, None)), "[1] is None"),
        (info(lambda each: each["output_token_logprobs"].__setitem__(1, [-1.0])), "every element has 1"),
        (info(lambda each: each.pop("output_token_logprobs")), "no token ids with log-probabilities"),
        (info(lambda each: each.pop("weight_version")), "says of 0 tokens"),
        (info(lambda each: each.update(finish_reason=None)), "not an object"),
    ],
)
def test_a_bad_answer_of_sglang_does_too(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path, fault: Fault, said: str
) -> None:
    server = serve(kind="sglang")
    engine = connect(server, update_dir=tmp_path)
    engine.load(V1, state_of(folder, seed=1))
    server.faults[SGLANG].append(fault)
    done = run(engine, [request("bad", temperature=0.0, max_tokens=8)])
    assert said in done["bad"].failure
    assert run(engine, [request("good")])["good"].failure == ""


def test_a_busy_server_is_asked_again(folder: Path, serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server)
    engine.load(V1, state_of(folder, seed=1))
    server.faults[VLLM] += [Fault(status=503), Fault(status=429, headers={"Retry-After": "0"}), Fault(status=503)]
    assert run(engine, [request("a")])["a"].failure == ""


def test_a_server_that_stays_busy_fails_the_sequence(folder: Path, serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server, busy_limit_s=0.3)
    engine.load(V1, state_of(folder, seed=1))
    server.lasting[VLLM] = Fault(status=503)
    assert "answered 503" in run(engine, [request("a")])["a"].failure
    assert engine.state is EngineState.SERVING


def test_many_failures_in_a_row_are_the_servers(folder: Path, serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server, max_failures_in_row=5)
    engine.load(V1, state_of(folder, seed=1))
    server.lasting[VLLM] = Fault(status=500)
    engine.submit([request(str(n)) for n in range(20)])
    with pytest.raises(EngineError, match="in a row failed, at last with"):
        run_out(engine)
    assert (engine.state, engine.version, engine.num_running) == (EngineState.QUARANTINED, None, 0)
    server.lasting.clear()
    engine.load(V2, state_of(folder, seed=2))
    assert run(engine, [request("a")])["a"].version_runs[0].version == V2


def test_a_killed_server_loses_what_it_held_and_is_found_again(folder: Path, serve: Serve, connect: Connect) -> None:
    server = serve(token_s=0.2)
    engine = connect(server, health_every_s=0.05, silence_limit_s=0.5, start_limit_s=SHORT_S)
    engine.load(V1, state_of(folder, seed=1))
    engine.submit([request(str(n), max_tokens=40, temperature=0.0) for n in range(6)])
    assert engine.step() == []
    server.kill()
    with pytest.raises(EngineError, match="6 requests are lost"):
        run_out(engine)
    assert (engine.state, engine.version) == (EngineState.QUARANTINED, None)
    with pytest.raises(EngineError, match="quarantined"):
        engine.submit([request("too early")])
    with pytest.raises(EngineError, match="does not answer"):
        engine.load(V2, state_of(folder, seed=2))
    server.start()
    engine.load(V2, state_of(folder, seed=2))
    assert run(engine, [request("after")])["after"].version_runs[0].version == V2


def test_a_silent_server_is_lost_too(folder: Path, serve: Serve, connect: Connect) -> None:
    """It still takes connections and never answers, as a stopped process does."""
    server = serve()
    engine = connect(server, health_every_s=0.05, silence_limit_s=0.5, control_limit_s=SHORT_S)
    engine.load(V1, state_of(folder, seed=1))
    server.lasting["/health"] = server.lasting[VLLM] = HANG
    engine.submit([request("a")])
    with pytest.raises(EngineError, match=r"is lost: .*/health gave no answer"):
        run_out(engine)


def test_a_restarted_server_is_not_taken_for_the_old_one(folder: Path, serve: Serve, connect: Connect) -> None:
    """It answers as ever, with weights that nobody here loaded: between two requests nobody would notice else."""
    server = serve()
    engine = connect(server)
    engine.load(V1, state_of(folder, seed=1))
    server.labels.append("default")
    server.call(relabel(server))
    engine.submit([request("a")])
    with pytest.raises(EngineError, match="'default', which this engine did not load"):
        run_out(engine)
    assert engine.state is EngineState.QUARANTINED
    engine.load(V2, state_of(folder, seed=2))
    assert run(engine, [request("b")])["b"].version_runs[0].version == V2


async def relabel(server: InferenceServer) -> None:
    server.labels[:] = ["default"] * len(server.labels)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda choice: choice.update(token_ids=None), "no token ids"),
        (lambda choice: choice.update(logprobs=None), "no log-probabilities"),
        (lambda choice: choice.pop("weight_versions"), "does not say which weights made a token"),
    ],
)
def test_a_server_that_lacks_what_training_needs_is_refused(
    serve: Serve, connect: Connect, spoil: Callable[[Body], None], said: str
) -> None:
    server = serve()
    server.lasting[VLLM] = choice(spoil)
    with pytest.raises(EngineError, match=said) as caught:
        connect(server)
    assert "--enable-scale-out" in caught.value.hint


def test_a_server_that_gives_text_only_is_refused(serve: Serve, connect: Connect) -> None:
    def texts(body: Body) -> Body:
        body["choices"][0]["logprobs"]["tokens"] = ["a"] * 8
        return body

    server = serve(kind="openai")
    server.lasting["/v1/completions"] = Fault(spoil=texts)
    with pytest.raises(EngineError, match="no token ids, only text") as caught:
        connect(server)
    assert "return_token_ids" in caught.value.hint


def test_a_server_without_the_token_route_says_how_to_get_it(serve: Serve, connect: Connect) -> None:
    server = serve()
    server.lasting[VLLM] = Fault(status=404, text="Not Found")
    with pytest.raises(EngineError, match=r"cannot be used as an engine of kind vllm: .*404") as caught:
        connect(server)
    assert "--enable-scale-out" in caught.value.hint


def test_nobody_there_is_an_error_within_the_limit(serve: Serve, connect: Connect) -> None:
    server = serve()
    server.kill()
    began = Deadline.after(30)
    with pytest.raises(EngineError, match="does not answer"):
        connect(server, start_limit_s=0.5)
    began.check("the refusal")
