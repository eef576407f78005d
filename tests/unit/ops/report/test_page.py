"""The written files: complete, self-contained, and readable by a machine."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from ops.report.plans import PLANS
from ops.report.write import write_report
from schemas.errors import SettingsError
from tests.unit.ops.report.made_run import PARTITIONS, settings, two_lineages
from topics.memory import MemoryLog


@dataclass
class _Audit:
    balanced: bool = True

    def text(self) -> str:
        return "balanced <all> & fine"


@pytest.fixture
def log(run_name: str) -> MemoryLog:
    log = MemoryLog(run=run_name, data_partitions=PARTITIONS)
    two_lineages(log)
    return log


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    log, folder = MemoryLog(run="made", data_partitions=PARTITIONS), tmp_path_factory.mktemp("report")
    two_lineages(log)
    write_report(log, run_file=settings(log.run, folder=folder), audit=_Audit(), wall_s=12.5)
    return (folder / log.run / "report.html").read_text(encoding="utf-8")


def test_the_page_needs_nothing_from_outside(html: str) -> None:
    assert "://" not in html
    assert not re.search(r'\b(?:src|href)="(?!#)', html)
    assert "@import" not in html
    assert "<script" not in html


def test_every_figure_is_there_with_title_and_description(html: str) -> None:
    plans = [plan for plan in PLANS if plan.name != "evaluation"]  # the run has no evaluation set
    assert html.count("<svg ") == len(plans) == len(PLANS) - 1
    for plan in plans:
        assert f'<title id="{plan.name}-title">{plan.title}</title>' in html
        assert f'<desc id="{plan.name}-desc">' in html


def test_ids_are_unique_and_references_resolve(html: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html)) != set()
    for pair in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html):
        assert (pair[0] or pair[1]) in ids


def test_the_page_forbids_what_it_does_not_need(html: str) -> None:
    assert "default-src 'none'" in html
    sections = re.findall(r"<nav[^>]*>(.*?)</nav>", html)[0]
    assert re.findall(r'href="#([a-z-]+)"', sections) == [
        "learning",
        "data",
        "time",
        "weights",
        "audit",
        "what-happened",
        "settings",
        "environment",
    ]


def test_stand_in_colours_do_not_reach_the_page(html: str) -> None:
    assert not re.search(r"#0[1-4]0[1-4]0\d", html)
    assert "prefers-color-scheme: dark" in html


def test_elements_are_closed_and_text_is_escaped(html: str) -> None:
    open_tags: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Check().feed(html)
    assert open_tags == []
    assert "balanced &lt;all&gt; &amp; fine" in html


def test_the_summary_has_every_promised_key(log: MemoryLog, tmp_path: Path) -> None:
    summary = write_report(log, run_file=settings(log.run, folder=tmp_path), audit=None, wall_s=12.5)
    values = orjson.loads((tmp_path / log.run / "summary.json").read_bytes())
    wanted = {"run", "steps", "reward_first", "reward_last", "samples_produced", "samples_trained", "dropped", "failed"}
    wanted |= {"open", "trained_twice", "max_trained_age", "staleness_bound", "share_trained_at_age_1_or_more"}
    wanted |= {"weights_published", "tokens_generated", "tokens_per_s", "wall_s", "training_s", "processes"}
    wanted |= {"num_processes", "lineages", "waits", "environment", "settings_digest"}
    assert wanted <= values.keys()
    assert values["wall_s"] == 12.5
    assert values["processes"][0] == {"stage": "learner", "instance": "learner-host-11-aaaaaa", "pid": 11}
    assert summary.samples_trained == values["samples_trained"]


def test_a_report_made_again_keeps_the_duration_of_the_run(log: MemoryLog, tmp_path: Path) -> None:
    run_file = settings(log.run, folder=tmp_path)
    write_report(log, run_file=run_file, audit=None, wall_s=12.5)
    assert write_report(log, run_file=run_file, audit=None, wall_s=None).wall_s == 12.5


def test_a_duration_that_nobody_measured_is_left_out(log: MemoryLog, tmp_path: Path) -> None:
    """Of a run that was resumed, or never had a launcher."""
    run_file = settings(log.run, folder=tmp_path)
    text = write_report(log, run_file=run_file, audit=None, wall_s=None).text()
    assert "time      10 s of training, 2.7 tokens/s" in text
    assert "10 s of training, 12.5 s in all" in write_report(log, run_file=run_file, audit=None, wall_s=12.5).text()


def test_without_matplotlib_the_summary_is_written_and_the_hint_names_the_extra(
    log: MemoryLog, tmp_path: Path, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError) as caught:
        write_report(log, run_file=settings(log.run, folder=tmp_path), audit=None, wall_s=None)
    assert "rlweave[report]" in caught.value.hint
    assert (tmp_path / log.run / "summary.json").exists()


def test_a_run_without_records_still_makes_a_page(run_name: str, tmp_path: Path) -> None:
    log = MemoryLog(run=run_name, data_partitions=PARTITIONS)
    write_report(log, run_file=settings(run_name, folder=tmp_path), audit=None, wall_s=None)
    assert "no scored samples" in (tmp_path / run_name / "report.html").read_text(encoding="utf-8")
