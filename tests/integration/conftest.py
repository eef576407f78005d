"""A hand-written run on a real broker, for the tests of the tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from click.testing import CliRunner, Result

from ops.cli.main import cli
from ops.services.model import ServicesInfo
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
