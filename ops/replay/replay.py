"""Runs a selection over a source: records in the order of topic, partition and offset."""

from __future__ import annotations

from collections.abc import Iterator

from ops.replay.select import Selection, SelectionError
from ops.replay.sources import Source
from topics.catalog import CATALOG, Topic, full_name
from topics.kafka.raw import RawLog, RawRecord


def selected(source: Source, selection: Selection) -> Iterator[tuple[Topic, RawRecord]]:
    """The records of a selection."""
    for topic in selection.chosen_topics():
        for record in selected_of(source, selection, topic=topic):
            yield topic, record


def selected_of(source: Source, selection: Selection, *, topic: Topic) -> Iterator[RawRecord]:
    """Those of one topic."""
    for partition, bounds in sorted(selection.ranges(source, topic).items()):
        if bounds[0] < bounds[1]:
            for record in source.read(topic, {partition: bounds}):
                if selection.matches(topic, record):
                    yield record


def copy_to_topic(log: RawLog, source: Source, *, selection: Selection, target: str) -> int:
    """Append the selected records of one topic to `target`; returns how many.

    Raises:
        SelectionError: more than one topic is selected, or the target is the source.
        LogError: the target has another partition count.
    """
    topics = selection.chosen_topics()
    if len(topics) != 1:
        names = ", ".join(topic.name for topic in topics)
        raise SelectionError(f"--to-topic takes the records of one topic, selected are {names}", hint="give --topic")
    return _copy(log, source, selection=selection, topic=topics[0], target=target)


def copy_to_run(log: RawLog, source: Source, *, selection: Selection, run: str) -> dict[str, int]:
    """Append the selected records to the topics of the same names of another run; returns how many per topic.

    The records keep the name of the run they were made in.

    Raises:
        SelectionError: it is the same run.
    """
    chosen = [topic for topic in selection.chosen_topics() if source.window(topic)]
    order = [topic for topic in CATALOG if topic in chosen]
    return {
        topic.name: _copy(log, source, selection=selection, topic=topic, target=full_name(run, topic))
        for topic in order
    }


def _copy(log: RawLog, source: Source, *, selection: Selection, topic: Topic, target: str) -> int:
    origin = full_name(source.run, topic)
    if target == origin:
        raise SelectionError(f"{target} would be copied onto itself; nothing was written", hint="choose another name")
    log.create_like(target, source=origin)
    return log.write(target, selected_of(source, selection, topic=topic))
