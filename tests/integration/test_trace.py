"""A trace reads a real broker: a delay is found where it was."""

from __future__ import annotations

import pytest

from ops.replay.sources import KafkaSource
from ops.services.model import ServicesInfo
from ops.trace.run import trace
from ops.trace.target import Target
from tests.unit.ops.trace.slow_run import DROPPED, FAILED, GROUP, PARTITIONS, TRAINED, SlowRun
from topics.clock import Deadline
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog

DELAY_S = 3.0  # longer than what connecting, or a neighbour, adds to another hop


@pytest.mark.parametrize(
    ("fate", "hop"),
    [(TRAINED, "is scored by sum"), (DROPPED, "waits for its outcome"), (FAILED, "is generated")],
)
def test_a_delay_is_found_at_its_hop(services: ServicesInfo, run_name: str, fate: str, hop: str) -> None:
    log = KafkaLog(services.kafka_bootstrap, run=run_name, data_partitions=PARTITIONS)
    log.connect(deadline=Deadline.after(60))
    log.admin().ensure_topics()
    run = SlowRun(fate, slow=hop, log=log, more_s=DELAY_S)
    source = KafkaSource(RawLog(services.kafka_bootstrap), run=run_name)
    life = trace(source, Target(run=run_name, group=GROUP, member=1))
    assert life.slowest is not None
    assert life.slowest.name.startswith(hop)
    assert run.spent_s[hop] >= DELAY_S
    assert life.slowest.took_s == pytest.approx(run.spent_s[hop], rel=0.1)
