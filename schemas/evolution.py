"""Whether two versions of a schema can be mixed on one topic.

Role: names the field that breaks, before a version ships.
Data in and out: two parsed schemas; a list of breaks, empty when old and new readers can read old and new writers.
Invariants: a pure function; both directions are checked, since old and new processes run side by side.
Failure: none; what is wrong is the result.

Followed: Apache Avro 1.12 specification, "Schema Resolution".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, cast

from schemas._fastavro import Schema

Node: TypeAlias = object  # a schema inside a schema: a name, a dict, or a list (union)
Dict: TypeAlias = dict[str, object]

_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


class Reading(StrEnum):
    """Who reads whom."""

    BACKWARD = "backward"  # the new schema reads bytes of the old one
    FORWARD = "forward"  # the old schema reads bytes of the new one


@dataclass(frozen=True, kw_only=True)
class Break:
    """One thing that differs in a way that matters."""

    path: str  # record and field names with dots; `[]` for items and values
    why: str
    reading: Reading
    warning: bool = False  # bytes stay readable, but mean something else to the two sides

    def __str__(self) -> str:
        return f"{self.path}: {self.why} ({self.reading} reading)"


def check_evolution(old: Schema, new: Schema) -> list[Break]:
    """Everything that keeps readers of one version from the bytes of the other.

    Args:
        old: the earlier schema, as `schemas._fastavro.parse` or a `SchemaVersion` gives it.
        new: the later one.

    Returns:
        Breaks in field order, backward reading first. Changed defaults come as warnings.
    """
    backward = _Resolution(Reading.BACKWARD, writer=_names(old), reader=_names(new))
    forward = _Resolution(Reading.FORWARD, writer=_names(new), reader=_names(old))
    name = _short(old)
    return [*backward.check(old, new, path=name), *forward.check(new, old, path=name)]


@dataclass
class _Resolution:
    """One direction of the comparison."""

    reading: Reading
    writer: dict[str, Dict]
    reader: dict[str, Dict]
    seen: set[tuple[str, str]] = field(default_factory=set)

    def check(self, writer: Node, reader: Node, *, path: str) -> Iterator[Break]:
        writer, reader = _resolved(writer, self.writer), _resolved(reader, self.reader)
        if isinstance(writer, list):
            for branch in writer:
                yield from self.check(branch, reader, path=path)
        elif isinstance(reader, list):
            yield from self._branch(writer, reader, path=path)
        elif not _alike(writer, reader):
            yield self._break(path, f"{_said(writer)} cannot be read as {_said(reader)}")
        elif isinstance(writer, dict) and isinstance(reader, dict):
            yield from self._inside(writer, reader, path=path)

    def _branch(self, writer: Node, union: list[Node], *, path: str) -> Iterator[Break]:
        for branch in union:
            if _alike(writer, _resolved(branch, self.reader)):
                yield from self.check(writer, branch, path=path)
                return
        yield self._break(path, f"{_said(writer)} is not among {[_said(branch) for branch in union]}")

    def _inside(self, writer: Dict, reader: Dict, *, path: str) -> Iterator[Break]:
        match writer["type"]:
            case "record":
                yield from self._record(writer, reader, path=path)
            case "array":
                yield from self.check(writer["items"], reader["items"], path=f"{path}[]")
            case "map":
                yield from self.check(writer["values"], reader["values"], path=f"{path}[]")
            case "enum":
                yield from self._enum(writer, reader, path=path)
            case "fixed" if writer["size"] != reader["size"]:
                yield self._break(path, f"{writer['size']} bytes cannot be read as {reader['size']}")

    def _record(self, writer: Dict, reader: Dict, *, path: str) -> Iterator[Break]:
        pair = (str(writer["name"]), str(reader["name"]))
        if pair in self.seen:
            return
        self.seen.add(pair)
        written = {str(entry["name"]): entry for entry in _fields(writer)}
        for entry in _fields(reader):
            here = f"{path}.{entry['name']}"
            names = [str(entry["name"]), *cast("list[str]", entry.get("aliases", []))]
            source = next((written[name] for name in names if name in written), None)
            if source is not None:
                yield from self.check(source["type"], entry["type"], path=here)
                yield from self._default(source, entry, path=here)
            elif "default" not in entry:
                yield self._break(here, "the writer does not have it and it has no default")

    def _default(self, writer: Dict, reader: Dict, *, path: str) -> Iterator[Break]:
        if self.reading is Reading.BACKWARD and writer.get("default", ...) != reader.get("default", ...):
            before, after = (repr(side["default"]) if "default" in side else "none" for side in (writer, reader))
            yield self._break(path, f"default changed from {before} to {after}", warning=True)

    def _enum(self, writer: Dict, reader: Dict, *, path: str) -> Iterator[Break]:
        known = cast("list[str]", reader["symbols"])
        unknown = [symbol for symbol in cast("list[str]", writer["symbols"]) if symbol not in known]
        if unknown and "default" not in reader:
            yield self._break(path, f"the reader does not know the symbols {unknown} and has no default")

    def _break(self, path: str, why: str, *, warning: bool = False) -> Break:
        return Break(path=path, why=why, reading=self.reading, warning=warning)


def _names(schema: Node) -> dict[str, Dict]:
    """All named types inside a schema, by full name."""
    found: dict[str, Dict] = {}
    if isinstance(schema, list):
        for branch in schema:
            found |= _names(branch)
    elif isinstance(schema, dict):
        if "name" in schema:
            found[str(schema["name"])] = schema
        for inner in (*(entry["type"] for entry in _fields(schema)), schema.get("items"), schema.get("values")):
            found |= _names(inner)
    return found


def _fields(schema: Dict) -> list[Dict]:
    return cast("list[Dict]", schema.get("fields", []))


def _resolved(node: Node, names: dict[str, Dict]) -> Node:
    """Replace a reference by what it names, and `{"type": "string"}` by `"string"`."""
    if isinstance(node, str):
        return names.get(node, node)
    if isinstance(node, dict) and set(node) <= {"type", "doc"} and isinstance(node["type"], str):
        return _resolved(node["type"], names)
    return node


def _alike(writer: Node, reader: Node) -> bool:
    """Whether a reader would take this branch, without looking inside."""
    if isinstance(writer, dict) and isinstance(reader, dict):
        same_kind = writer["type"] == reader["type"]
        return same_kind and ("name" not in writer or _short(writer) in _short_names(reader))
    if isinstance(writer, str) and isinstance(reader, str):
        return writer == reader or (writer, reader) in _PROMOTIONS
    return False


def _short(node: Node) -> str:
    return str(cast("Dict", node)["name"]).rpartition(".")[2]


def _short_names(node: Dict) -> list[str]:
    return [_short(node), *(alias.rpartition(".")[2] for alias in cast("list[str]", node.get("aliases", [])))]


def _said(node: Node) -> str:
    if isinstance(node, dict):
        return f"{node['type']} {_short(node)}" if "name" in node else str(node["type"])
    return str(node)
