"""A plug-in in processes of its own: killed when it hangs or dies, replaced, and nobody else waits for it (Case 21)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumers.rewards.opening import open_plugin, runs_here
from consumers.rewards.settings import RewardSettings
from pipeline.priority import LOWEST, session_nice, set_session_nice
from schemas.errors import PluginError, SettingsError
from tests.unit.consumers.rewards.helpers import (
    HERE,
    Rig,
    pool_of,
    rewards_of,
    sample,
    score,
    turn_until,
    write_samples,
)
from topics.catalog import REWARDS
from topics.clock import Deadline

APART = "tests.unit.consumers.rewards.apart"


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    for stage in rig.started:
        stage.stop(deadline=Deadline.after(5))


def children(*words: str) -> set[int]:
    """Living processes that this one started, or that those started, whose command line holds the words."""
    found, open_ = set(), {int(task.name) for task in Path("/proc/self/task").iterdir()}
    while open_:
        below = children_of(open_.pop())
        open_ |= below
        found |= {pid for pid in below if (line := command_of(pid)) and all(word in line for word in words)}
    return found


def children_of(pid: int) -> set[int]:
    try:
        return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


def ended(pid: int) -> bool:
    try:  # its command line is empty for a moment as it begins, too
        return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until(done: Callable[[], bool], *, what: str) -> None:
    deadline = Deadline.after(60)
    while not done():
        deadline.check(what)
        time.sleep(0.01)


def test_calls_that_never_return_are_ended_and_the_rest_is_scored(rig: Rig) -> None:
    """Case 21: ten of a thousand loop for ever and ignore signals; four processes."""
    write_samples(rig.log, (sample(group) for group in range(1000)))
    stage = rig.stage(plugin=f"{APART}:loops_on_1_in_100", isolation="auto", timeout_s=2.0, timeout_retries=0)
    rewards = score(rig, 1000, stage)
    lost = {group: one.failure for group, one in rewards.items() if one.failure is not None}
    assert set(lost) == {100 * number + 7 for number in range(10)}
    assert set(lost.values()) == {"timeout: no value within 2 s"}
    assert all(one.value == group for group, one in rewards.items() if one.failure is None)
    assert len(rig.events("scorer_lost")) == 10
    assert stage._context.metrics.snapshot()["scorers_lost{reason=timeout}"] == 10
    assert 1 <= pool_of(stage).num_processes <= 4
    stage.stop(deadline=Deadline.after(5))
    rig.started.clear()
    assert children("consumers.rewards.fork_server") == set(), "processes were left behind"


def test_calls_that_hang_do_not_keep_the_others_waiting_and_have_all_their_time(rig: Rig, tmp_path: Path) -> None:
    """Case 21 with the default limit of two minutes: four of 400 compute for long, with two processes."""
    write_samples(rig.log, (sample(group) for group in range(400)))
    options = {"file": str(tmp_path / "go-on")}
    stage = rig.stage(plugin=f"{APART}:waits_on_1_in_100", isolation="process", options=options, num_workers=2)
    turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) >= 396)
    pool = pool_of(stage)
    turn_until(stage, lambda: pool.num_held == 4)
    assert {os.sched_getscheduler(one._forked.pid) for one in pool._processes if one.is_held} == {os.SCHED_IDLE}
    (tmp_path / "go-on").touch()
    rewards = score(rig, 400, stage)
    assert {group: one.value for group, one in rewards.items()} == {group: float(group) for group in range(400)}
    assert (rig.events("scorer_lost"), rig.events("scorers_held")) == ([], [])
    turn_until(stage, lambda: pool.num_held == 0 and pool.num_processes <= 2)  # one may have been enough


@pytest.mark.skipif(session_nice() is None, reason="this kernel has no scheduling group per session")
def test_a_consumer_that_stands_back_scores_in_processes_that_do(rig: Rig) -> None:
    write_samples(rig.log, [sample(0)])
    before = session_nice() or 0
    assert set_session_nice(LOWEST)
    try:
        stage = rig.stage(plugin=f"{APART}:session_share", isolation="process")
        assert score(rig, 1, stage)[0].value == LOWEST
    finally:
        set_session_nice(before)


def test_scoring_goes_on_when_the_process_that_forks_others_is_killed(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(50)))
    stage = rig.stage(plugin=f"{APART}:pid", isolation="process", num_workers=2)
    score(rig, 50, stage)
    server = pool_of(stage)._server._process
    assert server is not None
    server.kill()
    server.wait(10)
    write_samples(rig.log, (sample(group) for group in range(50, 100)))
    score(rig, 100, stage)


def test_a_process_that_forks_others_and_is_stopped_keeps_no_stage(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(rig.log, [sample(0)])
    stage = rig.stage(plugin=f"{APART}:pid", isolation="process", num_workers=1)
    score(rig, 1, stage)
    server, control = pool_of(stage)._server._process, pool_of(stage)._server._control
    assert server is not None
    assert control is not None
    os.kill(server.pid, signal.SIGSTOP)
    control.settimeout(0.3)
    monkeypatch.setattr("consumers.rewards.forking._ANSWER_S", 0.3)
    deadline = Deadline.after(60)
    stage.stop(deadline=deadline)
    assert not deadline.expired
    assert server.poll() == -signal.SIGKILL


def test_what_scorers_started_ends_with_the_process_that_forked_them(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    write_samples(rig.log, [sample(0)])
    stage = rig.stage(plugin=f"{APART}:starts_a_child", isolation="process", timeout_s=60, timeout_retries=0)
    said: list[str] = []

    def has_said() -> bool:
        said.append(capfd.readouterr().err)
        return "child " in "".join(said)

    turn_until(stage, has_said)
    child = int("".join(said).split("child ")[1].split()[0])
    server = pool_of(stage)._server._process
    assert server is not None
    server.kill()
    turn_until(stage, lambda: ended(child))


def test_a_scorer_that_dies_is_a_failure_of_its_sample_only(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(20)))
    stage = rig.stage(plugin=f"{APART}:dies_on_3", isolation="process", num_workers=1, retry_backoff_s=0.01)
    rewards = score(rig, 20, stage)
    failures = {group: one.failure for group, one in rewards.items() if one.failure is not None}
    assert failures == {3: "died: the process was ended by SIGSEGV (after 1 retries)"}
    (first, second) = rig.events("scorer_lost")
    assert first.details == {
        "reward": "math",
        "why": "died: the process was ended by SIGSEGV",
        "topic": "samples",
        "partition": "1",
    }
    assert second.gauges["group"] == 3


@pytest.mark.parametrize("plugin", ["starts_a_child", "starts_a_session"])
def test_what_a_killed_scorer_started_ends_with_it(rig: Rig, capfd: pytest.CaptureFixture[str], plugin: str) -> None:
    write_samples(rig.log, [sample(0)])
    stage = rig.stage(plugin=f"{APART}:{plugin}", isolation="process", timeout_s=4.0, timeout_retries=0)
    rewards = score(rig, 1, stage)
    assert (rewards[0].failure or "").startswith("timeout")
    child = int(capfd.readouterr().err.split("child ")[1].split()[0])
    until(lambda: ended(child), what=f"process {child} to end")


def test_of_a_batch_that_hangs_only_the_guilty_sample_fails(rig: Rig) -> None:
    """Case 21."""
    write_samples(rig.log, (sample(group) for group in range(20)))
    stage = rig.stage(plugin=f"{APART}:Batched", isolation="process", timeout_s=2.0, timeout_retries=0, num_workers=2)
    rewards = score(rig, 20, stage)
    assert [group for group, one in rewards.items() if one.failure is not None] == [13]


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_an_async_call_is_cancelled_at_its_limit(rig: Rig, isolation: str) -> None:
    write_samples(rig.log, (sample(group) for group in range(20)))
    stage = rig.stage(plugin=f"{APART}:waits_on_2", isolation=isolation, timeout_s=2.0, timeout_retries=0)
    rewards = score(rig, 20, stage)
    failures = {group: one.failure for group, one in rewards.items() if one.failure is not None}
    assert failures == {2: "timeout: no value within 2 s"}
    assert rig.events("scorer_lost") == [], "nothing had to be killed"


def test_an_async_plugin_that_blocks_its_loop_fails_the_guilty_sample_only(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(12)))
    stage = rig.stage(
        plugin=f"{APART}:blocks_on_2", isolation="process", timeout_s=1.0, timeout_retries=1, num_workers=2
    )
    rewards = score(rig, 12, stage)
    failures = {group: one.failure for group, one in rewards.items() if one.failure is not None}
    assert failures == {2: "timeout: no value within 1 s (after 1 retries)"}


def test_a_scorer_may_print_use_signals_and_find_its_environment(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "given")
    for name in ("RLWEAVE_KAFKA_PASSWORD", "RLWEAVE_PEER_TOKEN"):
        monkeypatch.setenv(name, "secret")
    for number, name in enumerate(("prints", "alarms", "path")):
        rig.log.admin().delete_topics()
        rig.log.admin().ensure_topics()
        write_samples(rig.log, [sample(0, completion_text="given")])
        stage = rig.stage(f"math{number}", plugin=f"{APART}:{name}", isolation="process")
        turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) == 1)
        assert [one.value for one in rewards_of(rig.log, REWARDS)] == [1.0]
        stage.stop(deadline=Deadline.after(5))
    rig.started.clear()
    assert "a word from the scorer" in capfd.readouterr().out


def test_built_in_plugins_run_here_and_others_apart() -> None:
    assert runs_here(RewardSettings(plugin="exact_match"))
    assert not runs_here(RewardSettings(plugin=f"{HERE}:length"))
    assert runs_here(RewardSettings(plugin=f"{HERE}:length", isolation="thread"))
    assert not runs_here(RewardSettings(plugin="exact_match", isolation="process"))


@pytest.mark.parametrize(
    ("settings", "kind", "said"),
    [
        ({"plugin": f"{HERE}:nothing"}, PluginError, "no attribute 'nothing'"),
        ({"plugin": f"{HERE}:length", "options": {"fctor": 2.0}}, SettingsError, "do not fit plug-in"),
        ({"plugin": f"{APART}:Unloadable"}, PluginError, "could not be loaded 3 times in a row: .* ended with code 9"),
        ({"plugin": f"{APART}:SlowToLoad", "load_timeout_s": 1.0}, PluginError, "was not loaded within 1 s"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named(settings: dict[str, object], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        open_plugin(RewardSettings.model_validate(settings))
    assert children("consumers.rewards.fork_server") == set()


def test_a_stop_while_the_plugin_is_loaded_ends_at_once() -> None:
    """It takes ten minutes to load."""
    asked: list[bool] = []

    def is_stopped() -> bool:
        asked.append(True)
        return len(asked) > 3

    assert open_plugin(RewardSettings(plugin=f"{APART}:SlowToLoad"), is_stopped=is_stopped) is None
    assert children("consumers.rewards.fork_server") == set()


@contextmanager
def consumer_of(plugin: str, *, group: int, in_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A reward consumer that scores one sample and says the pid of the process that does it; killed at the end."""
    in_file.write_text(
        "import sys, time\n"
        "from consumers.rewards.opening import open_plugin\n"
        "from consumers.rewards.pool import Job, Taken\n"
        "from consumers.rewards.settings import RewardSettings\n"
        "from tests.unit.consumers.rewards.helpers import sample\n"
        "from topics.log import Envelope\n"
        f"opened = open_plugin(RewardSettings(plugin='{APART}:{plugin}'))\n"
        "at = Envelope(topic='samples', partition=0, offset=0, key=None, record=None,"
        " headers={}, unix_ms=0, num_bytes=1)\n"
        f"opened.pool.submit(Job(items=(Taken(envelope=at, sample=sample({group})),)))\n"
        "opened.pool.finished(wait_s=0.5)\n"
        "print(opened.pool._processes[0]._forked.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": "/usr/bin:/bin"}
    consumer = subprocess.Popen(
        [sys.executable, str(in_file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    with consumer:
        try:
            yield consumer
        finally:
            consumer.kill()


def test_a_scoring_process_does_not_outlive_a_killed_consumer(tmp_path: Path) -> None:
    """Case 21: `kill -9` of the consumer while its scorer loops."""
    with consumer_of("loops_on_1_in_100", group=7, in_file=tmp_path / "consumer.py") as consumer:
        assert consumer.stdout is not None
        pid = int(consumer.stdout.readline())
        assert not ended(pid)
    until(lambda: ended(pid), what="the scorer to end")


@pytest.mark.parametrize("plugin", ["starts_a_child", "starts_a_session", "leaves_a_session"])
def test_what_a_scorer_started_does_not_outlive_a_killed_consumer(tmp_path: Path, plugin: str) -> None:
    """Case 21: also what has a session of its own, as a time limit of the scorer's needs it."""
    with consumer_of(plugin, group=0, in_file=tmp_path / "consumer.py") as consumer:
        assert consumer.stderr is not None
        child = int(consumer.stderr.readline().split()[1])
        assert not ended(child)
    until(lambda: ended(child), what="what the scorer started to end")


def test_a_plugin_that_is_to_be_loaded_once_is(rig: Rig) -> None:
    write_samples(rig.log, (sample(group) for group in range(50)))
    stage = rig.stage(plugin=f"{APART}:OnlyOne", isolation="process", num_workers=4)
    assert len({one.value for one in score(rig, 50, stage).values()}) == 1
    assert pool_of(stage).num_processes == 1
