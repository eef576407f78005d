"""The peer process as a stage: serves the learner's chunks, counts them, and lives without Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.redis_client import RedisClient
from pipeline.settings import WeightsSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import fetch
from pipeline.weights.peer_file import read_peer_file
from pipeline.weights.peer_stage import PeerStage
from pipeline.weights.tokens import load_or_create_token
from schemas.errors import WeightsError
from tests.unit.producers.world import World, events_of, started
from topics.clock import Deadline, SystemClock
from topics.memory import MemoryLog


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    return World(log=memory_log, folder=tmp_path, clock=SystemClock())


def test_serves_the_learners_chunks(world: World, tmp_path: Path) -> None:
    context = world.context("peer")
    stage = PeerStage(context, WeightsSettings())
    started(stage)
    stage.turn()
    world.seeds = (stage.url,)
    manifest = world.publish(1, 0)
    token = load_or_create_token(world.run.folder / "peer-token")
    store = ChunkStore(tmp_path / "other", max_bytes=2**20)
    assert (
        fetch(manifest, store=store, client=ClientSettings(token=token), deadline=Deadline.after(10)).bytes_fetched == 8
    )
    found = read_peer_file(world.store.root.parent)
    assert found is not None
    assert found["url"] == stage.url
    stage.stop(deadline=Deadline.after(5))
    assert context.metrics.snapshot()["weight_bytes{direction=sent}"] == 8
    assert read_peer_file(world.store.root.parent) is None


def test_redis_away_is_told_and_does_not_matter(world: World) -> None:
    redis = RedisClient("redis://127.0.0.1:9", timeout_s=0.2)
    stage = PeerStage(world.context("peer"), WeightsSettings(), redis=redis)
    started(stage)
    stage.turn()
    assert len(events_of(world.log, "redis_unavailable")) == 1
    stage.stop(deadline=Deadline.after(5))


def test_a_server_that_stopped_ends_the_stage(world: World) -> None:
    stage = PeerStage(world.context("peer"), WeightsSettings())
    started(stage)
    assert stage._server is not None
    stage._server.stop()
    with pytest.raises(WeightsError, match="has stopped"):
        stage.turn()
    stage.stop(deadline=Deadline.after(5))


def test_a_port_that_is_taken_is_named(world: World) -> None:
    first = PeerStage(world.context("peer"), WeightsSettings())
    started(first)
    port = int(first.url.rsplit(":", 1)[1])
    second = PeerStage(world.context("peer"), WeightsSettings(port=port))
    with pytest.raises(WeightsError, match=str(port)):
        started(second)
    second.stop(deadline=Deadline.after(5))
    first.stop(deadline=Deadline.after(5))
