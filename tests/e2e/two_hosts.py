"""A run whose learner and rollouts are on different machines: namespaces with a shaped link between them.

    train (learner, scheduler, prompts, reward, peer)  --+
                                                         | the link that is counted
    gpu (peer, two rollouts), services (Kafka, Valkey) --+

Each host has a working directory of its own, with its own copy of the settings, its own run folder and its own model
directory. Kafka and Valkey are beside the rollouts, so what comes over the link from `train` is weights and little
else. Clients see real addresses: Kafka advertises its own, and nothing is relayed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from ops.netlab.lab import Lab, open_lab
from ops.netlab.plan import Host, LabPlan, exec_argv
from ops.services.jars import find_jars
from ops.services.programs import find_java, find_redis
from tests.e2e.processes import LIMIT_S, ROOT, Process, spawn
from tests.e2e.support import Value
from topics.clock import Deadline

PLAN = LabPlan(
    hosts=(
        Host(name="train", domain="left"),
        Host(name="gpu", domain="right"),
        Host(name="services", domain="right"),
    ),
    domains=("left", "right"),
    rate_mbit=400,
    between_mbit=400,
)
PEER_PORT = 7070
KAFKA_PORT, CONTROLLER_PORT, REDIS_PORT = 9092, 9093, 6379
_KAFKA = """\
process.roles=broker,controller
node.id=1
listeners=BROKER://{address}:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=BROKER://{address}:{port}
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
message.max.bytes=35000000
"""
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass
class TwoHosts:
    """The machines of a test, and what was started on them."""

    lab: Lab
    folder: Path
    processes: list[Process] = field(default_factory=list)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def python_path(self) -> str:
        """Where these packages are."""
        return str(ROOT)

    @property
    def bootstrap(self) -> str:
        return f"{PLAN.address('services')}:{KAFKA_PORT}"

    @property
    def redis_url(self) -> str:
        return f"redis://{PLAN.address('services')}:{REDIS_PORT}/0"

    def home(self, host: str) -> Path:
        """The working directory of a host."""
        path = self.folder / host
        path.mkdir(exist_ok=True)
        return path

    def write_settings(self, host: str, settings: Mapping[str, Value]) -> None:
        """The run file of a host."""
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        (self.home(host) / "run.toml").write_text(text)

    def start(self, host: str, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        """Start `rlweave` on a host, in its working directory."""
        log_file = self.folder / f"{len(self.processes)}-{host}-{'-'.join(arguments[:2])}.log"
        prefix = exec_argv(self.lab.namespaces[host], [])
        process = spawn(arguments, log_file=log_file, cwd=self.home(host), prefix=prefix, env=env)
        self.processes.append(process)
        return process

    def command(self, host: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `rlweave` on a host to its end."""
        argv = exec_argv(self.lab.namespaces[host], [sys.executable, "-m", "ops.cli", *arguments])
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=self.home(host), env=environment
        )

    def outputs(self) -> str:
        """Everything any process said, for messages."""
        return "\n".join(f"--- {each.log_file.name}\n{each.output()[-3000:]}" for each in self.processes)

    def start_services(self) -> None:
        """Kafka and Valkey on their host, at its address; they answer when this returns."""
        home, address = self.home("services"), PLAN.address("services")
        kafka = home / "kafka.properties"
        kafka.write_text(
            _KAFKA.format(address=address, port=KAFKA_PORT, controller=CONTROLLER_PORT, data=home / "kafka")
        )
        java = [find_java(), *_JVM, "-cp", f"{find_jars()}/*"]
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", "rlweave-two-hosts-0001", "-c", str(kafka)]
        subprocess.run(tool, check=True, capture_output=True, timeout=LIMIT_S)
        redis = [find_redis(), "--bind", address, "--port", str(REDIS_PORT), "--protected-mode", "no", "--save", ""]
        for argv in ([*java, "kafka.Kafka", str(kafka)], redis):
            self._serve(argv)
        deadline = Deadline.after(LIMIT_S)
        while self.command("services", "topics", "--run", "none", "--kafka", self.bootstrap).returncode == 4:
            deadline.check(f"Kafka at {self.bootstrap}")

    def end_all(self) -> None:
        """End whatever is left."""
        for process in self.processes:
            process.popen.kill()
            process.popen.wait()
        for server in self.servers:
            server.kill()
            server.wait()

    def _serve(self, argv: Sequence[str]) -> None:
        with (self.folder / "services.log").open("ab") as output:
            inside = exec_argv(self.lab.namespaces["services"], argv)
            self.servers.append(
                subprocess.Popen(
                    inside,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.home("services"),
                    start_new_session=True,
                )
            )


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Machines with Kafka and Valkey answering; whatever was started on them is ended afterwards."""
    with open_lab(PLAN) as lab:
        hosts = TwoHosts(lab=lab, folder=folder)
        try:
            hosts.start_services()
            yield hosts
        finally:
            hosts.end_all()


def certificates(folder: Path, *, hosts: TwoHosts) -> None:
    """A certificate for each host's address, signed by one authority, in the working directories."""
    authority = trustme.CA()
    for host in ("train", "gpu"):
        issued = authority.issue_cert(PLAN.address(host))
        home = hosts.home(host)
        authority.cert_pem.write_to_path(home / "ca.pem")
        issued.private_key_pem.write_to_path(home / "peer.key")
        issued.cert_chain_pems[0].write_to_path(home / "peer.pem")


def copy_model(model: Path, *, hosts: TwoHosts, names: Sequence[str] = ("train", "gpu")) -> None:
    """The model directory, on each host that needs it."""
    for host in names:
        shutil.copytree(model, hosts.home(host) / "model")
