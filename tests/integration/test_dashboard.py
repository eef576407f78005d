"""The dashboard in a real browser, on a real broker: one browser and one server for all of it."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from ops.dashboard.main import reached
from ops.dashboard.runs import Reached, Runs
from ops.dashboard.server import DashboardSettings
from ops.replay.sources import KafkaSource
from ops.runs import list_runs
from ops.services.model import ServicesInfo
from schemas.packed import pack_f16, pack_f32, pack_i32
from schemas.records import Outcome, Sample, StageEvent
from tests.chromium import Browser, chromium
from tests.unit.ops.dashboard.serving import Serving
from tests.unit.ops.little_run import little_run
from topics.catalog import EVENTS, WEIGHTS
from topics.clock import Deadline, SystemClock
from topics.kafka import KafkaLog
from topics.kafka.raw import RawLog
from topics.log import WriterSettings

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(chromium() is None, reason="no Chromium: install the package chromium to run browser tests"),
]

HOSTILE = "<img src=x onerror=\"document.title='taken'\"> 4"
CONTROLS = {
    "button",
    "link",
    "textbox",
    "combobox",
    "radio",
    "checkbox",
    "searchbox",
    "slider",
    "image",
    "img",
    "table",
}


class Live:
    """A learner that goes on: it beats on a thread of its own until it is closed."""

    def __init__(self, log: KafkaLog) -> None:
        self._run = log.run
        self._writer = log.writer(WriterSettings())
        self._seq = -1
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Live:
        self.tell("phase_began", "waiting_for_data")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)
        self._writer.close(deadline=Deadline.after(10))

    def step(self, number: float, *, reward: float) -> None:
        self.tell("notice", "step", step=number, reward_mean=reward, loss=0.5 / number, age_mean=1.0, age_max=1.0)

    def tell(self, kind: str, name: str, **gauges: float) -> None:
        with self._lock:
            self._seq += 1
            event = StageEvent(
                run=self._run,
                stage="learner",
                instance="learner-host-1-abcdef",
                kind=kind,
                name=name,
                seq=self._seq,
                gauges=gauges,
                details={"phase": "waiting_for_data"} if kind == "heartbeat" else {},
                monotonic_s=self._clock.monotonic(),
                unix_ms=self._clock.unix_ms(),
            )
            self._writer.write(EVENTS, event)
            self._writer.flush(deadline=Deadline.after(30))

    def _beat(self) -> None:
        while not self._end.wait(0.5):
            self.tell("heartbeat", "heartbeat")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    folder = Path(tempfile.mkdtemp(prefix="rlweave-chromium-"))
    browser = Browser(folder)
    yield browser
    browser.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def finished(services: ServicesInfo) -> Iterator[str]:
    """The run of `little_run`, on a broker."""
    log = KafkaLog(services.kafka_bootstrap, run=f"t-{uuid4().hex[:12]}", data_partitions=2)
    log.connect(deadline=Deadline.after(10))
    log.admin().ensure_topics()
    run = little_run()
    run.change(Sample, lambda each: (each.group, each.member) == (0, 1), _hostile)
    run.change(Outcome, lambda each: each.group == 0, _apart)
    writer = log.writer(WriterSettings())
    for topic, partition, _, record in run:
        writer.write(topic, record, partition=None if hasattr(record, "group") or topic is WEIGHTS else partition)
    writer.close(deadline=Deadline.after(10))
    yield log.run
    log.admin().delete_topics()


def _hostile(sample: Sample) -> Sample:
    return replace(sample, completion_text=HOSTILE, completion_tokens=pack_i32([3, 4]), logprobs=pack_f32([-0.5, -3.0]))


def _apart(outcome: Outcome) -> Outcome:
    members = [
        replace(each, logprob_gap=pack_f16([0.25, -2.5])) if each.member == 1 else each for each in outcome.members
    ]
    return replace(outcome, members=tuple(members))


def serving(services: ServicesInfo, *, port: int = 0) -> Serving:
    raw = RawLog(services.kafka_bootstrap)

    def reach(name: str) -> Reached:
        source = KafkaSource(raw, run=name)
        log = KafkaLog(services.kafka_bootstrap, run=name, data_partitions=source.data_partitions)
        return reached(log, source, settings=None)

    runs = Runs(reach, seen=lambda: list_runs(raw, runs_dir=Path("nowhere")))
    return Serving(runs, settings=DashboardSettings(port=port))


@pytest.fixture(scope="module")
def dashboard(services: ServicesInfo) -> Iterator[Serving]:
    with serving(services) as started:
        yield started


def text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"(document.querySelector({selector!r}) || {{}}).innerText || ''"))


def figure(name: str) -> str:
    """The value beside a name, as an expression."""
    return (
        "[...document.querySelectorAll('.figures > div')]"
        f".find(each => each.querySelector('dt').textContent === {name!r})?.querySelector('dd').textContent"
    )


def unnamed(browser: Browser) -> list[str]:
    return [role for role, name in browser.accessible() if role in CONTROLS and not name.strip()]


def test_a_live_run_changes_on_the_page_and_a_lost_connection_is_said_and_mended(
    browser: Browser, services: ServicesInfo, kafka_log: KafkaLog
) -> None:
    with Live(kafka_log) as live:
        live.step(1, reward=0.25)
        with serving(services) as first:
            browser.open(f"{first.url}/run/{kafka_log.run}")
            browser.wait(f"{figure('reward, last step')} === '0.25'")
            browser.wait("document.getElementById('link-state').textContent === 'Live'")
            live.step(2, reward=0.75)
            browser.wait(f"{figure('reward, last step')} === '0.75'")
            browser.wait("document.querySelector('.weave li b').textContent === 'learner'")
            browser.wait("document.querySelector('.chart path.l')")
            browser.wait("document.querySelector('.bars .part')?.textContent.startsWith('waiting for data')")
            assert text(browser, ".weave li").split() == ["learner", "for", "data", ":", "waiting", "for", "data"]
            browser.value("document.querySelector('section > .head [data-term=credit]').focus()")
            assert "groups that may be open" in text(browser, ".tip.word")
            browser.press("Escape")
            assert browser.value("document.querySelector('.tip.word').hidden")
            assert browser.value(
                "[...document.querySelectorAll('.term')].every("
                "each => document.getElementById(each.getAttribute('aria-describedby')).textContent)"
            )
            assert unnamed(browser) == []
            assert browser.errors() == []
        browser.wait("document.getElementById('link-state').textContent.startsWith('Connection lost')")
        live.step(3, reward=0.875)
        with serving(services, port=int(first.url.rpartition(":")[2])):
            browser.wait(f"{figure('reward, last step')} === '0.875'")
            browser.wait("document.getElementById('link-state').textContent === 'Live'")
            browser.open("about:blank")


def test_a_finished_run_opens_and_its_drops_lead_to_a_sample(
    browser: Browser, dashboard: Serving, finished: str
) -> None:
    browser.open(f"{dashboard.url}/run/{finished}")
    browser.wait("document.querySelector('.verdict.finished')")
    assert "ended" in text(browser, "#verdict h1")
    browser.wait("document.querySelector('#main').textContent.includes('engine failed')")
    assert unnamed(browser) == []
    browser.value("[...document.querySelectorAll('a')].find(each => each.textContent === 'engine failed').click()")
    browser.wait("[...document.querySelectorAll('a')].some(each => each.textContent === 'group 3, member 0')")
    assert "the engine raised" in text(browser, "#main")
    assert unnamed(browser) == []
    browser.value("[...document.querySelectorAll('a')].find(each => each.textContent === 'group 3, member 0').click()")
    browser.wait("document.querySelector('#sample')")
    assert "void: of a branch that was abandoned" in text(browser, "#main")
    browser.value("history.back()")
    browser.wait("document.querySelector('#list-title')")
    assert browser.errors() == []
    assert {url.split("/")[2] for url in browser.requested()} == {dashboard.url.removeprefix("http://")}


def test_ages_that_there_is_no_room_for_are_one_row(browser: Browser, dashboard: Serving) -> None:
    browser.open(f"{dashboard.url}/")
    counts = {str(age): 100 + age for age in range(30)}
    assert browser.value(f"import('/assets/overview.js').then((found) => found.agesOf({counts}))") == [
        *([age, 100 + age, False] for age in range(11)),
        [11, sum(100 + age for age in range(11, 30)), True],
    ]


def test_a_sample_is_read_token_by_token_and_what_a_model_wrote_stays_text(
    browser: Browser, dashboard: Serving, finished: str
) -> None:
    browser.open(f"{dashboard.url}/run/{finished}/group?n=0&member=1")
    browser.wait("document.querySelector('#sample .tokens span')")
    assert HOSTILE in text(browser, "#main")
    assert browser.value("document.title") != "taken"
    browser.value("document.querySelector('input[value=logprob]').click()")
    browser.wait("document.querySelector('.tokens .t-s3')")
    browser.value("document.querySelector('.tokens').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert "log-probability -3" in text(browser, ".readout")
    browser.wait("document.getElementById('announce').textContent.includes('token 1')")
    assert unnamed(browser) == []
    roles = {role for role, _ in browser.accessible()}
    assert {"banner", "main", "heading", "table"} <= roles
    assert browser.errors() == []


def test_the_list_of_samples_furthest_from_the_trainer_leads_to_their_tokens(
    browser: Browser, dashboard: Serving, finished: str
) -> None:
    browser.open(f"{dashboard.url}/run/{finished}/samples")
    browser.wait("document.querySelector('#list-title')")
    link = "[...document.querySelectorAll('a')].find(each => each.textContent === {text!r})"
    browser.value(f"{link.format(text='Furthest from the trainer')}.click()")
    browser.wait(link.format(text="group 0, member 1"))
    assert unnamed(browser) == []
    browser.value(f"{link.format(text='group 0, member 1')}.click()")
    browser.wait("document.querySelector('#sample .tokens span')")
    browser.value("document.querySelector('input[value=trainer_gap]').click()")
    browser.wait("document.querySelector('.tokens .t-p3')")
    browser.value("document.querySelector('.tokens').focus()")
    browser.press("End")
    assert "gap to the trainer 2.5" in text(browser, ".readout")
    assert unnamed(browser) == []
    assert browser.errors() == []


def test_the_start_page_lists_runs_and_the_theme_can_be_chosen(
    browser: Browser, dashboard: Serving, finished: str
) -> None:
    browser.open(dashboard.url + "/")
    browser.wait(f"[...document.querySelectorAll('main a')].some(each => each.textContent === {finished!r})")
    grounds = set()
    for theme in ("light", "dark"):
        browser.value(
            f"(() => {{ const all = document.getElementById('theme'); all.value = {theme!r};"
            " all.dispatchEvent(new Event('change')); })()"
        )
        grounds.add(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    assert unnamed(browser) == []
    assert browser.errors() == []
