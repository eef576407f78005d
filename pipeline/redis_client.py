"""The one place that knows the redis library: typed calls, short time-outs, errors of our own.

Role: under the peer directory and the leases.
Data in and out: text keys and values.
Invariants: constructing does no I/O; no call takes longer than about twice the socket time-out (one repeat on a fresh
connection, so what is sent must be safe to repeat); a password never gets into a message; a value longer than
`MAX_VALUE_BYTES` reads as absent.
Failure: `RedisUnavailable`, with the library's error as the cause. Redis is never the only copy of anything, so
callers go on without it. `RedisRefused` is the kind that waiting does not mend: password or certificate are wrong;
`check` tells it at start.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from schemas.errors import RedisRefused, RedisUnavailable, SettingsError

_T = TypeVar("_T")
_TLS_HINT = "rediss:// is for a server with TLS, redis:// for one without"
_PORT = 6379
MAX_VALUE_BYTES = 64 * 1024  # what is kept here are addresses and names
MAX_MEMBERS = 10_000
# The server sorts out what is too long: the library would take a value of any length into memory.
_GET = """
local values = {}
for at, key in ipairs(KEYS) do
  values[at] = false
  if redis.call('STRLEN', key) <= tonumber(ARGV[1]) then
    values[at] = redis.call('GET', key)
  end
end
return values
"""
_MEMBERS = """
local found = {}
if redis.call('SCARD', KEYS[1]) > tonumber(ARGV[2]) then
  return found
end
for _, member in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if #member <= tonumber(ARGV[1]) then
    found[#found + 1] = member
  end
end
return found
"""


class RedisClient:
    """A Redis (or Valkey) server.

    Args:
        url: `redis://[user@]host[:port][/db]`, `rediss://` or `unix://`.
        password: of the user, or of the server.
        ca_file: PEM certificates to check a `rediss://` server against; None: the system's.
        timeout_s: for connecting, and for each answer.

    Raises:
        SettingsError: the URL cannot be read.
    """

    def __init__(
        self, url: str, *, password: str | None = None, ca_file: Path | None = None, timeout_s: float = 2.0
    ) -> None:
        self.address = safe_address(url)
        self._url, self._timeout_s = url, timeout_s
        options: dict[str, object] = {"socket_connect_timeout": timeout_s, "socket_timeout": timeout_s}
        if password is not None:
            options["password"] = password
        if ca_file is not None and url.startswith("rediss://"):
            options["ssl_ca_certs"] = str(ca_file)
        self._redis = _client(url, address=self.address, options=options)

    def check(self) -> None:
        """See whether the server lets us in; one that does not answer is none of this call's business.

        Raises:
            RedisRefused: password, user or certificate are wrong, or one side speaks TLS and the other does not.
        """
        try:
            self.ping()
        except RedisRefused:
            raise
        except RedisUnavailable as error:
            if _hung_up(error.__cause__):
                raise RedisRefused(
                    f"the server at {self.address} took the connection and closed it at once, so it speaks TLS or is "
                    "no Redis",
                    hint="a server with TLS needs redis.url = rediss://...",
                ) from error
            if self._url.startswith("rediss://") and _answers_plainly(self._url, timeout_s=self._timeout_s):
                raise RedisRefused(f"no TLS with Redis at {self.address}: it speaks without", hint=_TLS_HINT) from error

    def server_facts(self) -> dict[str, str]:
        """Section `server` of INFO. Raises RedisUnavailable."""
        reply: object = self._call("INFO", lambda: self._redis.info("server"))
        return {str(name): str(value) for name, value in reply.items()} if isinstance(reply, dict) else {}

    def ping(self) -> None:
        """Raises RedisUnavailable when the server does not answer."""
        self._call("PING", self._redis.ping)

    def set(self, key: str, value: str, *, ttl_s: float) -> None:
        """Set a key that expires. Raises RedisUnavailable."""
        self._call("SET", lambda: self._redis.set(key, value, px=_ttl_ms(ttl_s)))

    def get(self, key: str) -> str | None:
        """Raises RedisUnavailable."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        """The values in the order of the keys, None for absent ones. Raises RedisUnavailable."""
        if not keys:
            return []
        reply: object = self._call("GET", lambda: self._redis.eval(_GET, len(keys), *keys, str(MAX_VALUE_BYTES)))
        values = reply if isinstance(reply, list) else []
        return [value if isinstance(value, str) else None for value in values]

    def delete(self, *keys: str) -> None:
        """Raises RedisUnavailable."""
        self._call("DEL", lambda: self._redis.delete(*keys))

    def add_to_set(self, key: str, member: str, *, ttl_s: float) -> None:
        """Add a member and let the whole set expire. Raises RedisUnavailable."""
        self._call("SADD", lambda: self._redis.sadd(key, member))
        self._call("PEXPIRE", lambda: self._redis.pexpire(key, _ttl_ms(ttl_s)))

    def remove_from_set(self, key: str, members: Iterable[str]) -> None:
        """Raises RedisUnavailable."""
        gone = list(members)
        if gone:
            self._call("SREM", lambda: self._redis.srem(key, *gone))

    def members(self, key: str) -> list[str]:
        """Members of a set, sorted; none when there are more than `MAX_MEMBERS`. Raises RedisUnavailable."""
        limits = (str(MAX_VALUE_BYTES), str(MAX_MEMBERS))
        reply: object = self._call("SMEMBERS", lambda: self._redis.eval(_MEMBERS, 1, key, *limits))
        found = reply if isinstance(reply, list) else []
        return sorted(member for member in found if isinstance(member, str))

    def script(self, lua: str, *, keys: Sequence[str], args: Sequence[str]) -> list[str]:
        """Run a Lua script atomically; its reply is a table of strings and integers. Raises RedisUnavailable."""
        reply: object = self._call("EVAL", lambda: self._redis.eval(lua, len(keys), *keys, *args))
        return [str(item) for item in reply] if isinstance(reply, list) else []

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _call(self, what: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except (RedisConnectionError, RedisTimeoutError) as error:
            if isinstance(error, AuthenticationError | AuthorizationError) or _ssl_error(error) is not None:
                raise self._refused(what, error) from error
            raise RedisUnavailable(
                f"Redis at {self.address} did not answer {what}", hint="see that it runs and can be reached"
            ) from error
        except (NoPermissionError, RedisError) as error:
            if isinstance(error, NoPermissionError) or str(error).startswith("NOAUTH"):
                raise self._refused(what, error) from error
            raise RedisUnavailable(f"Redis at {self.address} refused {what}: {type(error).__name__}") from error

    def _refused(self, what: str, error: Exception) -> RedisRefused:
        cause = _ssl_error(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return RedisRefused(
                f"the certificate of Redis at {self.address} was refused: {cause.verify_message}",
                hint="redis.ca_file names the authority that signed it; its names must include the host in redis.url",
            )
        if cause is not None:
            return RedisRefused(
                f"no TLS with Redis at {self.address}: {cause.reason or 'the connection was closed'}",
                hint=_TLS_HINT,
            )
        if isinstance(error, NoPermissionError):
            return RedisRefused(
                f"Redis at {self.address} lets us in but refused {what}: the user may not",
                hint="let the user run the commands and keys rlweave:*",
            )
        return RedisRefused(
            f"Redis at {self.address} refused our password, or wants one and got none",
            hint="redis.password_file or RLWEAVE_REDIS_PASSWORD holds it; the user stands in redis.url",
        )


def _ssl_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error that an error of the library stems from."""
    seen = error
    while seen is not None and not isinstance(seen, ssl.SSLError):
        seen = seen.__cause__ if seen.__cause__ is not None else seen.__context__
    return seen


def _hung_up(error: BaseException | None) -> bool:
    return isinstance(error, RedisConnectionError) and any(
        words in str(error) for words in ("closed by server", "reset by peer")
    )


def _answers_plainly(url: str, *, timeout_s: float) -> bool:
    """Whether a server without TLS is there: it lets a handshake run into its time-out, as one that is stuck does."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or _PORT), timeout=timeout_s) as plain:
            plain.sendall(b"PING\r\n")
            return plain.recv(1) in (b"+", b"-")
    except OSError:
        return False


def safe_address(url: str) -> str:
    """A URL without user and password, fit for messages."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "(unreadable URL)"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _client(url: str, *, address: str, options: dict[str, object]) -> Redis:
    try:
        return Redis.from_url(url, decode_responses=True, retry=Retry(NoBackoff(), 1), **options)
    except (ValueError, TypeError):  # its text may hold the password
        raise SettingsError(
            f"the Redis URL {address} cannot be read; allowed are redis://, rediss:// and unix://"
        ) from None


def _ttl_ms(ttl_s: float) -> int:
    return max(1, round(ttl_s * 1000))
