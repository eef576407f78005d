"""Options and addresses that several commands share.

Invariants: the broker's address is, in this order, what `--kafka` says, `RLWEAVE_KAFKA`, the run's saved settings, the
run file in `RLWEAVE_CONFIG`, the local services'. Users and certificates come from the same settings.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from schemas.errors import RlweaveError

if TYPE_CHECKING:
    from ops.run_file import RunFile
    from pipeline.settings import KafkaSettings
    from topics.kafka import KafkaLog
    from topics.kafka.raw import RawLog

Command = TypeVar("Command", bound=Callable[..., object])

run_option = click.option("--run", "run", metavar="NAME", required=True, help="Name of the run.")
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class AddressUnknown(RlweaveError):
    """No address of a broker was given or is remembered."""


def broker_options(command: Command) -> Command:
    """Add --kafka, --dir and --state-dir."""
    for option in (
        click.option(
            "--state-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path(".rlweave"),
            show_default=True,
            help="Where the local services keep their addresses.",
        ),
        click.option(
            "--dir",
            "runs_dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path("runs"),
            show_default=True,
            help="Parent of the runs' folders.",
        ),
        click.option(
            "--kafka",
            metavar="HOST:PORT",
            envvar="RLWEAVE_KAFKA",
            help="Address of the broker; default: the run's own, or the local services.",
        ),
    ):
        command = option(command)
    return command


def saved_settings(run: str, *, runs_dir: Path) -> RunFile | None:
    """The settings a run was started with; None when its folder has none.

    Raises:
        SettingsError: they are there and cannot be read.
    """
    from ops.run_file import load_saved

    path = runs_dir / run / "settings.json"
    return load_saved(path) if path.is_file() else None


def known_settings(run: str, *, runs_dir: Path) -> RunFile:
    """The settings a run was started with.

    Raises:
        RunNotFound: its folder has none.
        SettingsError: the name is none, or they cannot be read.
    """
    from ops.replay.sources import RunNotFound
    from topics.catalog import check_run_name

    check_run_name(run)
    settings = saved_settings(run, runs_dir=runs_dir)
    if settings is None:
        raise RunNotFound(
            f"run {run!r} is not known here: {runs_dir / run} has no saved settings",
            hint="`rlweave runs list` shows the runs there are; run this where the run was started, or give --dir",
        )
    return settings


def broker_address(kafka: str | None, *, settings: RunFile | None, state_dir: Path) -> str:
    """Where the broker is.

    Raises:
        AddressUnknown: nobody said.
        ServicesError: the state of the local services is damaged.
    """
    if kafka:
        return kafka
    if settings is not None and settings.kafka.bootstrap != "local":
        return settings.kafka.bootstrap
    from ops.services.manager import services_status
    from ops.services.model import ServicesSettings

    address = services_status(ServicesSettings(state_dir=state_dir)).kafka_bootstrap
    if not address:
        raise AddressUnknown(
            f"no broker is known: --kafka is not given and {state_dir} has no local services",
            hint="give --kafka HOST:PORT, or start the local services with `rlweave services up`",
        )
    return address


def open_raw_log(
    kafka: str | None,
    *,
    settings: RunFile | None,
    state_dir: Path,
    role: str = "reader",
    buffer_bytes: int = 64 * 1024 * 1024,
) -> RawLog:
    """Byte-level access to the broker, let in as the run's settings say, or the run file in `RLWEAVE_CONFIG`.

    Args:
        role: whose credentials to use, where there are some per role.
        buffer_bytes: most bytes that are read ahead.

    Raises:
        AddressUnknown: nobody said where the broker is.
        SettingsError: credentials cannot be read.
        ServicesError: the state of the local services is damaged.
    """
    from pipeline.credentials import client_config
    from topics.kafka.raw import RawLog

    known = _named_settings() if settings is None else settings
    address = broker_address(kafka, settings=known, state_dir=state_dir)
    config = client_config(_access(kafka, known=known, state_dir=state_dir), role=role)
    return RawLog(address, config=config, buffer_bytes=buffer_bytes)


def open_log(kafka: str | None, *, settings: RunFile, state_dir: Path) -> KafkaLog:
    """The typed log of a run, for reading; nothing is connected yet.

    Raises:
        AddressUnknown, SettingsError, ServicesError: as `open_raw_log`.
    """
    run = settings.run
    return open_log_of(kafka, run=run.name, partitions=run.partitions, settings=settings, state_dir=state_dir)


def open_log_of(kafka: str | None, *, run: str, partitions: int, settings: RunFile | None, state_dir: Path) -> KafkaLog:
    """The typed log of a run by name, with the partitions that its topics have, for reading.

    Args:
        settings: that say how we are let in; None: as for `open_raw_log`.

    Raises:
        AddressUnknown, SettingsError, ServicesError: as `open_raw_log`.
    """
    from pipeline.credentials import client_config
    from topics.kafka import KafkaLog

    known = _named_settings() if settings is None else settings
    return KafkaLog(
        broker_address(kafka, settings=known, state_dir=state_dir),
        run=run,
        data_partitions=partitions,
        config=client_config(_access(kafka, known=known, state_dir=state_dir), role="reader"),
    )


def open_run_log(run: str, *, kafka: str | None, settings: RunFile | None, state_dir: Path) -> KafkaLog:
    """The typed log of a run that is on the broker, for reading, whether its settings are on this machine or not.

    Raises:
        RunNotFound: the broker has no topics of it.
        AddressUnknown, SettingsError, ServicesError: as `open_raw_log`.
    """
    from ops.replay.sources import KafkaSource
    from pipeline.credentials import client_config
    from topics.kafka import KafkaLog

    known = _named_settings() if settings is None else settings
    address = broker_address(kafka, settings=known, state_dir=state_dir)
    raw = open_raw_log(kafka, settings=settings, state_dir=state_dir)
    return KafkaLog(
        address,
        run=run,
        data_partitions=KafkaSource(raw, run=run).data_partitions,
        config=client_config(_access(kafka, known=known, state_dir=state_dir), role="reader"),
    )


def _access(kafka: str | None, *, known: RunFile | None, state_dir: Path) -> KafkaSettings:
    """The settings that say how we are let in."""
    from pipeline.settings import KafkaSettings

    if known is not None and known.kafka.bootstrap != "local":
        return known.kafka
    return KafkaSettings() if kafka else _local_access(state_dir)


def _named_settings() -> RunFile | None:
    """The run file that the environment names."""
    from ops.run_file import load_run_file

    path = os.environ.get("RLWEAVE_CONFIG")
    return load_run_file(Path(path)) if path else None


def _local_access(state_dir: Path) -> KafkaSettings:
    """How the local services let in; without any, openly."""
    from ops.addresses import kafka_access
    from ops.services.manager import services_status
    from ops.services.model import ServicesSettings
    from pipeline.settings import KafkaSettings

    return KafkaSettings.model_validate(kafka_access(services_status(ServicesSettings(state_dir=state_dir))))


def ago(elapsed_ms: float) -> str:
    """A time that has passed, for people: `12 s`, `3 min`, `5 h`, `2 d`; clocks that differ give `0 s`."""
    seconds = max(0.0, elapsed_ms / 1000)
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
