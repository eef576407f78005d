"""Which way weights take into a server, and what becomes of requests in flight: settings against what the kind can do.

Role: resolves `auto`, and refuses what cannot work.
Data in: settings and the kind of the server. Data out: `Updates` or None, and the handling of requests in flight.
Failure: `EngineError` that names the setting and what is allowed.
"""

from __future__ import annotations

from typing import Literal

from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.http.updates import InFlight, SglangDisk, Updates, VllmDisk, VllmPlugin
from schemas.errors import EngineError

_DISK: dict[str, type[VllmDisk] | type[SglangDisk]] = {"vllm": VllmDisk, "sglang": SglangDisk}


def choose_updates(kind: str, settings: HttpSettings) -> Updates | None:
    """How weights get into a server of this kind; None: not at all.

    Raises:
        EngineError: the setting does not fit the kind, or lacks another one.
    """
    wanted = _automatic(kind, settings) if settings.update == "auto" else settings.update
    if wanted == "none":
        return None
    if wanted == "plugin":
        if kind != "vllm":
            raise EngineError(
                f"rollout.http.update is plugin and the server is of kind {kind}; only vllm has our transfer plug-in",
                hint="set it to disk (vllm, sglang) or none",
            )
        return VllmPlugin()
    if kind not in _DISK:
        raise EngineError(
            f"rollout.http.update is disk and the server is of kind {kind}, which has no route for it",
            hint="set it to none; every sample is then marked unverified",
        )
    if settings.update_dir is None:
        raise EngineError(
            "rollout.http.update is disk and rollout.http.update_dir is not set",
            hint="name a folder that the server sees under the same path",
        )
    return _DISK[kind]()


def choose_in_flight(updates: Updates | None, settings: HttpSettings) -> InFlight:
    """What becomes of requests in flight at a swap.

    Raises:
        EngineError: the way of the update does not allow what is set.
    """
    wanted = settings.on_swap
    can_keep = updates is None or updates.can_keep
    if wanted == "auto":
        return "keep" if can_keep else "drain"
    if wanted in ("keep", "recompute") and not can_keep:
        raise EngineError(
            f"rollout.http.on_swap is {wanted}; this server says only at the end of a sequence which weights it has, "
            "so sequences must not go on over a swap",
            hint="set it to drain or abort",
        )
    return wanted


def _automatic(kind: str, settings: HttpSettings) -> Literal["plugin", "disk", "none"]:
    if kind in _DISK and settings.update_dir is not None:
        return "disk"
    if kind == "sglang":
        raise EngineError(
            "SGLang loads weights from a folder and rollout.http.update_dir is not set",
            hint="name a folder that the server sees under the same path, or set rollout.http.update = 'none'",
        )
    return "plugin" if kind == "vllm" else "none"
