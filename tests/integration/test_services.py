"""Local services on real processes: start, restart, stop, and an external address that does not answer."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from redis import Redis

from ops.cli.services import doctor, services
from ops.services.manager import services_down, services_status, services_up
from ops.services.model import Layout, ServicesError, ServicesInfo, ServicesSettings
from ops.services.process import ProcessId, wait_until
from ops.services.server import ensure_started, ensure_stopped, observe
from ops.services.state import ServiceState, StateFile, free_ports
from ops.services.valkey import ValkeyServer

pytestmark = pytest.mark.integration

TOPIC = "kept"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[ServicesSettings]:
    settings = ServicesSettings(state_dir=tmp_path / "state")
    yield settings
    services_down(settings)


def produce(bootstrap: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # a result is lost with the last reference to its client
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(TOPIC, value)
    assert producer.flush(60) == 0


def first_value(bootstrap: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    message = consumer.poll(60)
    consumer.close()
    return message.value() if message is not None and message.error() is None else None


def is_gone(pid: int | None) -> bool:
    assert pid is not None
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def test_restart_keeps_data_and_addresses(settings: ServicesSettings) -> None:
    before = services_up(settings)
    produce(before.kafka_bootstrap, b"still here")
    with Redis.from_url(before.redis_url) as redis:
        redis.set("key", "still here")

    stopped = services_down(settings)
    assert (stopped.kafka.running, stopped.redis.running) == (False, False)
    after = services_up(settings)

    assert (after.kafka_bootstrap, after.redis_url) == (before.kafka_bootstrap, before.redis_url)
    assert after.kafka.pid != before.kafka.pid
    assert first_value(after.kafka_bootstrap) == b"still here"
    with Redis.from_url(after.redis_url) as redis:
        assert redis.get("key") == b"still here"


def test_concurrent_and_later_ups_return_one_set(settings: ServicesSettings) -> None:
    results: list[ServicesInfo] = []
    threads = [threading.Thread(target=lambda: results.append(services_up(settings))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert len(results) == 2
    assert results[0].running
    assert results[1] == services_up(settings) == services_status(settings) == results[0]


def test_down_ends_the_processes_and_only_those(settings: ServicesSettings, tmp_path: Path) -> None:
    other = ServicesSettings(state_dir=tmp_path / "other")
    try:
        ours, theirs = services_up(settings), services_up(other)
        services_down(settings)
        assert is_gone(ours.kafka.pid)
        assert is_gone(ours.redis.pid)
        assert services_status(other) == theirs
    finally:
        services_down(other)


def test_a_killed_broker_is_seen_and_started_again(settings: ServicesSettings) -> None:
    before = services_up(settings)
    produce(before.kafka_bootstrap, b"synced or not, on one machine it is in the page cache")
    assert before.kafka.pid is not None
    os.kill(before.kafka.pid, signal.SIGKILL)
    assert wait_until(lambda: not services_status(settings).kafka.running, timeout_s=60)
    after = services_up(settings)
    assert after.kafka_bootstrap == before.kafka_bootstrap
    assert after.redis.pid == before.redis.pid
    assert first_value(after.kafka_bootstrap) is not None


def test_a_taken_port_is_replaced_and_said(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path)
    server = ValkeyServer(state_file, layout=Layout())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        state_file.write("redis", ServiceState(ports=(port,)))
        notes = ensure_started([server], state_file)
    info = observe(server, state_file.read("redis"))
    ensure_stopped([server], state_file)
    assert info.running
    assert info.address != server.address((port,))
    assert [str(port) in note for note in notes] == [True]


def test_servers_get_ports_that_no_outgoing_connection_is_given() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < lowest


def test_a_recycled_pid_is_not_stopped(settings: ServicesSettings) -> None:
    settings.state_dir.mkdir()
    impostor = ProcessId(pid=os.getpid(), started="another time")
    StateFile(settings.state_dir).write("redis", ServiceState(ports=(1,), process=impostor))
    assert not services_status(settings).redis.running
    assert not services_down(settings).redis.running  # a signal would end this test run


@pytest.mark.parametrize("name", ["kafka", "redis"])
def test_an_external_address_that_does_not_answer(tmp_path: Path, name: str) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    given = {"kafka": address} if name == "kafka" else {"kafka": None, "redis": f"redis://{address}/0"}
    settings = ServicesSettings(state_dir=tmp_path / "state", **given)
    began = time.monotonic()
    try:
        with pytest.raises(ServicesError) as caught:
            services_up(settings)
    finally:
        services_down(ServicesSettings(state_dir=settings.state_dir))
    assert time.monotonic() - began < 120  # 10 s on an idle machine, start and stop of the other service included
    assert address in caught.value.message
    assert f"--{name}" in caught.value.hint


def test_commands_print_addresses_and_errors_without_traceback(tmp_path: Path) -> None:
    runner = CliRunner()
    state = ["--state-dir", str(tmp_path / "state")]
    address = f"127.0.0.1:{free_ports(1)[0]}"
    failed = runner.invoke(services, ["up", *state, "--kafka", address])
    assert failed.exit_code == 1
    assert failed.stderr.startswith("error: ")
    assert "\nhint: " in failed.stderr
    stopped = runner.invoke(services, ["status", *state])
    assert stopped.exit_code == 1
    assert "stopped" in stopped.stdout
    assert "Java" in runner.invoke(doctor, state).stdout
