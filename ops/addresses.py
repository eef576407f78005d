"""Where Kafka and Redis are: given, or those of the local services.

Data in: the `[kafka]` and `[redis]` sections. Data out: the same run file with addresses in place of `local`.
Failure: `ServicesError` when the local services cannot be started, or do not run and must not be started here.
"""

from __future__ import annotations

from pathlib import Path

from ops.run_file import RunFile
from ops.services.manager import services_status, services_up
from ops.services.model import ServicesError, ServicesInfo, ServicesSettings

LOCAL = "local"
WITHOUT = "none"


def resolve(run_file: RunFile, *, state_dir: Path, start: bool) -> RunFile:
    """Put real addresses into a run file.

    Args:
        state_dir: folder of the local services.
        start: start local services that do not run.

    Raises:
        ServicesError: they do not run, or do not start.
    """
    if LOCAL not in (run_file.kafka.bootstrap, run_file.redis.url):
        return run_file
    info = _services(run_file, state_dir=state_dir, start=start)
    kafka, redis = run_file.kafka, run_file.redis
    if kafka.bootstrap == LOCAL:
        kafka = kafka.model_copy(update={"bootstrap": info.kafka_bootstrap, **kafka_access(info)})
    if redis.url == LOCAL:
        redis = redis.model_copy(update={"url": info.redis_url, **redis_access(info)})
    return run_file.model_copy(update={"kafka": kafka, "redis": redis})


def kafka_access(info: ServicesInfo) -> dict[str, object]:
    """Settings in `[kafka]` that a client of the local services needs; none unless they are secure."""
    access = info.access
    if access is None or info.kafka.kind != "local":
        return {}
    return {"security": "sasl_ssl", "credentials_dir": access.credentials_dir, "ca_file": access.ca_file}


def redis_access(info: ServicesInfo) -> dict[str, object]:
    """The same in `[redis]`."""
    access = info.access
    if access is None or info.redis.kind != "local":
        return {}
    return {"password_file": access.redis_password_file, "ca_file": access.ca_file}


def redis_url(run_file: RunFile) -> str | None:
    """The Redis of a resolved run file; None: run without."""
    return None if run_file.redis.url == WITHOUT else run_file.redis.url


def _services(run_file: RunFile, *, state_dir: Path, start: bool) -> ServicesInfo:
    settings = ServicesSettings(
        state_dir=state_dir,
        kafka=None if run_file.kafka.bootstrap == LOCAL else run_file.kafka.bootstrap,
        redis=None if run_file.redis.url in (LOCAL, WITHOUT) else run_file.redis.url,
    )
    if start:
        return services_up(settings)
    info = services_status(settings)
    if not info.kafka_bootstrap:
        raise ServicesError(
            f"no local services are known in {state_dir}",
            hint="start them with `rlweave services up`, or set kafka.bootstrap and redis.url",
        )
    return info
