"""Whether a selection can match anything at all, said before everything is read in vain.

Data in: a selection and the run it is asked of. Data out: nothing, or an error that says which options exclude each
other.
Invariants: only what no record could satisfy is refused; a selection that merely finds nothing gets nothing.
Failure: `SelectionError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ops.replay.replay import selected_of
from ops.replay.select import WITH_VALUES, Selection, SelectionError
from ops.replay.sources import Source, decode
from schemas.errors import CodecError
from schemas.records import PromptGroup
from topics.catalog import PROMPTS, SAMPLES, WEIGHTS, Topic, partition_of

WITH_VERSIONS = (SAMPLES, WEIGHTS)


def check_possible(selection: Selection, source: Source) -> None:
    """See the module.

    Raises:
        SelectionError: no record of this run can match.
    """
    for why, hint in _reasons(selection, source):
        raise SelectionError(f"nothing can match: {why}", hint=hint)


def check_member(selection: Selection, source: Source) -> None:
    """See that the group of a wanted sample is as large, where its prompt is still there to tell.

    Raises:
        SelectionError: it is smaller.
    """
    wanted = selection.sample
    if wanted is None:
        return
    for raw in selected_of(source, Selection(topics=(PROMPTS,), group=wanted.group), topic=PROMPTS):
        try:
            prompt = decode(PROMPTS, raw)
        except CodecError:
            continue
        if isinstance(prompt, PromptGroup) and wanted.member >= prompt.group_size:
            raise SelectionError(
                f"group {wanted.group} has {prompt.group_size} members, from 0 on; there is no member {wanted.member}",
                hint=f"the whole group: `rlweave replay --run {source.run} --group {wanted.group}`",
            )
        return


def explain_nothing(selection: Selection, source: Source) -> str:
    """Where nothing was found: what was asked for and where it was looked for; empty where no id was asked for.

    Raises:
        SelectionError: the id alone was asked for, so it is nowhere.
    """
    group, sample = selection.wanted_group, selection.sample
    if group is None:
        return ""
    what = f"group {group}" if sample is None else f"sample {group}/{sample.member}"
    if sample is not None and sample.run is not None:
        what += f" of run {sample.run}"
    names = ", ".join(topic.name for topic in selection.chosen_topics())
    partition = partition_of(group, source.data_partitions)
    said = f"nothing of {what} was found; looked for on partition {partition} of {names} of run {source.run}"
    if selection == Selection(group=selection.group, sample=sample):
        hint = f"groups are numbered from 0; what is there: `rlweave topics --run {source.run}`"
        raise SelectionError(said, hint=hint)
    return f"{said}, with what else was asked for"


def _reasons(selection: Selection, source: Source) -> Iterator[tuple[str, str]]:
    yield from _empty_ranges(selection)
    chosen, group = selection.chosen_topics(), selection.wanted_group
    names = ", ".join(topic.name for topic in chosen)
    if selection.versions is not None and not set(chosen) & set(WITH_VERSIONS):
        with_versions = " and ".join(topic.name for topic in WITH_VERSIONS)
        yield f"records of {names} have no version, and --version is given", f"only {with_versions} have"
    if selection.values != (None, None) and not set(chosen) & set(WITH_VALUES):
        with_values = " and ".join(topic.name for topic in WITH_VALUES)
        yield f"records of {names} have no value, and --min-value or --max-value is given", f"only {with_values} have"
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
    least, most = selection.values
    if any(each is not None and math.isnan(each) for each in selection.values):
        yield "a value is compared with nan", "write a number"
    elif least is not None and most is not None and least > most:
        yield f"--min-value is {least:g} and --max-value is below that, {most:g}", "write the lower one as the least"
    if selection.versions is not None and selection.versions[0] > selection.versions[1]:
        first, last = selection.versions
        yield f"--version begins at {first} and ends before that, at {last}", "write the lower one first"


def _data(topics: tuple[Topic, ...]) -> tuple[Topic, ...]:
    return tuple(topic for topic in topics if topic.partitions == "data")
