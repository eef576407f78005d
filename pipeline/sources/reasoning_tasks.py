"""reasoning-gym tasks as rows.

Role: the adapter over the untyped library reasoning-gym (https://github.com/open-thought/reasoning-gym).
Data in: a task name and its config; data out: rows with `question`, `answer`, `task` and `entry`, the whole entry as
JSON, which the task's own scorer needs.
Invariants: the library is imported when a source is opened, not before.
Failure: `SettingsError` for an unknown task, with close matches, and for a config the task refuses.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Protocol, cast

from pipeline.sources.base import Row
from pipeline.sources.reasoning_library import reasoning_library
from pipeline.sources.shaping import invalid
from schemas.errors import SettingsError

_MATCHES_SHOWN = 5


class _Dataset(Protocol):
    def __getitem__(self, index: int) -> Mapping[str, object]: ...


class _Library(Protocol):
    DATASETS: Mapping[str, object]

    def create_dataset(self, name: str, **config: object) -> _Dataset: ...


class TaskRows:
    """See `base.Rows`.

    Raises:
        SettingsError: see the module.
    """

    def __init__(self, task: str, *, config: Mapping[str, object], size: int, seed: int) -> None:
        self._task = task
        self._size = size
        self._seed = seed
        self._dataset = _open(task, config={**config, "size": size, "seed": seed})

    @property
    def name(self) -> str:
        """Kind, task, size and seed."""
        return f"reasoning_gym:{self._task}:{self._size}:{self._seed}"

    @property
    def num_rows(self) -> int | None:
        """Entries in one epoch."""
        return self._size

    def row(self, index: int) -> Row:
        """One entry."""
        entry = self._dataset[index]
        if not isinstance(entry.get("question"), str):
            raise invalid(f"entry {index} of task {self._task} has no text question")
        return {"question": entry["question"], "answer": entry.get("answer"), "task": self._task, "entry": entry}


def _open(task: str, *, config: Mapping[str, object]) -> _Dataset:
    library = _library()
    known = sorted(library.DATASETS)
    if task not in known:
        close = difflib.get_close_matches(task, known, n=_MATCHES_SHOWN, cutoff=0.5)
        raise SettingsError(
            f"reasoning-gym has no task {task!r}",
            hint=f"close matches: {', '.join(close)}" if close else f"the tasks are: {', '.join(known)}",
        )
    try:
        return library.create_dataset(task, **config)
    except (TypeError, ValueError, AssertionError) as error:
        raise SettingsError(
            f"task {task!r} refuses the config {dict(config)}: {error}", hint="see the task's configuration class"
        ) from error


def _library() -> _Library:
    try:
        return cast("_Library", reasoning_library())
    except ImportError as error:
        raise SettingsError(
            f"source kind reasoning_gym needs the package reasoning-gym: {error}", hint="install rlweave[tasks]"
        ) from error
