"""What turns took: told by the rollout, found by the trace."""

from __future__ import annotations

import pytest

from ops.trace.life import Hops
from ops.trace.turns import add_turns
from pipeline.engines.scripted import ScriptedEngine
from schemas.packed import unpack_i32
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout import begin, finish
from tests.unit.producers.test_rollout_environment import GATE, closing, fresh, make
from tests.unit.producers.world import until
from topics.clock import ManualClock

__all__ = ["closing", "fresh"]


def test_what_each_turn_took_is_told_and_traced_as_hops(closing: Rollouts, clock: ManualClock) -> None:
    world = begin(closing)
    world.prompts(0, max_tokens=2)
    stage = make(closing, ScriptedEngine(), "Gate")
    until(stage, lambda: closing.metrics_of(stage).get("parked_sequences") == 2, what="both are parked")
    clock.advance(0.5)
    GATE.set()
    for sample in finish(closing, stage, num_samples=2):
        spent_ms = unpack_i32(sample.turn_ms)
        assert len(spent_ms) == 5
        assert spent_ms[2] == pytest.approx(500, rel=0.1), "the environment's answer to the first turn"
        assert spent_ms.sum() - spent_ms[2] < 50
        hops = Hops()
        add_turns(hops, sample, note="")
        slowest = max(hops.all(), key=lambda hop: hop.took_s)
        assert (slowest.name, slowest.stage, slowest.took_s) == ("turn 1 is answered", "environment", spent_ms[2] / 1e3)
        assert hops.all()[-1].ended_ms == sample.finished_unix_ms
