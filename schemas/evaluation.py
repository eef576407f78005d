"""What an evaluator says of one policy version on one evaluation set.

Invariants: as of `schemas.records`, which lists this record with all others; a completion that could not be scored has
a failure and no value, and is in no mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.versions import Version


@dataclass(frozen=True, kw_only=True)
class EvaluatedItem:
    """One completion of one prompt of the set: a value, or the reason why there is none; exactly one of the two."""

    index: int  # of the prompt, from 0
    member: int  # of the prompt's completions, from 0
    value: float | None = None
    failure: str | None = None
    num_tokens: int = 0  # of the completion
    text: str = ""  # of the completion; empty where texts are not kept


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A whole pass over a set. A version that was evaluated twice (a restart) has two alike; the first one counts."""

    run: str
    name: str  # of the set, unique in the run
    version: Version
    settings_digest: str  # blake3 of the set's settings and its source's name: others make another curve
    mean: float | None = None  # of the scored completions; None: none was scored
    best_mean: float | None = None  # of the best completion of each prompt (pass@k where values are 0 and 1)
    num_prompts: int
    num_scored: int  # completions with a value
    num_failed: int  # completions without one
    mean_tokens: float  # of a completion
    items: tuple[EvaluatedItem, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # engine, plug-in, its version; for people
    began_unix_ms: int
    ended_unix_ms: int
    duration_s: float  # of the local monotonic clock, from the loaded weights to the last verdict
    producer: str  # instance that evaluated
