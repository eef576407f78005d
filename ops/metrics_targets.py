"""Where the metrics of each process are, in files that Prometheus watches (`file_sd_configs`).

    runs/.prometheus/RUN.INSTANCE.json: [{"targets": ["127.0.0.1:40123"], "labels": {"run": ..., "stage": ..., ...}}]

Role: written by each process as it comes up, since only it knows its port; removed when it ends in order.
Data in: a process's address and labels. Data out: one small file per process.
Invariants: whole or not there; a process that was killed leaves its file, so that it is seen to be down, until one of
the same stage of this host takes its place, or the run's `rlweave up` ends. All runs share the folder, since
Prometheus takes a pattern in a file's name only.
Failure: `SettingsError` when the folder cannot be written, as the ports would be of no use.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from pipeline.stage import StageContext
from schemas.errors import SettingsError

FOLDER = ".prometheus"  # no run has such a name
_PID = "__pid"  # labels of this form are Prometheus's own business and do not get into series
_HOST = "__host"


def expose_metrics(context: StageContext) -> Path | None:
    """Serve the metrics of this process where settings say so; gives the file that tells Prometheus.

    Raises:
        SettingsError: the port cannot be had, or the file cannot be written.
    """
    run = context.run
    if run.metrics_port is None:
        return None
    port = context.metrics.expose(run.metrics_port, host=run.metrics_host)
    host = socket.gethostname() if run.metrics_host in ("0.0.0.0", "::") else run.metrics_host  # noqa: S104 - compared
    host = f"[{host}]" if ":" in host else host
    labels = {"run": run.name, "stage": context.stage}
    logging.getLogger(__name__).info("metrics on http://%s:%d/metrics", host, port)
    return announce(run.dir, instance=context.instance, address=f"{host}:{port}", labels=labels)


@contextmanager
def exposed(context: StageContext) -> Iterator[None]:
    """The same while a supervisor is at work; at its end nobody of the run is left on this host.

    Raises:
        SettingsError: as `expose_metrics`.
    """
    path = expose_metrics(context)
    try:
        yield
    finally:
        if path is not None:
            withdraw(path)
            sweep(context.run.dir, labels={"run": context.run.name})


def announce(folder: Path, *, instance: str, address: str, labels: Mapping[str, str]) -> Path:
    """Say where the metrics of this process are; gives the file.

    Args:
        folder: the parent of the runs' folders.
        address: host:port.
        labels: `run` and `stage`; `instance` is added.

    Raises:
        SettingsError: see the module.
    """
    place = folder / FOLDER
    own = {**labels, "instance": instance, _PID: str(os.getpid()), _HOST: socket.gethostname()}
    path = place / f"{labels['run']}.{instance}.json"
    try:
        place.mkdir(parents=True, exist_ok=True)
        sweep(folder, labels=labels)
        aside = place / f".{instance}.tmp"
        aside.write_bytes(orjson.dumps([{"targets": [address], "labels": own}], option=orjson.OPT_INDENT_2))
        aside.replace(path)
    except OSError as error:
        raise SettingsError(
            f"{place} cannot be written: {error.strerror}; nobody would know where the metrics of {instance} are",
            hint="make it writable, or leave run.metrics_port out",
        ) from error
    return path


def withdraw(path: Path) -> None:
    """The process ends in order: it is not down, it is gone."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def sweep(folder: Path, *, labels: Mapping[str, str]) -> None:
    """Remove what processes of this host left that have these labels and are not there any more."""
    for path in (folder / FOLDER).glob("*.json"):
        of = _labels_of(path)
        is_ours = of.get(_HOST) == socket.gethostname() and labels.items() <= of.items()
        if is_ours and not Path("/proc", of.get(_PID, "0")).exists():
            withdraw(path)


def _labels_of(path: Path) -> Mapping[str, str]:
    """Of the only entry of a file; nothing where it is not one of ours."""
    try:
        content: object = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    first = content[0] if isinstance(content, list) and content else None
    labels = first.get("labels") if isinstance(first, dict) else None
    if not isinstance(labels, dict):
        return {}
    return {key: value for key, value in labels.items() if isinstance(key, str) and isinstance(value, str)}
