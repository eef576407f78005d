"""What a rollout producer tells of its engine: hops, requests, lengths, ages, and how far its weights came."""

from __future__ import annotations

from pipeline.engines.scripted import ScriptedEngine
from tests.unit.producers.conftest import Rollouts
from tests.unit.producers.test_rollout import begin, finish
from tests.unit.producers.world import until


def test_hops_requests_and_lengths_of_samples(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0, 1, 2)
    stage = rollouts.make(ScriptedEngine())
    finish(rollouts, stage, num_samples=6)
    told = rollouts.metrics_of(stage)
    assert told["sample_hop_ms_count{hop=admitted_begun}"] == 3
    assert told["sample_hop_ms_count{hop=begun_made}"] == 6
    assert told["request_s_count"] == 6
    assert (told["produced_length_tokens_count"], told["produced_length_tokens_sum"]) == (6, 24)


def test_a_version_that_comes_while_it_runs_has_hops(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(0)
    stage = rollouts.make(ScriptedEngine())
    finish(rollouts, stage, num_samples=2)
    assert "weight_hop_s_count{hop=published_fetched}" not in rollouts.metrics_of(stage), "it was there at the start"
    world.publish(1, 1, command=True)
    until(stage, lambda: rollouts.metrics_of(stage)["version_step"] == 1)
    told = rollouts.metrics_of(stage)
    assert told["weight_hop_s_count{hop=published_fetched}"] == 1
    assert told["weight_hop_s_count{hop=trained_serving}"] == 1
    assert told["weight_hop_s_count{hop=fetched_serving}"] == 2
    assert told["network_bytes{traffic=weights,scope=same_host}"] == told["weight_bytes{direction=received}"] > 0


def test_ages_in_flight_go_by_the_newest_step_and_what_waits_counts(rollouts: Rollouts) -> None:
    world = begin(rollouts)
    world.prompts(*range(4), max_tokens=1000)
    engine = ScriptedEngine(max_concurrent_sequences=3)
    stage = rollouts.make(engine)
    until(stage, lambda: engine.num_running == 3)
    world.publish(1, 1)
    world.clock.advance(1.0)  # type: ignore[attr-defined]  # a manual one
    until(stage, lambda: rollouts.metrics_of(stage).get("age_mean_versions{kind=in_flight}") == 1.0)
    told = rollouts.metrics_of(stage)
    assert told["age_max_versions{kind=in_flight}"] == 1.0
    assert told["waiting_sequences"] == 1
