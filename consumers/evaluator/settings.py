"""Settings of the evaluator: sections `[evaluator]` and `[evaluation.NAME]` of the run file."""

from __future__ import annotations

from blake3 import blake3
from pydantic import Field

from consumers.rewards.settings import OptionValue, RewardSettings
from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.environments.settings import EnvironmentSettings
from pipeline.sampling_settings import SamplingSection
from pipeline.settings import PositiveInt, Seconds, Section
from pipeline.sources import SourceSettings


class EvaluationSettings(SamplingSection):
    """`[evaluation.NAME]`: one evaluation set."""

    source: SourceSettings = Field(description="Where its prompts come from; the first num_prompts are taken.")
    plugin: str = Field(description="What scores completions: a reward plug-in, as in rewards.NAME.plugin.")
    options: dict[str, OptionValue] = Field(default_factory=dict, description="Keyword arguments for the plug-in.")
    timeout_s: Seconds = Field(default=120.0, description="Longest time of a call of the plug-in.")
    num_workers: PositiveInt = Field(default=2, description="Processes or threads that score.")
    environment: EnvironmentSettings | None = Field(
        default=None,
        description="What the policy acts in, as [environment]; then max_tokens is of one turn. Absent: a completion "
        "is one turn.",
    )
    every_steps: PositiveInt = Field(
        default=10, description="Versions whose step is a multiple of this are evaluated, and the first and the last."
    )
    num_prompts: PositiveInt = Field(default=64, description="Prompts of the source that are asked, from its start.")
    samples_per_prompt: PositiveInt = Field(default=1, description="Completions of each prompt.")
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="0: greedy.")
    seed: int = Field(default=0, ge=0, description="Of the draws; the same for every version.")
    keep_texts: int = Field(default=20, ge=0, description="Completions whose text is kept on the topic.")

    @property
    def scoring(self) -> RewardSettings:
        """The plug-in as a reward of its own, which no training signal knows."""
        return RewardSettings(
            plugin=self.plugin,
            weight=0.0,
            options=self.options,
            timeout_s=self.timeout_s,
            num_workers=self.num_workers,
            retries=2,
            breaker_failures=1.0,
            breaker_window=2**31,  # a set is finite: a broken scorer fails it and holds up nobody
        )

    def digest(self, *, source_name: str) -> str:
        """What makes two evaluations comparable: everything but how often, and how much is kept."""
        left_out = {"every_steps", "keep_texts", "timeout_s", "num_workers"}
        if self.environment is None:  # a set of one turn is the same as before there were others
            left_out.add("environment")
        own = self.model_dump_json(exclude=left_out)
        return blake3(f"{own}/{source_name}".encode()).hexdigest()


class EvaluatorSettings(Section):
    """`[evaluator]`: the process that evaluates, with an engine of its own."""

    engine: str = Field(default="torch", description="As rollout.engine.")
    device: str | None = Field(default=None, description="torch device of its engine; absent: model.device.")
    max_sequences: PositiveInt = Field(default=64, description="Sequences its engine holds at once.")
    threads: PositiveInt = Field(default=1, description="Threads of the engine's computation.")
    vllm: VllmSettings = Field(default_factory=VllmSettings, description="How engine vllm is run.")
    http: HttpSettings = Field(default_factory=HttpSettings, description="Which server engine http asks, and how.")
    yields: bool = Field(
        default=True,
        description="Evaluation waits for rollouts: the process runs at low priority, and begins no sequence while "
        "requests wait in its engine.",
    )
    niceness: int = Field(
        default=10, ge=0, le=19, description="Priority of the process while it yields, as of the command nice."
    )
    fetch_retry_s: Seconds = Field(default=2.0, description="Pause after a version could not be fetched or loaded.")
