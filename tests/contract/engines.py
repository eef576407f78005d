"""What every engine contract test stands on: an engine of each kind, with states whose token is their step."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engines.base import Engine, Generation, GenerationRequest, StateTensor
from pipeline.engines.http.opening import open_http_engine
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.model_dir import named_state
from pipeline.engines.scripted import ScriptedEngine, scripted_state
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.tiny import CHARACTERS, character_tokenizer
from pipeline.engines.torch_engine import TorchEngine
from schemas.records import PromptGroup, SamplingParams, Version
from tests.engines import NEEDS_VLLM, SharedVllm, step_model, step_state
from tests.inference_server import InferenceServer
from topics.clock import Deadline

SLOTS = 64
CONTEXT_TOKENS = 32
FIRST_STEP, LAST_STEP = 4, 60  # below are the special tokens of the character tokenizer

State = dict[str, StateTensor]


class TorchBackend:
    stepwise = True

    def __init__(self, request: pytest.FixtureRequest) -> None:
        pass

    def engine(self) -> Engine:
        model = step_model(context_tokens=CONTEXT_TOKENS)
        self._state = {name: tensor.clone() for name, tensor in named_state(model)[0].items()}
        settings = TorchEngineSettings(model_dir=Path("unused"), max_concurrent_sequences=SLOTS)
        return TorchEngine(model, character_tokenizer(CHARACTERS, context_tokens=CONTEXT_TOKENS), settings=settings)

    def state(self, step: int) -> State:
        return {**step_state(self._state, step)}


class VllmBackend:
    """Engines over one vLLM, which starts once for all tests; each engine is cold at first."""

    stepwise = False

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._vllm: SharedVllm = request.getfixturevalue("shared_vllm")

    def engine(self) -> Engine:
        return self._vllm.engine(max_sequences=SLOTS, context_tokens=CONTEXT_TOKENS)

    def state(self, step: int) -> State:
        return {**step_state(self._vllm.weights, step)}


class HttpBackend:
    """Engines over a server of their own, which generates between two steps, as a real one does."""

    stepwise = False

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._folder: Path = request.getfixturevalue("tmp_path") / "model"

    def engine(self) -> Engine:
        model = step_model(context_tokens=CONTEXT_TOKENS)
        model.save_pretrained(self._folder)
        tokenizer = character_tokenizer(CHARACTERS, context_tokens=CONTEXT_TOKENS)
        tokenizer.save_pretrained(self._folder)
        self._state = {name: tensor.clone() for name, tensor in named_state(model)[0].items()}
        server = InferenceServer(model, tokenizer, token_s=0.005).start()
        self._request.addfinalizer(server.close)
        # this model is so unsure at first that what its log-probabilities are of cannot be told from it
        settings = HttpSettings(base_urls=(server.url,), logprobs="processed")
        return open_http_engine(self._folder, max_sequences=SLOTS, settings=settings)

    def state(self, step: int) -> State:
        return {**step_state(self._state, step)}


class ScriptedBackend:
    stepwise = True

    def __init__(self, request: pytest.FixtureRequest) -> None:
        pass

    def engine(self) -> Engine:
        return ScriptedEngine(max_concurrent_sequences=SLOTS, context_tokens=CONTEXT_TOKENS)

    def state(self, step: int) -> State:
        return {**scripted_state(step)}


Backend = TorchBackend | ScriptedBackend | HttpBackend | VllmBackend
KINDS = [
    pytest.param(TorchBackend, id="torch"),
    pytest.param(ScriptedBackend, id="scripted"),
    pytest.param(HttpBackend, id="http"),
    pytest.param(VllmBackend, id="vllm", marks=NEEDS_VLLM),
]


def version(step: int, *, lineage: int = 1) -> Version:
    return Version(lineage=lineage, step=step)


def serve(engine: Engine, backend: Backend, *, step: int, lineage: int = 1) -> None:
    engine.load(version(step, lineage=lineage), backend.state(step))


def requests(
    num: int, *, max_tokens: int = 4, prefix: str = "r", prompt_tokens: tuple[int, ...] = (5, 6, 7)
) -> list[GenerationRequest]:
    sampling = SamplingParams(max_tokens=max_tokens)
    return [
        GenerationRequest(request_id=f"{prefix}{index}", prompt_tokens=prompt_tokens, sampling=sampling, seed=index)
        for index in range(num)
    ]


def group(
    *, text: str | None = None, token_ids: bytes | None = None, sampling: SamplingParams | None = None
) -> PromptGroup:
    return PromptGroup(
        run="r",
        group=7,
        group_size=2,
        text=text,
        token_ids=token_ids,
        sampling=sampling if sampling is not None else SamplingParams(),
        seed=0,
        source="test",
        source_index=0,
        epoch=0,
        created_unix_ms=0,
    )


def run_out(engine: Engine) -> list[Generation]:
    done: list[Generation] = []
    deadline = Deadline.after(60)
    while engine.num_running:
        deadline.check(f"{engine.num_running} requests")
        done += engine.step()
    return done


def stamps(generation: Generation) -> list[Version]:
    return [run.version for run in generation.version_runs for _ in range(run.num_tokens)]
