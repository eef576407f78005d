"""The workloads of `bench schedule`: files beside this package, service times in model seconds.

Role: what the simulator and the scripted stages have in common.
Data in: `ops/bench/workloads/NAME.toml`. Data out: `Workload`.
Invariants: the length of a response depends on its group and member only, so every policy gets the same ones.
Failure: `SettingsError` for a file that is not as it should be.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files

import numpy as np

from schemas.errors import SettingsError

_SEED = 20_26
_FOLDER = "ops.bench.workloads"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """See the comments in the files."""

    name: str
    slots: int
    switch_s: float
    phase_switch_s: float
    sequences_per_slot: int
    tokens_s: float
    late_tokens_s: float
    median_tokens: float
    sigma: float
    max_tokens: int
    groups_per_step: int
    group_size: int
    max_staleness: int
    token_s: float
    fixed_s: float
    link_bytes_s: float
    publish_bytes: float
    checkpoint_bytes: float
    checkpoint_every: int

    def lengths(self, group: int) -> tuple[int, ...]:
        """Tokens of each member's response."""
        return _lengths(self, group)

    def tokens_per_s(self, *, step: int, num_steps: int) -> float:
        """Tokens of one sequence per second while the learner has come to `step` of `num_steps`."""
        return self.late_tokens_s if step >= num_steps // 2 else self.tokens_s

    def training_s(self, num_tokens: float, *, ranks: int) -> float:
        """The part of a step that ranks divide."""
        return self.token_s * num_tokens / ranks


def load_workload(name: str) -> Workload:
    """A workload by name.

    Raises:
        SettingsError: there is none, or its file has other fields than it should.
    """
    file = files(_FOLDER) / f"{name}.toml"
    if not file.is_file():
        raise SettingsError(f"there is no workload {name!r}", hint="see ops/bench/workloads/")
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    wanted = {field.name for field in fields(Workload)}
    if found.keys() != wanted:
        raise SettingsError(
            f"workload {name!r} has fields {sorted(found)}, needed are {sorted(wanted)}",
            hint="compare it with another file of ops/bench/workloads/",
        )
    return Workload(**found)


@lru_cache(maxsize=100_000)
def _lengths(workload: Workload, group: int) -> tuple[int, ...]:
    rng = np.random.default_rng((_SEED, group))
    drawn = rng.lognormal(np.log(workload.median_tokens), workload.sigma, workload.group_size)
    return tuple(int(tokens) for tokens in np.clip(np.rint(drawn), 1, workload.max_tokens))
