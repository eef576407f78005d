"""How weights get into a server: the routes of each kind, one object per way.

Role: the control side of a server. `host.py` gives the order and the time limits.
Data in: a source (sealed file or folder) and a label. Data out: none; the server computes with it afterwards.
Invariants: `pause` and `resume` may be called twice; a label is set only after the whole load.
Failure: `NoAnswer`, `Refusal`, `BadAnswer` of `wire.py`. A refusal whose text holds `REFUSED` changed nothing.

| way | server | routes |
| --- | --- | --- |
| plugin | vLLM | start_weight_update, pause, update_weights, finish_weight_update, resume |
| disk | vLLM | pause, collective_rpc (reload_weights), update_weight_version, resume |
| disk | SGLang | update_weights_from_disk |

vLLM has these with `VLLM_SERVER_DEV_MODE=1` only (`vllm/entrypoints/rl/online/api_router.py`).
"""

from __future__ import annotations

from typing import Literal, Protocol

from pipeline.engines.http.exchange import BadAnswer, Folder, Refusal, SealedFile, Source
from pipeline.engines.http.reading import parse
from pipeline.engines.http.wire import Wire
from schemas.errors import EngineError

InFlight = Literal["keep", "recompute", "abort", "drain"]
DEV_MODE_HINT = "start the server with VLLM_SERVER_DEV_MODE=1, or set rollout.http.update = 'none'"


class Updates(Protocol):
    """One way to load weights."""

    @property
    def name(self) -> str:
        """As in the setting `rollout.http.update`."""
        ...

    @property
    def checks_weights(self) -> bool:
        """Whether the server itself compares what it loaded with what was published."""
        ...

    @property
    def can_keep(self) -> bool:
        """Whether requests in flight can go on after a load, with exact labels."""
        ...

    async def prepare(self, wire: Wire) -> None:
        """Bring a server that was just found into a state in which it generates and can be updated.

        Raises:
            EngineError: it lacks a route.
        """
        ...

    async def begin(self, wire: Wire) -> None:
        """What can be said before the pause; the server generates on."""
        ...

    async def pause(self, wire: Wire, *, in_flight: InFlight) -> None:
        """Stop generation after the current step."""
        ...

    async def load(self, wire: Wire, *, source: Source, label: str, limit_s: float) -> None:
        """Load a whole state, then set the label of all later tokens."""
        ...

    async def resume(self, wire: Wire) -> None:
        """Go on."""
        ...


class VllmPause:
    """Pause and resume of a vLLM server."""

    async def prepare(self, wire: Wire) -> None:
        """Let a server that a killed predecessor left paused go on; nobody is served before the first load."""
        try:
            paused = parse(await wire.get("/is_paused")).get("is_paused").value
            if paused is True:
                await wire.post("/resume")
        except Refusal as error:
            raise EngineError(
                f"the vLLM at {wire.base_url} has no routes for weight updates: {error.message}", hint=DEV_MODE_HINT
            ) from error

    async def begin(self, wire: Wire) -> None:
        """Nothing."""

    async def pause(self, wire: Wire, *, in_flight: InFlight) -> None:
        """See `Updates.pause`."""
        mode = "abort" if in_flight == "abort" else "keep"
        clear = "true" if in_flight in ("recompute", "abort") else "false"
        await wire.post(f"/pause?mode={mode}&clear_cache={clear}")

    async def resume(self, wire: Wire) -> None:
        """See `Updates.resume`."""
        await wire.post("/resume")


class VllmPlugin(VllmPause):
    """Our transfer plug-in in the server's worker; see `pipeline/engines/vllm/transfer.py`."""

    name = "plugin"
    checks_weights = True
    can_keep = True

    async def prepare(self, wire: Wire) -> None:
        """See `Updates.prepare`."""
        await super().prepare(wire)
        try:
            await wire.post("/init_weight_transfer_engine", {"init_info": {}})
        except Refusal as error:
            raise EngineError(
                f"the vLLM at {wire.base_url} was not started with our weight transfer: {error.message}",
                hint="install rlweave beside that vLLM and start it with "
                '--weight-transfer-config \'{"backend": "rlweave_sealed_file"}\'',
            ) from error

    async def begin(self, wire: Wire) -> None:
        """See `Updates.begin`. An update that was given up before did nothing yet, so it is the same as a new one."""
        try:
            await wire.post("/start_weight_update")
        except Refusal as error:
            if "already active" not in error.message:
                raise

    async def load(self, wire: Wire, *, source: Source, label: str, limit_s: float) -> None:
        """See `Updates.load`."""
        if not isinstance(source, SealedFile):
            raise BadAnswer(f"the plug-in loads sealed files, not a {type(source).__name__}")
        info = {"path": source.path, "ties": dict(source.ties), "verify": True}
        await wire.post("/update_weights", {"update_info": info}, limit_s=limit_s)
        await wire.post("/finish_weight_update", {"weight_version": label}, limit_s=limit_s)


class VllmDisk(VllmPause):
    """A folder that vLLM's own loader reads."""

    name = "disk"
    checks_weights = False
    can_keep = True

    async def load(self, wire: Wire, *, source: Source, label: str, limit_s: float) -> None:
        """See `Updates.load`."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(_folder(source).path)}}
        await wire.post("/collective_rpc", call, limit_s=limit_s)
        await wire.post("/update_weight_version", {"new_version": label}, limit_s=limit_s)


class SglangDisk:
    """A folder that SGLang's own loader reads; SGLang holds requests back by itself while it loads."""

    name = "disk"
    checks_weights = False
    can_keep = False  # its label is of the moment a sequence ends

    async def prepare(self, wire: Wire) -> None:
        """Nothing: this way leaves no pause behind."""

    async def begin(self, wire: Wire) -> None:
        """Nothing."""

    async def pause(self, wire: Wire, *, in_flight: InFlight) -> None:
        """Nothing: requests were drained."""

    async def load(self, wire: Wire, *, source: Source, label: str, limit_s: float) -> None:
        """See `Updates.load`."""
        body = {
            "model_path": str(_folder(source).path),
            "weight_version": label,
            "flush_cache": True,
            "abort_all_requests": True,  # what was given up and not noticed yet would be waited for
        }
        answer = parse(await wire.post("/update_weights_from_disk", body, limit_s=limit_s))
        if answer.get("success").value is not True:
            raise BadAnswer(f"SGLang did not load the weights: {answer.get('message').value}")

    async def resume(self, wire: Wire) -> None:
        """Nothing."""


def _folder(source: Source) -> Folder:
    if not isinstance(source, Folder):
        raise BadAnswer(f"the server loads folders, not a {type(source).__name__}")
    return source
