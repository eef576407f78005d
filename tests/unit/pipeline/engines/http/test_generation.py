"""Generating over HTTP: the same as the torch engine does, whatever speaks on the other side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engines.base import EVALUATION, EngineState, Generation
from pipeline.engines.http.engine import HttpEngine
from pipeline.engines.http.exchange import Meaning
from pipeline.engines.model_dir import load_model, load_tokenizer, named_state
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.torch_engine import TorchEngine
from schemas.errors import EngineError
from schemas.records import VersionRun
from tests.inference_server import InferenceServer
from tests.unit.pipeline.engines.http.support import V1, V2, request, run, run_out, state_of
from topics.clock import Deadline

Serve = Callable[..., InferenceServer]
Connect = Callable[..., HttpEngine]
KINDS: list[Any] = [
    pytest.param({"kind": "vllm"}, id="vllm"),
    pytest.param({"kind": "sglang"}, id="sglang"),
    pytest.param({"kind": "openai"}, id="openai"),
    pytest.param({"kind": "trtllm"}, id="trtllm"),
]


@pytest.mark.parametrize("options", KINDS)
def test_greedy_tokens_and_log_probabilities_are_the_torch_engines(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A server without a route for weights keeps its own, which are the directory's here, and a probe sees that."""
    updated = options["kind"] in ("vllm", "sglang")
    engine = connect(serve(**options), update_dir=tmp_path if options["kind"] == "sglang" else None)
    state = state_of(folder, seed=1) if updated else None
    torch_engine = TorchEngine(
        load_model(folder, device="cpu", dtype="float32"),
        load_tokenizer(folder),
        settings=TorchEngineSettings(model_dir=folder),
        version=V1,
    )
    engine.load(V1, state if state is not None else own_weights(folder))
    if state is not None:
        torch_engine.load(V1, state)
    assert engine.verified == (options["kind"] != "trtllm"), "TensorRT-LLM scores no prompts, so nothing shows it there"
    requests = [request(str(n), prompt=(4 + n, 9), temperature=0.0, stop=("1",) if n % 2 else ()) for n in range(12)]
    mine = run(engine, requests)
    torch_engine.submit(requests)
    theirs: dict[str, Generation] = {}
    while torch_engine.num_running:
        theirs |= {each.request_id: each for each in torch_engine.step()}
    for name, expected in theirs.items():
        seen = mine[name]
        assert seen.tokens.tolist() == expected.tokens.tolist()
        assert (seen.text, seen.finish_reason) == (expected.text, expected.finish_reason)
        runs = [(run.num_tokens, run.version) for run in seen.version_runs]
        assert runs == [(run.num_tokens, run.version) for run in expected.version_runs]
        assert seen.logprobs_kind == expected.logprobs_kind
        np.testing.assert_allclose(seen.logprobs, expected.logprobs, atol=1e-3)


def own_weights(folder: Path) -> dict[str, Any]:
    return dict(named_state(load_model(folder, device="cpu", dtype="float32"))[0])


def test_a_server_with_other_weights_that_takes_none_is_marked_unverified(
    folder: Path, serve: Serve, connect: Connect
) -> None:
    engine = connect(serve(kind="openai", token_s=0.03))
    engine.load(V1, state_of(folder, seed=1))
    assert (engine.state, engine.version, engine.verified) == (EngineState.SERVING, V1, False)
    engine.submit([request("a", max_tokens=4, temperature=0.0)])
    early = {each.request_id: each for each in engine.step()}
    engine.load(V2, state_of(folder, seed=2))
    done = early | run(engine, [request("b", max_tokens=3, temperature=0.0)])
    # the version that was current when the request was sent, and that nothing shows it
    for name, version in (("a", V1), ("b", V2)):
        num_tokens = len(done[name].tokens)
        assert done[name].version_runs == (VersionRun(num_tokens=num_tokens, version=version, verified=False),)
    engine.load(V2, own_weights(folder))
    assert engine.verified, "its weights happen to be these"


def test_probes_can_be_turned_off(folder: Path, serve: Serve, connect: Connect) -> None:
    engine = connect(serve(kind="openai"), probe="never")
    engine.load(V1, own_weights(folder))
    assert not engine.verified


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("meaning", ["raw", "tempered", "processed"])
def test_what_log_probabilities_are_of_is_found_out(
    folder: Path, serve: Serve, connect: Connect, options: dict[str, Any], meaning: str
) -> None:
    engine = connect(serve(**options, meaning=meaning), update="none")
    expected = meaning if meaning != "processed" or options["kind"] != "openai" else "tempered"  # it takes no top-k
    assert engine._host.facts.meaning == Meaning(expected)


def test_the_kind_of_log_probability_is_said_and_mixtures_are_refused(
    folder: Path, serve: Serve, connect: Connect
) -> None:
    kinds = {}
    for meaning in ("raw", "tempered", "processed"):
        engine = connect(serve(meaning=meaning), update="none", probe="never")
        engine.load(V1, own_weights(folder))
        done = run(engine, [request("t1"), request("t5", temperature=0.5), request("t0", temperature=0.0)])
        kinds[meaning] = [done[name].logprobs_kind for name in ("t1", "t5", "t0")]
        mixed = request("mixed", temperature=0.5, top_p=0.9)
        if meaning != "tempered":
            kinds[meaning].append(run(engine, [mixed])["mixed"].logprobs_kind)
            continue
        with pytest.raises(EngineError, match="before top-k and top-p"):
            engine.submit([mixed])
    assert kinds == {
        "raw": ["raw", "raw", "raw", "raw"],
        "tempered": ["raw", "processed", "raw"],
        "processed": ["processed", "processed", "raw", "processed"],
    }


def test_a_context_shorter_than_the_models_counts(folder: Path, serve: Serve, connect: Connect) -> None:
    engine = connect(serve(), update="none", max_context_tokens=16)
    engine.load(V1, own_weights(folder))
    done = run(engine, [request("a", prompt=(5,) * 12, max_tokens=30, temperature=0.0)])
    assert len(done["a"].tokens) <= 4


def test_aborted_requests_end_at_the_server_too(folder: Path, serve: Serve, connect: Connect) -> None:
    server = serve(token_s=0.05)
    engine = connect(server, update="none")
    engine.load(V1, own_weights(folder))
    engine.submit([request("a", max_tokens=40, temperature=0.0), request("b", max_tokens=2)])
    early = {each.request_id: each for each in engine.step()}
    engine.abort(["a"])
    done = early | run_out(engine)
    assert (done["a"].finish_reason, len(done["a"].tokens), done["a"].version_runs) == ("abort", 0, ())
    assert done["b"].finish_reason != "abort"
    deadline = Deadline.after(10)
    while server.num_waiting:
        deadline.check("the end of the aborted request at the server")


def test_the_key_is_sent_and_never_shown(
    folder: Path, serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "s3cret-of-the-test"
    server = serve(key=secret)
    with pytest.raises(EngineError, match="401") as caught:
        connect(server)
    assert "api_key" in caught.value.hint
    monkeypatch.setenv("SERVER_KEY", secret)
    engine = connect(server, api_key_env="SERVER_KEY", update="none")
    engine.load(V1, own_weights(folder))
    assert run(engine, [request("a")])["a"].failure == ""
    wrong = tmp_path / "key"
    wrong.write_text("another-key\n")
    with pytest.raises(EngineError, match="401") as caught:
        connect(server, api_key_file=wrong)
    assert "another-key" not in f"{caught.value.message} {caught.value.hint}", "the server echoed it"


def test_sampled_log_probabilities_are_of_the_distribution_drawn_from(
    folder: Path, serve: Serve, connect: Connect
) -> None:
    """The server draws as the torch engine does, so the same seed gives the same tokens there."""
    engine = connect(serve())
    state = state_of(folder, seed=3)
    engine.load(V1, state)
    requests = [request(str(n), seed=n, temperature=0.7, top_k=9, top_p=0.8) for n in range(8)]
    done = run(engine, requests)
    again = run(engine, requests)
    assert {name: each.tokens.tolist() for name, each in done.items()} == {
        name: each.tokens.tolist() for name, each in again.items()
    }
    assert {each.logprobs_kind for each in done.values()} == {"processed"}
    assert all(np.isfinite(each.logprobs).all() for each in done.values())


@pytest.mark.parametrize(("kind", "waits"), [("vllm", 1), ("sglang", -1), ("openai", 1)])
def test_requests_of_the_class_that_yields_carry_a_lower_priority_and_no_others(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path, kind: str, waits: int
) -> None:
    server = serve(kind=kind)
    engine = connect(server, yields="evaluation", update_dir=tmp_path if kind == "sglang" else None)
    engine.load(V1, own_weights(folder))
    server.asked.clear()
    mine = request("rollout", prompt=(5, 6))
    run(engine, [mine, replace(request("evaluation", prompt=(7, 8)), traffic=EVALUATION)])
    sent = {
        str(body.get("prompt_tokens", body.get("prompt", body.get("input_ids", body.get("token_ids"))))): body
        for _, body in server.asked
    }
    assert {tokens: body.get("priority") for tokens, body in sent.items() if tokens in ("[5, 6]", "[7, 8]")} == {
        "[5, 6]": None,
        "[7, 8]": waits,
    }
