"""A TLS listener in front of a plain server on the same machine: decrypts, passes on, encrypts the answers.

Role: gives the secure local services a Redis over TLS although the packaged server is built without it. One process,
started as `python -m ops.services.tls_front LISTEN_PORT SERVER_PORT PEM_FILE`; both ends are on 127.0.0.1.
Data in and out: bytes, unchanged. Memory per connection is bounded by `_CHUNK_BYTES` and the stream's own limit.
Failure: a connection whose server is away, or which is no TLS, is closed; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys

_HOST = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_HANDSHAKE_S = 10.0


def main(arguments: list[str]) -> int:
    """Serve until the process is ended.

    Args:
        arguments: port to listen on, port of the server, file with key and certificates.
    """
    listen_port, server_port, pem_file = int(arguments[0]), int(arguments[1]), arguments[2]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(listen_port, server_port, context=_context(pem_file)))
    return 0


def _context(pem_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(pem_file)
    return context


async def _serve(listen_port: int, server_port: int, *, context: ssl.SSLContext) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await _join(reader, writer, server_port=server_port)
        await _close(writer)

    server = await asyncio.start_server(
        connected, _HOST, listen_port, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S, limit=_CHUNK_BYTES
    )
    async with server:
        await server.serve_forever()


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, server_port: int) -> None:
    from_server, to_server = await asyncio.open_connection(_HOST, server_port, limit=_CHUNK_BYTES)
    ways = [asyncio.create_task(_pass_on(reader, to_server)), asyncio.create_task(_pass_on(from_server, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)  # one side hung up: so does the other
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await _close(to_server)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
