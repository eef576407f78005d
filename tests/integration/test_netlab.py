"""A laboratory network for real: rates, counters, cables, and that it goes away again however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ops.netlab import leftovers
from ops.netlab.lab import Lab, open_lab
from ops.netlab.plan import Host, LabPlan
from ops.netlab.tools import run_tool
from topics.clock import Deadline

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", "tc", "ss")),
        reason="networks need root and iproute2",
    ),
]

NAMESPACES = Path("/run/netns")
PLAN = LabPlan(
    hosts=(Host(name="one", domain="a"), Host(name="two", domain="a")),
    domains=("a", "b"),
    rate_mbit=80.0,
    between_mbit=20.0,
)
NUM_BYTES = 2 * 2**20
LIMIT_S = 60.0  # of anything, on a busy machine
SERVE = """
import socket, sys
listener = socket.create_server(("0.0.0.0", 5000))
print("listening", flush=True)
connection, _ = listener.accept()
num_bytes = 0
while data := connection.recv(2**20):
    num_bytes += len(data)
print(num_bytes, flush=True)
"""
SEND = f"""
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=3) as connection:
    connection.settimeout({LIMIT_S})  # of all that is sent
    connection.sendall(bytes({NUM_BYTES}))
"""
HOLD = """
import sys, time
from ops.netlab.lab import open_lab
from ops.netlab.plan import Host, LabPlan
plan = LabPlan(hosts=(Host(name="one", domain="a"),), domains=("a",), rate_mbit=10.0)
with open_lab(plan) as lab:
    lab.start("one", [sys.executable, "-c", "import time; time.sleep(600)"])
    print(lab.namespaces["hub"].removesuffix(".hub"), lab.folder, lab._processes[0].pid, flush=True)
    time.sleep(600)
"""


def _send(lab: Lab) -> float:
    """Two MiB from one to two; gives the seconds."""
    listening = lab.start("two", [sys.executable, "-c", SERVE])
    assert listening.stdout is not None
    assert listening.stdout.readline() == b"listening\n"
    began_s = time.monotonic()
    sending = lab.start("one", [sys.executable, "-c", SEND, lab.plan.address("two")])
    assert listening.stdout.readline() == f"{NUM_BYTES}\n".encode()
    seconds = time.monotonic() - began_s
    assert sending.wait(LIMIT_S) == 0
    return seconds


def _left(prefix: str) -> list[str]:
    return [path.name for path in NAMESPACES.iterdir() if path.name.startswith(prefix)] if NAMESPACES.is_dir() else []


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = Deadline.after(LIMIT_S)
    while not holds():
        deadline.check(what)
        deadline.clock.wait(0.02)


def test_links_have_their_rates_and_count_every_header() -> None:
    with open_lab(PLAN) as lab:
        before = lab.counters()
        seconds = _send(lab)
        links = lab.counters().since(before)
        assert seconds > 0.9 * NUM_BYTES * 8 / 80e6
        assert 1.03 < links.up["one"] / NUM_BYTES < 1.08
        assert 1.03 < links.down["two"] / NUM_BYTES < 1.08
        assert links.crossed["a"] < 0.05 * NUM_BYTES


def test_a_host_in_the_other_domain_is_behind_the_slow_link() -> None:
    with open_lab(PLAN) as lab:
        lab.plug("two", domain="b")
        before = lab.counters()
        assert _send(lab) > 0.9 * NUM_BYTES * 8 / 20e6
        assert 1.03 < lab.counters().since(before).crossed["a"] / NUM_BYTES < 1.08
        lab.shape_between(rate_mbit=80.0)
        assert any(_send(lab) < 0.9 * NUM_BYTES * 8 / 20e6 for _ in range(5)), "one that the machine did not hold up"


def test_a_rate_can_be_changed() -> None:
    with open_lab(PLAN) as lab:
        lab.shape("two", rate_mbit=20.0)
        assert _send(lab) > 0.9 * NUM_BYTES * 8 / 20e6


def test_a_cut_cable_carries_nothing_until_it_is_plugged_in() -> None:
    with open_lab(PLAN) as lab:
        lab.cut("two")
        alone = lab.start("one", [sys.executable, "-c", SEND, lab.plan.address("two")])
        assert alone.wait(LIMIT_S) != 0
        lab.plug("two", domain="a")
        _send(lab)


def test_hosts_do_not_reach_the_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, open_lab(PLAN) as lab:
        port = listener.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)"
        assert lab.start("one", [sys.executable, "-c", code]).wait(LIMIT_S) != 0


def test_an_error_in_the_block_leaves_nothing() -> None:
    made: list[tuple[Lab, subprocess.Popen[bytes]]] = []

    def fail() -> None:
        with open_lab(PLAN) as lab:
            made.append((lab, lab.start("one", [sys.executable, "-c", "import time; time.sleep(600)"])))
            (lab.folder / "file").touch()
            raise RuntimeError("in the block")

    with pytest.raises(RuntimeError, match="in the block"):
        fail()
    (lab, process) = made[0]
    assert process.returncode == -signal.SIGKILL
    assert not lab.folder.exists()
    assert _left(lab.namespaces["one"]) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        prefix, folder, pid = holder.stdout.readline().decode().split()
        assert len(_left(prefix)) == 2
        holder.send_signal(number)
        holder.wait(LIMIT_S)
    assert _left(prefix) == []
    assert not Path(folder).exists()
    assert not Path(f"/proc/{pid}").exists()


def _killed() -> tuple[str, Path]:
    """What a process left that was killed: the prefix of its namespaces, and its folder."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        prefix, folder, pid = holder.stdout.readline().decode().split()
        assert len(_left(prefix)) == 2
        holder.kill()
        holder.wait(LIMIT_S)
    os.kill(int(pid), signal.SIGKILL)  # it was told to sleep, whoever lives
    _until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of process {pid}")
    return prefix, Path(folder)


def test_what_a_killed_process_left_is_removed_by_the_next_one() -> None:
    prefix, folder = _killed()
    with open_lab(PLAN):
        assert _left(prefix) == []
        assert not folder.exists()


def test_leftovers_that_another_one_removes_in_the_same_moment_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, folder = _killed()

    def after_another(argv: Sequence[str]) -> str:
        run_tool(argv)
        return run_tool(argv)

    monkeypatch.setattr(leftovers, "run_tool", after_another)
    leftovers.remove_leftovers(folder.parent)
    assert _left(prefix) == []
    assert not folder.exists()
