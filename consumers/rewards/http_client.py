"""JSON over HTTP to a service that scores: one POST, and which answers are worth another try.

Data in and out: plain JSON values.
Invariants: what a busy or absent service says (408, 425, 429, 5xx, no connection) is `Transient` and retried by the
consumer with its back-off; any other refusal is an error at once. Answers are bounded. Proxies of the environment are
not used. A session belongs to the event loop it was opened in, so it is opened at the first call. How long an answer
may take is `rewards.NAME.timeout_s`, kept by whoever runs the plug-in: the library's own limit of five minutes is off.
Failure: `Transient`; `ValueError` for a refusal, or an answer that is too large or no JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import aiohttp
import orjson

from consumers.rewards.api import Transient

CONNECT_S = 30.0  # a service that does not even take the connection is away
MAX_ANSWER_BYTES = 8 * 1024 * 1024
_TRANSIENT = frozenset({408, 425, 429})
_SHOWN_CHARS = 200


class JsonClient:
    """See the module.

    Args:
        token_env: environment variable with a bearer token; empty: none is sent.

    Raises:
        ValueError: no HTTP URL, or the variable is not set.
    """

    def __init__(self, url: str, *, token_env: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url = {url!r} must begin with http:// or https://")
        if token_env and token_env not in os.environ:
            raise ValueError(f"token_env = {token_env!r}: there is no such environment variable")
        self._url = url
        self._headers = {"Authorization": f"Bearer {os.environ[token_env]}"} if token_env else {}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: Mapping[str, object]) -> object:
        """What the service answers.

        Raises:
            Transient, ValueError: see the module.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
            )
        try:
            async with self._session.post(
                self._url, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
            ) as response:
                content = await self._content(response)
                status = response.status
        except aiohttp.ClientError as error:
            raise Transient(f"{self._url}: {error or type(error).__name__}") from error
        if status != 200:
            said = f"{self._url} answered {status}: {content[:_SHOWN_CHARS].decode(errors='replace')}"
            raise Transient(said) if status in _TRANSIENT or status >= 500 else ValueError(said)
        try:
            answer: object = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{self._url} answered no JSON: {content[:_SHOWN_CHARS]!r}") from error
        return answer

    async def close(self) -> None:
        """End the session; the next call opens another one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for piece in response.content.iter_any():
            content += piece
            if len(content) > MAX_ANSWER_BYTES:
                raise ValueError(f"{self._url} answered more than {MAX_ANSWER_BYTES} bytes")
        return bytes(content)
