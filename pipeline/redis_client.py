"""The one place that knows the redis library: typed calls, short time-outs, errors of our own.

Role: under the peer directory and the leases.
Data in and out: text keys and values.
Invariants: constructing does no I/O; no call takes longer than about twice the socket time-out (one repeat on a fresh
connection, so what is sent must be safe to repeat); a password never gets into a message.
Failure: `RedisUnavailable`, with the library's error as the cause. Redis is never the only copy of anything, so
callers go on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from schemas.errors import RedisUnavailable, SettingsError

_T = TypeVar("_T")


class RedisClient:
    """A Redis (or Valkey) server.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://` or `unix://`.
        timeout_s: for connecting, and for each answer.

    Raises:
        SettingsError: the URL cannot be read.
    """

    def __init__(self, url: str, *, timeout_s: float = 2.0) -> None:
        self.address = safe_address(url)
        self._redis = _client(url, address=self.address, timeout_s=timeout_s)

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
        reply: object = self._call("MGET", lambda: self._redis.mget(list(keys)))
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
        """Members of a set, in order of their names. Raises RedisUnavailable."""
        reply: object = self._call("SMEMBERS", lambda: self._redis.smembers(key))
        found = reply if isinstance(reply, set | list) else []
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
            raise RedisUnavailable(
                f"Redis at {self.address} did not answer {what}", hint="see that it runs and can be reached"
            ) from error
        except RedisError as error:
            raise RedisUnavailable(f"Redis at {self.address} refused {what}: {type(error).__name__}") from error


def safe_address(url: str) -> str:
    """A URL without user and password, fit for messages."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "(unreadable URL)"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _client(url: str, *, address: str, timeout_s: float) -> Redis:
    try:
        return Redis.from_url(
            url,
            decode_responses=True,
            socket_connect_timeout=timeout_s,
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError:  # its text may hold the password
        raise SettingsError(
            f"the Redis URL {address} cannot be read; allowed are redis://, rediss:// and unix://"
        ) from None


def _ttl_ms(ttl_s: float) -> int:
    return max(1, round(ttl_s * 1000))
