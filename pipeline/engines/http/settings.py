"""Settings of the HTTP engine: section `[rollout.http]`. No torch and no HTTP library here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from pipeline.settings import PositiveInt, Seconds, Section


class HttpSettings(Section):
    """`[rollout.http]`: which server generates, and how it is asked."""

    base_urls: tuple[str, ...] = Field(
        default=(),
        description="Servers, as http://host:port; rollout process n uses number n, so one for each replica.",
    )
    kind: Literal["auto", "vllm", "sglang", "trtllm", "openai"] = Field(
        default="auto", description="What the servers are; auto: as their list of models says."
    )
    model: str | None = Field(default=None, description="Model name at the server; absent: the only one it lists.")
    api_key_env: str | None = Field(default=None, description="Environment variable that holds the API key.")
    api_key_file: Path | None = Field(default=None, description="File that holds the API key.")
    ca_file: Path | None = Field(default=None, description="PEM certificates that https servers are checked against.")
    update: Literal["auto", "plugin", "disk", "none"] = Field(
        default="auto",
        description="How weights get into the server: by our transfer plug-in in a vLLM on this host, by a folder that "
        "it reads, or not at all; auto: disk with update_dir, else plugin for vllm, none for trtllm and openai.",
    )
    update_dir: Path | None = Field(
        default=None, description="Folder for weights that server and rollout process see under the same path."
    )
    on_swap: Literal["auto", "keep", "recompute", "abort", "drain"] = Field(
        default="auto",
        description="Requests in flight at a swap: keep their cache, compute it again, end, or finish first; auto: "
        "keep where the server says which weights made each token, else drain.",
    )
    logprobs: Literal["auto", "raw", "tempered", "processed"] = Field(
        default="auto",
        description="What the server's log-probabilities are of: the model's softmax, after temperature, or after "
        "temperature, top-k and top-p; auto: found out at the start.",
    )
    probe: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Compare log-probabilities of fixed prompts with the published weights after each update; auto: "
        "unless the server's plug-in has compared the weights themselves.",
    )
    probe_tolerance: float | None = Field(
        default=None, gt=0, description="Largest mean difference of a probe, in nats; absent: by dtype, 0.001 or 0.05."
    )
    yields: Literal["nobody", "evaluation", "rollout"] = Field(
        default="nobody",
        description="Whose requests wait when a server is shared by rollouts and the evaluator; set the same for both. "
        "The server must schedule by priority (vLLM: --scheduling-policy priority).",
    )
    max_requests: PositiveInt = Field(default=256, description="Requests at the server at a time.")
    max_context_tokens: int | None = Field(
        default=None, ge=2, description="Most tokens of prompt and completion; absent: what model and server allow."
    )
    max_answer_bytes: PositiveInt = Field(default=64 * 2**20, description="Longest answer that is read.")
    max_failures_in_row: PositiveInt = Field(
        default=64, description="Failed sequences in a row after which the server is taken for broken."
    )
    request_limit_s: Seconds = Field(default=600.0, description="Longest wait for one sequence.")
    busy_limit_s: Seconds = Field(
        default=30.0, description="Time for which a request is tried again while the server says that it is busy."
    )
    control_limit_s: Seconds = Field(default=10.0, description="Longest wait for an answer other than a sequence.")
    health_every_s: Seconds = Field(default=2.0, description="Time between looks at the server while it generates.")
    silence_limit_s: Seconds = Field(
        default=15.0, description="Time without a healthy answer after which the server counts as dead."
    )
    start_limit_s: Seconds = Field(default=300.0, description="Longest wait for the server at the start.")
    pause_lease_s: Seconds = Field(
        default=60.0, description="Longest pause of a swap; after it generation resumes, or the engine is quarantined."
    )
    drain_limit_s: Seconds = Field(
        default=30.0, description="With drain: time to finish before a swap; what has not is ended."
    )
    step_wait_s: Seconds = Field(default=0.02, description="Longest wait of one step for a finished sequence.")

    @field_validator("base_urls")
    @classmethod
    def _urls_are_plain(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_plain(url) for url in value)


def _plain(url: str) -> str:
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL with a password would end up in logs; use api_key_env or api_key_file")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is not of the form http://host:port or https://host:port")
    return url.rstrip("/").removesuffix("/v1")
