"""The ingest benchmark on a real broker."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from ops.cli.bench import bench
from ops.services.model import ServicesInfo
from topics.clock import Deadline
from topics.kafka import KafkaLog

pytestmark = pytest.mark.integration


def test_ingest_reads_all_samples_on_both_sides_and_leaves_no_topics(
    services: ServicesInfo, kafka_log: KafkaLog, tmp_path: Path
) -> None:
    before = topics_of(kafka_log)
    file = tmp_path / "ingest.json"
    arguments = ["ingest", "--quick", "--kafka", services.kafka_bootstrap, "--json", str(file)]
    done = CliRunner().invoke(bench, arguments, standalone_mode=False, catch_exceptions=False)
    assert done.return_value == 0
    assert "share of raw" in done.output
    values = orjson.loads(file.read_bytes())
    assert values["ingest_num_samples"] == 2000
    assert values["ingest_bytes_per_sample"] > 1024 * 9
    for key in ("ingest", "raw"):
        assert values[f"{key}_samples_per_s"] > 0
        assert values[f"{key}_cpu_us_per_sample"] > 0
        assert values[f"{key}_max_rss_bytes"] > 2**20
    assert values["ingest_share_of_raw"] > 0
    deadline = Deadline.after(20)
    while {name for name in topics_of(kafka_log) - before if name.startswith("rlweave.bench-")}:
        deadline.check("the topics of the benchmark to be gone")  # a broker hears of a deletion a moment later
        deadline.clock.wait(0.1)


def topics_of(log: KafkaLog) -> set[str]:
    return set(log._handle.client().list_topics(timeout=10).topics)
