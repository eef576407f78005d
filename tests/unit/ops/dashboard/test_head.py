"""The numbers above the page are those of the verdict, from one picture."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from ops.dashboard.head import head_of
from ops.live.measures import measures_of
from ops.live.picture import ProcessPicture, RunPicture, SeriesPicture, Standing, StepsPicture, Totals
from tests.unit.ops.little_run import NOW_MS


def process(stage: str, *, standing: Standing = "at work", **numbers: float) -> ProcessPicture:
    return ProcessPicture(
        stage=stage,
        name=stage,
        instance=f"{stage}-host-1-abcdef",
        host="host",
        slot="",
        domain="",
        standing=standing,
        phase="",
        phase_since_ms=None,
        began_ms=NOW_MS - 9_000,
        heard_ms=NOW_MS,
        version=None,
        gauges=numbers,
    )


def run(*processes: ProcessPicture) -> RunPicture:
    return RunPicture(
        run="little", now_ms=NOW_MS, is_live=True, share_read=1.0, window_s=60.0, processes=tuple(processes)
    )


def values_of(picture: RunPicture) -> dict[str, float | None]:
    return cast("dict[str, float | None]", head_of(picture)["values"])


def test_open_ready_and_credit_are_what_the_verdict_is_told_from() -> None:
    picture = run(
        process("prompts", open_groups=48.0, credit_groups=64.0),
        process("learner", ready_groups=32.0, open_groups=47.0),
    )
    picture = replace(picture, steps=StepsPicture(num=20, trained_per_s=330.0))
    measures, values = measures_of(picture), values_of(picture)
    assert values["open_groups"] == measures.open_groups == 48.0
    assert values["ready_groups"] == measures.ready_groups == 32.0
    assert values["credit_groups"] == measures.credit == 64.0
    assert values["trained_per_s"] == measures.trained_per_s == 330.0


def test_what_nobody_said_is_unknown() -> None:
    assert set(values_of(run()).values()) == {None}


def test_of_a_run_that_ended_rates_are_of_all_of_it_and_not_the_mean_of_its_steps() -> None:
    steps = SeriesPicture(
        name="trained_per_s", began_ms=NOW_MS - 11_000, bin_ms=1_000, values=(None, 900.0, 100.0, None)
    )
    picture = replace(run(), is_live=False, totals=Totals(trained=2_000), series={"trained_per_s": steps})
    assert values_of(picture)["trained_per_s"] == pytest.approx(200.0)


def test_who_joined_after_the_end_is_named() -> None:
    twice = (process("reward", standing="stopped"),) * 2
    assert head_of(replace(run(process("learner")), afterwards=twice))["afterwards"] == "reward, twice"
    assert head_of(run(process("learner")))["afterwards"] == ""
