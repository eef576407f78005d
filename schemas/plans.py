"""How a record becomes an Avro body and back, worked out once per type.

Role: the conversion half of the codec, on the hot path of every stage.
Data in and out: frozen dataclasses; dicts as fastavro writes and reads them.
Invariants: nested records become dicts and back, tuples stay tuples; nothing is copied that needs no conversion.
Failure: `CodecError` on a value fastavro would have changed in silence (a float where an integer belongs, a string
where a tuple of strings belongs).
"""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import SupportsIndex, TypeAlias, cast

from schemas._fastavro import Body
from schemas.errors import CodecError

ToBody: TypeAlias = Callable[[object], Body]
FromBody: TypeAlias = Callable[[Body], object]
Convert: TypeAlias = Callable[[object], object]


def to_body(record_type: type) -> ToBody:
    """A function from records of `record_type` to the dict to write. It does not change the record."""
    hints = typing.get_type_hints(record_type)
    ints = tuple(field.name for field in fields(record_type) if hints[field.name] is int)
    steps = _steps(hints, _writing)

    def convert(record: object) -> Body:
        body: Body = vars(record)
        for name in ints:
            if type(body[name]) is not int:
                body = {**body, name: _as_int(body[name], name=name)}
        if steps:
            body = body.copy()
            for name, step in steps:
                body[name] = step(body[name])
        return body

    return convert


def from_body(record_type: type) -> FromBody:
    """A function from a dict just read to a record of `record_type`. It takes the dict over: do not use it again."""
    steps = _steps(typing.get_type_hints(record_type), _reading)
    new, fill = object.__new__, object.__setattr__

    def convert(body: Body) -> object:
        for name, step in steps:
            body[name] = step(body[name])
        record: object = new(record_type)
        fill(record, "__dict__", body)  # frozen, without slots: __init__ would set the same attributes one by one
        return record

    return convert


def _steps(hints: dict[str, object], rule: Callable[[object], Convert | None]) -> tuple[tuple[str, Convert], ...]:
    converts = ((name, rule(hint)) for name, hint in hints.items())
    return tuple((name, convert) for name, convert in converts if convert is not None)


def _writing(hint: object) -> Convert | None:
    if is_dataclass(hint):
        return _checked(cast("type", hint))
    inner = _optional(hint)
    if inner is not None:
        return _unless_none(_writing(inner))
    if typing.get_origin(hint) is tuple:
        return _to_list(_writing(typing.get_args(hint)[0]))
    return None


def _reading(hint: object) -> Convert | None:
    if is_dataclass(hint):
        return cast("Convert", from_body(cast("type", hint)))
    inner = _optional(hint)
    if inner is not None:
        return _unless_none(_reading(inner))
    if typing.get_origin(hint) is tuple:
        return _to_tuple(_reading(typing.get_args(hint)[0]))
    return None


def _optional(hint: object) -> object | None:
    """T of `T | None`, else None."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return None
    (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
    return cast("object", inner)


def _unless_none(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def _checked(record_type: type) -> Convert:
    convert = to_body(record_type)

    def check(value: object) -> Body:
        if type(value) is not record_type:
            raise CodecError(f"expected a {record_type.__name__}, got {value!r:.80}; the record was not encoded")
        return convert(value)

    return check


def _to_list(convert: Convert | None) -> Convert:
    def check(value: object) -> list[object]:
        if not isinstance(value, tuple):
            raise CodecError(f"expected a tuple, got {value!r:.80}; the record was not encoded")
        return list(value) if convert is None else [convert(item) for item in value]

    return check


def _to_tuple(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda items: tuple(cast("list[object]", items))
    return lambda items: tuple([convert(item) for item in cast("list[object]", items)])


def _as_int(value: object, *, name: str) -> int:
    """A numpy integer as an int; fastavro would cut a float and take a bool for a number."""
    if type(value) is bool:
        raise CodecError(f"{name} must be an integer, got {value!r}; the record was not encoded")
    try:
        return operator.index(cast("SupportsIndex", value))
    except TypeError as error:
        raise CodecError(f"{name} must be an integer, got {value!r:.80}; the record was not encoded") from error
