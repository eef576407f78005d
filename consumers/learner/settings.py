"""Settings of the learner: section `[learner]` of the run file."""

from __future__ import annotations

from pydantic import Field

from pipeline.settings import PositiveInt, Seconds, Section


class LearnerSettings(Section):
    """`[learner]`."""

    buffer_bytes: PositiveInt = Field(
        default=2 * 1024**3,
        description="Encoded bytes of open groups held in memory; above it the samples partitions are paused.",
    )
    silent_notice_s: Seconds = Field(
        default=60.0, description="Time without progress after which a notice names the silent stage (T1)."
    )
    silent_end_s: Seconds = Field(
        default=600.0, description="Time without progress after which the run ends, naming the silent stage (T2)."
    )
