"""The upgrade notes name every record, its versions, and who reads before who writes, as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from schemas.registry import record_types, shipped
from topics.access import STAGES, grants
from topics.catalog import CATALOG, full_name

PAGE = (Path(__file__).parents[3] / "docs" / "upgrade.md").read_text(encoding="utf-8")
RUN = "r"


def test_records_with_several_versions_are_listed_with_them() -> None:
    rows = dict(re.findall(r"^\| ([A-Z]\w+) \| ([0-9, ]+) \|", PAGE, re.MULTILINE))
    several = {name: len(shipped().versions_of(name)) for name in record_types()}
    assert {name: len(numbers.split(",")) for name, numbers in rows.items()} == {
        name: count for name, count in several.items() if count > 1
    }


def test_the_order_is_that_of_readers_and_writers() -> None:
    rows = re.findall(r"^\| ([A-Z][\w, ]+) \| ([a-z][^|]*) \| ([a-z ]+) \|$", PAGE, re.MULTILINE)
    told = {name.strip(): (readers, writer) for names, readers, writer in rows for name in names.split(",")}
    assert set(told) == set(record_types())
    for topic in CATALOG:
        for record in topic.records:
            readers, writer = told[record.__name__]
            named = set(re.findall(r"\b(?:" + "|".join(STAGES) + r")\b", readers))
            assert may(topic.name, "read") - {"prompts"} <= named | {writer} or readers.startswith("people"), record
            if writer != "every stage":
                assert may(topic.name, "write") == {writer}, record


def may(topic: str, operation: str) -> set[str]:
    """Stages that the access rules let do this on a topic."""
    (name,) = (full_name(RUN, each) for each in CATALOG if each.name == topic)
    return {
        stage
        for stage in STAGES
        if any(each.name == name and each.operation == operation for each in grants(stage, run=RUN))
    }
