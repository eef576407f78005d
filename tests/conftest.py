"""Fixtures shared by all tests: real services, started once and only when a test asks for them.

`RLWEAVE_TEST_KAFKA` (host:port) and `RLWEAVE_TEST_REDIS` (URL) name servers that are already there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from ops.services.cluster import Cluster
from ops.services.manager import services_down, services_up
from ops.services.model import ServicesInfo, ServicesSettings
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.memory import MemoryLog

if TYPE_CHECKING:
    from tests.engines import SharedVllm

DATA_PARTITIONS = 4
SERVERS = {"services", "cluster", "secure_services"}


def pytest_configure() -> None:
    """One thread for numpy and torch, here and in every process a test starts: idle ones spin and slow the others."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the services says so, whether its author thought of it or not."""
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesInfo]:
    """A Kafka broker (`.kafka_bootstrap`) and a Valkey (`.redis_url`), stopped at the end of the session."""
    settings = ServicesSettings(
        state_dir=tmp_path_factory.mktemp("services"),
        kafka=os.environ.get("RLWEAVE_TEST_KAFKA"),
        redis=os.environ.get("RLWEAVE_TEST_REDIS"),
    )
    try:
        yield services_up(settings)
    finally:
        services_down(settings)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three Kafka brokers of their own, all up; a test that takes one away brings it back."""
    settings = ServicesSettings(state_dir=tmp_path_factory.mktemp("cluster"), brokers=3)
    try:
        services_up(settings)
        yield Cluster(settings.state_dir)
    finally:
        for broker in Cluster(settings.state_dir).brokers:
            broker.kill()  # quicker than an orderly end, and nobody needs the data
        services_down(settings)


@pytest.fixture(scope="session")
def secure_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesInfo]:
    """A Kafka with SASL_SSL and access rules, and a Valkey with TLS and a password; `.access` names the files."""
    settings = ServicesSettings(state_dir=tmp_path_factory.mktemp("secure"), secure=True)
    try:
        yield services_up(settings)
    finally:
        services_down(settings)


@pytest.fixture(scope="session")
def shared_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedVllm]:
    """A real vLLM, started once and only when a test asks for it."""
    from tests.engines import SharedVllm  # noqa: PLC0415 - heavy, and most tests need no engine

    vllm = SharedVllm(tmp_path_factory.mktemp("vllm-model"))
    yield vllm
    vllm.close()


@pytest.fixture
def run_name() -> str:
    """A run of its own for each test."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def memory_log(run_name: str) -> MemoryLog:
    """A fresh log in memory, topics created."""
    return MemoryLog(run=run_name, data_partitions=DATA_PARTITIONS)


@pytest.fixture
def kafka_log(services: ServicesInfo, run_name: str) -> Iterator[KafkaLog]:
    """A fresh run on the real broker, topics created; deleted at the end."""
    log = KafkaLog(services.kafka_bootstrap, run=run_name, data_partitions=DATA_PARTITIONS)
    log.connect(deadline=Deadline.after(10))
    log.admin().ensure_topics()
    yield log
    log.admin().delete_topics()
