"""A Prometheus for tests: the Debian package, from this machine or fetched once into the cache without installing it.

`apt-get download` needs no root and changes nothing outside the cache. Where there is no such thing, the test that asks
is not run and says why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from ops.services.state import free_ports

FETCH_LIMIT_S = 120
PACKAGE = "prometheus"


class NoPrometheus(Exception):
    """There is none, and why."""


def tool(name: str) -> Path:
    """`prometheus` or `promtool`.

    Raises:
        NoPrometheus: it is neither here nor to be had.
    """
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    folder = Path(os.environ.get("RLWEAVE_CACHE", Path.home() / ".cache" / "rlweave")) / "debian"
    path = folder / "usr" / "bin" / name
    if not path.exists():
        _fetch(folder)
    return path


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", PACKAGE], cwd=folder, check=True, timeout=FETCH_LIMIT_S, capture_output=True
        )
        (package,) = folder.glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg", "-x", package.name, "."], cwd=folder, check=True, timeout=60, capture_output=True)
        package.unlink()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoPrometheus(f"no {PACKAGE} on PATH, and `apt-get download {PACKAGE}` failed: {error}") from error


class Prometheus:
    """One that runs."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self._url = url
        self._process = process
        self._log = log

    def ask(self, path: str, **parameters: str) -> object:
        """`data` of an answer of the HTTP API."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        with urlopen(f"{self._url}/api/v1/{path}{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """An instant query: labels without the name -> value."""
        data = self.ask("query", query=expression)
        assert isinstance(data, dict)
        return {
            tuple(sorted((key, value) for key, value in each["metric"].items() if key != "__name__")): float(
                each["value"][1]
            )
            for each in data["result"]
        }

    def until(self, expression: str, wanted: dict[tuple[tuple[str, str], ...], float], *, limit_s: float = 60) -> None:
        """Wait until the query gives this, to one part in a million."""
        end_s = time.monotonic() + limit_s
        seen: object = None
        while time.monotonic() < end_s:
            assert self._process.poll() is None, self._log.read_text(errors="replace")
            try:
                seen = self.values(expression)
            except OSError as error:  # not up yet
                seen = error
            if isinstance(seen, dict) and seen.keys() == wanted.keys() and all(_same(seen[k], wanted[k]) for k in seen):
                return
            time.sleep(0.05)
        raise AssertionError(f"{expression}: wanted {wanted}, seen {seen}\n{self._log.read_text(errors='replace')}")


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * max(1.0, abs(other))


@contextmanager
def running(config: Path, *, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with this configuration, on a free port of loopback."""
    (port,) = free_ports(1)
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                str(tool("prometheus")),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=output,
            stderr=output,
        )
    try:
        yield Prometheus(f"http://127.0.0.1:{port}", process, log)
    finally:
        process.terminate()
        process.wait(30)
