"""Decoders of what users write or keep: run files, prompt files, dumps, selections, and records shown to people."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import orjson

from ops import run_checks, run_file
from ops.replay import dump, select, summaries
from ops.replay.dump import DumpSource
from ops.replay.select import Selection
from pipeline.sources import jsonl, shaping
from pipeline.sources.base import SkippedLine
from pipeline.sources.jsonl import JsonlRows
from pipeline.sources.settings import SourceSettings
from pipeline.sources.shaping import Shaper
from schemas.codec import decode
from schemas.errors import RecordInvalid, RlweaveError
from schemas.records import Sample
from schemas.validation import check_possible
from tests.fuzz.decoder import Decode, Decoder, Violated
from tests.fuzz.mutate import (
    mutate_bytes,
    mutate_frame,
    mutate_items,
    mutate_json,
    mutate_text,
    pack_items,
    unpack_items,
)
from tests.fuzz.records import golden_frames
from topics.catalog import CATALOG, SAMPLES, WEIGHTS
from topics.kafka.raw import RawRecord

ROOT = Path(__file__).parents[2]
_PARSERS: tuple[Callable[[str], object], ...] = (
    *(select.parse_bounds, select.parse_times, select.parse_versions, select.parse_version, select.parse_sample),
    *(select.parse_place, lambda text: select.parse_topics(tuple(text.split(",")))),
)
_SELECTIONS = (
    "1..9",
    "2026-11-29T14:00..1790000000000",
    "1.3..1.9",
    "1.6",
    "demo/7/3",
    "samples/3/17",
    "samples,ledger",
)


def _settings(folder: Path) -> Decode:
    """A run file and overrides (item 1, 2, ...), or the settings a run has saved (item 0 with number 1)."""

    def run(data: bytes) -> object:
        items = unpack_items(data)
        if not items:
            return "nothing"
        path = folder / "run.toml"
        path.unlink(missing_ok=True)
        if items[0][0] != 255:  # stands for an absent file
            path.write_bytes(items[0][1])
        overrides = [value.decode("utf-8", "replace") for _, value in items[1:]]
        is_saved = items[0][0] == 1
        found = run_file.load_saved(path) if is_saved else run_file.load_run_file(path, overrides=overrides)
        run_file.save_run_file(found, path)
        if run_file.load_saved(path) != found:
            raise Violated("settings change when they are saved")
        return repr(found), run_checks.check_run(found)

    return run


def _rows(folder: Path) -> Decode:
    """A prompt file, indexed and shaped as text and as chat."""
    shapers = [Shaper(SourceSettings(files=(folder,), chat=chat, extract=r"(\d+ .*)=")) for chat in (False, True)]

    def run(data: bytes) -> object:
        path = folder / "rows.jsonl"
        path.write_bytes(data)
        skipped: list[SkippedLine] = []
        rows = JsonlRows([path], on_skipped=skipped.append)
        said: list[object] = [skipped, rows.name]
        for index in range(rows.num_rows or 0):
            row = rows.row(index)
            for shaper in shapers:
                try:
                    said.append(shaper(row, source_index=index, epoch=0))
                except RecordInvalid as error:
                    said.append(error.message)
        path.write_bytes(data[1:])  # it changes while it is in use
        return said, rows.row(0)

    return run


def _dump(folder: Path) -> Decode:
    """The index of a dump (its first line) and the records of one topic (the other lines), read through a selection."""
    selection = Selection(times_ms=(1, None), offsets=(None, 2**40), group=2)

    def run(data: bytes) -> object:
        index, _, lines = data.partition(b"\n")
        (folder / dump.INDEX_FILE).write_bytes(index)
        (folder / "samples.jsonl").write_bytes(lines)
        source = DumpSource(folder)
        said: list[object] = [source.run, source.data_partitions]
        for topic in (SAMPLES, WEIGHTS):
            window = source.window(topic)
            found = source.read(topic, window)
            said.append([(record, selection.matches(topic, record)) for record in found])
            said.append(selection.ranges(source, topic) if source.data_partitions else {})
        return said

    return run


def _selection(folder: Path) -> Decode:
    """What a user writes to choose records, and what a record's own headers, key and value make of it."""

    def run(data: bytes) -> object:
        said: list[object] = []
        chosen: list[Selection] = [
            Selection(group=7, left_out=frozenset([("samples", 0, 1)])),
            Selection(versions=select.parse_versions("0.0..1.9")),
        ]
        for number, value in unpack_items(data):
            text = value.decode("utf-8", "replace")
            try:
                found = _PARSERS[number % len(_PARSERS)](text)
            except RlweaveError as error:
                said.append(error.message)
                continue
            said.append(found)
            if isinstance(found, select.SampleRef) and len(chosen) < 4:
                chosen.append(Selection(sample=found))
            headers = (("sid", value), ("ver", value)) if number % 2 else ()
            record = RawRecord(
                topic="samples", partition=0, offset=number % 4, key=b"7", value=value, headers=headers, unix_ms=1
            )
            tombstone = RawRecord(topic="weights", partition=0, offset=1, key=value, value=None, headers=(), unix_ms=1)
            said += [each.matches(SAMPLES, record) for each in chosen]
            said += [each.matches(WEIGHTS, tombstone) for each in chosen]
        return said

    return run


def _shown(folder: Path) -> Decode:
    """A record as `rlweave replay --show` prints it."""

    def run(data: bytes) -> object:
        record = decode(data)
        check_possible(record)
        lines = list(summaries.summary(record))
        if isinstance(record, Sample):
            lines += summaries.token_table(record)
        if not all(line.isprintable() for line in lines):
            raise Violated(f"control characters reach the terminal: {lines!r:.300}")
        return lines

    return run


def _mutate_settings(data: bytes, draw: Random) -> bytes:
    return mutate_items(data, draw, item=mutate_json if data[:1] == b"\x01" else mutate_text)


def _mutate_selection(data: bytes, draw: Random) -> bytes:
    return mutate_items(data, draw, item=mutate_text if draw.random() < 0.8 else mutate_bytes)


def _run_files() -> list[bytes]:
    demo = (ROOT / "ops" / "demo.toml").read_bytes()
    saved = run_file.load_run_file(ROOT / "ops" / "demo.toml").model_dump_json().encode()
    plain = b'[run]\nname = "little"\n[model]\npath = "model"\n[prompts.source]\nfiles = ["tasks.jsonl"]\n'
    plain += b'[rewards.sum]\nplugin = "number_match"\n'
    small = plain + b'[redis]\nurl = "redis://user:word@host:6379/0?db=1"\n'
    servers = plain + b'[rollout]\nengine = "http"\n[rollout.http]\nbase_urls = ["http://a:1", "http://a:1"]\n'
    overrides = (
        b"run.seed=3",
        b"kafka.config.security=x",
        b"weights.upload_bytes_s.weights=1e6",
        b"run.name=1979-05-27",
    )
    odd = (
        *(b"run.min_group_members=99", b"rewards.sum.weight=0", b"rollout.max_sequences=1", b"learner.buffer_bytes=1"),
        *(b"redis.url=http://x", b"learner.cloning.num_steps=5", b"run.partitions=1", b"run.publish_lag_versions=9"),
        *(b"run.group_size=1", b"run.max_staleness=0", b"rewards.a b.plugin=x", b"run", b"run.name.x=1"),
        *(b"learner.ranks=3", b"learner.ranks=99", b"prompts.source.config.x=99999999999999999999"),
    )
    return [
        pack_items([(0, demo)]),
        pack_items([(1, saved)]),
        pack_items([(0, small), *((0, override) for override in overrides)]),
        *(pack_items([(0, plain), (0, override)]) for override in odd),
        pack_items([(0, plain), (0, b"learner.ranks=2"), (0, b"learner.collective_limit_s=1")]),
        pack_items([(0, servers)]),
        pack_items([(0, servers), (0, b"rollout.max_replicas=3")]),
        pack_items([(0, servers.replace(b"a:1", b"b:2", 1))]),
        pack_items([(255, b"")]),
    ]


def _prompt_lines() -> list[bytes]:
    lines = (
        b'{"question": "4 + 3 =", "answer": "7", "level": {"of": [1, 2.5]}}',
        b'{"messages": [{"role": "user", "content": "4 + 3 ="}], "answer": 7}',
        b'{"token_ids": [5, 9, 14], "answer": null}',
        b'{"prompt": "4 + 3 =", "question": null}',
        b'{"prompt": "nothing to extract"}',
    )
    return [b"\n".join(lines), *lines]


def _dumps() -> list[bytes]:
    frames = golden_frames("sample", "reward", "manifest")
    records = [
        RawRecord(
            topic="samples",
            partition=number % 2,
            offset=number,
            key=b"2",
            value=frame,
            headers=(("fp", frame[2:10]), ("ver", b"1.5")),
            unix_ms=1_790_000_000_000 + number,
        )
        for number, frame in enumerate(frames)
    ]
    lines = [orjson.dumps(dump.raw_json(record)) for record in records]
    windows = {topic.name: {"0": [0, 9], "1": [0, 9]} for topic in CATALOG}
    index = orjson.dumps({"run": "little", "data_partitions": 2, "windows": windows})
    return [b"\n".join((index, *lines)), b"\n".join((index, lines[0]))]


def _selections() -> list[bytes]:
    texts = [(number, text.encode()) for number, text in enumerate(_SELECTIONS)]
    frames = [(number, frame) for frame in golden_frames("sample", "manifest") for number in (2, 3)]
    return [pack_items(texts), pack_items([*frames, texts[4], *frames]), *(pack_items([item]) for item in texts)]


_TEXT_PARSERS = (
    *_PARSERS[:6],
    select.parse_topics,
    select._time_ms,
    select._is_of,
    select._own_id,
    select._own_version,
)
_ROWS = (JsonlRows.__init__, JsonlRows.row, jsonl._lines, jsonl._parse, Shaper.__call__, Shaper._text)

RUNS = (
    Decoder(
        name="settings",
        seeds=_run_files,
        start=_settings,
        mutate=_mutate_settings,
        covers=(
            *(run_file.load_run_file, run_file.parse_run_file, run_file.load_saved, run_file._apply, run_file._value),
            *(run_file._finding, run_file._similar, run_file._setting_paths, run_file.RunFile._names_are_plain),
            *(run_checks.check_run, run_checks._errors, run_checks._warnings),
        ),
    ),
    Decoder(
        name="rows",
        seeds=_prompt_lines,
        start=_rows,
        mutate=mutate_json,
        covers=(
            *_ROWS,
            *(shaping.check_row, shaping._messages, shaping._message, shaping._token_ids, shaping._metadata),
            *(shaping._answer, shaping._as_text),
        ),
    ),
    Decoder(
        name="dump",
        seeds=_dumps,
        start=_dump,
        mutate=mutate_json,
        covers=(DumpSource, dump._from_json, dump._bytes, dump._int, Selection.ranges, Selection._within_times),
    ),
    Decoder(
        name="selection",
        seeds=_selections,
        start=_selection,
        mutate=_mutate_selection,
        covers=(*_TEXT_PARSERS, Selection.matches, Selection._matches_id, Selection._matches_version),
    ),
    Decoder(
        name="shown",
        seeds=golden_frames,
        start=_shown,
        mutate=mutate_frame,
        covers=(
            *(summaries.summary, summaries.token_table, summaries._sample, summaries._prompt, summaries._outcome),
            *(summaries._member, summaries._one_line, summaries._pairs, summaries._labelled, summaries.printable),
        ),
    ),
)
