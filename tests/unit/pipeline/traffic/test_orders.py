"""The scheduler's word on traffic: newest epoch first, and what makes no sense changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.traffic.classes import TrafficClass
from pipeline.traffic.orders import TrafficOrders
from pipeline.traffic.permit import Permit
from pipeline.traffic.sender import HostSender
from schemas.records import Command
from tests.unit.producers.world import World, events_of
from topics.catalog import COMMANDS
from topics.clock import SystemClock
from topics.memory import MemoryLog

CHECKPOINTS = TrafficClass.CHECKPOINTS


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    return World(log=memory_log, folder=tmp_path, clock=SystemClock())


def command(world: World, rates: Mapping[str, float], *, epoch: int, seq: int, target: str = "host") -> None:
    world.write(
        (
            COMMANDS,
            Command(
                run=world.run.name,
                target=target,
                kind="traffic",
                epoch=epoch,
                seq=seq,
                reason="a test",
                issued_unix_ms=0,
                rates=rates,
            ),
            None,
        )
    )


def test_the_newest_command_is_in_force_and_a_fenced_scheduler_changes_nothing(world: World) -> None:
    context = world.context("peer")
    sender = HostSender(Permit(link_bytes_s=5.0))
    orders = TrafficOrders(context, sender)
    orders.turn()
    assert sender.permit.link_bytes_s == 5.0, "nothing was commanded"
    command(world, {"checkpoints": 7.0}, epoch=2, seq=0)
    orders.turn()
    assert sender.permit == Permit(rates={(CHECKPOINTS, ""): 7.0})
    command(world, {"checkpoints": 9.0}, epoch=1, seq=5)
    orders.turn()
    assert sender.permit.rate(CHECKPOINTS) == 7.0
    command(world, {"link": 3.0}, epoch=2, seq=1, target="all")
    command(world, {"checkpoints": 1.0}, epoch=3, seq=0, target="rollout")
    orders.turn()
    assert sender.permit == Permit(link_bytes_s=3.0, rates={})
    orders.close()


def test_a_command_that_makes_no_sense_is_told_and_leaves_what_stands(world: World) -> None:
    context = world.context("peer")
    sender = HostSender(Permit(link_bytes_s=5.0))
    orders = TrafficOrders(context, sender)
    command(world, {"checkpoint": 7.0}, epoch=1, seq=0)
    orders.turn()
    orders.turn()
    orders.close()
    assert sender.permit.link_bytes_s == 5.0
    told = events_of(world.log, "traffic_refused")
    assert len(told) == 1
    assert "there is no traffic class 'checkpoint'" in told[0]["why"]
