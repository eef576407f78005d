"""How an inference server misbehaves, for tests: what it does to the next answer of a route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson
from aiohttp import web

Body: TypeAlias = "dict[str, Any]"
Spoil: TypeAlias = Callable[[Body], Body]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One misbehaviour."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None  # the body, in place of the right one
    keep_bytes: int | None = None  # of the right body, in an answer that is whole as far as HTTP goes
    cut_after_bytes: int | None = None  # of the right body, then the connection is gone
    hang: bool = False  # no answer
    endless: bool = False  # a body without end
    spoil: Spoil | None = None  # changes the right body


HANG = Fault(hang=True)
CUT_BEFORE = Fault(cut_after_bytes=0)


async def send(request: web.Request, *, body: Body, fault: Fault | None) -> web.StreamResponse:
    """The answer, spoilt as the fault says."""
    if fault is None:
        return web.json_response(body, dumps=_dumps)
    if fault.hang:
        await asyncio.Event().wait()
    if fault.text is not None or fault.status != 200:
        text = fault.text if fault.text is not None else "it went wrong"
        return web.Response(text=text, status=fault.status, headers=fault.headers)
    if fault.spoil is not None:
        return web.Response(text=_dumps(fault.spoil(body)), content_type="application/json")
    data = _dumps(body).encode()
    if fault.keep_bytes is not None:
        return web.Response(body=data[: fault.keep_bytes], content_type="application/json")
    response = web.StreamResponse()
    if not fault.endless:
        response.content_length = len(data)
    await response.prepare(request)
    if fault.cut_after_bytes is not None:
        await response.write(data[: fault.cut_after_bytes])
        if request.transport is not None:
            request.transport.abort()
        return response
    while True:
        await response.write(b" " * 65_536)


def _dumps(body: object) -> str:
    # NaN and infinity as Python's own writer would let them through; orjson turns them into null.
    return orjson.dumps(body).decode() if not _has_nan(body) else _loose(body)


def _has_nan(body: object) -> bool:
    if isinstance(body, dict):
        return any(map(_has_nan, body.values()))
    if isinstance(body, list):
        return any(map(_has_nan, body))
    return isinstance(body, float) and body != body


def _loose(body: object) -> str:
    import json  # noqa: PLC0415 - only here, for what JSON does not allow

    return json.dumps(body)
