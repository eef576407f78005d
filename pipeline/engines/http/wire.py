"""One server over HTTP: requests out, whole answers of bounded size back.

Role: the only module that knows the HTTP library.
Data in: a path and a JSON body. Data out: the bytes of an answer of status 200.
Invariants: every call has a time limit; at most `max_answer_bytes` are read; no redirect is followed and no proxy of
the environment asked, so the key goes nowhere else. Control questions have connections of their own, which sequences
cannot use up.
Failure: `NoAnswer`, `Refusal` or `BadAnswer`, never an exception of the library.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import aiohttp
import orjson

from pipeline.engines.http.api_key import ApiKey
from pipeline.engines.http.exchange import BadAnswer, NoAnswer, Refusal
from pipeline.engines.http.settings import HttpSettings
from schemas.errors import EngineError

_EXCERPT_BYTES = 2000
_EXCERPT_CHARS = 600
_KEEP_IDLE_S = 2.0  # less than servers keep an idle connection, so that none is used that they just closed
_MAX_RETRY_AFTER_S = 10.0
KEY_REFUSED = (401, 403)


class Wire:
    """The connections to one server; made and used on one event loop."""

    def __init__(self, base_url: str, *, key: ApiKey, settings: HttpSettings) -> None:
        self.base_url = base_url
        self._key = key
        self._settings = settings
        self._sequences: aiohttp.ClientSession | None = None
        self._control: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the sessions; nothing is sent.

        Raises:
            EngineError: the certificates cannot be read.
        """
        limit = self._settings.max_requests
        self._sequences = self._session(
            aiohttp.TCPConnector(limit=limit, keepalive_timeout=_KEEP_IDLE_S, ssl=self._trust())
        )
        # One connection per question: a server that failed ends it, and the next question would go down with it.
        self._control = self._session(aiohttp.TCPConnector(force_close=True, ssl=self._trust()))

    async def close(self) -> None:
        """End every connection."""
        for session in (self._sequences, self._control):
            if session is not None:
                await session.close()
        self._sequences = self._control = None

    async def generate(self, path: str, body: object, *, limit_s: float) -> bytes:
        """Ask for a sequence.

        Raises:
            NoAnswer, Refusal, BadAnswer: see the module.
        """
        return await self._ask(self._sequences, "POST", path=path, body=body, limit_s=limit_s)

    async def post(self, path: str, body: object = None, *, limit_s: float | None = None) -> bytes:
        """A control question with a body; absent: none is sent.

        Raises:
            NoAnswer, Refusal, BadAnswer: see the module.
        """
        return await self._ask(self._control, "POST", path=path, body=body, limit_s=limit_s)

    async def get(self, path: str, *, limit_s: float | None = None) -> bytes:
        """A control question.

        Raises:
            NoAnswer, Refusal, BadAnswer: see the module.
        """
        return await self._ask(self._control, "GET", path=path, body=None, limit_s=limit_s)

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            headers={"Accept-Encoding": "identity", "Content-Type": "application/json", **self._key.headers},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.control_limit_s),
            auto_decompress=False,
            trust_env=False,
        )

    def _trust(self) -> ssl.SSLContext | bool:
        """What certificates are checked against; True: the system's."""
        path = self._settings.ca_file
        try:
            return True if path is None else ssl.create_default_context(cafile=path)
        except OSError as error:
            raise EngineError(f"{path} (rollout.http.ca_file) cannot be used: {error}") from error

    async def _ask(
        self, session: aiohttp.ClientSession | None, method: str, *, path: str, body: object, limit_s: float | None
    ) -> bytes:
        if session is None:
            raise NoAnswer(f"there is no connection to {self.base_url}", sent=False)
        limit = self._settings.control_limit_s if limit_s is None else limit_s
        data = None if body is None else orjson.dumps(body)
        try:
            async with (
                asyncio.timeout(limit),
                session.request(method, self.base_url + path, data=data, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise await self._refusal(response, path=path)
                return await self._read(response, path=path)
        except TimeoutError as error:
            raise NoAnswer(f"{self.base_url}{path} gave no answer within {limit:g} s", sent=True) from error
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise NoAnswer(f"{self.base_url} cannot be reached: {type(error).__name__}: {error}", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(
                f"the connection to {self.base_url}{path} ended before the answer was whole: "
                f"{type(error).__name__}: {self._key.blanked(str(error))}",
                sent=True,
            ) from error

    async def _read(self, response: aiohttp.ClientResponse, *, path: str) -> bytes:
        most = self._settings.max_answer_bytes
        data = bytearray()
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > most:
                response.close()
                raise BadAnswer(
                    f"the answer of {self.base_url}{path} is longer than {most} bytes and was not read",
                    hint="raise rollout.http.max_answer_bytes if sequences are that long",
                )
        return bytes(data)

    async def _refusal(self, response: aiohttp.ClientResponse, *, path: str) -> Refusal:
        said = b""
        with suppress(aiohttp.ClientError, OSError):  # the status alone will do
            said = await response.content.read(_EXCERPT_BYTES)
        text = self._key.blanked(said.decode(errors="replace"))
        hint = ""
        if response.status in KEY_REFUSED:
            hint = "name the key with rollout.http.api_key_env or api_key_file"
        return Refusal(
            f"{self.base_url}{path} answered {response.status}: {_excerpt(text)}",
            status=response.status,
            retry_after_s=_seconds(response.headers.get("Retry-After", "")),
            hint=hint,
        )


def _excerpt(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text[: 2 * _EXCERPT_CHARS]).strip()
    return shown if len(shown) <= _EXCERPT_CHARS else f"{shown[:_EXCERPT_CHARS]}..."


def _seconds(text: str) -> float:
    return min(float(text), _MAX_RETRY_AFTER_S) if text.isascii() and text.isdigit() else 0.0
