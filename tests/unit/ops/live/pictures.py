"""Pictures of a run made by hand: one that flows, and changes to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ops.live.flows import flows
from ops.live.picture import (
    CommandPicture,
    LagPicture,
    NoticePicture,
    ProcessPicture,
    RunFacts,
    RunPicture,
    Span,
    Standing,
    Totals,
    VersionPicture,
)
from ops.live.process import is_waiting
from schemas.records import Version

NOW_MS = 1_790_000_100_000
GROUP = "rlweave.little.reward.sum"


def process(
    stage: str,
    shares: Mapping[str, float],
    *,
    gauges: Mapping[str, float] | None = None,
    rates: Mapping[str, float] | None = None,
    number: int = 1,
    standing: Standing = "at work",
    reward: str = "sum",
) -> ProcessPicture:
    """One that was in these phases, one after the other, over the last minute; in the last of them now."""
    at_ms, spans = NOW_MS - 60_000, []
    for phase, share in shares.items():
        spans.append(Span(phase=phase, began_ms=at_ms, ended_ms=at_ms + round(share * 60_000)))
        at_ms += round(share * 60_000)
    if spans:
        spans[-1] = replace(spans[-1], ended_ms=None)
    return ProcessPicture(
        stage=stage,
        name=f"reward {reward}" if stage == "reward" else stage,
        instance=f"{stage}-host-{number}-aaaaaa",
        host="host",
        slot=str(number),
        domain="",
        standing=standing,
        phase=spans[-1].phase if spans else "",
        phase_since_ms=spans[-1].began_ms if spans else None,
        began_ms=NOW_MS - 100_000,
        heard_ms=NOW_MS - 400,
        version=Version(lineage=1, step=40) if stage in ("rollout", "learner") else None,
        gauges=dict(gauges if gauges is not None else {}),
        rates=dict(rates if rates is not None else {}),
        spans=tuple(spans),
        shares=dict(shares),
        waits={phase: share for phase, share in shares.items() if is_waiting(phase)},
    )


def prompts(waits: float = 0.9, *, open_groups: float = 90) -> ProcessPicture:
    gauges = {"open_groups": open_groups, "credit_groups": 96.0, "groups_admitted": 2_000.0}
    shares = {"admitting": 1 - waits, "waiting_for_credit": waits}
    return process("prompts", shares, gauges=gauges, rates={"records_written{topic=prompts}": 24.0})


def rollout(shares: Mapping[str, float] | None = None, *, in_flight: float = 20, behind: float = 0) -> ProcessPicture:
    gauges = {"prompts_in_flight": in_flight, "versions_behind": behind, "running_sequences": 320.0}
    rates = {"records_written{topic=samples}": 380.0, "tokens_generated": 1_100.0}
    found = process("rollout", shares if shares is not None else {"generating": 1.0}, gauges=gauges, rates=rates)
    return replace(found, version=Version(lineage=1, step=40 - round(behind)))


def reward(busy: float = 0.3, *, scored_per_s: float = 380.0, breaker: float = 0.0) -> ProcessPicture:
    gauges = {"scored_per_s": scored_per_s, "breaker_open": breaker, f"reward_weight{{reward=sum,group={GROUP}}}": 1.0}
    rates = {"records_written{topic=rewards}": scored_per_s}
    return process("reward", {"waiting_for_samples": 1 - busy, "scoring": busy}, gauges=gauges, rates=rates)


def learner(waits: float = 0.05, *, ready: float = 4) -> ProcessPicture:
    gauges = {"ready_groups": ready, "step": 40.0, "reward_mean": 0.9}
    shares = {"waiting_for_data": waits, "staging_weights": 0.1, "forward_backward": 0.9 - waits}
    return process("learner", shares, gauges=gauges, rates={"groups_closed{result=trained}": 24.0})


def scheduler() -> ProcessPicture:
    return process("scheduler", {"watching": 1.0})


def picture(*processes: ProcessPicture, lag_records: float = 30, serve_s: float = 0.4) -> RunPicture:
    """A run with these processes, and its ordinary ones in the place of those that are not given."""
    given = {each.stage for each in processes}
    usual = [each for each in (prompts(), rollout(), reward(), learner(), scheduler()) if each.stage not in given]
    crew = tuple(sorted((*processes, *usual), key=lambda each: each.stage))
    lag_s = lag_records / next((each.gauges["scored_per_s"] for each in crew if each.stage == "reward"), 380.0)
    lag = (
        LagPicture(group="reward.sum", topic="samples", records=lag_records, seconds=lag_s, versions=lag_s * 0.75),
        LagPicture(group="rollout", topic="prompts", records=26.0, seconds=1.0, versions=1.0),
    )
    versions = tuple(
        VersionPicture(
            version=Version(lineage=1, step=step),
            staged_ms=NOW_MS - 2_000 * (41 - step) - 50,
            published_ms=NOW_MS - 2_000 * (41 - step),
            served_ms={"rollout-host-1-aaaaaa": NOW_MS - 2_000 * (41 - step) + round(serve_s * 1000)},
            num_bytes=500_000,
            encoding="delta",
        )
        for step in range(30, 41)
    )
    return RunPicture(
        run="little",
        now_ms=NOW_MS,
        is_live=True,
        share_read=1.0,
        window_s=60.0,
        processes=crew,
        versions=versions,
        lag=lag,
        flows=flows(crew, lag=lag, steps_per_s=0.75),
        commands=(
            CommandPicture(
                at_ms=NOW_MS - 9_000,
                target="prompts",
                kind="credit",
                reason="begun up to 1 late",
                version="",
            ),
            CommandPicture(
                at_ms=NOW_MS - 1_500, target="rollout", kind="publish", reason="1.40 is the newest", version="1.40"
            ),
        ),
        notices=(
            NoticePicture(
                at_ms=NOW_MS - 30_000,
                stage="reward",
                instance="reward-host-1-aaaaaa",
                name="breaker_closed",
                text="reward sum scores again",
            ),
        ),
        drops={"stale": 32},
        totals=Totals(lineage=1, step=40, groups_closed=1_910, trained=30_000, dropped=32, ages={"0": 20, "1": 30}),
        facts=RunFacts(max_steps=150, max_staleness=2, groups_per_step=32, group_size=16, credit_groups=96),
        last_step={"step": 40.0, "reward_mean": 0.9, "age_mean": 0.8, "age_max": 2.0, "loss": 0.01},
    )
