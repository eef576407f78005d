"""A Redis-compatible server (Valkey or Redis) on 127.0.0.1, and the check of any such server.

Data is kept in an append-only file under `<state dir>/redis/data`, so it survives a restart; a crash may lose the last
second, which is allowed: Redis is never the only copy of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ops.services.model import ServicesError
from ops.services.process import ProcessId, spawn_detached
from ops.services.programs import find_redis, redis_program, redis_version
from ops.services.state import LOOPBACK, ServiceState

_PROBE_S = 1.0


class ValkeyServer:
    """The server of one state directory (see `ops.services.server.Server`)."""

    name = "redis"
    num_ports = 1

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / "redis"
        self.logs = (self._root / "server.log", self._root / "output.log")

    def spawn(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the server; it takes its settings from the command line.

        Raises:
            ServicesError: there is no server program.
        """
        program, data = find_redis(), self._root / "data"
        data.mkdir(parents=True, exist_ok=True)
        options = {
            "bind": LOOPBACK,
            "port": str(ports[0]),
            "protected-mode": "yes",
            "dir": str(data),
            "appendonly": "yes",
            "save": "",
            "logfile": str(self.logs[0]),
        }
        self.logs[-1].unlink(missing_ok=True)
        flags = [part for option, value in options.items() for part in (f"--{option}", value)]
        return spawn_detached([program, *flags], output=self.logs[-1])

    def address(self, ports: tuple[int, ...]) -> str:
        """URL of database 0."""
        return f"redis://{LOOPBACK}:{ports[0]}/0"

    def version(self) -> str | None:
        """Version of the server program; None when there is none."""
        program = redis_program()
        return redis_version(program) if program is not None else None

    def probe(self, state: ServiceState) -> Callable[[], bool]:
        """Check that the server at this address is the process we started."""
        url, pid = self.address(state.ports), state.process.pid if state.process is not None else -1

        def answers() -> bool:
            try:
                return _server_facts(url, timeout_s=_PROBE_S).get("process_id") == pid
            except RedisError:
                return False

        return answers


def check_redis(url: str, *, timeout_s: float) -> str | None:
    """Prove that a Redis-compatible server answers at `url` within `timeout_s` seconds; return its version.

    Raises:
        ServicesError: none does, or the URL is not one.
    """
    shown = _without_password(url)
    hint = "check that it runs and can be reached from here (--redis redis://host:port/0); without --redis a local"
    try:
        facts = _server_facts(url, timeout_s=timeout_s)
    except (RedisError, ValueError) as error:
        raise ServicesError(
            f"no Redis server answered at {shown} within {timeout_s:g} s: {error}", hint=f"{hint} server is started"
        ) from error
    version = facts.get("valkey_version", facts.get("redis_version"))
    return None if version is None else str(version)


def _server_facts(url: str, *, timeout_s: float) -> dict[str, object]:
    """Section `server` of the INFO command."""
    once = Retry(NoBackoff(), 0)  # the default repeats a failed connection, each time for the whole timeout
    with Redis.from_url(url, socket_connect_timeout=timeout_s, socket_timeout=timeout_s, retry=once) as client:
        facts = client.info("server")
    return facts if isinstance(facts, dict) else {}


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":***@")
