"""Settings of the rollout producer: section `[rollout]` of the run file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.engines.http.settings import HttpSettings
from pipeline.engines.vllm.settings import VllmSettings
from pipeline.settings import PositiveInt, Replicated, Seconds, Section


class PressureSettings(Section):
    """`[rollout.pressure]`: how admission follows an engine's pressure."""

    start_sequences: PositiveInt = Field(default=64, description="Sequences to begin with.")
    kv_high_share: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Use of the KV cache at which fewer are admitted; growth stays below it.",
    )
    trim: float = Field(
        default=0.9, gt=0, lt=1, description="Part of the sequences in the engine's batch that is kept when it hurts."
    )
    look_s: Seconds = Field(default=1.0, description="Time between two looks at the engine; a step takes three.")
    max_age_s: Seconds = Field(default=5.0, description="Age from which on what the engine said changes nothing.")
    probe_s: Seconds = Field(
        default=15.0, description="Rest after fewer were admitted, or after more of them brought nothing."
    )


class RolloutSettings(Replicated):
    """`[rollout]`."""

    engine: str = Field(
        default="torch",
        description="torch, vllm, http, an entry point of group rlweave.engines, module:attr or file.py:attr; "
        "scripted: tests.",
    )
    max_sequences: PositiveInt = Field(default=512, description="Sequences the engine holds at once.")
    admission: Literal["fixed", "pressure"] = Field(
        default="fixed",
        description="Sequences kept in the engine: max_sequences, or up to that as many as its KV cache, queue and "
        "tokens per second allow.",
    )
    pressure: PressureSettings = Field(
        default_factory=PressureSettings, description="How admission follows an engine's pressure."
    )
    max_prompts_in_flight: PositiveInt = Field(
        default=256, description="Prompts taken and not finished; what a killed process gives back."
    )
    threads: PositiveInt = Field(default=1, description="Threads of the engine's computation.")
    vllm: VllmSettings = Field(default_factory=VllmSettings, description="How engine vllm is run.")
    http: HttpSettings = Field(default_factory=HttpSettings, description="Which servers engine http asks, and how.")
    session_timeout_s: Seconds = Field(
        default=10.0, description="Time after which the prompts of a silent process go to others."
    )
    scheduler_silence_s: Seconds = Field(
        default=5.0, description="Time without a word of the scheduler after which weights are fetched unasked."
    )
    stagger_s: Seconds = Field(
        default=0.5, description="An engine that fetches unasked first waits for a random part of this."
    )
    acknowledge_s: Seconds = Field(
        default=0.2, description="Longest time between a written group and its prompt's acknowledgement."
    )
    stuck_after_s: Seconds = Field(
        default=900.0, description="Time after which a prompt that was taken and not finished is named in an event."
    )
    hand_over_s: float = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="Time a process that retires works on; groups not finished by then go on in other engines.",
    )
    lend_limit_s: Seconds = Field(
        default=120.0,
        description="Longest wait for a group that another engine went on with; then it goes on where it came from.",
    )
    partials_max_bytes: PositiveInt = Field(
        default=256 * 2**20, description="Memory for what engines made of the groups that they gave up."
    )
    flush_limit_s: Seconds = Field(default=30.0, description="Longest wait for the broker to confirm samples.")
    fetch_retry_s: Seconds = Field(
        default=0.5, description="Pause after a failed fetch or load; doubles each time, up to 20 times as long."
    )
    max_engine_failures: PositiveInt = Field(
        default=3, description="Failures in a row, without a finished sequence, after which the process ends."
    )
