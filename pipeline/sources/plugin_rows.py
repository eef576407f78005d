"""A plug-in as rows.

Role: lets a user bring prompts from anywhere in a few lines.
Data in: a callable that gets `seed` and the config and gives a sequence of objects, or such a sequence itself; without
`__len__` it counts as endless.
Data out: rows of the same form as the lines of a JSONL file.
Failure: `PluginError` when the plug-in has another form; `RecordInvalid` for a row that is no object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from pipeline.plugins import load_plugin
from pipeline.sources.base import Row
from pipeline.sources.shaping import invalid
from schemas.errors import PluginError, SettingsError

GROUP = "rlweave.sources"


@runtime_checkable
class _Indexed(Protocol):
    def __getitem__(self, index: int, /) -> object: ...


class PluginRows:
    """See `base.Rows`.

    Raises:
        PluginError: nothing of that name, or not of the form the module describes.
        SettingsError: it has no row.
    """

    def __init__(self, spec: str, *, config: Mapping[str, object], seed: int) -> None:
        found = load_plugin(spec, group=GROUP, builtins={})
        self._spec = spec
        self._rows = _called(found, spec=spec, config={**config, "seed": seed}) if callable(found) else found
        if not isinstance(self._rows, _Indexed) or isinstance(self._rows, Mapping | str | bytes):
            raise PluginError(
                f"plug-in {spec!r} gave a {type(self._rows).__name__}, which has no rows",
                hint="give a list of objects, or an object with __getitem__(index) and, if it ends, __len__",
            )
        if self.num_rows == 0:
            raise SettingsError(f"plug-in {spec!r} has no rows")

    @property
    def name(self) -> str:
        """Kind, spec and number of rows."""
        return f"plugin:{self._spec}:{self.num_rows if self.num_rows is not None else 'endless'}"

    @property
    def num_rows(self) -> int | None:
        """Length of the sequence; None without one."""
        length = getattr(self._rows, "__len__", None)
        return None if length is None else int(length())

    def row(self, index: int) -> Row:
        """One row."""
        row = self._rows[index]  # type: ignore[index]  # checked in __init__
        if not isinstance(row, Mapping):
            raise invalid(f"row {index} of plug-in {self._spec!r} is a {type(row).__name__}, not an object")
        return row


def _called(found: object, *, spec: str, config: Mapping[str, object]) -> object:
    if not callable(found):
        return found
    try:
        rows: object = found(**config)
    except TypeError as error:
        raise PluginError(
            f"plug-in {spec!r} cannot be called with {sorted(config)}: {error}",
            hint="it gets `seed` and the keys of `config` as keyword arguments",
        ) from error
    return rows
