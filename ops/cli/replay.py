"""`rlweave replay`: read records back from any topic, to a terminal, a file, a topic or a dump. Commits nothing."""

# ruff: noqa: PLC0415

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ops.cli.common import broker_options, open_raw_log, run_option, saved_settings

if TYPE_CHECKING:
    from ops.replay.select import Selection
    from ops.replay.show import View
    from ops.replay.sources import KafkaSource
    from topics.catalog import Topic
    from topics.kafka.raw import RawRecord


@click.command()
@run_option
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Topic, by short name; may be repeated.")
@click.option("--partition", type=click.IntRange(min=0), help="One partition only.")
@click.option("--offset", "offsets", metavar="A..B", help="Offsets, both included; either may be left out.")
@click.option("--time", "times", metavar="A..B", help="Times: ISO 8601 (UTC) or Unix milliseconds.")
@click.option("--version", "versions", metavar="L.S[..L.S]", help="Samples born of, and manifests of, these versions.")
@click.option("--group", type=click.IntRange(min=0), help="One group, on all data topics.")
@click.option("--sample", metavar="[RUN/]N/M", help="One sample: its prompt, records, rewards and outcome.")
@click.option("--min-value", type=float, metavar="X", help="Rewards of at least this value.")
@click.option("--max-value", type=float, metavar="X", help="Rewards of at most this value; failures have none.")
@click.option("--leave-out", multiple=True, metavar="TOPIC/PARTITION/OFFSET", help="Pass over this record.")
@click.option("--limit", type=click.IntRange(min=1), help="Most records.")
@click.option(
    "--show",
    "view",
    type=click.Choice(["text", "tokens", "everything", "raw"]),
    default="text",
    show_default=True,
    help="How much of a record to print.",
)
@click.option("--jsonl", type=click.Path(path_type=Path, dir_okay=False), help="Write JSON lines to a file; -: here.")
@click.option("--to-topic", metavar="FULLNAME", help="Append the records, unchanged, to this topic.")
@click.option("--to-run", metavar="NAME", help="Append the records, unchanged, to the topics of another run.")
@click.option("--to-dump", type=click.Path(path_type=Path, file_okay=False), help="Copy the whole run to a folder.")
@broker_options
def replay(run: str, *, kafka: str | None, runs_dir: Path, state_dir: Path, **given: object) -> None:
    """Show or copy records of a run. No consumer group is used and nothing is committed."""
    from ops.replay.possible import check_member, check_possible
    from ops.replay.sources import KafkaSource

    options = _Options(given)
    selection = options.selection()
    options.check_one_target(selection)
    options.check_outputs()
    to_topic, to_run, to_dump = options.text("to_topic"), options.text("to_run"), options.path("to_dump")
    role = "reader" if to_topic is None and to_run is None else "admin"
    log = open_raw_log(kafka, settings=saved_settings(run, runs_dir=runs_dir), state_dir=state_dir, role=role)
    source = KafkaSource(log, run=run)
    check_possible(selection, source)
    check_member(selection, source)
    if to_dump is not None:
        _dump(source, to_dump)
    elif to_topic is not None or to_run is not None:
        from ops.replay.replay import copy_to_run, copy_to_topic

        if to_topic is not None:
            counts = {to_topic: copy_to_topic(log, source, selection=selection, target=to_topic)}
        else:
            counts = copy_to_run(log, source, selection=selection, run=str(to_run))
        _say_counts(counts)
    else:
        _show(source, selection, options=options)


class _Options:
    """The command's options with their types."""

    def __init__(self, given: dict[str, object]) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        value = self._given[name]
        return None if value is None else str(value)

    def number(self, name: str) -> int | None:
        value = self._given[name]
        return value if isinstance(value, int) else None

    def value(self, name: str) -> float | None:
        value = self._given[name]
        return value if isinstance(value, float) else None

    def path(self, name: str) -> Path | None:
        value = self._given[name]
        return value if isinstance(value, Path) else None

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._given[name]
        return tuple(str(item) for item in value) if isinstance(value, tuple) else ()

    def view(self) -> View:
        view = self.text("view")
        return (
            "tokens"
            if view == "tokens"
            else "everything"
            if view == "everything"
            else "raw"
            if view == "raw"
            else "text"
        )

    def selection(self) -> Selection:
        """What is selected.

        Raises:
            SelectionError: an option has another form than it should.
        """
        from ops.replay import select

        offsets, times, versions = self.text("offsets"), self.text("times"), self.text("versions")
        sample = self.text("sample")
        return select.Selection(
            topics=select.parse_topics(self.texts("topics")),
            partition=self.number("partition"),
            offsets=(None, None) if offsets is None else select.parse_bounds(offsets),
            times_ms=(None, None) if times is None else select.parse_times(times),
            versions=None if versions is None else select.parse_versions(versions),
            group=self.number("group"),
            sample=None if sample is None else select.parse_sample(sample),
            values=(self.value("min_value"), self.value("max_value")),
            left_out=frozenset(select.parse_place(place) for place in self.texts("leave_out")),
        )

    def check_one_target(self, selection: Selection) -> None:
        """Refuse options that exclude each other."""
        from ops.replay.select import Selection

        given = [name for name in ("jsonl", "to_topic", "to_run", "to_dump") if self._given[name] is not None]
        if len(given) > 1:
            raise click.UsageError(f"choose one of --{', --'.join(name.replace('_', '-') for name in given)}")
        if self._given["to_dump"] is not None and selection != Selection():
            raise click.UsageError("--to-dump copies the whole run, it takes no selection")
        if self._given["limit"] is not None and given and given != ["jsonl"]:
            raise click.UsageError("--limit goes with the terminal and --jsonl only")

    def check_outputs(self) -> None:
        """See that the file or folder can be written.

        Raises:
            SettingsError: it cannot.
        """
        from ops.outputs import check_file, check_folder

        jsonl, to_dump = self.path("jsonl"), self.path("to_dump")
        if jsonl is not None:
            check_file(jsonl, setting="--jsonl")
        if to_dump is not None:
            check_folder(to_dump, setting="--to-dump")


def _show(source: KafkaSource, selection: Selection, *, options: _Options) -> None:
    from ops.outputs import STANDARD_OUTPUT, writing
    from ops.replay.possible import explain_nothing
    from ops.replay.replay import selected

    jsonl = options.path("jsonl")
    records = itertools.islice(selected(source, selection), options.number("limit"))
    if jsonl is None or str(jsonl) == STANDARD_OUTPUT:
        with click.open_file(STANDARD_OUTPUT, "wb") as out:
            count = _write(records, out, options=options)
    else:
        with writing(jsonl, setting="--jsonl"):
            jsonl.parent.mkdir(parents=True, exist_ok=True)
            with jsonl.open("wb") as out:
                count = _write(records, out, options=options)
    click.echo(f"{count} records", err=True)
    if count == 0 and (said := explain_nothing(selection, source)):
        click.echo(said, err=True)


def _write(records: Iterator[tuple[Topic, RawRecord]], out: IO[bytes], *, options: _Options) -> int:
    from ops.replay.show import json_line, lines_of

    as_json, view, count = options.path("jsonl") is not None, options.view(), 0
    for topic, record in records:
        if as_json:
            out.write(json_line(topic, record))
        else:
            out.write("".join(f"{line}\n" for line in lines_of(topic, record, view=view)).encode())
        count += 1
    return count


def _dump(source: KafkaSource, folder: Path) -> None:
    from ops.replay.dump import write_dump

    _say_counts(write_dump(source, folder))


def _say_counts(counts: dict[str, int]) -> None:
    for name, count in counts.items():
        click.echo(f"{name:<40} {count:>10} records")
