"""The page of topics and schemas: where records are, and every field of every record.

Data in: the catalog of topics, the newest `.avsc` of each record. Data out: Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from ops.reference.marks import code, page, table
from schemas.registry import record_types, shipped
from topics.access import STAGES, grants
from topics.catalog import CATALOG, DAY_MS, Topic, full_name

_INTRO = """
The topics of a run are named `rlweave.RUN.TOPIC`. A record is an Avro single object: the two bytes `C3 01`, the
fingerprint of its schema (8 bytes, little-endian, CRC-64-AVRO) and the body. Every version that was ever written stays
in `schemas/avro/`, so that old records can be read for ever. *P* is `run.partitions`; group *n* is on partition *n* mod
*P*. Fields of type `bytes` hold packed little-endian arrays; their meaning says of what."""
_RUN = "RUN"
Field = Mapping[str, object]


def topics_page() -> str:
    """The page."""
    rows = [_topic(topic) for topic in CATALOG]
    headers = ("topic", "records", "partitions", "kept", "largest record", "written by", "read by")
    records = [_record(name) for name in record_types()]
    return page("Topics and schemas", _INTRO, "## Topics", table(headers, rows), "## Records", *records)


def _topic(topic: Topic) -> tuple[str, ...]:
    return (
        code(topic.name),
        ", ".join(f"[{code(each.__name__)}](#{each.__name__.lower()})" for each in topic.records),
        "*P*" if topic.partitions == "data" else "1",
        _kept(topic),
        f"{topic.max_record_bytes // (1024 * 1024)} MiB",
        _who(topic, "write"),
        _who(topic, "read"),
    )


def _kept(topic: Topic) -> str:
    if topic.cleanup == "compact":
        return "the newest of each key"
    if topic.retention_ms < 0:
        return "until the run is deleted"
    days = topic.retention_ms / DAY_MS
    return f"{days:.0f} days" if days >= 1 else f"{topic.retention_ms // 60_000} min"


def _who(topic: Topic, operation: str) -> str:
    """Stages that the access rules let do this; every stage may write some, which is said so."""
    name = full_name("r", topic)
    found = [
        stage
        for stage in STAGES
        if any(each.name == name and each.operation == operation for each in grants(stage, run="r"))
    ]
    return "every stage" if len(found) == len(STAGES) else ", ".join(found)


def _record(name: str) -> str:
    versions = shipped().versions_of(name)
    schema = versions[-1].schema
    rows = list(_fields(schema, before=""))
    number = f"Version {versions[-1].number}, fingerprint `{versions[-1].fingerprint.hex()}`."
    older = f" {len(versions) - 1} older one(s) can be read." if len(versions) > 1 else ""
    told = "\n\n".join((str(schema.get("doc", "")), f"{number}{older}"))
    return f"### {name}\n\n{told}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"


def _fields(schema: Mapping[str, object], *, before: str) -> Iterator[tuple[str, str, str, str]]:
    fields = schema.get("fields")
    for field in fields if isinstance(fields, list) else []:
        name = f"{before}{field['name']}"
        default = code(_json(field["default"])) if "default" in field else ""
        yield code(name), _type(field["type"]), default, str(field.get("doc", ""))
        inner = _inner(field["type"])
        if inner is not None and "fields" in inner:
            yield from _fields(inner, before=f"{name}.")


def _type(kind: object) -> str:
    if isinstance(kind, str):
        return kind.rpartition(".")[2]
    if isinstance(kind, list):
        return " or ".join(_type(each) for each in kind)
    if isinstance(kind, dict):
        if kind.get("type") == "array":
            return f"list of {_type(kind['items'])}"
        if kind.get("type") == "map":
            return f"map of {_type(kind['values'])}"
        return str(kind.get("name", kind.get("type"))).rpartition(".")[2]
    return str(kind)


def _inner(kind: object) -> Mapping[str, object] | None:
    """The record inside a type, where there is one."""
    if isinstance(kind, list):
        return next((found for each in kind if (found := _inner(each)) is not None), None)
    if isinstance(kind, dict):
        if kind.get("type") == "record":
            return kind
        return _inner(kind.get("items", kind.get("values")))
    return None


def _json(value: object) -> str:
    """A default as it stands in the schema, where bytes are text."""
    return orjson.dumps(value.decode("latin-1") if isinstance(value, bytes) else value).decode()
