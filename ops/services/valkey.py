"""A Redis-compatible server (Valkey or Redis) on 127.0.0.1, its TLS listener, and the check of any such server.

Data is kept in an append-only file under `<state dir>/redis/data`, so it survives a restart; a crash may lose the last
second, which is allowed: Redis is never the only copy of anything. Secure services have a password, in a configuration
file for its owner alone, and `TlsFront` before the server, as the packaged one is built without TLS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ops.services.model import Layout, ServicesError
from ops.services.process import ProcessId, spawn_detached
from ops.services.programs import find_redis, redis_program, redis_version
from ops.services.secure import secure_files, write_private
from ops.services.server import Server
from ops.services.state import LOOPBACK, ServiceState, StateFile
from pipeline.credentials import redis_client
from pipeline.redis_client import RedisClient
from pipeline.settings import RedisSettings
from schemas.errors import RedisUnavailable, SettingsError

_PROBE_S = 1.0
_PACKAGES = Path(__file__).resolve().parents[2]  # where `ops` is


class ValkeyServer:
    """The server of one state directory (see `ops.services.server.Server`)."""

    name = "redis"
    num_ports = 1

    def __init__(self, state_file: StateFile, *, layout: Layout) -> None:
        self._layout = layout
        self._root = state_file.directory / "redis"
        self._files = secure_files(state_file.directory)
        self.logs = (self._root / "server.log", self._root / "output.log")

    def prepare(self) -> None:
        """Make the directories."""
        (self._root / "data").mkdir(parents=True, exist_ok=True)

    def spawn(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the server.

        Raises:
            ServicesError: there is no server program.
        """
        program = find_redis()
        options = {
            "bind": LOOPBACK,
            "port": str(ports[0]),
            "protected-mode": "yes",
            "dir": f'"{self._root / "data"}"',
            "appendonly": "yes",
            "save": '""',
            "logfile": f'"{self.logs[0]}"',
        }
        if self._layout.secure:
            options["requirepass"] = self._files.redis_password.read_text().strip()
        configuration = self._root / "server.conf"
        configuration.unlink(missing_ok=True)
        write_private(configuration, "\n".join(f"{option} {value}" for option, value in options.items()))
        self.logs[-1].unlink(missing_ok=True)
        return spawn_detached([program, str(configuration)], output=self.logs[-1])

    def address(self, ports: tuple[int, ...]) -> str:
        """URL of database 0, without TLS."""
        return f"redis://{LOOPBACK}:{ports[0]}/0"

    def version(self) -> str | None:
        """Version of the server program; None when there is none."""
        program = redis_program()
        return redis_version(program) if program is not None else None

    def probe(self, state: ServiceState) -> Callable[[], bool]:
        """Check that the server at this address is the process we started."""
        settings = RedisSettings(
            url=self.address(state.ports), password_file=self._files.redis_password if self._layout.secure else None
        )
        pid = str(state.process.pid) if state.process is not None else ""
        return lambda: _facts(settings).get("process_id") == pid


class TlsFront:
    """What clients of secure services connect to (see `ops.services.server.Server`)."""

    name = "redis-tls"
    num_ports = 1

    def __init__(self, state_file: StateFile, *, server: ValkeyServer) -> None:
        self._state_file = state_file
        self._server = server
        self._files = secure_files(state_file.directory)
        self.logs = (state_file.directory / "redis" / "tls.log",)

    def prepare(self) -> None:
        """Nothing to make."""

    def spawn(self, ports: tuple[int, ...]) -> ProcessId:
        """Start the listener."""
        (behind,) = self._state_file.read(self._server.name).ports
        self.logs[0].unlink(missing_ok=True)
        program = [sys.executable, str(_PACKAGES / "ops" / "services" / "tls_front.py")]
        return spawn_detached([*program, str(ports[0]), str(behind), str(self._files.server)], output=self.logs[0])

    def address(self, ports: tuple[int, ...]) -> str:
        """URL of database 0."""
        return f"rediss://{LOOPBACK}:{ports[0]}/0"

    def version(self) -> str | None:
        """Version of the server behind it."""
        return self._server.version()

    def probe(self, state: ServiceState) -> Callable[[], bool]:
        """Check that a server answers through it."""
        settings = RedisSettings(
            url=self.address(state.ports), password_file=self._files.redis_password, ca_file=self._files.ca
        )
        return lambda: bool(_facts(settings))


def redis_servers(state_file: StateFile, layout: Layout) -> list[Server]:
    """What makes up the Redis of a state directory; clients connect to the last one."""
    server = ValkeyServer(state_file, layout=layout)
    return [server, TlsFront(state_file, server=server)] if layout.secure else [server]


def check_redis(url: str, *, timeout_s: float) -> str | None:
    """Prove that a Redis-compatible server answers at `url` within `timeout_s` seconds; return its version.

    Raises:
        ServicesError: none does, it refuses us, or the URL is not one.
    """
    hint = "check that it runs and can be reached from here (--redis redis://host:port/0); without --redis a local"
    try:
        client: RedisClient = redis_client(RedisSettings(url=url), timeout_s=timeout_s)
        facts = client.server_facts()
        client.close()
    except SettingsError as error:
        raise ServicesError(error.message, hint=error.hint) from error
    except RedisUnavailable as error:
        raise ServicesError(
            f"no Redis server answered within {timeout_s:g} s: {error.message}", hint=f"{hint} server is started"
        ) from error
    return facts.get("valkey_version", facts.get("redis_version"))


def _facts(settings: RedisSettings) -> dict[str, str]:
    """What a server of ours says of itself; nothing when it does not answer."""
    client = redis_client(settings, timeout_s=_PROBE_S)
    try:
        return client.server_facts()
    except RedisUnavailable:
        return {}
    finally:
        client.close()
