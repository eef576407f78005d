"""Counting, and what comes out of it for Prometheus and for heartbeats."""

from __future__ import annotations

import errno
import re
import socket
import threading
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest

from pipeline.metric_catalog import AGE_KINDS, GROUPS, METRICS, SAMPLE_HOPS, SCOPES, WEIGHT_HOPS
from pipeline.metrics import Metrics
from pipeline.weights.directory import PeerInfo
from pipeline.weights.scopes import scope_of
from schemas.errors import SettingsError

BASE_UNITS = ("bytes", "tokens", "versions", "per_s", "ms", "s", "share")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(run="r", stage="reward", instance="i", labels={"name": "exact"})


def exposed(metrics: Metrics) -> dict[str, float]:
    """Series with their labels -> value, as Prometheus reads them."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def series(name: str, **labels: str) -> str:
    everything = {"run": "r", "stage": "reward", "instance": "i", "name": "exact", **labels}
    pairs = ",".join(f'{key}="{everything[key]}"' for key in sorted(everything))
    return f"{name}{{{pairs}}}"


def test_names_say_their_unit_and_every_group_has_metrics() -> None:
    assert {spec.group for spec in METRICS} == set(GROUPS)
    for spec in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", spec.name)
        assert spec.help.endswith(".")
        if spec.kind == "histogram":
            assert spec.unit in BASE_UNITS, spec.name
            assert list(spec.buckets) == sorted(set(spec.buckets))
        assert len(spec.labels) <= 2, f"{spec.name}: few values, few labels"


def test_counters_gauges_and_histograms_are_exposed_with_all_labels(metrics: Metrics) -> None:
    metrics.count("records_read", 3, topic="samples")
    metrics.count("records_read", topic="samples")
    metrics.gauge("breaker_open", 1)
    metrics.observe_all("score_s", [0.02, 0.03, 500.0])
    found = exposed(metrics)
    assert found[series("rlweave_records_read_total", topic="samples")] == 4
    assert found[series("rlweave_breaker_open")] == 1
    buckets = {edge: found[series("rlweave_score_s_bucket", le=edge)] for edge in ("0.01", "0.03", "100.0", "+Inf")}
    assert buckets == {"0.01": 0, "0.03": 2, "100.0": 2, "+Inf": 3}
    assert found[series("rlweave_score_s_count")] == 3
    assert found[series("rlweave_score_s_sum")] == pytest.approx(500.05)


def test_the_names_that_the_catalog_says_are_those_exposed(metrics: Metrics) -> None:
    for spec in METRICS:
        labels = dict.fromkeys(spec.labels, "x")
        if "name" in labels:
            continue
        if spec.kind == "counter":
            metrics.count(spec.name, 1.0, **labels)
        elif spec.kind == "gauge":
            metrics.gauge(spec.name, 1.0, **labels)
        else:
            metrics.observe(spec.name, 1.0, **labels)
    names = {key.partition("{")[0] for key in exposed(metrics)}
    assert names == {name for spec in METRICS for name in spec.series}


def test_a_heartbeat_has_sums_and_counts_and_no_buckets(metrics: Metrics) -> None:
    metrics.observe("sample_hop_ms", 40.0, hop="made_scored")
    metrics.observe("sample_hop_ms", 60.0, hop="made_scored")
    metrics.observe("phase_s", 3.0, phase="scoring")
    metrics.count("samples_scored", 2, result="value")
    assert metrics.snapshot() == {
        "sample_hop_ms_sum{hop=made_scored}": 100.0,
        "sample_hop_ms_count{hop=made_scored}": 2.0,
        "samples_scored{result=value}": 2.0,
    }


def test_times_below_zero_count_as_zero_and_as_a_skew(metrics: Metrics) -> None:
    metrics.observe_all("sample_hop_ms", [-5.0, 10.0], hop="scored_cut")
    told = metrics.snapshot()
    assert told["sample_hop_ms_sum{hop=scored_cut}"] == 10.0
    assert told["sample_hop_ms_count{hop=scored_cut}"] == 2.0
    assert told["clock_skews"] == 1.0


def test_an_absent_gauge_is_not_zero(metrics: Metrics) -> None:
    metrics.gauge("lag_records", 7, group="g", topic="samples")
    metrics.absent("lag_records", group="g", topic="samples")
    metrics.absent("kv_use_share")
    assert metrics.snapshot() == {}
    assert exposed(metrics) == {}


def test_what_is_not_declared_so_is_refused(metrics: Metrics) -> None:
    with pytest.raises(KeyError):
        metrics.count("no_such_metric")
    with pytest.raises(TypeError, match="loss is a gauge, not a counter"):
        metrics.count("loss")
    with pytest.raises(ValueError, match="records_read has the labels"):
        metrics.count("records_read", partition="3")
    with pytest.raises(ValueError, match="records_read has the labels"):
        metrics.count("records_read", topic="samples", partition="3")
    with pytest.raises(ValueError, match="cannot go down"):
        metrics.count("steps_done", -1)


def test_threads_lose_no_count(metrics: Metrics) -> None:
    def count() -> None:
        for _ in range(2000):
            metrics.count("steps_done")
            metrics.observe("score_s", 0.1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.snapshot()["steps_done"] == 8000
    assert metrics.snapshot()["score_s_count"] == 8000


def test_a_port_that_is_taken_is_followed_by_the_next(metrics: Metrics) -> None:
    first = metrics.expose(0)
    second = Metrics(run="r", stage="learner", instance="j")
    second.gauge("loss", 2)
    port = second.expose(first)
    assert first < port < first + 64
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b'rlweave_loss{instance="j",run="r",stage="learner"} 2.0' in answer.read()


def test_a_foreign_address_is_a_named_error(metrics: Metrics) -> None:
    with pytest.raises(SettingsError, match=r"no metrics can be served at 192\.0\.2\.1"):
        metrics.expose(0, host="192.0.2.1")


@pytest.mark.parametrize(
    ("url", "domain", "scope"),
    [
        ("http://10.0.0.1:4000", "a", "same_host"),
        ("http://127.0.0.1:4000", "b", "same_host"),
        ("http://10.0.0.2:4000", "a", "same_domain"),
        ("http://10.0.0.2:4000", "b", "across_domains"),
        ("http://10.0.0.2:4000", "", "across_domains"),
    ],
)
def test_how_far_bytes_come(url: str, domain: str, scope: str) -> None:
    assert scope in SCOPES
    assert scope_of(url, domain=domain, here=PeerInfo(url="http://10.0.0.1:4001", domain="a")) == scope


def test_hosts_without_a_domain_are_in_one() -> None:
    assert scope_of("http://10.0.0.2:1", domain="", here=PeerInfo(url="http://10.0.0.1:1")) == "same_domain"
    assert scope_of("http://10.0.0.2:1", domain="", here=None) == "same_domain"


def test_hops_and_kinds_are_words_of_the_catalog() -> None:
    assert SAMPLE_HOPS[-1] == "made_trained"
    assert WEIGHT_HOPS[-1] == "trained_serving"
    assert AGE_KINDS == ("in_flight", "in_queue", "at_cut")


def test_a_host_that_is_not_ours_is_tried_once(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def start(port: int, **_: object) -> None:
        tried.append(port)
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr("pipeline.metrics.start_http_server", start)
    with pytest.raises(SettingsError, match="Cannot assign"):
        metrics.expose(4000, host="10.255.255.1")
    assert tried == [4000]


def test_a_client_that_says_nothing_is_let_go(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.metrics._REQUEST_S", 0.05)
    with socket.create_connection(("127.0.0.1", metrics.expose(0)), timeout=10) as silent:
        silent.sendall(b"GET /metr")
        assert silent.recv(1) == b""
