"""`bench algorithms`: what it is made of, on a small scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench.algorithms.bench import VARIANTS, AlgorithmsSize, measure_packing
from ops.bench.algorithms.compare import names
from ops.bench.algorithms.playground import Playground, demo_settings
from pipeline.engines.tiny import make_tiny_model


def test_every_algorithm_is_shown_learning() -> None:
    assert {variant.algorithm for variant in VARIANTS} == set(names())


def test_algorithms_begin_alike_and_then_part(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="the demo's task is in the extra `tasks`")
    run_file = demo_settings(tmp_path)
    cloning = run_file.learner.cloning.model_copy(update={"num_steps": 20, "batch_size": 16})
    run_file = run_file.model_copy(
        update={
            "run": run_file.run.model_copy(update={"groups_per_step": 8, "group_size": 8}),
            "learner": run_file.learner.model_copy(update={"cloning": cloning}),
        }
    )
    make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=32)
    playground = Playground(run_file)
    chosen = [variant for variant in VARIANTS if variant.name in ("grpo", "dpo")]
    curves = [list(playground.learn(variant, num_steps=4)) for variant in (*chosen, chosen[0])]
    assert curves[0] == curves[2], "the same algorithm gives the same curve"
    assert curves[0][0] == curves[1][0]
    assert curves[0] != curves[1]


def test_packing_is_measured_on_the_same_tokens(tmp_path: Path) -> None:
    found = measure_packing(tmp_path, AlgorithmsSize(num_samples=6, num_repeats=1))
    assert found["packing_speedup"] == pytest.approx(
        found["packed_tokens_per_cpu_s"] / found["padded_tokens_per_cpu_s"]
    )
    assert 0 < found["padding_share"] < 1
