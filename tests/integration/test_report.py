"""The report reads a real broker to its end, transaction markers and tombstones included."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.report.write import write_report
from schemas.records import LedgerSealed
from tests.unit.ops.report.made_run import settings, two_lineages
from topics.catalog import LEDGER
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.log import WriterSettings

pytestmark = pytest.mark.integration


def test_the_summary_of_a_run_on_kafka(kafka_log: KafkaLog, tmp_path: Path) -> None:
    two_lineages(kafka_log)
    writer = kafka_log.writer(WriterSettings(transactional_id=f"rlweave.{kafka_log.run}.test"))
    with writer.transaction(deadline=Deadline.after(30)):
        for partition in range(kafka_log.data_partitions):
            sealed = LedgerSealed(
                run=kafka_log.run, lineage=2, step=3, seq=99, num_groups=5, reason="done", sealed_unix_ms=0
            )
            writer.write(LEDGER, sealed, partition=partition)
    writer.close(deadline=Deadline.after(30))
    run_file = settings(kafka_log.run, folder=tmp_path)
    summary = write_report(kafka_log, run_file=run_file, audit=None, wall_s=None)
    assert (summary.samples_produced, summary.samples_trained, summary.open) == (12, 6, 2)
    assert summary.weights_published == 7
    assert (run_file.run.folder / "report.html").stat().st_size > 10_000
