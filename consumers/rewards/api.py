"""What a reward plug-in imports.

Role: the whole interface between rlweave and a scorer. A scorer is one of

- a function `score(sample) -> float`, sync or async; its keyword-only parameters are options of the run file;
- a class, made with those options, with `score(sample)` or `score_batch(samples)`, sync or async, and if it likes the
  attributes `name`, `version` and `max_workers` (most processes to load it in), and, if async, `aclose`;
- a function without positional parameters that takes the options and returns one of the two.

`score_batch` returns one entry per sample: a number, or an exception in its place, which is a failure of that sample.

Invariants: importing this module loads the standard library and `schemas` only.
Failure: an exception is never a reward: the sample gets a failure with the class of the error, and the next one is
scored. `Transient`, and what the system says of broken connections and time-outs, is tried again first.
"""

from __future__ import annotations

import json
from typing import cast

from schemas.records import Sample

__all__ = ["Sample", "Transient", "answer", "completion_text", "metadata", "metadata_json"]


class Transient(Exception):
    """Raise this when another try may succeed."""


def completion_text(sample: Sample) -> str:
    """What the policy wrote, without white space around it."""
    return sample.completion_text.strip()


def answer(sample: Sample) -> str:
    """The reference answer, without white space around it.

    Raises:
        ValueError: the prompt came without one.
    """
    if sample.answer is None:
        raise ValueError("the prompt has no reference answer")
    return sample.answer.strip()


def metadata(sample: Sample, key: str) -> str:
    """One value of the task's metadata.

    Raises:
        KeyError: the task has no such key; the message names those it has.
    """
    if key not in sample.metadata:
        raise KeyError(f"no task metadata {key!r}; there is: {', '.join(sorted(sample.metadata)) or 'none'}")
    return sample.metadata[key]


def metadata_json(sample: Sample, key: str) -> object:
    """One structured value of the task's metadata; it travels as JSON text.

    Raises:
        KeyError: as `metadata`.
        ValueError: the value is not JSON.
    """
    return cast("object", json.loads(metadata(sample, key)))
