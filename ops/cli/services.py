"""`rlweave services up|down|status` and `rlweave doctor`: the local Kafka and Redis of one machine.

Commands import what they call when they are called: help stays quick, and the doctor runs where a client is missing.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from schemas.errors import RlweaveError

if TYPE_CHECKING:
    from ops.services.doctor import Finding
    from ops.services.model import ServiceInfo, ServicesInfo, ServicesSettings

_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".rlweave"),
    show_default=True,
    help="Where the services keep data, logs and their addresses.",
)
_KAFKA = click.option("--kafka", metavar="HOST:PORT", help="Use this running broker instead of a local one.")
_REDIS = click.option("--redis", metavar="URL", help="Use this running server instead of a local one.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def services() -> None:
    """Run Kafka and Redis on this machine."""


@services.command(short_help="Start what does not run yet and print the addresses.")
@_STATE_DIR
@_KAFKA
@_REDIS
@click.option("--brokers", type=click.IntRange(min=1), help="Kafka brokers; fixed by the first start, then one.")
@click.option("--secure", is_flag=True, help="TLS, a user per stage, access rules; fixed by the first start.")
@_JSON
def up(
    state_dir: Path, *, kafka: str | None, redis: str | None, brokers: int | None, secure: bool, as_json: bool
) -> None:
    """Start what does not run yet and print the addresses; they stay the same across restarts."""
    from ops.services.manager import services_up

    settings = replace(_settings(state_dir, kafka=kafka, redis=redis), brokers=brokers, secure=True if secure else None)
    _print_info(_call(services_up, settings), as_json=as_json)


@services.command()
@_STATE_DIR
@_JSON
def down(state_dir: Path, *, as_json: bool) -> None:
    """Stop the services started here; their data stays."""
    from ops.services.manager import services_down

    _print_info(_call(services_down, _settings(state_dir, kafka=None, redis=None)), as_json=as_json)


@services.command()
@_STATE_DIR
@_KAFKA
@_REDIS
@_JSON
def status(state_dir: Path, *, kafka: str | None, redis: str | None, as_json: bool) -> None:
    """Print what runs and where; exit with 1 unless both services answer."""
    from ops.services.manager import services_status

    info = _call(services_status, _settings(state_dir, kafka=kafka, redis=redis))
    _print_info(info, as_json=as_json)
    if not info.running:
        raise SystemExit(1)


@click.command()
@_STATE_DIR
@_JSON
def doctor(state_dir: Path, *, as_json: bool) -> None:
    """Say what this machine lacks and how to get it; exit with 1 when something required is missing."""
    from ops.services.doctor import diagnose

    findings = diagnose(state_dir=state_dir)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            _print_finding(finding)
    if any(finding.required and not finding.ok for finding in findings):
        raise SystemExit(1)


def _settings(state_dir: Path, *, kafka: str | None, redis: str | None) -> ServicesSettings:
    from ops.services.model import ServicesSettings

    return ServicesSettings(state_dir=state_dir, kafka=kafka, redis=redis)


def _call(function: Callable[[ServicesSettings], ServicesInfo], settings: ServicesSettings) -> ServicesInfo:
    try:
        return function(settings)
    except RlweaveError as error:
        _fail(error)


def _fail(error: RlweaveError) -> NoReturn:
    """Print an error the way all commands do, and exit with 1."""
    click.echo(f"error: {error.message}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    raise SystemExit(1)


def _print_info(info: ServicesInfo, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(info), indent=2, default=str))
        return
    for service in (info.kafka, *info.brokers, info.redis):
        click.echo(_line(service))
    if info.access is not None:
        click.echo(f"secure: users in {info.access.credentials_dir}, certificate {info.access.ca_file}")
    for note in info.notes:
        click.echo(f"note: {note}", err=True)


def _line(service: ServiceInfo) -> str:
    """One service on one line: name, state, address, then what helps to find it."""
    state = (
        "running" if service.running else "not answering" if service.pid or service.kind == "external" else "stopped"
    )
    details = [service.kind, *([f"version {service.version}"] if service.version else [])]
    details += [f"pid {service.pid}"] if service.pid else []
    details += [f"log {service.log}"] if service.log else []
    return f"{service.name:<7} {state:<13} {service.address or '-'}  ({', '.join(details)})"


def _print_finding(finding: Finding) -> None:
    mark = "ok" if finding.ok else "missing" if finding.required else "absent"
    click.echo(f"{mark:<8} {finding.what}: {finding.found}")
    if not finding.ok and finding.hint:
        click.echo(f"         hint: {finding.hint}")
