"""The peer process and the directory in a real Valkey: it enters with its place in the network, and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from pipeline.redis_client import RedisClient
from pipeline.settings import WeightsSettings
from pipeline.weights.directory import PeerDirectory, PeerInfo
from pipeline.weights.peer_stage import PeerStage
from tests.unit.producers.world import World, started
from topics.clock import Deadline, SystemClock
from topics.memory import MemoryLog

pytestmark = pytest.mark.integration


class _Services(Protocol):
    redis_url: str


def test_a_peer_is_in_the_directory_with_its_domain_while_it_runs(
    services: _Services, memory_log: MemoryLog, tmp_path: Path
) -> None:
    client = RedisClient(services.redis_url, timeout_s=20.0)
    world = World(log=memory_log, folder=tmp_path, clock=SystemClock())
    directory = PeerDirectory(client, run=world.run.name)
    stage = PeerStage(world.context("peer"), WeightsSettings(domain="rack-1"), redis=client)
    started(stage)
    assert directory.peers().peers == (PeerInfo(url=stage.url, domain="rack-1"),)
    stage.stop(deadline=Deadline.after(5))
    assert directory.peers().peers == ()
    client.close()
