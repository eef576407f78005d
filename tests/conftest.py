"""Fixtures shared by all tests: real services, started once and only when a test asks for them.

`RLWEAVE_TEST_KAFKA` (host:port) and `RLWEAVE_TEST_REDIS` (URL) name servers that are already there.

Tests may run side by side (`--numprocesses`, pytest-xdist). All workers then share one Kafka and one Valkey: the first
that needs them starts them, the process that waits for the workers stops them. Every test has its own run name; one
that disturbs a server for others starts its own.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from ops.services.cluster import Cluster
from ops.services.manager import services_down, services_up
from ops.services.model import ServicesInfo, ServicesSettings
from tests.parallel import HEAVY, GroupScheduling, write_groups
from tests.shared import end_after, ending_early, note_last_users
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.memory import MemoryLog

if TYPE_CHECKING:
    from xdist.remote import Producer

    from tests.engines import SharedVllm

DATA_PARTITIONS = 4
SERVICES_DIR = pytest.StashKey[Path]()
_LONGEST_FIRST = ("vllm", "slow", "integration")  # marks; then all others
_SERVERS = {"services", *HEAVY}  # fixtures


def pytest_configure(config: pytest.Config) -> None:
    """One thread for numpy and torch, here and in every process a test starts: idle ones spin and slow the others."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given: dict[str, str] = getattr(config, "workerinput", {})
    config.stash[SERVICES_DIR] = Path(given["services_dir"] if given else tempfile.mkdtemp(prefix="rlweave-services-"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: pytest.Session) -> None:
    """Tell a worker where the services of all workers are."""
    given: dict[str, str] = getattr(node, "workerinput", {})
    given["services_dir"] = str(node.config.stash[SERVICES_DIR])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the services when no worker uses them any more."""
    folder = config.stash.get(SERVICES_DIR, None)
    if folder is None or hasattr(config, "workerinput"):
        return
    if (folder / "services.json").exists():
        services_down(ServicesSettings(state_dir=folder))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling | None:
    """Tests that share something heavy stay on one worker."""
    if config.getoption("dist") != "loadgroup":
        return None
    return GroupScheduling(config, log, folder=config.stash[SERVICES_DIR])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs servers says so, and long tests begin."""
    for item in items:
        if _SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)
    items.sort(key=_rank)
    note_last_users(config, items)
    if hasattr(config, "workerinput"):
        write_groups(config.stash[SERVICES_DIR], items)


def pytest_collection_finish() -> None:
    """What the imports of all tests made stays; the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """What nobody uses any more gives its processor time to others."""
    try:
        return (yield)
    finally:
        end_after(item)


def _rank(item: pytest.Item) -> int:
    marks = [name for name in _LONGEST_FIRST if item.get_closest_marker(name) is not None]
    return _LONGEST_FIRST.index(marks[0]) if marks else len(_LONGEST_FIRST)


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> ServicesInfo:
    """A Kafka broker (`.kafka_bootstrap`) and a Valkey (`.redis_url`), stopped when all tests are done."""
    return services_up(
        ServicesSettings(
            state_dir=pytestconfig.stash[SERVICES_DIR],
            kafka=os.environ.get("RLWEAVE_TEST_KAFKA"),
            redis=os.environ.get("RLWEAVE_TEST_REDIS"),
        )
    )


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three Kafka brokers of their own, all up; a test that takes one away brings it back."""
    settings = ServicesSettings(state_dir=tmp_path_factory.mktemp("cluster"), brokers=3)
    with ending_early(pytestconfig, "cluster") as ends:
        ends.callback(services_down, settings)
        ends.callback(_kill_brokers, settings.state_dir)  # first: it is quicker than an orderly end
        services_up(settings)
        yield Cluster(settings.state_dir)


def _kill_brokers(state_dir: Path) -> None:
    """Nobody needs their data."""
    for broker in Cluster(state_dir).brokers:
        broker.kill()


@pytest.fixture(scope="session")
def secure_services(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesInfo]:
    """A Kafka with SASL_SSL and access rules, and a Valkey with TLS and a password; `.access` names the files."""
    settings = ServicesSettings(state_dir=tmp_path_factory.mktemp("secure"), secure=True)
    with ending_early(pytestconfig, "secure_services") as ends:
        ends.callback(services_down, settings)
        yield services_up(settings)


@pytest.fixture(scope="session")
def shared_vllm(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedVllm]:
    """A real vLLM, started once and only when a test asks for it."""
    from tests.engines import SharedVllm  # noqa: PLC0415 - heavy, and most tests need no engine

    with ending_early(pytestconfig, "shared_vllm") as ends:
        vllm = SharedVllm(tmp_path_factory.mktemp("vllm-model"))
        ends.callback(vllm.close)
        yield vllm


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
    log.connect(deadline=Deadline.after(60))
    log.admin().ensure_topics()
    yield log
    log.admin().delete_topics()
