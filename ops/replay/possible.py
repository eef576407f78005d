"""Whether a selection can match anything at all, said before everything is read in vain.

Data in: a selection and the run it is asked of. Data out: nothing, or an error that says which options exclude each
other.
Invariants: only what no record could satisfy is refused; a selection that merely finds nothing gets nothing.
Failure: `SelectionError`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ops.replay.select import Selection, SelectionError
from ops.replay.sources import Source
from topics.catalog import SAMPLES, WEIGHTS, Topic, partition_of

WITH_VERSIONS = (SAMPLES, WEIGHTS)


def check_possible(selection: Selection, source: Source) -> None:
    """See the module.

    Raises:
        SelectionError: no record of this run can match.
    """
    for why, hint in _reasons(selection, source):
        raise SelectionError(f"nothing can match: {why}", hint=hint)


def _reasons(selection: Selection, source: Source) -> Iterator[tuple[str, str]]:
    yield from _empty_ranges(selection)
    chosen, group = selection.chosen_topics(), selection.wanted_group
    names = ", ".join(topic.name for topic in chosen)
    if selection.versions is not None and not set(chosen) & set(WITH_VERSIONS):
        with_versions = " and ".join(topic.name for topic in WITH_VERSIONS)
        yield f"records of {names} have no version, and --version is given", f"only {with_versions} have"
    if group is not None and not _data(chosen):
        yield f"records of {names} belong to no group, and one is wanted", "choose a topic of data, or leave it out"
    if selection.partition is None:
        return
    there = {part for topic in chosen for part in source.window(topic)}
    if there and selection.partition not in there:
        yield f"there is no partition {selection.partition} of {names}", f"there are {min(there)} to {max(there)}"
    if group is None or len(_data(chosen)) < len(chosen):
        return
    own = partition_of(group, source.data_partitions)
    if selection.partition != own:
        yield f"group {group} is on partition {own}, and {selection.partition} is wanted", "leave --partition out"


def _empty_ranges(selection: Selection) -> Iterator[tuple[str, str]]:
    for option, (low, high) in (("offset", selection.offsets), ("time", selection.times_ms)):
        if low is not None and high is not None and low > high:
            yield f"--{option} begins at {low} and ends before that, at {high}", "write the lower one first"
    if selection.versions is not None and selection.versions[0] > selection.versions[1]:
        first, last = selection.versions
        yield f"--version begins at {first} and ends before that, at {last}", "write the lower one first"


def _data(topics: tuple[Topic, ...]) -> tuple[Topic, ...]:
    return tuple(topic for topic in topics if topic.partitions == "data")
