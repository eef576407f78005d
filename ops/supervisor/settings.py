"""Settings of `rlweave up`: section `[supervisor]` of the run file."""

from __future__ import annotations

from pydantic import Field

from pipeline.settings import PositiveInt, Seconds, Section


class SupervisorSettings(Section):
    """`[supervisor]`."""

    restart_backoff_s: Seconds = Field(default=0.5, description="Wait before the first restart; doubles with each.")
    max_backoff_s: Seconds = Field(default=20.0, description="Longest wait before a restart.")
    healthy_s: Seconds = Field(default=60.0, description="A life this long resets the wait and the count.")
    max_restarts: PositiveInt = Field(
        default=8, description="Restarts in a row, without a healthy life between, after which the run ends."
    )
    unit_grace_s: Seconds = Field(
        default=10.0,
        description="Time the other ranks of a learner have to end by themselves when one has ended; then they are "
        "killed, and all start again together.",
    )
    retire_s: Seconds = Field(
        default=60.0,
        description="Time a process that is one too many has to finish what it took; then it is stopped, and what is "
        "left of its work goes to others.",
    )
    change_ranks_s: Seconds = Field(
        default=600.0,
        description="Time a learner whose number of ranks changes has to leave: the step in progress and a checkpoint; "
        "then it is killed, and starts from its newest checkpoint.",
    )
    drain_s: Seconds = Field(
        default=30.0, description="Longest wait for rewards and evaluations once the learner is done."
    )
