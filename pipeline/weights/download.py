"""One chunk from one peer.

Role: the HTTP side of a fetch; the only client code that talks to `peer`.
Data in and out: a chunk reference; its bytes (the digest still to be checked), or the `Problem`.
Invariants: reads at most the bytes the manifest names, within one time limit; follows no redirect, so the token goes
nowhere else; decompresses nothing.
Failure: never an exception of the library: every one is a `Problem`.
"""

from __future__ import annotations

import asyncio

import aiohttp

from pipeline.weights.peer_board import Fault, Problem
from pipeline.weights.tokens import bearer
from schemas.records import ChunkRef

_READ_BUFFER_BYTES = 2**20


def open_session(*, token: str, parallel: int, connect_limit_s: float) -> aiohttp.ClientSession:
    """A client session that carries the run's token. To be closed by the caller."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=parallel),
        headers={"Authorization": bearer(token), "Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_limit_s),
        auto_decompress=False,
        read_bufsize=_READ_BUFFER_BYTES,
    )


async def download(session: aiohttp.ClientSession, url: str, *, chunk: ChunkRef, limit_s: float) -> bytearray | Problem:
    """The bytes a peer sends for `chunk`: of the right length, not yet verified."""
    try:
        async with (
            asyncio.timeout(limit_s),
            session.get(f"{url}/v1/chunks/{chunk.digest}", allow_redirects=False) as response,
        ):
            problem = _refusal(response, chunk=chunk)
            return problem if problem is not None else await _receive(response, chunk=chunk)
    except aiohttp.ConnectionTimeoutError:
        return Problem(fault=Fault.DEAD, detail="no connection within the limit")
    except TimeoutError:
        return Problem(fault=Fault.SLOW, detail=f"chunk {chunk.digest} took over {limit_s:.3g} s")
    except (aiohttp.ClientError, OSError) as error:
        return Problem(fault=Fault.DEAD, detail=f"chunk {chunk.digest}: {type(error).__name__} {error}".strip())


def _refusal(response: aiohttp.ClientResponse, *, chunk: ChunkRef) -> Problem | None:
    match response.status:
        case 200:
            length = response.content_length
            if length is None or length == chunk.num_bytes:
                return None
            detail = f"offered {length} bytes for chunk {chunk.digest} of {chunk.num_bytes}"
            return Problem(fault=Fault.BAD, detail=detail)
        case 404:
            return Problem(fault=Fault.ABSENT, detail=f"chunk {chunk.digest} is not there")
        case 401 | 403:
            return Problem(fault=Fault.REFUSED, detail=f"the token was not accepted ({response.status})")
        case 429 | 503:
            retry_after_s = _seconds(response.headers.get("Retry-After", ""))
            return Problem(fault=Fault.BUSY, detail="all upload slots are taken", retry_after_s=retry_after_s)
        case status:
            return Problem(fault=Fault.DEAD, detail=f"status {status} for chunk {chunk.digest}")


async def _receive(response: aiohttp.ClientResponse, *, chunk: ChunkRef) -> bytearray | Problem:
    data = bytearray(chunk.num_bytes)
    num_bytes = 0
    async for piece in response.content.iter_any():
        end = num_bytes + len(piece)
        if end > chunk.num_bytes:
            detail = f"sent more than {chunk.num_bytes} bytes for chunk {chunk.digest}"
            return Problem(fault=Fault.BAD, detail=detail)
        data[num_bytes:end] = piece
        num_bytes = end
    if num_bytes < chunk.num_bytes:
        detail = f"sent {num_bytes} bytes for chunk {chunk.digest} of {chunk.num_bytes}"
        return Problem(fault=Fault.BAD, detail=detail)
    return data


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0
