"""The learner on a real broker when its lease in Redis, or the disk of its checkpoints, fails it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from pipeline.engines.tiny import TinyShape, make_tiny_model
from pipeline.redis_client import RedisClient
from schemas.records import StageEvent, Version
from tests.integration.learner_world import SIZE, World, alive, start, step_of, turn_until
from topics.catalog import EVENTS
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog

pytestmark = [pytest.mark.integration, pytest.mark.slow]
BORN = Version(lineage=1, step=0)
SOCKET_S = 0.3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, seed=3, context_tokens=32, shape=TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1))
    return path


@pytest.fixture
def world(kafka_log: KafkaLog, tmp_path: Path, model: Path) -> World:
    return World(kafka_log, tmp_path, model, max_steps=100)


def notices(world: World, name: str) -> list[StageEvent]:
    found = [record for _, record in world.records(EVENTS) if isinstance(record, StageEvent)]
    return [event for event in found if event.name == name]


def test_a_redis_that_stands_still_costs_no_id_and_claims_nothing_twice(
    world: World, own_redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 18: 200 ids while Redis stalls again and again for twice the limit of its socket, on which commands are
    sent a second time."""
    world.redis, world.lease_s = RedisClient(own_redis, timeout_s=SOCKET_S), 120.0
    monkeypatch.setattr("consumers.learner.holder._RENEWALS_PER_LIFE", 120)  # often; it never ends for want of one
    admin, clock = Redis.from_url(own_redis), SystemClock()
    written, stalled_s = 0, 0.0

    def stall_and_write() -> None:
        nonlocal written, stalled_s
        if clock.monotonic() - stalled_s < 3 * SOCKET_S or written == 25:
            return
        admin.client_pause(round(2 * SOCKET_S * 1000), all=True)
        stalled_s = clock.monotonic()
        for number in range(written, written + 5):
            world.group(number, born=BORN)
        written += 5

    stage, context = world.learner()
    stall_and_write()  # the lease itself is taken during a stall
    start(stage)
    turn_until(stage, lambda: written == 25, what="five stalls", each=stall_and_write)
    turn_until(stage, lambda: stage.finished, what="the end", each=alive(world, num_groups=25, lineage=1))
    key = f"rlweave:{world.log.run}:lease:learner"
    assert admin.hget(key, "owner") == context.instance.encode(), "still ours"
    assert admin.get(f"{key}:fence") == b"1", "the counter moved once, for the one who took the lease"
    admin.close()
    stage.stop(deadline=Deadline.after(10))
    _, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(25))
    members = [member.result for each in outcomes for member in each.members]
    assert members == ["trained"] * 25 * SIZE
    counts = context.metrics.snapshot()
    assert not [name for name in counts if name.startswith("duplicates")], counts


def test_a_newest_checkpoint_that_was_cut_short_is_named_and_the_one_before_is_gone_on_from(world: World) -> None:
    """Case 43: positions and closed groups are those of the step that was restored."""
    stage, context = world.learner()
    start(stage)
    for number in range(12):
        world.group(number, born=BORN)
    turn_until(stage, lambda: step_of(context) >= 2, what="step 2")
    stage.stop(deadline=Deadline.after(10))
    torn = world.folder / world.log.run / "checkpoints" / "1.2" / "optimizer.safetensors"
    torn.write_bytes(torn.read_bytes()[:-7])

    second, _ = world.learner()
    start(second)
    assert world.ledger()[0].num_closed == 4
    turn_until(second, lambda: bool(notices(world, "restored")), what="the notice")
    (told,) = notices(world, "checkpoint_skipped")
    assert "1.2" in told.details["why"]
    (restored,) = notices(world, "restored")
    assert restored.gauges["step"] == 1
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=12, lineage=2))
    second.stop(deadline=Deadline.after(10))
    _, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(12))
    assert {each.result for each in outcomes} == {"trained"}


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """The folder of the checkpoints on a disk that is almost full."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder = world.folder / world.log.run / "checkpoints"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_training_goes_on_and_the_last_whole_checkpoint_stays(
    world: World, small_disk: Path
) -> None:
    """Case 43: saves fail from the second or third one on."""
    stage, context = world.learner()
    start(stage)
    for number in range(24):
        world.group(number, born=BORN)
    turn_until(stage, lambda: step_of(context) >= 5, what="step 5")
    failed = notices(world, "checkpoint_failed")
    assert failed
    assert "No space left" in failed[0].details["why"]
    kept = world.newest().state.step
    assert kept < 5
    assert not list(small_disk.glob(".tmp-*")), "remains of a failed save"

    second, _ = world.learner()  # the first is left as it stands
    start(second)
    turn_until(second, lambda: bool(notices(world, "restored")), what="the notice")
    (restored,) = notices(world, "restored")
    assert restored.gauges["step"] == kept
    turn_until(second, lambda: second.finished, what="the end", each=alive(world, num_groups=24, lineage=2))
    second.stop(deadline=Deadline.after(10))
    _, outcomes = world.ledger()
    assert sorted(each.group for each in outcomes) == list(range(24))
    assert {each.result for each in outcomes} == {"trained"}
