"""The page of settings: every section of a run file, each setting with type, default, unit, limits and meaning.

Data in: `ops.run_file.RunFile` and the sections inside it. Data out: Markdown.
Invariants: a section that is used in several places is written once, under all its names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import get_args, get_origin

import orjson
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ops.reference.marks import code, first_line, page, table
from ops.run_file import RunFile
from pipeline.settings import Section

HEADERS = ("setting", "type", "default", "unit", "allowed", "meaning")
_INTRO = """
A run file is TOML. Keys that are not here are refused. `--set section.key=value` of `rlweave up`, `run` and `demo`
overrides one setting. *required* stands where there is no default, `-` in the column of defaults where the setting is
absent unless you set it. `rlweave up --config FILE --check` says what is wrong with a file, and starts nothing."""
_UNITS = (  # by the end of the name, longest first
    ("_bytes_s", "bytes/s"),
    ("_gbit_s", "Gbit/s"),
    ("_bytes", "bytes"),
    ("_tokens", "tokens"),
    ("_records", "records"),
    ("_sequences", "sequences"),
    ("_groups", "groups"),
    ("_versions", "versions"),
    ("_staleness", "versions"),
    ("_steps", "steps"),
    ("_share", "share of 1"),
    ("_gib", "GiB"),
    ("_ms", "ms"),
    ("_s", "s"),
)
_LIMITS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
_LENGTHS = (("minLength", "at least {} characters"), ("minItems", "at least {} items"))
_NAMED = re.compile(r"^`[^`]*`(?:: |\.$)")  # the heading again, at the beginning of a docstring
Schema = Mapping[str, object]


def settings_page() -> str:
    """The page."""
    places = section_places()
    parts = [_section(section, names) for section, names in places.items()]
    return page("Settings", _INTRO, *parts)


def section_places() -> dict[type[Section], list[str]]:
    """Every section reachable from a run file, with the names under which it is written."""
    found: dict[type[Section], list[str]] = {}
    for name, section in _within(RunFile, before=""):
        found.setdefault(section, []).append(name)
    return found


def _within(section: type[BaseModel], *, before: str) -> Iterator[tuple[str, type[Section]]]:
    for name, field in section.model_fields.items():
        for inner in _sections_of(field.annotation):
            own = f"{before}{name}"
            own += ".NAME" if get_origin(field.annotation) is dict else ""
            yield (f"[{own}]" if get_origin(field.annotation) is not tuple else f"[[{own}]]"), inner
            yield from _within(inner, before=f"{own}.")


def _sections_of(annotation: object) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_of(part)


def _section(section: type[Section], names: list[str]) -> str:
    fields = section.model_json_schema()
    properties, shared = fields.get("properties", {}), fields.get("$defs", {})
    rows = [_row(name, field, schema=properties[name], shared=shared) for name, field in section.model_fields.items()]
    first = names[0]
    also = f"Also as {', '.join(code(each) for each in names[1:])}." if names[1:] else ""
    heading = "##" if first.removesuffix(".NAME]").count(".") == 0 else "###"
    told = _NAMED.sub("", first_line(section.__doc__))
    told = f"{told[:1].upper()}{told[1:]}"
    return "\n\n".join(part for part in (f"{heading} {code(first)}", told, also, table(HEADERS, rows)) if part)


def _row(name: str, field: FieldInfo, *, schema: Schema, shared: Mapping[str, Schema]) -> tuple[str, ...]:
    return (
        code(name),
        " or ".join(dict.fromkeys(_types(schema, shared))),
        default_of(field),
        unit_of(name),
        "; ".join(dict.fromkeys(_allowed(schema))),
        field.description or "",
    )


def default_of(field: FieldInfo) -> str:
    """The default as it would be written in the file."""
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see its section"
    if value is None:
        return "-"
    return code(_toml(value))


def unit_of(name: str) -> str:
    """What the number counts, by its name; empty where the name does not say."""
    dotted = f"_{name}"
    return next((unit for ending, unit in _UNITS if dotted.endswith(ending)), "")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, dict) and not value:
        return "{}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return orjson.dumps(value).decode()


def _types(schema: Schema, shared: Mapping[str, Schema]) -> Iterator[str]:
    """Words for what a value may be; null is left out, since absent stands for it."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        named = shared.get(reference.rpartition("/")[2], {})
        yield "section" if named.get("type") == "object" else "any value"
        return
    for option in _options(schema):
        yield from _types(option, shared)
    kind = schema.get("type")
    if kind is None and "enum" in schema:
        yield "text"
    elif isinstance(kind, str) and kind != "null":
        yield _word(kind, schema, shared=shared)


def _word(kind: str, schema: Schema, *, shared: Mapping[str, Schema]) -> str:
    if kind == "array":
        inner = schema.get("items")
        words = dict.fromkeys(_types(inner, shared)) if isinstance(inner, dict) else {}
        return f"list of {' or '.join(words)}" if words else "list"
    if kind == "object":
        inner = schema.get("additionalProperties")
        words = dict.fromkeys(_types(inner, shared)) if isinstance(inner, dict) else {}
        return f"table of {' or '.join(words)}" if words else "table"
    if schema.get("format") == "path":
        return "path"
    return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}[kind]


def _allowed(schema: Schema) -> Iterator[str]:
    for option in _options(schema):
        yield from _allowed(option)
    inner = schema.get("items")
    if isinstance(inner, dict):
        yield from _allowed(inner)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if isinstance(values, list) and values:
        yield ", ".join(code(_toml(value)) for value in values)
    limits = [f"{sign} {schema[key]}" for key, sign in _LIMITS if key in schema]
    if limits:
        yield ", ".join(limits)
    yield from (text.format(schema[key]) for key, text in _LENGTHS if key in schema)
    if "pattern" in schema:
        yield f"matches {code(str(schema['pattern']))}"


def _options(schema: Schema) -> list[Schema]:
    found = schema.get("anyOf", schema.get("oneOf", []))
    return found if isinstance(found, list) else []
