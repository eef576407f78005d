"""A Redis that a test may disturb, and a hand-written run on a real broker for the tests of the tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ops.cli.main import cli
from ops.services.model import Layout, ServicesInfo
from ops.services.server import ensure_started, ensure_stopped
from ops.services.state import StateFile
from ops.services.valkey import ValkeyServer
from tests.unit.ops.little_run import PARTITIONS, LittleRun, little_run, reward
from topics.catalog import SHADOW_REWARDS, WEIGHTS
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import WriterSettings


@dataclass(frozen=True)
class Written:
    """A run on the broker."""

    bootstrap: str
    run: str
    log: KafkaLog

    def call(self, *arguments: str) -> Result:
        """Call the command line as a user does."""
        kafka = ["--kafka", self.bootstrap]
        return CliRunner().invoke(cli, [*arguments, *kafka], catch_exceptions=False, standalone_mode=False)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[str]:
    """A server that only one test uses."""
    folder = tmp_path / "redis"
    folder.mkdir()
    state_file = StateFile(folder)
    server = ValkeyServer(state_file, layout=Layout())
    ensure_started([server], state_file)
    yield server.address(state_file.read(server.name).ports)
    ensure_stopped([server], state_file)


@pytest.fixture
def written(services: ServicesInfo, run_name: str) -> Iterator[Written]:
    """The little run, written through the typed writer; its records carry the run name `little`."""
    log = KafkaLog(services.kafka_bootstrap, run=run_name, data_partitions=PARTITIONS)
    log.admin().ensure_topics()
    _write(log, little_run())
    yield Written(services.kafka_bootstrap, run_name, log)
    log.admin().delete_topics()


def _write(log: KafkaLog, run: LittleRun) -> None:
    writer = log.writer(WriterSettings())
    for topic, partition, _, record in run:
        writer.write(topic, record, partition=partition)
    writer.write(SHADOW_REWARDS, reward(4, 1, value=0.125, name="shadow"))
    for text in run.tombstones:
        writer.write_raw(WEIGHTS, key=text.encode(), value=None, partition=0)
    writer.flush(deadline=Deadline.after(20))
    writer.close(deadline=Deadline.after(5))
