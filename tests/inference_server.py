"""A small inference server over the torch engine, for tests of the HTTP engine: real HTTP, real weights, real sampling.

It speaks what vLLM's token route and development routes, SGLang's native routes (as documented) and OpenAI's
completions speak, as far as the engine uses them, and misbehaves on demand. Its loop runs on a thread.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Literal, TypeVar

from aiohttp import web
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.engines.base import Generation, GenerationRequest
from pipeline.engines.model_dir import named_state
from pipeline.engines.settings import TorchEngineSettings
from pipeline.engines.torch_engine import TorchEngine
from pipeline.engines.vllm.sealed import PRINTS_PREFIX
from schemas.errors import EngineError
from schemas.records import SamplingParams, Version
from tests.inference_faults import Body, Fault, send
from tests.inference_hold import Hold
from tests.inference_loop import end_tasks, turns
from tests.inference_numbers import Meaning, Numbers, sampling_of
from topics.clock import Deadline

T = TypeVar("T")
Kind = Literal["vllm", "sglang", "openai", "trtllm"]
OWNED_BY = {"vllm": "vllm", "sglang": "sglang", "openai": "somebody", "trtllm": "tensorrt_llm"}


class InferenceServer:
    """See the module.

    Args:
        model: its own weights are served at first, under the label "default".
        meaning: what the log-probabilities are of.
        token_s: time one token takes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        kind: Kind = "vllm",
        meaning: Meaning = "processed",
        token_s: float = 0.0,
        key: str | None = None,
    ) -> None:
        self.kind, self.token_s, self.key = kind, token_s, key
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)  # by path; each is used once
        self.lasting: dict[str, Fault] = {}  # by path; used every time
        self.asked: list[tuple[str, Body]] = []
        self.spoil_weights: Callable[[dict[str, Tensor]], dict[str, Tensor] | None] | None = None
        self.labels = ["default"]  # by number of loads
        self.paused = False
        self.num_loads = 0
        self.says_labels = True
        self._model = model
        self._numbers = Numbers(model, meaning=meaning)
        settings = TorchEngineSettings(model_dir=Path("unused"))
        self._engine = TorchEngine(model, tokenizer, settings=settings, version=Version(lineage=1, step=0))
        self._serial = 0
        self.hold: Hold | None = None
        self._waiting: dict[str, asyncio.Future[Generation]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="inference-server", daemon=True)
        self._work = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> InferenceServer:
        """Listen; on the port of last time, if there was one."""
        if not self._thread.is_alive():
            self._thread.start()
        self.call(self._listen())
        return self

    def kill(self) -> None:
        """Every connection ends at once, and nobody listens any more; what it held is gone."""
        self.call(self._stop_listening())

    def close(self) -> None:
        """End it."""
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Run something on its loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    @property
    def num_waiting(self) -> int:
        """Sequences it works on."""
        return len(self._waiting)

    def paths(self) -> list[str]:
        """What was asked, in order."""
        return [path for path, _ in self.asked]

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(end_tasks())
        self._loop.close()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        deadline = Deadline.after(20)
        while True:
            try:
                self._listener = socket.create_server(("127.0.0.1", self.port))
                break
            except OSError:  # somebody's connection happens to come from that port
                deadline.check(f"port {self.port}")
                await asyncio.sleep(0.1)
        await web.SockSite(self._runner, self._listener).start()
        self.port = self._listener.getsockname()[1]
        self._stepping = self._loop.create_task(self._step())

    async def _stop_listening(self) -> None:
        if self._runner is None:
            return
        self._stepping.cancel()
        self._loop.remove_reader(self._listener)
        await turns()  # Python 3.11 loses a connection that it takes while it stops to listen
        server = self._runner.server
        for connection in list(server.connections) if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()
        self._runner = None
        self._engine.abort(list(self._waiting))
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    async def _step(self) -> None:
        while True:
            if not self._engine.num_running:
                self._work.clear()
                await self._work.wait()
            await asyncio.sleep(self.token_s if not self.paused and self.hold is None else 0.005)
            if self.paused or not self._engine.num_running:
                continue
            if self.hold is not None and not self.hold.may_step(self._waiting, num_loads=self.num_loads):
                continue
            for done in self._engine.step():
                future = self._waiting.pop(done.request_id, None)
                if future is not None and not future.done():
                    future.set_result(done)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        body: Body = await request.json() if request.can_read_body else {}
        self.asked.append((path, body))
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401, text=f"the key {request.headers.get('Authorization')} is not known")
        fault = self.faults[path].popleft() if self.faults[path] else self.lasting.get(path)
        if fault is not None and (fault.hang or fault.endless or fault.status != 200 or fault.text is not None):
            return await send(request, body={}, fault=fault)
        try:
            answer = await self._answer(path, body, query=dict(request.query))
        except EngineError as error:
            return web.json_response({"error": {"message": error.message}}, status=500)
        if answer is None:
            return web.Response(status=404, text="no such route")
        return await send(request, body=answer, fault=fault)

    async def _answer(self, path: str, body: Body, *, query: dict[str, str]) -> Body | None:
        if path == "/health":
            return {}
        if path == "/v1/models":
            card = {"id": "policy", "owned_by": OWNED_BY[self.kind], "max_model_len": self._engine.context_tokens}
            return {"data": [card, {**card, "id": "adapter", "parent": "policy"}]}
        if self.kind == "vllm":
            return await self._vllm(path, body, query=query)
        if self.kind == "sglang":
            return await self._sglang(path, body)
        return await self._openai(body) if path == "/v1/completions" else None

    async def _vllm(self, path: str, body: Body, *, query: dict[str, str]) -> Body | None:
        match path:
            case "/inference/v1/generate":
                return await self._vllm_generate(body)
            case "/is_paused":
                return {"is_paused": self.paused}
            case "/pause":
                self.paused = True
                if query["mode"] == "abort":
                    self._abort_all()
            case "/resume":
                self.paused = False
            case "/init_weight_transfer_engine" | "/start_weight_update":
                pass
            case "/update_weights":
                self._load(Path(body["update_info"]["path"]))
            case "/collective_rpc":
                self._load(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            case "/finish_weight_update":
                self.labels[-1] = body["weight_version"]
            case "/update_weight_version":
                self.labels[-1] = body["new_version"]
            case _:
                return None
        return {}

    async def _vllm_generate(self, body: Body) -> Body:
        params = body["sampling_params"]
        sampling = sampling_of(params, limit="max_tokens")
        done, logprobs = await self._generate(body["token_ids"], sampling, seed=params.get("seed", 0))
        content: list[Body] = [
            {"token_id": token, "logprob": value} for token, value in zip(done.tokens.tolist(), logprobs, strict=True)
        ]
        if content and params["logprobs"]:
            top = self._numbers.top(body["token_ids"], sampling)
            content[0]["top_logprobs"] = [{"token_id": 0, "logprob": value} for value in top]
        choice: Body = {
            "token_ids": done.tokens.tolist(),
            "logprobs": {"content": content},
            "finish_reason": done.finish_reason,
        }
        if self.says_labels:
            choice["weight_versions"] = self._spans(done)
        given = None
        if params.get("prompt_logprobs") is not None:
            scores = self._numbers.of_prompt(body["token_ids"])
            given = [None, *({str(t): {"logprob": s}} for t, s in zip(body["token_ids"][1:], scores, strict=True))]
        return {"choices": [choice], "prompt_logprobs": given}

    def _spans(self, done: Generation) -> list[Body]:
        at, spans = 0, []
        for run in done.version_runs:
            label = self.labels[run.version.step]
            spans.append({"version": label, "start": at, "end": at + run.num_tokens})
            at += run.num_tokens
        return spans

    async def _sglang(self, path: str, body: Body) -> Body | None:
        if path == "/update_weights_from_disk":
            if body["abort_all_requests"]:
                self._abort_all()
            while self._waiting:
                await asyncio.sleep(0.001)
            self._load(Path(body["model_path"]) / "model.safetensors")
            self.labels[-1] = body["weight_version"]
            return {"success": True, "message": "Succeeded."}
        if path != "/generate":
            return None
        params = body["sampling_params"]
        sampling = sampling_of(params, limit="max_new_tokens")
        done, logprobs = await self._generate(body["input_ids"], sampling, seed=params.get("sampling_seed", 0))
        pairs = [[value, token, None] for token, value in zip(done.tokens.tolist(), logprobs, strict=True)]
        info: Body = {"finish_reason": {"type": done.finish_reason}, "output_token_logprobs": pairs}
        if self.says_labels:
            info["weight_version"] = self.labels[-1]
        if body.get("top_logprobs_num"):
            info["output_top_logprobs"] = [
                [[value, 0, None] for value in self._numbers.top(body["input_ids"], sampling)]
            ]
        if body.get("logprob_start_len") == 0:
            scores = [None, *self._numbers.of_prompt(body["input_ids"])]
            info["input_token_logprobs"] = [[s, t, None] for s, t in zip(scores, body["input_ids"], strict=True)]
        info["completion_tokens"] = len(pairs)
        return {"text": done.text, "meta_info": info}

    async def _openai(self, body: Body) -> Body:
        known = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "logprobs", "echo", "top_k"}
        known |= {"frequency_penalty", "presence_penalty", "detokenize", "stop_token_ids", "add_special_tokens"}
        if self.kind == "trtllm" and not body.keys() <= known:
            raise EngineError(f"extra fields: {sorted(body.keys() - known)}")
        sampling = sampling_of(body, limit="max_tokens")
        done, logprobs = await self._generate(body["prompt"], sampling, seed=body["seed"])
        tops: list[Body] = [{"x": value} for value in logprobs]
        if tops:
            tops[0] = {str(place): value for place, value in enumerate(self._numbers.top(body["prompt"], sampling))}
        tokens = done.tokens.tolist()
        shown: list[float | None] = list(logprobs)
        if body.get("echo") and self.kind == "openai":
            shown = [None, *self._numbers.of_prompt(body["prompt"]), *shown]
        choice: Body = {
            "text": done.text,
            "finish_reason": done.finish_reason,
            "logprobs": {
                "token_logprobs": shown,
                "top_logprobs": tops,
                "tokens": [f"token_id:{t}" if body.get("return_tokens_as_token_ids") else "?" for t in tokens],
            },
        }
        if self.kind == "trtllm" and body.get("detokenize") is False:
            choice["token_ids"] = tokens
        return {"choices": [choice]}

    def _load(self, path: Path) -> None:
        self.num_loads += 1
        found = load_file(path)
        state: dict[str, Tensor] | None = {n: t for n, t in found.items() if not n.startswith(PRINTS_PREFIX)}
        if state is not None and self.spoil_weights is not None:
            state = self.spoil_weights(state)
        if state is None:  # says yes and does nothing
            state = {name: tensor.clone() for name, tensor in named_state(self._model)[0].items()}
        self.labels.append(self.labels[-1])
        self._engine.load(Version(lineage=1, step=len(self.labels) - 1), state)

    def _abort_all(self) -> None:
        self._engine.abort(list(self._waiting))
        self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        for done in self._engine.step():
            future = self._waiting.pop(done.request_id, None)
            if future is not None and not future.done():
                future.set_result(done)

    async def _generate(
        self, prompt: list[int], sampling: SamplingParams, *, seed: int
    ) -> tuple[Generation, list[float]]:
        self._serial += 1
        name = str(self._serial)
        self._work.set()
        self._engine.submit(
            [GenerationRequest(request_id=name, prompt_tokens=tuple(prompt), sampling=sampling, seed=seed)]
        )
        self._waiting[name] = self._loop.create_future()
        try:
            done = await self._waiting[name]
        finally:
            if self._waiting.pop(name, None) is not None:
                self._engine.abort([name])
        return done, self._numbers.of_tokens(done, prompt, sampling=sampling)
