"""What is shipped for Prometheus and Grafana fits the metrics, the runbook and itself."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from ops.deploy.dashboards import FOLDER, files
from pipeline.metrics import METRICS

ROOT = Path(__file__).parents[4]
PROMETHEUS = ROOT / "ops" / "deploy" / "prometheus"
RECORDING = (PROMETHEUS / "rules" / "recording.yml").read_text(encoding="utf-8")
ALERTS = (PROMETHEUS / "rules" / "alerts.yml").read_text(encoding="utf-8")
ALERT_TESTS = (PROMETHEUS / "tests" / "alerts.yml").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
NAMES = re.findall(r"alert: (\w+)", ALERTS)
RECORDED = set(re.findall(r"record: (\S+)", RECORDING))
SERIES = {series for spec in METRICS for series in spec.series}
DASHBOARDS = sorted(FOLDER.glob("*.json"))


def expressions(path: Path) -> list[str]:
    """Of all panels of a dashboard, and of the variable that lists the runs."""
    content = orjson.loads(path.read_bytes())
    variables = [each["definition"] for each in content["templating"]["list"] if "definition" in each]
    return [*variables, *(target["expr"] for panel in content["panels"] for target in panel.get("targets", []))]


def unknown(text: str) -> set[str]:
    """Names in an expression that nothing gives."""
    plain = re.sub(r'"[^"]*"', lambda found: found[0] if "rlweave_" in found[0] else "", text)
    return (set(re.findall(r"\brlweave_\w+", plain)) - SERIES) | (
        set(re.findall(r"\brlweave:[\w:]+", plain)) - RECORDED
    )


@pytest.mark.parametrize("text", [RECORDING, ALERTS], ids=["recording", "alerts"])
def test_every_series_in_a_rule_exists(text: str) -> None:
    assert unknown("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))) == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_series_in_a_dashboard_exists(path: Path) -> None:
    found = expressions(path)
    assert len(found) >= 20
    assert {name for expression in found for name in unknown(expression)} == set()


def test_a_series_that_nothing_gives_is_found() -> None:
    assert unknown("rate(rlweave_tokens_made_total[1m]) / rlweave:tokens:rate1m > rlweave_loss") == {
        "rlweave_tokens_made_total",
        "rlweave:tokens:rate1m",
    }


def test_the_dashboards_are_those_of_the_table() -> None:
    """`python -m ops.deploy.dashboards` was run after the last change."""
    assert {path: path.read_bytes() for path in DASHBOARDS} == files()


def test_every_recorded_series_is_asked_for() -> None:
    asked = ALERTS + "".join(path.read_text(encoding="utf-8") for path in DASHBOARDS)
    assert {name for name in RECORDED if name not in asked} == set()


def test_alerts_have_one_name_each_and_an_entry_in_the_runbook() -> None:
    rows = re.findall(r"^\| `(Rlweave\w+)` \|", RUNBOOK.split("## Alerts")[1].split("## Metrics")[0], re.MULTILINE)
    assert len(set(NAMES)) == len(NAMES) >= 20
    assert rows == sorted(rows, key=rows.index)
    assert set(rows) == set(NAMES)
    assert len(rows) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_test_that_fires_it_and_one_that_does_not(name: str) -> None:
    cases = re.findall(
        rf'alertname="{name}",alertstate="firing",run="([\w-]+)"}}\'\n.*\n +exp_samples: \[(.?)', ALERT_TESTS
    )
    assert sorted((run.startswith("quiet-"), bool(first.strip("]"))) for run, first in cases) == [
        (False, True),
        (True, False),
    ]


def test_the_port_files_that_prometheus_reads_are_those_that_processes_write() -> None:
    config = (PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8")
    (pattern,) = re.findall(r'files: \["(.*)"\]', config)
    assert (PROMETHEUS / pattern).parent.resolve() == (ROOT / "runs" / ".prometheus")
