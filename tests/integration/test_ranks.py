"""A learner of several ranks on a real broker, with records written by hand: skew, drops, other numbers of ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.engines.tiny import TinyShape, make_tiny_model
from schemas.records import Version
from tests.integration.learner_crew import crew, run_to_end
from tests.integration.learner_world import World, alive, step_of, turn_until
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog

pytestmark = [pytest.mark.integration, pytest.mark.slow]
BORN = Version(lineage=1, step=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@pytest.fixture
def world(kafka_log: KafkaLog, tmp_path: Path, model: Path) -> World:
    return World(kafka_log, tmp_path, model, max_steps=100, every_steps=2)


def test_all_groups_on_one_ranks_partitions_do_not_stall_two_ranks(world: World) -> None:
    """Rank 1 reads the odd partitions, and every group has an odd number: rank 0 trains nothing in any step."""
    for number in range(1, 40, 2):
        world.group(number, born=BORN)
    with crew(world, 2) as made:
        say = alive(world, num_groups=20, lineage=1)
        turn_until(made.stage, lambda: step_of(made.context) >= 5, what="step 5", each=say)
        read = made.context.metrics.snapshot()
        made.stop()
    view, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(1, 40, 2))
    assert {each.result for each in outcomes} == {"trained"}
    assert view.step == 5
    assert not any(name.startswith("records_read") for name in read), "rank 0 had nothing to read"


def test_offsets_of_all_partitions_are_committed_by_rank_0(world: World, services: ServicesInfo) -> None:
    world.max_steps = 2
    for number in range(8):
        world.group(number, born=BORN)
    run_to_end(world, 2, num_groups=8)
    committed = RawLog(services.kafka_bootstrap).committed(f"rlweave.{world.log.run}.learner")
    prompts = {partition: at for (topic, partition), at in committed.items() if topic.endswith(".prompts")}
    assert prompts == dict.fromkeys(range(4), 2)


def test_two_ranks_then_one_then_four_with_drops_in_between(world: World) -> None:
    total, lacking = 48, {5, 18, 31, 40}
    for number in range(total):
        world.group(number, missing=int(number in lacking), born=BORN)
    for ranks, goal in ((2, 3), (1, 6)):
        with crew(world, ranks) as made:
            say = alive(world, num_groups=99, lineage=0)
            turn_until(made.stage, lambda: step_of(made.context) >= goal, what=f"step {goal}", each=say)  # noqa: B023
            made.stop()
        assert world.newest().state.step >= goal, "one turn may bring two steps out"
    run_to_end(world, 4, num_groups=total, lineage=3)
    view, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(total))
    assert Counter(each.result for each in outcomes) == {"trained": 44, "dropped": 4}
    assert {each.group for each in outcomes if each.reason == "incomplete: 7/8"} == lacking
    assert view.sealed is not None
