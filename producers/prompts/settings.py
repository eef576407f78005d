"""Settings of the prompt producer: section `[prompts]` of the run file."""

from __future__ import annotations

from pydantic import Field

from pipeline.sampling_settings import SamplingSection
from pipeline.settings import PositiveInt, Seconds
from pipeline.sources import SourceSettings


class PromptsSettings(SamplingSection):
    """`[prompts]`."""

    source: SourceSettings = Field(description="Where prompts come from.")
    batch_groups: PositiveInt = Field(default=64, description="Most groups written in one transaction.")
    transaction_limit_s: Seconds = Field(default=30.0, description="Longest time for one transaction.")
