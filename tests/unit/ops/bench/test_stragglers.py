"""The benchmark of stragglers, small: packing frees slots, and a process that hands over ends at once."""

from __future__ import annotations

from ops.bench.stragglers.bench import bench_stragglers
from ops.bench.stragglers.workload import Workload

SMALL = Workload(
    num_engines=4,
    sequences_per_engine=8,
    groups_per_step=8,
    group_size=4,
    spare_groups=6,
    num_steps=4,
    num_warm_steps=1,
    num_retirements=2,
    tick_s=1.0,
)


def test_its_numbers_are_there_and_say_what_they_should() -> None:
    said: list[str] = []
    values = bench_stragglers(SMALL, say=said.append).values
    assert len(said) == 7
    assert values["step_pack_groups_handed_over"] != 0
    assert values["step_wait_groups_handed_over"] == values["step_all_groups_handed_over"] == 0
    assert values["step_all_age_max"] == 0
    packed, waited, whole = (values[f"step_{rule}_p50_s"] for rule in ("pack", "wait", "all"))
    assert packed is not None
    assert waited is not None
    assert whole is not None
    assert packed < waited < whole
    handed_over, finished = values["slot_hand_over_0s_p95_s"], values["slot_finish_p50_s"]
    assert handed_over is not None
    assert finished is not None
    assert handed_over <= 2 * SMALL.tick_s < finished


def test_lengths_are_those_of_the_workload_and_of_a_seed_alone() -> None:
    whole = Workload()
    lengths = sorted(whole.length(seed) for seed in range(2001))
    assert lengths == sorted(whole.length(seed) for seed in range(2001))
    assert 370 < lengths[1000] < 430
    assert lengths[-1] <= 4096
    assert 470 < sum(lengths) / 2001 < 490
