"""Hypothesis strategies for records, from the types of their fields."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping

from hypothesis import strategies as st

_LONG = st.integers(-(2**63), 2**63 - 1)
_PLAIN: dict[object, st.SearchStrategy[object]] = {
    int: _LONG,
    str: st.text(st.characters(codec="utf-8"), max_size=20),
    bytes: st.binary(max_size=40),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
}


def records_of(record_type: type) -> st.SearchStrategy[object]:
    """Any instance of a record type, whatever its content means."""
    hints = typing.get_type_hints(record_type)
    assert dataclasses.is_dataclass(record_type)
    return st.builds(record_type, **{field.name: _of(hints[field.name]) for field in dataclasses.fields(record_type)})


def _of(hint: object) -> st.SearchStrategy[object]:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return st.none() | _of(parts[0])
    if origin is tuple:
        return st.lists(_of(parts[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(_of(parts[0]), _of(parts[1]), max_size=3)
    return records_of(typing.cast("type", hint))
