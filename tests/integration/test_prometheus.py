"""The rules, alerts and dashboards, evaluated by a real Prometheus; it scrapes what processes really expose."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from ops.deploy.dashboards import FOLDER
from ops.metrics_targets import announce, withdraw
from ops.services.state import free_ports
from pipeline.metrics import Metrics
from tests.prometheus import NoPrometheus, Prometheus, running, tool

SHIPPED = FOLDER.parents[1] / "prometheus"
RUN = "planted"
Labels = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return tool("promtool")
    except NoPrometheus as error:
        pytest.skip(str(error))


def test_rules_give_what_their_tests_say(promtool: Path) -> None:
    checked = subprocess.run(
        [promtool, "test", "rules", "alerts.yml", "recording.yml"],
        cwd=SHIPPED / "tests",
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def labels(**values: str) -> Labels:
    return tuple(sorted({"run": RUN, **values}.items()))


class Planted:
    """Five processes of a run, and what they count."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.files: dict[str, Path] = {}
        self.learner, self.scheduler = self._process("learner"), self._process("scheduler")
        self.engines = [self._process("rollout", "rollout-a"), self._process("rollout", "rollout-b")]
        self.reward = self._process("reward", name="exact")

    def _process(self, stage: str, instance: str = "", **further: str) -> Metrics:
        name = instance or f"{stage}-1"
        metrics = Metrics(run=RUN, stage=stage, instance=name, labels=further)
        address = f"127.0.0.1:{metrics.expose(0)}"
        self.files[name] = announce(self.runs, instance=name, address=address, labels={"run": RUN, "stage": stage})
        metrics.gauge("turn_age_s", 0.1)
        return metrics

    def tick(self, size: int) -> None:
        """All counters go on. What they gain has the same ratios in every process: `rate` extrapolates each one by how
        often it was scraped, and on a busy machine that is not the same number for two of them."""
        self.learner.count("steps_done", 2 * size)
        self.learner.count("samples_trained", 64 * size)
        self.learner.count("members_dropped", 16 * size, reason="stale")
        self.learner.count("phase_time_s", 6 * size, phase="forward_backward")
        self.learner.count("phase_time_s", 9 * size, phase="waiting_for_data")
        for engine in self.engines:
            engine.count("phase_time_s", 11.25 * size, phase="generating")
            engine.count("phase_time_s", 3.75 * size, phase="waiting_for_weights")
            engine.observe_all("sample_hop_ms", [200.0, 300.0] * size, hop="begun_made")
            engine.observe_all("weight_hop_s", [1.0, 2.0] * size, hop="trained_serving")
            engine.observe_all("request_s", [0.3] * size)
            engine.gauge("waiting_sequences", 6)
        self.scheduler.gauge("lag_records", 80, group="g", topic="samples")

    def faults(self) -> None:
        """What alerts are for."""
        self.reward.gauge("breaker_open", 1)
        self.reward.count("dead_letters", topic="samples")
        self.learner.gauge("oldest_open_group_s", 110)
        self.engines[0].gauge("turn_age_s", 75)


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "runs")


@pytest.fixture
def prometheus(promtool: Path, planted: Planted, tmp_path: Path) -> Iterator[Prometheus]:
    """With the files that are shipped, ten times as fast."""
    folder = tmp_path / "ops" / "deploy" / "prometheus"
    shutil.copytree(SHIPPED, folder)
    config = folder / "prometheus.yml"
    text = config.read_text(encoding="utf-8")
    assert "interval: 5s" in text
    config.write_text(text.replace("interval: 5s", "interval: 500ms"), encoding="utf-8")
    planted.tick(1)
    with running(config, folder=tmp_path) as server:
        yield server


def test_a_real_scrape_gives_the_right_numbers_and_alerts(prometheus: Prometheus, planted: Planted) -> None:
    up = {labels(job="rlweave", stage=stage, instance=instance): 1.0 for stage, instance in INSTANCES.items()}
    prometheus.until('up{job="rlweave",stage!="rollout"}', up)
    prometheus.until(f'sum(up{{run="{RUN}"}})', {(): 5.0})  # a rate needs a look before the numbers move
    prometheus.until("count(rlweave_steps_done_total)", {(): 1.0})
    planted.faults()
    gone = announce(
        planted.runs,
        instance="learner-0",
        address=f"127.0.0.1:{free_ports(1)[0]}",
        labels={"run": RUN, "stage": "evaluator"},
    )
    for expression, wanted in EXPECTED.items():
        planted.tick(40)  # each has a minute of its own: a rate is of the last one
        prometheus.until(expression, wanted)
    for name, firing in ALERTS.items():
        asked = f'max without (alertstate) (ALERTS{{alertname="{name}"}})'  # firing, or pending for its `for`
        prometheus.until(asked, {labels(alertname=name, **each): 1.0 for each in firing})
    check_health(prometheus)
    withdraw(gone)
    prometheus.until('up{instance="learner-0"}', {})


def check_health(prometheus: Prometheus) -> None:
    """Every rule and every query of a dashboard can be evaluated."""
    groups = prometheus.ask("rules")
    assert isinstance(groups, dict)
    rules = [rule for group in groups["groups"] for rule in group["rules"]]
    assert len(rules) > 50
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    for path in FOLDER.glob("*.json"):
        for panel in orjson.loads(path.read_bytes())["panels"]:
            for target in panel.get("targets", []):
                prometheus.values(target["expr"].replace("$run", RUN))


INSTANCES = {"learner": "learner-1", "scheduler": "scheduler-1", "reward": "reward-1"}
EXPECTED: dict[str, dict[Labels, float]] = {
    "rlweave:learner_waits_for_data:share1m": {labels(): 0.6},
    "rlweave:rollouts_wait_for_weights:share1m": {labels(): 0.25},
    "rlweave:step_phase_s:mean5m": {labels(phase="forward_backward"): 3.0, labels(phase="waiting_for_data"): 4.5},
    "rlweave:sample_hop_ms:mean5m": {labels(hop="begun_made"): 250.0},
    "rlweave:weight_hop_s:mean5m": {labels(hop="trained_serving"): 1.5},
    "rlweave:request_s:p50": {labels(): 0.375},  # the middle of the bucket from 0.25 to 0.5
    "rlweave:members_dropped:share5m": {labels(): 0.2},
    "rlweave:queue_depth:sum": {labels(): 12.0},
}
ALERTS: dict[str, list[dict[str, str]]] = {
    "RlweaveBreakerOpen": [
        {"severity": "critical", "stage": "reward", "instance": "reward-1", "name": "exact"} | {"job": "rlweave"}
    ],
    "RlweaveGroupStuck": [{"severity": "warning", "stage": "learner", "instance": "learner-1", "job": "rlweave"}],
    "RlweaveProcessHangs": [{"severity": "critical", "stage": "rollout", "instance": "rollout-a", "job": "rlweave"}],
    "RlweaveRecordsLost": [{"severity": "critical", "stage": "reward", "what": "dead_letters"}],
    "RlweaveSamplesGoStale": [{"severity": "warning"}],
    "RlweaveProcessDown": [
        {"severity": "critical", "stage": "evaluator", "instance": "learner-0"} | {"job": "rlweave"}
    ],
}
