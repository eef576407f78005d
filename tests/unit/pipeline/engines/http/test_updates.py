"""Weights into a server: the routes of each kind, labels across swaps, probes, and what a failed load leaves behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.engines.base import FINISH_FAILED, EngineState, Generation
from pipeline.engines.http.engine import HttpEngine
from pipeline.engines.model_dir import load_model, named_state
from schemas.errors import EngineError
from schemas.records import Version
from tests.inference_faults import HANG, Fault
from tests.inference_hold import Hold
from tests.inference_server import InferenceServer
from tests.unit.pipeline.engines.http.support import V1, V2, V3, request, run, run_out, state_of
from topics.clock import Deadline

Serve = Callable[..., InferenceServer]
Connect = Callable[..., HttpEngine]
WAYS: list[Any] = [
    pytest.param("vllm", "plugin", id="vllm plug-in"),
    pytest.param("vllm", "disk", id="vllm disk"),
    pytest.param("sglang", "disk", id="sglang disk"),
]
ROUTES = {
    ("vllm", "plugin"): ["/start_weight_update", "/pause", "/update_weights", "/finish_weight_update", "/resume"],
    ("vllm", "disk"): ["/pause", "/collective_rpc", "/update_weight_version", "/resume"],
    ("sglang", "disk"): ["/update_weights_from_disk"],
}


def opened(connect: Connect, server: InferenceServer, *, update: str, tmp_path: Path, **settings: Any) -> HttpEngine:
    return connect(server, update=update, update_dir=tmp_path / "weights" if update == "disk" else None, **settings)


def loader_routes(server: InferenceServer) -> list[str]:
    return [path for path in server.paths() if any(path in routes for routes in ROUTES.values())]


def holds(server: InferenceServer, state: dict[str, Tensor]) -> bool:
    own, _ = named_state(server._model)
    return all(torch.equal(own[name], tensor) for name, tensor in state.items())


def submit_held(engine: HttpEngine, server: InferenceServer, *, num_requests: int) -> list[Generation]:
    """Long requests of which the server has made two tokens each; it makes no more before other weights come. Those
    that have ended already."""
    hold = server.hold = Hold(num_sequences=num_requests, num_loads=server.num_loads)
    engine.submit([request(str(n), seed=n, max_tokens=40) for n in range(num_requests)])
    deadline, early = Deadline.after(60), list[Generation]()
    while not hold.reached:
        deadline.check("the server to hold the requests")
        early += engine.step()
    return early


@pytest.mark.parametrize(("kind", "update"), WAYS)
def test_a_load_takes_the_documented_routes_and_the_bytes_arrive(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path, kind: str, update: str
) -> None:
    server = serve(kind=kind)
    engine = opened(connect, server, update=update, tmp_path=tmp_path)
    assert engine.state is EngineState.COLD
    for version, seed in ((V1, 1), (V2, 2)):
        server.asked.clear()
        engine.load(version, state_of(folder, seed=seed))
        assert loader_routes(server) == ROUTES[kind, update]
        assert holds(server, state_of(folder, seed=seed))
        assert (engine.state, engine.version, engine.verified) == (EngineState.SERVING, version, True)
    assert not server.paused
    if update == "disk":
        (left,) = (tmp_path / "weights" / "rollout-0").iterdir()
        served, _ = named_state(load_model(left, device="cpu", dtype="float32"))
        assert all(torch.equal(served[name], tensor) for name, tensor in state_of(folder, seed=2).items())
        engine.close()
        assert not any((tmp_path / "weights" / "rollout-0").iterdir())


@pytest.mark.parametrize("on_swap", ["auto", "abort", "drain"])
@pytest.mark.parametrize(("kind", "update"), WAYS)
def test_requests_in_flight_at_a_swap(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path, kind: str, update: str, on_swap: str
) -> None:
    """Kept ones carry both versions, drained ones the old one only, aborted ones end."""
    server = serve(kind=kind)
    engine = opened(connect, server, update=update, tmp_path=tmp_path, on_swap=on_swap)
    engine.load(V1, state_of(folder, seed=1))
    next_state = state_of(folder, seed=2)
    goes_on = on_swap == "auto" and kind == "vllm"
    if goes_on or on_swap == "abort":  # what is drained could not go on
        early = submit_held(engine, server, num_requests=8)
    else:
        engine.submit([request(str(n), seed=n, max_tokens=40) for n in range(8)])
        early = engine.step()
    engine.load(V2, next_state)
    done = {each.request_id: each for each in early} | run_out(engine)
    assert len(done) == 8
    reasons = {each.finish_reason for each in done.values()}
    versions = {tuple(run.version for run in each.version_runs) for each in done.values()}
    assert FINISH_FAILED not in reasons
    match on_swap:
        case "abort":
            assert "abort" in reasons
        case _ if goes_on:
            assert {(V1, V2)} <= versions <= {(V1, V2), (V1,)}  # one may end with its second token
        case _:
            assert versions == {(V1,)}, "a sequence went on over a swap"
            assert "abort" not in reasons


def test_every_label_is_right_under_random_swaps(folder: Path, serve: Serve, connect: Connect) -> None:
    """Case 33: the server's own record of which weights made each token, against the stamps that came out."""
    draw = random.Random(5)
    server = serve(token_s=0.002)
    engine = connect(server)
    states = [state_of(folder, seed=seed) for seed in range(4)]
    engine.load(V1, states[1])
    done: list[Generation] = []
    for index in range(60):
        if engine.num_free_slots:
            engine.submit([request(str(index), seed=index, max_tokens=draw.randint(1, 40))])
        done += engine.step()
        if draw.random() < 0.3:
            step = index + 2
            engine.load(Version(lineage=1, step=step), states[step % 4])
    done += run_out(engine).values()
    assert len(done) == 60
    truth = {label.rpartition("-")[2] for label in server.labels}
    assert all(str(run.version) in truth for each in done for run in each.version_runs)
    assert all(sum(run.num_tokens for run in each.version_runs) == len(each.tokens) for each in done)
    assert sum(len(each.version_runs) > 1 for each in done) >= 5, "hardly any sequence was in flight at a swap"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(
            lambda state: None, "so nothing was loaded|differ from the published", id="answers OK, loads nothing"
        ),
        pytest.param(
            lambda state: {n: t * 1.2 for n, t in state.items()}, "differ from the published", id="other weights"
        ),
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_probe_sees_what_the_server_does_not_say(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path, kind: str, spoil: Any, said: str
) -> None:
    """Case 37: the old version is put back, and what was made meanwhile is not passed off as either."""
    server = serve(kind=kind, token_s=0.005)
    engine = opened(connect, server, update="disk", tmp_path=tmp_path)
    engine.load(V1, state_of(folder, seed=1))
    engine.submit([request(str(n), seed=n, max_tokens=40) for n in range(4)])
    times = iter([spoil])  # the first load is spoilt, the one that puts back is not

    def spoil_once(state: dict[str, Tensor]) -> dict[str, Tensor] | None:
        change = next(times, None)
        return state if change is None else change(state)

    server.spoil_weights = spoil_once
    with pytest.raises(EngineError, match=said) as caught:
        engine.load(V2, state_of(folder, seed=2))
    assert "1.1 was put back" in caught.value.message
    assert (engine.state, engine.version) == (EngineState.SERVING, V1)
    assert holds(server, state_of(folder, seed=1))
    done = run_out(engine)
    assert {run.version for each in done.values() for run in each.version_runs} <= {V1}
    assert run(engine, [request("after")])["after"].version_runs[0].version == V1


def test_a_server_that_will_not_take_the_old_version_either_is_quarantined(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    server = serve()
    engine = opened(connect, server, update="disk", tmp_path=tmp_path)
    engine.load(V1, state_of(folder, seed=1))
    server.spoil_weights = lambda state: {name: tensor * 1.2 for name, tensor in state.items()}
    engine.submit([request("lost")])
    with pytest.raises(EngineError, match="the engine is quarantined"):
        engine.load(V2, state_of(folder, seed=2))
    assert (engine.state, engine.version) == (EngineState.QUARANTINED, None)
    with pytest.raises(EngineError, match="1 requests are lost"):
        run_out(engine)
    server.spoil_weights = None
    engine.load(V3, state_of(folder, seed=3))
    assert run(engine, [request("after")])["after"].version_runs[0].version == V3


def test_requests_made_by_bad_weights_fail_one_by_one(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    server = serve()
    engine = opened(connect, server, update="disk", tmp_path=tmp_path)
    engine.load(V1, state_of(folder, seed=1))
    next_state = state_of(folder, seed=2)
    early = submit_held(engine, server, num_requests=6)
    spoilt = iter([True])
    server.spoil_weights = lambda state: {n: t * 1.2 for n, t in state.items()} if next(spoilt, False) else state
    with pytest.raises(EngineError, match="was put back"):
        engine.load(V2, next_state)
    done = run_out(engine)
    assert len(done) + len(early) == 6
    assert any("weights that failed their check" in each.failure for each in done.values())


def test_what_a_worker_refuses_changes_nothing(folder: Path, serve: Serve, connect: Connect) -> None:
    server = serve()
    engine = connect(server)
    engine.load(V1, state_of(folder, seed=1))
    refusal = "Call to collective_rpc method failed: Worker failed with error 'rlweave-refused: no such tensor'"
    server.faults["/update_weights"].append(Fault(status=500, text=refusal))
    with pytest.raises(EngineError, match=r"no such tensor.*the old version is still served"):
        engine.load(V2, state_of(folder, seed=2))
    assert (engine.state, engine.version, server.paused) == (EngineState.SERVING, V1, False)
    assert run(engine, [request("a")])["a"].version_runs[0].version == V1


def test_a_load_that_breaks_half_way_is_undone(folder: Path, serve: Serve, connect: Connect) -> None:
    """Case 37."""
    server = serve()
    engine = connect(server)
    engine.load(V1, state_of(folder, seed=1))
    server.faults["/update_weights"].append(Fault(status=500, text="rlweave-broken: lm_head holds other values"))
    with pytest.raises(EngineError, match=r"lm_head holds other values; 1\.1 was put back"):
        engine.load(V2, state_of(folder, seed=2))
    assert (engine.state, engine.version, server.paused) == (EngineState.SERVING, V1, False)


@pytest.mark.parametrize("route", ["/pause", "/start_weight_update"])
def test_a_pause_is_a_lease(folder: Path, serve: Serve, connect: Connect, route: str) -> None:
    """The update hangs: generation goes on by itself, with what is known to be whole."""
    server = serve()
    engine = connect(server, pause_lease_s=1.0)
    engine.load(V1, state_of(folder, seed=1))
    server.faults[route].append(HANG)
    with pytest.raises(EngineError, match=r"lease of the pause|gave no answer within"):
        engine.load(V2, state_of(folder, seed=2))
    assert (engine.state, engine.version, server.paused) == (EngineState.SERVING, V1, False)
    assert run(engine, [request("a")])["a"].version_runs[0].version == V1


def test_a_successor_lets_a_paused_server_go_on(folder: Path, serve: Serve, connect: Connect) -> None:
    """The predecessor was killed between pause and resume."""
    server = serve()
    server.paused = True
    engine = connect(server)
    assert not server.paused
    assert engine.state is EngineState.COLD, "nobody is served what the predecessor may have left"
    engine.load(V1, state_of(folder, seed=1))
    assert run(engine, [request("a")])["a"].failure == ""


@pytest.mark.parametrize(
    ("options", "settings", "said"),
    [
        ({"kind": "sglang"}, {}, "update_dir is not set"),
        ({"kind": "vllm"}, {"update": "disk"}, "update_dir is not set"),
        ({"kind": "sglang"}, {"update": "plugin"}, "only vllm has our transfer plug-in"),
        ({"kind": "openai"}, {"update": "disk", "update_dir": Path("x")}, "has no route for it"),
        ({"kind": "sglang"}, {"update_dir": Path("x"), "on_swap": "keep"}, "must not go on over a swap"),
        ({"kind": "vllm"}, {"model": "other"}, "has the models policy and rollout.http.model is other"),
    ],
)
def test_settings_that_do_not_fit_the_server_are_refused(
    serve: Serve, connect: Connect, options: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        connect(serve(**options), **settings)


def test_a_vllm_without_the_routes_says_what_to_start_it_with(serve: Serve, connect: Connect) -> None:
    server = serve()
    server.lasting["/is_paused"] = Fault(status=404, text="Not Found")
    with pytest.raises(EngineError, match="has no routes for weight updates") as caught:
        connect(server)
    assert "VLLM_SERVER_DEV_MODE=1" in caught.value.hint
    server.lasting.clear()
    server.lasting["/init_weight_transfer_engine"] = Fault(status=500, text="Weight transfer not configured")
    with pytest.raises(EngineError, match="not started with our weight transfer") as caught:
        connect(server)
    assert "rlweave_sealed_file" in caught.value.hint


def test_a_state_that_does_not_fit_or_unties_is_refused_before_the_server_hears_of_it(
    folder: Path, serve: Serve, connect: Connect
) -> None:
    server = serve()
    engine = connect(server)
    engine.load(V1, state_of(folder, seed=1))
    server.asked.clear()
    wrong = state_of(folder, seed=2)
    name = next(iter(wrong))
    for changed in (
        {**wrong, name: wrong[name][1:]},
        {**wrong, "lm_head.weight": wrong["model.embed_tokens.weight"] + 1},
    ):
        with pytest.raises(EngineError, match="old version is still served"):
            engine.load(V2, changed)
        assert (engine.state, engine.version) == (EngineState.SERVING, V1)
    assert loader_routes(server) == []


def test_a_folder_that_cannot_be_written_leaves_the_old_version(
    folder: Path, serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    engine = opened(connect, serve(), update="disk", tmp_path=tmp_path)
    engine.load(V1, state_of(folder, seed=1))
    (tmp_path / "weights" / "rollout-0").rename(tmp_path / "elsewhere")
    (tmp_path / "weights" / "rollout-0").write_text("in the way")
    with pytest.raises(EngineError, match=r"cannot be written to .*old version is still served"):
        engine.load(V2, state_of(folder, seed=2))
    assert (engine.state, engine.version) == (EngineState.SERVING, V1)


def test_what_other_weights_left_in_the_prefix_cache_answers_nobody(
    folder: Path, serve: Serve, connect: Connect
) -> None:
    """Case 34: a server keys its cache by the salt of a request, so requests of two versions never share one."""
    server = serve()
    engine = connect(server, probe="always")
    salts: list[set[object]] = []
    for version, seed in ((V1, 1), (V2, 2), (V3, 1)):
        server.asked.clear()
        engine.load(version, state_of(folder, seed=seed))
        assert all(each.failure == "" for each in run(engine, [request(str(n)) for n in range(3)]).values())
        asked = [body for path, body in server.asked if path == "/inference/v1/generate"]
        assert len(asked) > 3, "the probe asks too"
        assert all(body["cache_salt"] for body in asked)
        salts.append({body["cache_salt"] for body in asked if body["sampling_params"]["max_tokens"] > 1})
        assert {body["cache_salt"] for body in asked if body["sampling_params"]["max_tokens"] == 1}.isdisjoint(
            salts[-1]
        )
    assert [len(each) for each in salts] == [1, 1, 1], "within a version the cache is shared"
    assert len(set.union(*salts)) == 3
