"""Lines: one per event, as text and as JSON, quiet, and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pipeline.events import Events
from pipeline.logs import ROUTINE, LogSettings, set_up_logs
from pipeline.metrics import Metrics
from pipeline.secrets import scrubbed
from tests.unit.docs.test_runbook import notices
from topics.clock import ManualClock
from topics.log import WriterSettings
from topics.memory import MemoryLog

LABELS = {"run": "r", "stage": "reward", "instance": "reward-1"}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@dataclass
class Said:
    stream: io.StringIO = field(default_factory=io.StringIO)

    def set_up(self, **settings: str) -> Events:
        set_up_logs(
            LogSettings.model_validate(settings), labels=LABELS, hidden=["hunter2-hunter2", "ab"], stream=self.stream
        )
        log = MemoryLog(run="r", data_partitions=1)
        metrics = Metrics(run="r", stage="reward", instance="reward-1")
        return Events(
            lambda: log.writer(WriterSettings()),
            run="r",
            stage="reward",
            instance="reward-1",
            clock=ManualClock(),
            metrics=metrics,
        )

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def said() -> Said:
    return Said()


def test_every_routine_notice_is_one_that_the_code_gives() -> None:
    assert set() == ROUTINE - notices()


def test_quiet_by_default(said: Said) -> None:
    events = said.set_up()
    events.enter("scoring")
    events.notice("started")
    events.heartbeat()
    assert said.lines == []
    events.notice("breaker_opened", details={"last_failure": "no answer"}, share=0.5)
    (line,) = said.lines
    assert " WARNING reward reward-1 breaker_opened " in line
    assert "no answer" in line


def test_json_is_one_object_per_line_with_run_stage_and_instance(said: Said) -> None:
    events = said.set_up(format="json", level="info")
    events.notice("step", step=3, reward_mean=0.5)
    events.notice("fetch_failed", details={"error": "line one\nline two"})
    logging.getLogger("elsewhere").warning("words %d", 7)
    step, failed, other = map(json.loads, said.lines)
    assert {key: step[key] for key in ("level", "run", "stage", "instance", "event", "numbers")} == {
        **LABELS,
        "level": "info",
        "event": "step",
        "numbers": {"step": 3, "reward_mean": 0.5},
    }
    assert (failed["level"], failed["details"]) == ("warning", {"error": "line one\nline two"})
    assert (other["event"], other["logger"], other["text"]) == ("log", "elsewhere", "words 7")
    assert all(line["time"].endswith("+00:00") for line in (step, failed, other))


def test_text_stays_on_one_line(said: Said) -> None:
    said.set_up().notice("fetch_failed", details={"text": "line one\nline two"})
    assert len(said.lines) == 1
    assert r"line one\nline two" in said.lines[0]


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_not_said(said: Said, form: str) -> None:
    events = said.set_up(format=form)
    events.notice("redis_unavailable", details={"why": "rediss://app:s3cret-1@host/0 does not answer"})
    events.notice("redis_unavailable", details={"password": "s3cret-2", "why": "it is hunter2-hunter2, ab"})
    logging.getLogger("library").error("connecting with sasl.password=s3cret-3 and token: 's3cret-4'")
    error = ValueError("https://store?X-Signature=s3cret-5&part=1 and hunter2-hunter2")
    logging.getLogger("library").error("upload", exc_info=error)
    text = said.stream.getvalue()
    for number in range(1, 5):
        assert f"s3cret-{number}" not in text
    assert "hunter2" not in text
    assert "ab" in text
    assert "s3cret-5" not in text


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_that_fits_no_line_is_said_without_secrets(
    said: Said, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    events = said.set_up(format=form)
    logging.getLogger("library").error("%d of hunter2-hunter2", "no number")
    events.notice("fetch_failed", details={"text": "half \ud800 of hunter2-hunter2"}, size=2**70)
    logging.getLogger("library").error("sent Authorization: Bearer s3cret-6")
    assert len(said.lines) == 3
    assert "no number" not in said.lines[0]
    assert "do not fit" in said.lines[0]
    assert "half " in said.lines[1]
    text = said.stream.getvalue() + "".join(capsys.readouterr())
    assert "hunter2" not in text
    assert "s3cret-6" not in text


def test_a_line_says_nothing_to_the_terminal(said: Said) -> None:
    said.set_up().notice("fetch_failed", details={"text": "\x1b[2J\u2028it \x9b31m is"})
    logging.getLogger("x").error("", exc_info=ValueError("\x1b[2J"))
    assert said.lines[0].endswith(r"\x1b[2J\u2028it \x9b31m is")
    assert said.lines[-1] == r"ValueError: \x1b[2J"


@pytest.mark.parametrize(
    "text", ["step 3: reward 0.5", "key=group/3 token_ids=5", "http://127.0.0.1:90/metrics", "password_file = /etc/p"]
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert scrubbed(text) == text
