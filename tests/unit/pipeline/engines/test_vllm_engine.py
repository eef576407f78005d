"""The engine over a vLLM that misbehaves on purpose (Case 37): what it claims and stamps is what is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.engines.base import EngineState, Generation, GenerationRequest
from pipeline.engines.model_dir import load_model, named_state
from pipeline.engines.tiny import make_tiny_model
from pipeline.engines.vllm.engine import VllmEngine
from pipeline.engines.vllm.exchange import EndedRequest, NewRequest, SwapBroken, SwapRefused
from pipeline.engines.vllm.facts import ModelFacts, read_facts
from pipeline.engines.vllm.sealed import PRINTS_PREFIX
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.engines.vllm.verifying import Loaded, VerifyError, verify
from schemas.errors import EngineError
from schemas.records import SamplingParams, Version

NORM = "model.norm.weight"  # says which version the weights are


@dataclass
class StubHost:
    """A vLLM of one parameter: each token is what that parameter says, each label what the last swap said."""

    deeds: Mapping[str, str] = field(default_factory=dict)  # label -> "raise", "nothing" or "hang"
    loaded: Tensor = field(default_factory=lambda: torch.zeros(64))
    label: str = "none"
    dead: bool = False
    paused: bool = False
    pause_s: float = 0.0
    _held: list[NewRequest] = field(default_factory=list)
    _done: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def submit(self, requests: Sequence[NewRequest]) -> None:
        self._held.extend(requests)

    def abort(self, keys: Sequence[str]) -> None:
        self._held = [request for request in self._held if request.key not in keys]

    def take(self, *, wait_s: float) -> list[EndedRequest]:
        """One token more for each request; those with all of theirs come back."""
        if self.dead:
            raise EngineError("vLLM failed")
        if self.paused:
            return []
        for request in self._held:
            self._done.setdefault(request.key, []).append((round(float(self.loaded[0])), self.label))
        ended = [request for request in self._held if len(self._done[request.key]) >= request.max_tokens]
        self._held = [request for request in self._held if request not in ended]
        return [self._ended(request.key) for request in ended]

    def swap(self, path: str, *, label: str, ties: Mapping[str, str]) -> None:
        """As the host and the worker: refuse, or load, compare and stamp."""
        deed = self.deeds.get(label, "")
        if deed == "raise":
            raise SwapRefused("vLLM refused the weights: no memory; the old version is still served")
        self.paused = True
        if deed == "hang":
            self.dead = True
            raise SwapBroken("the load did not end: the update was not done when the lease of the pause, 1 s, ended")
        with safe_open(path, framework="pt") as opened:
            published: Tensor = opened.get_tensor(NORM)
            prints = {name for name in opened.keys() if name.startswith(PRINTS_PREFIX)}  # noqa: SIM118 - no mapping
        assert f"{PRINTS_PREFIX}model.embed_tokens.weight" in prints, "what the worker compares with was not sealed in"
        if deed != "nothing":
            self.loaded = published.clone()
        try:
            verify(Loaded(name=NORM, parameter=self.loaded, product=None), [published])
        except VerifyError as error:
            raise SwapBroken(f"the load failed half-way: {error}") from error
        self.label, self.paused = label, False

    def close(self) -> None:
        self.dead = True

    def _ended(self, key: str) -> EndedRequest:
        tokens = self._done.pop(key)
        return EndedRequest(
            key=key,
            tokens=[token for token, _ in tokens],
            logprobs=[-1.0] * len(tokens),
            versions=[(label, 1) for _, label in tokens],
            finish_reason="length",
            num_cached_tokens=0,
        )


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, seed=1)
    return folder


@pytest.fixture(scope="module")
def facts(model_dir: Path) -> ModelFacts:
    return read_facts(model_dir, dtype="float32", max_context_tokens=None)


@pytest.fixture
def state_of(model_dir: Path) -> Callable[[int], dict[str, Tensor]]:
    own, _ = named_state(load_model(model_dir, device="cpu", dtype="float32"))
    return lambda step: {**own, NORM: torch.full_like(own[NORM], float(step))}


def engine_over(facts: ModelFacts, hosts: list[StubHost]) -> VllmEngine:
    rest = iter(hosts)
    return VllmEngine(facts, start_host=lambda: next(rest), settings=VllmSettings(), max_sequences=8)


def submit(engine: VllmEngine, name: str, *, max_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=max_tokens)
    engine.submit([GenerationRequest(request_id=name, prompt_tokens=(5, 6), sampling=sampling, seed=1)])


def check_stamps(done: list[Generation]) -> None:
    for each in done:
        labels = [run.version.step for run in each.version_runs for _ in range(run.num_tokens)]
        assert labels == each.tokens.tolist()


def version(step: int) -> Version:
    return Version(lineage=1, step=step)


def test_raises_on_5_changes_nothing_on_6_and_never_answers_on_7(
    facts: ModelFacts, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    """Case 37."""
    first = StubHost(deeds={"1.5": "raise", "1.6": "nothing", "1.7": "hang"})
    second = StubHost()
    engine = engine_over(facts, [first, second])
    engine.load(version(4), state_of(4))
    submit(engine, "a", max_tokens=3)
    engine.step()
    with pytest.raises(EngineError, match="no memory; the old version is still served"):
        engine.load(version(5), state_of(5))
    assert (engine.state, engine.version) == (EngineState.SERVING, version(4))
    engine.step()
    with pytest.raises(EngineError, match=r"1\.6 was not loaded: .*other values than those published; 1\.4 was put"):
        engine.load(version(6), state_of(6))
    assert (engine.state, engine.version) == (EngineState.SERVING, version(4))
    done = engine.step()
    assert [each.tokens.tolist() for each in done] == [[4, 4, 4]]
    check_stamps(done)
    submit(engine, "b", max_tokens=3)
    engine.step()
    with pytest.raises(EngineError, match=r"loading 1\.7 failed: the load did not end.*quarantined"):
        engine.load(version(7), state_of(7))
    assert (engine.state, engine.version) == (EngineState.QUARANTINED, None)
    with pytest.raises(EngineError, match="quarantined"):
        submit(engine, "too early", max_tokens=1)
    engine.load(version(8), state_of(8))  # in another vLLM, where what was in flight begins anew
    assert (engine.state, engine.version) == (EngineState.SERVING, version(8))
    done = [each for _ in range(3) for each in engine.step()]
    assert [(each.request_id, each.tokens.tolist()) for each in done] == [("b", [8, 8, 8])]
    check_stamps(done)


def test_without_an_old_version_a_false_ok_leaves_nothing_served(
    facts: ModelFacts, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    host = StubHost(deeds={"1.6": "nothing"})
    engine = engine_over(facts, [host])
    with pytest.raises(EngineError, match="quarantined"):
        engine.load(version(6), state_of(6))
    assert engine.version is None
    engine.load(version(7), state_of(7))
    submit(engine, "a", max_tokens=2)
    done = [each for _ in range(2) for each in engine.step()]
    assert [each.tokens.tolist() for each in done] == [[7, 7]]
    check_stamps(done)


def test_the_check_can_be_left_out(facts: ModelFacts, state_of: Callable[[int], dict[str, Tensor]]) -> None:
    seen: list[set[str]] = []

    class Looks(StubHost):
        def swap(self, path: str, *, label: str, ties: Mapping[str, str]) -> None:
            with safe_open(path, framework="pt") as opened:
                seen.append(set(opened.keys()))

    engine = VllmEngine(facts, start_host=Looks, settings=VllmSettings(verify=False), max_sequences=8)
    engine.load(version(1), state_of(1))
    assert seen == [set(state_of(1))], "the state and nothing else"
