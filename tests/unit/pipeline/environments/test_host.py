"""The host of environments: one call at a time, limits, blocked loops; and how a plug-in is opened."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from pipeline.environments.base import Action, Observation, Task
from pipeline.environments.host import MOST_LOOPS, EnvironmentHost, Reply
from pipeline.environments.opening import open_environment
from pipeline.environments.settings import EnvironmentSettings
from schemas.errors import PluginError, SettingsError

HERE = "tests.unit.pipeline.environments.test_host"
TASK = Task(run="r", group=3, member=1, prompt="2+3", answer=None, metadata={}, seed=7)
ACTION = Action(text="5", turn=0, finish_reason="stop", last=False)
ODD = [
    Observation(text=5),  # type: ignore[arg-type]
    Observation(text="\udc80"),
    Observation(facts={"steps": 3}),  # type: ignore[dict-item]
    Observation(facts=None),  # type: ignore[arg-type]
    Observation(earlier={"0": 1.0}),  # type: ignore[dict-item]
    Observation(reward=1e300),
    Observation(reward=True),
    Observation(reward=np.bool_(True)),  # type: ignore[arg-type]
    Observation(reward="1"),  # type: ignore[arg-type]
    Observation(earlier={0: True}),
    Observation(done="false"),  # type: ignore[arg-type]
    Observation(done=np.array([True, False])),  # type: ignore[arg-type]
]
FACTS = {"a": "1"}
CALLS: list[str] = []
RELEASE = threading.Event()


class Noting:
    """Notes its calls."""

    async def reset(self, task: Task) -> Observation:
        CALLS.append(f"reset {task.member}")
        return Observation(text="begin")

    async def step(self, action: Action) -> Observation:
        CALLS.append(f"step {action.text}")
        try:
            await asyncio.sleep(0 if action.text == "5" else 60)
        finally:
            CALLS.append("stepped")
        return Observation(text="next", reward=1.0)

    async def close(self) -> None:
        CALLS.append("close")


class Blocking(Noting):
    """Blocks its loop."""

    async def reset(self, task: Task) -> Observation:
        RELEASE.wait()
        return Observation()


class Wrong(Noting):
    """Answers with rewards that are no numbers, or with something else."""

    async def step(self, action: Action) -> Observation:
        return Observation(reward=float("nan"))

    async def reset(self, task: Task) -> Observation:
        return "hello"  # type: ignore[return-value]


class Odd(Noting):
    """Says what no tokenizer or record can take; the member chooses."""

    async def reset(self, task: Task) -> Observation:
        return ODD[task.member]


class Unprintable(Exception):
    """Its text is code that fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Mute(Noting):
    """Fails with what cannot be printed; its numbers are those of another library."""

    async def reset(self, task: Task) -> Observation:
        return Observation(reward=Decimal("0.5"), done=np.bool_(True), facts=FACTS)  # type: ignore[arg-type]

    async def step(self, action: Action) -> Observation:
        raise Unprintable


class Leaving(Noting):
    """Wants to end the process."""

    async def step(self, action: Action) -> Observation:
        sys.exit(3)

    async def close(self) -> None:
        CALLS.append("close")
        sys.exit(3)


class Slow(Noting):
    """Takes its time to be made."""

    def __init__(self) -> None:
        CALLS.append("making")
        RELEASE.wait()


class Half:
    """Lacks two methods."""

    async def reset(self, task: Task) -> Observation:
        return Observation()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    CALLS.clear()
    RELEASE.clear()
    yield
    RELEASE.set()


def host(plugin: str, *, block_limit_s: float = 10.0, **fields: object) -> EnvironmentHost:
    settings = EnvironmentSettings.model_validate({"plugin": f"{HERE}:{plugin}", "max_retries": 0, **fields})
    return EnvironmentHost(open_environment(settings), settings=settings, block_limit_s=block_limit_s)


def reply_of(of: EnvironmentHost) -> Reply:
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        if found := of.poll(wait_s=0.02):
            return found[0]
    raise AssertionError("no reply came")


def test_calls_and_replies() -> None:
    running = host("Noting")
    running.begin("a", TASK)
    first = reply_of(running)
    assert (first.key, first.call, first.observation) == ("a", "reset", Observation(text="begin"))
    running.step("a", ACTION)
    second = reply_of(running)
    assert (second.call, second.observation) == ("step", Observation(text="next", reward=1.0))
    running.close()
    assert CALLS == ["reset 1", "step 5", "stepped", "close"]


def test_numbers_are_made_plain_and_mappings_copied_and_an_error_without_text_is_told() -> None:
    running = host("Mute")
    running.begin("a", TASK)
    seen = reply_of(running).observation
    assert seen is not None
    assert (type(seen.reward), seen.reward, seen.done) == (float, 0.5, True)
    assert seen.facts == FACTS
    assert seen.facts is not FACTS, "the environment may change it while others read"
    running.step("a", ACTION)
    assert reply_of(running).error == "Unprintable: (its text cannot be had)"
    running.close()


def test_what_is_forgotten_is_cancelled_then_closed_and_gives_no_reply() -> None:
    running = host("Noting")
    running.begin("a", TASK)
    reply_of(running)
    running.step("a", Action(text="slow", turn=0, finish_reason="stop", last=False))
    while "step slow" not in CALLS:
        assert running.poll(wait_s=0.01) == []
    running.forget(["a"])
    running.close()
    assert CALLS == ["reset 1", "step slow", "stepped", "close"]
    assert running.poll() == []


def test_a_loop_that_is_blocked_is_left_behind() -> None:
    running = host("Blocking", block_limit_s=0.1)
    for _ in range(MOST_LOOPS):
        running.begin("a", TASK)
        found = reply_of(running)
        assert found.timed_out
        assert "blocked" in found.error
    running.begin("a", TASK)
    with pytest.raises(PluginError, match="blocked its event loop"):
        reply_of(running)
    running.forget(["a"])


@pytest.mark.parametrize(("plugin", "error"), [("Wrong", "not with a str")])
def test_an_answer_that_is_none_fails(plugin: str, error: str) -> None:
    running = host(plugin)
    running.begin("a", TASK)
    found = reply_of(running)
    assert found.observation is None
    assert error in found.error
    running.step("a", ACTION)
    assert "a finite number" in reply_of(running).error
    running.close()


@pytest.mark.parametrize("member", range(len(ODD)))
def test_an_answer_that_cannot_be_read_or_kept_is_the_failure_of_its_call(member: int) -> None:
    running = host("Odd")
    running.begin("a", replace(TASK, member=member))
    found = reply_of(running)
    assert found.observation is None
    assert found.error.startswith(("TypeError", "ValueError", "UnicodeEncodeError"))
    running.close()


def test_one_that_wants_to_end_the_process_ends_its_own_call_only() -> None:
    running = host("Leaving")
    for key in ("a", "b"):
        running.begin(key, TASK)
        assert reply_of(running).observation is not None
    running.step("a", ACTION)
    assert "SystemExit: 3" in reply_of(running).error
    running.forget(["a"])
    running.step("b", ACTION)
    assert "SystemExit: 3" in reply_of(running).error
    running.close()
    assert CALLS.count("close") == 2


def test_one_that_is_forgotten_while_it_is_made_is_closed() -> None:
    RELEASE.set()  # one is made for a look
    running = host("Slow")
    RELEASE.clear()
    CALLS.clear()
    running.begin("a", TASK)
    while "making" not in CALLS:
        assert running.poll(wait_s=0.01) == []
    running.forget(["a"])
    RELEASE.set()
    running.close()
    assert CALLS[-1] == "close"


@pytest.mark.parametrize(
    ("plugin", "options", "error"),
    [
        (f"{HERE}:Half", {}, "without async step, close"),
        (f"{HERE}:HERE", {}, "nothing to be called"),
        ("nonsense", {}, "built in: calculator, guess"),
        ("guess", {"hihg": 3}, "hihg"),
        ("guess", {"high": -1}, "there is none"),
        ("calculator", {"jitter": 2.0}, "jitter 2.0"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named_at_the_start(
    plugin: str, options: dict[str, float], error: str
) -> None:
    with pytest.raises((PluginError, SettingsError)) as caught:
        open_environment(EnvironmentSettings(plugin=plugin, options=dict(options)))
    assert error in f"{caught.value.message} {caught.value.hint}"
