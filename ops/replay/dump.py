"""A run's records in a folder: one JSON object a line, one file per topic, bytes as base64.

    DIR/dump.json          {"run", "data_partitions", "windows": {topic: {partition: [earliest, end]}}}
    DIR/<topic>.jsonl      {"partition", "offset", "unix_ms", "key", "headers", "value"}

Role: a copy that needs no broker. Removing a line is removing a record, which is what an audit must notice.
Invariants: key, value, headers, timestamp and offset are kept exactly; null is a tombstone.
Failure: `RunNotFound` without a `dump.json`, `DumpDamaged` for a line that is none.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from ops.replay.sources import RunNotFound, Source, Window
from schemas.errors import RlweaveError
from topics.catalog import CATALOG, LEDGER, PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES, WEIGHTS, Topic
from topics.kafka.raw import RawRecord

INDEX_FILE = "dump.json"
# Ends are taken in the order in which topics refer to each other, so that a dump of a live run balances.
_ORDER = (LEDGER, WEIGHTS, REWARDS, REFERENCE_SCORES, SAMPLES, PROMPTS)


class DumpDamaged(RlweaveError):
    """A file of a dump is not as `write_dump` writes it."""


def write_dump(source: Source, folder: Path) -> dict[str, int]:
    """Copy every topic of a run into `folder`; returns how many records each has.

    Raises:
        DumpDamaged: the folder has a dump already, or cannot be written.
    """
    if (folder / INDEX_FILE).exists():
        raise DumpDamaged(f"{folder} holds a dump already; nothing was written", hint="give an empty folder")
    topics = (*_ORDER, *(topic for topic in CATALOG if topic not in _ORDER))
    windows = {topic.name: source.window(topic) for topic in topics}
    counts: dict[str, int] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for topic in topics:
            if windows[topic.name]:
                counts[topic.name] = _write_topic(source, topic, window=windows[topic.name], folder=folder)
        index = {"run": source.run, "data_partitions": source.data_partitions, "windows": _keys_as_text(windows)}
        (folder / INDEX_FILE).write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise DumpDamaged(f"cannot write to {folder}: {error.strerror}") from error
    return counts


class DumpSource:
    """A dump as a source.

    Raises:
        RunNotFound: the folder has no dump.
        DumpDamaged: its index is not one.
    """

    may_grow = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            index = orjson.loads((folder / INDEX_FILE).read_bytes())
        except OSError as error:
            raise RunNotFound(
                f"{folder} holds no dump ({INDEX_FILE}: {error.strerror})",
                hint="make one with `rlweave replay --to-dump`",
            ) from error
        except orjson.JSONDecodeError as error:
            raise DumpDamaged(f"{folder / INDEX_FILE} is not JSON: {error}") from error
        try:
            self.run = str(index["run"])
            self.data_partitions = int(index["data_partitions"])
            self._windows = {
                str(topic): {int(part): (int(low), int(end)) for part, (low, end) in window.items()}
                for topic, window in index["windows"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DumpDamaged(f"{folder / INDEX_FILE} is not the index of a dump: {error!r}") from error

    def window(self, topic: Topic) -> Window:
        """See `Source`."""
        return dict(self._windows.get(topic.name, {}))

    def read(self, topic: Topic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[RawRecord]:
        """See `Source`."""
        for record in self._records(topic):
            low, end = ranges.get(record.partition, (0, 0))
            if low <= record.offset < end:
                yield record

    def first_at(self, topic: Topic, partitions: Sequence[int], *, unix_ms: int) -> dict[int, int | None]:
        """See `Source`."""
        found: dict[int, int | None] = dict.fromkeys(partitions)
        for record in self._records(topic):
            if found.get(record.partition, 0) is None and record.unix_ms >= unix_ms:
                found[record.partition] = record.offset
        return found

    def _records(self, topic: Topic) -> Iterator[RawRecord]:
        path = self._folder / f"{topic.name}.jsonl"
        if not path.exists():
            return
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield _from_json(topic, orjson.loads(line))
                except (KeyError, TypeError, ValueError) as error:
                    raise DumpDamaged(f"{path}, line {number} is not a record of a dump: {error!r}") from error


def _write_topic(source: Source, topic: Topic, *, window: Window, folder: Path) -> int:
    count = 0
    with (folder / f"{topic.name}.jsonl").open("wb") as file:
        for partition, bounds in sorted(window.items()):
            for record in source.read(topic, {partition: bounds}):
                file.write(orjson.dumps(raw_json(record)) + b"\n")
                count += 1
    return count


def raw_json(record: RawRecord) -> dict[str, object]:
    """A record's bytes as JSON values, in the order of a dump's line."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "unix_ms": record.unix_ms,
        "key": _text(record.key),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "value": _text(record.value),
    }


def _from_json(topic: Topic, line: Mapping[str, object]) -> RawRecord:
    headers = line["headers"]
    if not isinstance(headers, list):
        raise TypeError("headers must be a list")
    return RawRecord(
        topic=topic.name,
        partition=_int(line["partition"]),
        offset=_int(line["offset"]),
        key=_bytes(line["key"]),
        value=_bytes(line["value"]),
        headers=tuple((str(name), _bytes(value) or b"") for name, value in headers),
        unix_ms=_int(line["unix_ms"]),
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode("ascii")


def _bytes(text: object) -> bytes | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"bytes are base64 text, got {text!r:.40}")
    return b64decode(text, validate=True)


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a whole number is wanted, got {value!r:.40}")
    return value


def _keys_as_text(windows: Mapping[str, Window]) -> dict[str, dict[str, list[int]]]:
    return {topic: {str(part): list(bounds) for part, bounds in window.items()} for topic, window in windows.items()}
