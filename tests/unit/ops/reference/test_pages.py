"""The reference pages say what the code does: every setting, command, metric, error, notice and record is in them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import ops.run_file  # noqa: F401 - every section of a run file is defined once this is imported
from ops.reference.__main__ import main
from ops.reference.commands import all_commands
from ops.reference.notices import notices
from ops.reference.pages import PAGES, render, stale, write
from ops.reference.settings import default_of, section_places, unit_of
from ops.reference.source import error_classes
from ops.run_file import RunFile
from pipeline.metrics import METRICS
from pipeline.settings import Section
from schemas.registry import record_types
from topics.catalog import CATALOG

FOLDER = Path(__file__).parents[4] / "docs" / "reference"


@cache
def pages() -> dict[str, str]:
    """As they are committed, which the first test holds to what the code says."""
    return {name: (FOLDER / name).read_text(encoding="utf-8") for name in PAGES}


def test_the_pages_say_what_the_code_does() -> None:
    names = stale(render(), folder=FOLDER)
    assert not names, (
        f"{', '.join(f'docs/reference/{name}' for name in names)} differ from the code (a setting, command, metric, "
        "error, notice or record was added, changed or removed): run `make docs` and commit what it writes"
    )


def test_there_is_no_page_that_nobody_writes() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == set(PAGES)


def test_every_section_of_settings_is_on_the_page_with_every_setting() -> None:
    places, page = section_places(), pages()["settings.md"]
    for section, names in places.items():
        assert all(f"`{name}`" in page for name in names)
        assert all(f"| `{name}` |" in page for name in section.model_fields)
    unreached = {one for one in subclasses(Section) if one not in places and one is not RunFile}
    ours = {one for one in unreached if not one.__module__.startswith(("tests.", "ops.chaos.", "ops.bench."))}
    # Nobody writes these: what an engine is given, made of other sections, and what a learner notes of its device.
    apart = {"TorchEngineSettings", "Arithmetic"}
    assert {one.__name__ for one in ours if not any(issubclass(other, one) for other in places)} <= apart


def test_defaults_and_units_are_those_of_the_code() -> None:
    fields = next(section for section, names in section_places().items() if "[run]" in names).model_fields
    assert default_of(fields["name"]) == "*required*"
    assert default_of(fields["min_group_members"]) == "-"
    assert default_of(fields["group_deadline_s"]) == "`120.0`"
    assert [unit_of(name) for name in ("group_deadline_s", "upload_bytes_s", "chunk_bytes", "seed")] == [
        "s",
        "bytes/s",
        "bytes",
        "",
    ]


def test_every_command_and_every_option_is_on_the_page() -> None:
    page = pages()["cli.md"]
    for path, command in all_commands():
        part = page.split(f"# rlweave {' '.join(path)}\n")[1].split("\n## ")[0]
        assert all(f"`{name}`" in part for option in command.params for name in option.opts if name.startswith("-"))


def test_every_metric_error_notice_and_record_is_on_its_page() -> None:
    assert all(f"| `{spec.name}` |" in pages()["metrics.md"] for spec in METRICS)
    assert all(f"## {name}\n" in pages()["errors.md"] for name in error_classes())
    assert all(f"| `{name}` |" in pages()["notices.md"] for name in notices())
    assert all(f"### {name}\n" in pages()["topics-and-schemas.md"] for name in record_types())
    assert all(f"| `{topic.name}` |" in pages()["topics-and-schemas.md"] for topic in CATALOG)


def test_what_is_written_is_not_stale_and_a_changed_page_is(tmp_path: Path) -> None:
    written = {"a.md": "one\n", "b.md": "two\n"}
    assert stale(written, folder=tmp_path) == ["a.md", "b.md"]
    write(written, folder=tmp_path)
    assert stale(written, folder=tmp_path) == []
    assert stale(written | {"b.md": "three\n"}, folder=tmp_path) == ["b.md"]


def test_a_call_without_a_folder_is_told_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 2
    assert "usage:" in capsys.readouterr().err


def subclasses(base: type[Section]) -> set[type[Section]]:
    return {found for one in base.__subclasses__() for found in (one, *subclasses(one))}
