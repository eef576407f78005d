"""Where a run in phases is: `phases.json` in its folder.

Role: what `ops.phases` keeps between starts.
Data in and out: one `PhaseProgress` per phase that was begun, in their order.
Invariants: the file is written whole or not at all; a phase that is noted as over stays so. What a later release added
is passed over.
Failure: `SettingsError` for a file that cannot be read or written, or that other phases left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from ops.outputs import writing
from ops.phase_settings import PhaseSettings, StopRule
from schemas.errors import SettingsError
from schemas.records import StageEvent

BOOK_FILE = "phases.json"


@dataclass(kw_only=True)
class PhaseProgress:
    """What is known of one phase; kept in `phases.json`."""

    name: str
    first_step: int = 0  # done when it began
    sealed_lineage: int = 0  # of the seal of the phase before; a later one is our own
    first_group: int = 0  # groups that were admitted before it began
    last_step: int | None = None  # done when it was over; None: it is not
    last_lineage: int = 0  # of the seal it ended with
    num_groups: int = 0  # of that seal: all that were admitted until then
    reason: str = ""  # why it was over
    closing_at: int | None = None  # a rule was met at this step: only the sealing is left
    time_s: float = 0.0  # at work
    tokens: dict[str, int] = field(default_factory=dict)  # trained, by step
    rewards: dict[str, float] = field(default_factory=dict)  # mean of the trained samples, by step

    def add(self, event: StageEvent, *, keep_rewards: int) -> None:
        """Take in a step of the learner; one that was made again after a death replaces the first."""
        if event.stage != "learner" or event.kind != "notice" or event.name != "step":
            return
        step, tokens = event.gauges.get("step"), event.gauges.get("num_tokens")
        reward = event.gauges.get("reward_seen_mean", event.gauges.get("reward_mean"))
        if step is None or not math.isfinite(step) or step <= self.first_step:
            return
        number = int(step)
        for kept in (self.tokens, self.rewards):
            for later in [each for each in kept if int(each) >= number]:
                del kept[later]
        if tokens is not None and math.isfinite(tokens):
            self.tokens[str(number)] = int(tokens)
        if reward is not None and math.isfinite(reward):
            self.rewards[str(number)] = reward
            for old in sorted(self.rewards, key=int)[:-keep_rewards]:
                del self.rewards[old]

    def met(self, rule: StopRule) -> str:
        """Which rule is met, for people; empty: none. `steps` is the learner's own matter."""
        if rule.reward is not None and len(self.rewards) >= rule.reward_steps:
            last = [self.rewards[each] for each in sorted(self.rewards, key=int)[-rule.reward_steps :]]
            mean = math.fsum(last) / len(last)
            if mean >= rule.reward:
                return f"reward {mean:.3f} over {rule.reward_steps} steps reached {rule.reward:g}"
        if rule.tokens is not None and sum(self.tokens.values()) >= rule.tokens:
            return f"{sum(self.tokens.values())} tokens were trained on, of {rule.tokens}"
        if rule.time_s is not None and self.time_s >= rule.time_s:
            return f"{self.time_s:.0f} s have passed, of {rule.time_s:g}"
        return ""


class PhaseBook:
    """`phases.json`: written whole or not at all."""

    def __init__(self, folder: Path, phases: Sequence[PhaseSettings]) -> None:
        """Read it; phases that are not in it have not begun.

        Raises:
            SettingsError: it is damaged, or phases that are over are not those of the run file.
        """
        self._path = folder / BOOK_FILE
        self._phases = list(phases)
        self.progress = self._read()
        names = [each.name for each in self.progress]
        if names != [phase.name for phase in phases][: len(names)]:
            raise SettingsError(
                f"{self._path} has the phases {', '.join(names)}; the run file begins with others",
                hint="phases that were begun keep their names and order; add further ones after them",
            )

    @property
    def current(self) -> tuple[PhaseSettings, PhaseProgress] | None:
        """The phase to run, begun if it was not; None: all are over."""
        for number, phase in enumerate(self._phases):
            if number == len(self.progress):
                self.progress.append(_after(self.progress[-1] if self.progress else None, name=phase.name))
            if self.progress[number].last_step is None:
                return phase, self.progress[number]
        return None

    def save(self) -> None:
        """Write it.

        Raises:
            SettingsError: the folder cannot be written.
        """
        with writing(self._path, setting="run.dir"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside = self._path.with_name(f".{self._path.name}.tmp")
            aside.write_bytes(orjson.dumps([asdict(each) for each in self.progress], option=orjson.OPT_INDENT_2))
            aside.replace(self._path)

    def _read(self) -> list[PhaseProgress]:
        if not self._path.exists():
            return []
        try:
            return TypeAdapter(list[PhaseProgress]).validate_json(self._path.read_bytes(), strict=True)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"{self._path} cannot be read: {error}", hint="remove it: phases are then counted by steps from 0"
            ) from error


def _after(before: PhaseProgress | None, *, name: str) -> PhaseProgress:
    """A phase that begins."""
    if before is None or before.last_step is None:
        return PhaseProgress(name=name)
    return PhaseProgress(
        name=name, first_step=before.last_step, sealed_lineage=before.last_lineage, first_group=before.num_groups
    )
