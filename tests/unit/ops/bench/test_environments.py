"""The environments benchmark: both ways, over a scripted engine; the rest runs with a real one only."""

from __future__ import annotations

from pathlib import Path

from ops.bench.acting import Curve
from ops.bench.environments import HELD, PARKED, EnvironmentsSize, Work, result_of
from ops.bench.result import Noise
from pipeline.engines.scripted import ScriptedEngine, scripted_state
from schemas.records import Version

# No call comes back while it is looked: what is parked adds up, however slowly.
SIZE = EnvironmentsSize(latency_s=60.0, slots=16, max_parked=64, warm_s=1.5, over_s=0.5)


def test_parked_keeps_more_in_flight_than_there_are_slots(tmp_path: Path) -> None:
    found = {}
    for way in (HELD, PARKED):
        engine = ScriptedEngine(max_concurrent_sequences=SIZE.slots)
        engine.load(Version(lineage=1, step=0), scripted_state(0))
        found[way] = Work(engine, way=way, size=SIZE, folder=tmp_path).run()
        assert engine.num_running == 0
    assert max(found[HELD].in_flight) <= SIZE.slots
    assert max(found[PARKED].in_flight) > 2 * SIZE.slots
    assert max(found[PARKED].in_flight) <= SIZE.max_parked + 2 * SIZE.slots
    curves = [Curve(algorithm="step_grpo", rewards=(0.25, 0.5))]
    result = result_of(SIZE, found, curves=curves, engine="scripted", noise=Noise())
    assert result.values["guess_step_grpo_reward_end"] == 0.5
    assert (result.values["parked_over_held_in_flight"] or 0) > 1.5
    assert "prefilled again/turn" in result.text()
