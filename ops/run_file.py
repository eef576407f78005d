"""The run file: one TOML file that describes a run, composed of each stage's own settings.

Role: read, override, validate; the result is frozen and every process of the run reads the same.
Data in: TOML text and `section.key=value` overrides. Data out: `RunFile`.
Invariants: unknown keys are errors; paths are relative to the working directory.
Failure: `SettingsError` with the path of the setting, the value seen and what is allowed, all findings at once.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Self, TypeAlias, get_args, get_origin

import orjson
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from consumers.evaluator.settings import EvaluationSettings, EvaluatorSettings
from consumers.learner.settings import LearnerSettings
from consumers.reference.settings import ReferenceSettings
from consumers.rewards.settings import RewardSettings
from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.topology import TopologySettings
from ops.phase_settings import PhaseSettings
from ops.supervisor.settings import SupervisorSettings
from pipeline.environments.settings import EnvironmentSettings
from pipeline.logs import LogSettings
from pipeline.reward_rule import RewardTerm
from pipeline.secrets import shown
from pipeline.settings import (
    KafkaSettings,
    ModelSettings,
    RedisSettings,
    RunSettings,
    Section,
    WeightsSettings,
)
from pipeline.traffic.settings import TrafficSettings
from producers.prompts.settings import PromptsSettings
from producers.rollout.settings import RolloutSettings
from schemas.errors import SettingsError

Toml: TypeAlias = "dict[str, Toml] | list[Toml] | str | int | float | bool"


class RunFile(Section):
    """All sections of a run file."""

    run: RunSettings = Field(description="What the run is.")
    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="The broker.")
    redis: RedisSettings = Field(default_factory=RedisSettings, description="Leases, peer directory, hints.")
    model: ModelSettings = Field(description="The policy.")
    weights: WeightsSettings = Field(default_factory=WeightsSettings, description="How versions travel.")
    prompts: PromptsSettings = Field(description="The prompt producer.")
    rollout: RolloutSettings = Field(default_factory=RolloutSettings, description="Rollout producers.")
    environment: EnvironmentSettings | None = Field(
        default=None, description="What the policy acts in; absent: a completion is one turn."
    )
    rewards: dict[str, RewardSettings] = Field(description="Reward consumers by reward name.")
    reference: ReferenceSettings | None = Field(
        default=None, description="The reference model; absent: no sample is scored by one."
    )
    learner: LearnerSettings = Field(default_factory=LearnerSettings, description="The learner.")
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings, description="The scheduler.")
    evaluator: EvaluatorSettings = Field(default_factory=EvaluatorSettings, description="The evaluator.")
    evaluation: dict[str, EvaluationSettings] = Field(
        default_factory=dict, description="Evaluation sets by name; none: there is no evaluator."
    )
    topology: TopologySettings = Field(default_factory=TopologySettings, description="Domains, for several hosts.")
    traffic: TrafficSettings = Field(default_factory=TrafficSettings, description="What a host may send.")
    phases: tuple[PhaseSettings, ...] = Field(
        default=(), description="A sequence of phases with other settings each; none: the run is one phase."
    )
    logs: LogSettings = Field(default_factory=LogSettings, description="What processes say on stderr.")
    supervisor: SupervisorSettings = Field(default_factory=SupervisorSettings, description="`rlweave up`.")

    @field_validator("rewards", "evaluation")
    @classmethod
    def _names_are_plain(cls, value: dict[str, Section]) -> dict[str, Section]:
        for name in value:
            if not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"name {name!r} may hold letters, digits, '-' and '_' only")
        return value

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        if self.learner.loss.reference_kl > 0 and self.reference is None:
            raise ValueError("learner.loss.reference_kl is above 0, and no section [reference] says who scores samples")
        if self.learner.compute_dtype == "bfloat16" and "float32" != self.model.dtype != self.weights.wire_dtype:
            raise ValueError(
                f'learner.compute_dtype = "bfloat16" keeps weights in float32, and engines hold {self.model.dtype}: '
                f'set weights.wire_dtype = "{self.model.dtype}", or model.dtype = "float32"'
            )
        return self

    @property
    def reward_terms(self) -> dict[str, RewardTerm]:
        """What every reward is to the training signal, by name; shadows are left out."""
        return {name: reward.term for name, reward in sorted(self.rewards.items()) if not reward.is_shadow}

    @property
    def required_rewards(self) -> dict[str, float]:
        """Weight of every reward without which no sample is trained, by name."""
        return {name: term.weight for name, term in self.reward_terms.items() if term.required}


def load_run_file(path: Path, *, overrides: Sequence[str] = ()) -> RunFile:
    """Read a run file.

    Args:
        overrides: `section.key=value`; the value is TOML, or taken as text where it is none.

    Raises:
        SettingsError: the file is absent or not TOML, or settings are wrong.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"run file {path} cannot be read: {error.strerror}", hint=f"relative paths start at {Path.cwd()}"
        ) from error
    try:
        values: dict[str, Toml] = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number or a nesting beyond all bounds
        raise SettingsError(f"run file {path} is not TOML: {error}") from error
    for override in overrides:
        _apply(values, override)
    return parse_run_file(values, origin=str(path))


def parse_run_file(values: Mapping[str, Toml], *, origin: str) -> RunFile:
    """Validate plain values.

    Raises:
        SettingsError: naming every wrong setting.
    """
    try:
        found = RunFile.model_validate(values)
    except ValidationError as error:
        lines = [_finding(dict(entry)) for entry in error.errors(include_url=False)]
        raise _wrong(lines, origin=origin) from error
    if lines := list(_not_in_json(found.model_dump(mode="json"))):
        raise _wrong(lines, origin=origin)
    return found


def _wrong(lines: Sequence[str], *, origin: str) -> SettingsError:
    return SettingsError(f"{origin}: {len(lines)} setting(s) are wrong:\n  " + "\n  ".join(lines))


def _not_in_json(value: object, *, place: str = "") -> Iterator[str]:
    """Numbers that settings.json, in which settings reach the stages, cannot hold."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _not_in_json(one, place=f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _not_in_json(one, place=f"{place}.{number}")
    elif (isinstance(value, int) and not -(2**63) <= value < 2**64) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        yield f"{place} = {shown(value)}: a whole number is of 64 bits, any other is finite"


def save_run_file(run_file: RunFile, path: Path) -> None:
    """Write the settings in use as JSON, whole or not at all, for its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # two parts of a run may begin together
    aside.unlink(missing_ok=True)
    aside.touch(mode=0o600)
    aside.write_bytes(orjson.dumps(run_file.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
    aside.replace(path)


def load_saved(path: Path, *, overrides: Sequence[str] = ()) -> RunFile:
    """Read what `save_run_file` wrote.

    Args:
        overrides: as of `load_run_file`.

    Raises:
        SettingsError: absent, or written by another version; overrides are wrong.
    """
    try:
        values = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise SettingsError(
            f"settings of the run in {path} cannot be read: {error}",
            hint="`rlweave runs list` shows the runs here; one that is just starting has them a moment later",
        ) from error
    for override in overrides:
        _apply(values, override)
    return parse_run_file(values, origin=str(path))


def parse_override(override: str) -> tuple[str, Toml]:
    """Name and value of `section.key=value`; the value is TOML, or taken as text where it is none.

    Raises:
        SettingsError: it is not of that form.
    """
    path, found, text = override.partition("=")
    if not found or not all(path.strip().split(".")):
        raise SettingsError(f"override {path!r} is not of the form section.key=value")
    return path.strip(), _value(text.strip())


def _apply(values: dict[str, Toml], override: str) -> None:
    path, value = parse_override(override)
    keys = path.split(".")
    node = values
    for key in keys[:-1]:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise SettingsError(f"override of {path!r}: {key!r} is a value, not a section")
        node = child
    node[keys[-1]] = value


def _value(text: str) -> Toml:
    try:
        value: Toml = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    return value


def _finding(entry: Mapping[str, object]) -> str:
    location = entry.get("loc")
    path = ".".join(str(part) for part in location) if isinstance(location, tuple) else str(location)
    seen = entry.get("input")
    if entry.get("type") == "extra_forbidden":
        return f"{path}: there is no such setting{_similar(str(path))}"
    hidden = entry.get("type") == "missing" or isinstance(seen, (dict, list))
    return f"{path}: {entry.get('msg')}" + ("" if hidden else f" (seen: {shown(seen, name=path)})")


def _similar(path: str) -> str:
    """Settings whose last word is like that of `path`, by their full names; those of the same section first."""
    by_word: dict[str, list[str]] = {}
    for each in _setting_paths(RunFile):
        by_word.setdefault(each.rpartition(".")[2], []).append(each)
    section, _, word = path.rpartition(".")
    near = [each for like in get_close_matches(word, sorted(by_word), n=3) for each in by_word[like]]
    own = [each for each in near if _is_section(each.rpartition(".")[0], section)]
    found = own if own else near[:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _is_section(written: str, section: str) -> bool:
    """Whether a section is the one that is written so, with NAME for any name."""
    words, seen = written.split("."), section.split(".")
    return len(words) == len(seen) and all(word in ("NAME", each) for word, each in zip(words, seen, strict=True))


def _setting_paths(section: type[BaseModel], *, within: str = "") -> Iterator[str]:
    """Settings of a section and of those inside it, as they are written; names of a user's own stand as NAME."""
    for name, field in section.model_fields.items():
        yield f"{within}{name}"
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                own = "NAME." if get_origin(field.annotation) is dict else ""
                yield from _setting_paths(kind, within=f"{within}{name}.{own}")
