"""Learner and rollouts on different machines: nothing is shared but Kafka, Redis, a token and the model."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.engines.tiny import TinyShape, make_tiny_model
from tests.e2e.support import Value
from tests.e2e.two_hosts import PEER_PORT, PLAN, TwoHosts, certificates, copy_model, two_hosts
from topics.clock import SystemClock

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", "tc", "ss")),
        reason="machines are made of network namespaces, which need root and iproute2",
    ),
]

RUN = "two-hosts"
STEPS = 6
SKEW_S = 3 * 3600  # the clock of the rollouts' machine is ahead
SHAPE = TinyShape(hidden_size=192, num_heads=4, num_kv_heads=2)
SKEWED = Path(__file__).parent / "skewed"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    folder = tmp_path_factory.mktemp("two-hosts")
    make_tiny_model(folder / "model", seed=7, context_tokens=32, shape=SHAPE)
    with two_hosts(folder) as hosts:
        copy_model(folder / "model", hosts=hosts)
        certificates(folder, hosts=hosts)
        yield hosts


def settings_of(host: str, *, hosts: TwoHosts) -> dict[str, Value]:
    """A host's own copy of the settings: the run is the same, addresses and files are its own."""
    return {
        "run.name": RUN,
        "run.partitions": 8,
        "run.groups_per_step": 4,
        "run.group_size": 4,
        "run.max_steps": STEPS,
        "run.heartbeat_s": 0.5,
        "kafka.bootstrap": hosts.bootstrap,
        "redis.url": hosts.redis_url,
        "model.path": "model",
        "weights.host": PLAN.address(host),
        "weights.port": PEER_PORT,
        "weights.domain": {"train": "left", "gpu": "right"}[host],
        "weights.token_file": "token",
        "weights.tls_cert": "peer.pem",
        "weights.tls_key": "peer.key",
        "weights.tls_ca": "ca.pem",
        "weights.anchor_every": 1,  # every version whole, so that the link's counter can tell one copy from two
        "prompts.max_tokens": 3,
        "prompts.source.files": ["tasks.jsonl"],
        "rollout.replicas": 2,
        "rollout.max_sequences": 16,
        "rewards.sum.plugin": "number_match",
        "learner.optimizer.learning_rate": 5e-4,
        "learner.cloning.num_steps": 5,
        "learner.cloning.source.files": ["tasks.jsonl"],
    }


def write_tasks(path: Path) -> None:
    draw = random.Random(RUN)
    pairs = [(draw.randrange(10), draw.randrange(10)) for _ in range(2000)]
    path.write_text("".join(json.dumps({"question": f"{a} + {b} =", "answer": str(a + b)}) + "\n" for a, b in pairs))


@dataclass(frozen=True)
class Seen:
    """What the topics say of the run, read on one of the hosts."""

    records: tuple[Mapping[str, object], ...]

    def notices(self, stage: str, name: str) -> list[Mapping[str, object]]:
        return [each for each in self.records if (each["stage"], each["name"]) == (stage, name)]

    def versions(self, name: str, *, key: str = "version") -> dict[str, set[str]]:
        """Versions that notices of this name told of, by rollout process."""
        found: dict[str, set[str]] = {}
        for each in self.notices("rollout", name):
            details = each["details"]
            assert isinstance(details, dict)
            found.setdefault(str(each["instance"]), set()).add(str(details[key]))
        return found


def read_events(hosts: TwoHosts, host: str) -> Seen:
    said = hosts.command(host, "replay", "--run", RUN, "--topic", "events", "--jsonl", "-")
    assert said.returncode == 0, said.stderr
    return Seen(tuple(json.loads(line)["record"] for line in said.stdout.splitlines()))


def test_a_run_over_two_machines_balances_and_each_version_crosses_the_link_once(hosts: TwoHosts) -> None:
    made = hosts.command("train", "token", "token")
    assert made.returncode == 0, made.stderr
    shutil.copy(hosts.home("train") / "token", hosts.home("gpu") / "token")
    write_tasks(hosts.home("train") / "tasks.jsonl")  # the other machine needs none
    for host in ("train", "gpu"):
        hosts.write_settings(host, settings_of(host, hosts=hosts))
    before = hosts.lab.counters()

    ahead = {"PYTHONPATH": f"{SKEWED}{os.pathsep}{hosts.python_path}", "RLWEAVE_TEST_SKEW_S": str(SKEW_S)}
    train = hosts.start("train", "up", "--config", "run.toml", "--only", "learner,scheduler,prompts,reward,peer")
    gpu = hosts.start("gpu", "up", "--config", "run.toml", "--only", "peer,rollout", env=ahead)
    assert train.wait(120) == 0, hosts.outputs()
    assert gpu.wait() == 0, f"the second machine did not end with the run\n{hosts.outputs()}"
    crossed_bytes = hosts.lab.counters().since(before).crossed["left"]

    for host in ("train", "gpu"):
        audit = hosts.command(host, "audit", "--run", RUN)
        assert (audit.returncode, "sealed, step 6" in audit.stdout) == (0, True), audit.stdout + audit.stderr
    seen = read_events(hosts, "gpu")
    check_clocks(seen)
    check_link(seen, crossed_bytes=crossed_bytes)


def check_clocks(seen: Seen) -> None:
    """The clocks did differ, and nothing minded."""
    now_ms = SystemClock().unix_ms()
    times = {str(each["stage"]): each["unix_ms"] for each in seen.records}
    assert isinstance(times["rollout"], int)
    assert times["rollout"] - now_ms > (SKEW_S - 600) * 1000
    assert isinstance(times["learner"], int)
    assert times["learner"] <= now_ms


def check_link(seen: Seen, *, crossed_bytes: int) -> None:
    """Two engines loaded the versions, and each version came over the link once."""
    swapped = seen.versions("swapped")
    assert len(swapped) == 2, swapped
    fetched = set().union(*swapped.values())
    (version_bytes,) = {each["gauges"]["state_bytes"] for each in seen.notices("learner", "staged")}  # type: ignore[index]
    assert isinstance(version_bytes, float)
    num_staged = len(seen.notices("learner", "staged"))
    assert num_staged == STEPS + 1
    assert sum(map(len, swapped.values())) > len(fetched), "no version was loaded by both"
    assert len(fetched) >= STEPS // 3, "samples may be two steps old, so an engine may leave out two versions, not more"
    sent = [each["gauges"].get("weight_bytes{direction=sent}", 0.0) for each in seen.records if each["stage"] == "peer"]  # type: ignore[attr-defined]
    assert max(sent) <= num_staged * version_bytes, "the learner's machine sent a chunk twice"
    # Headers of packets and TLS, and what learner and prompts write to Kafka, come on top.
    assert len(fetched) * version_bytes <= crossed_bytes <= 1.15 * num_staged * version_bytes + 2e6
