"""Scorers behind HTTP, against a server that answers what the test says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from consumers.rewards.http_client import JsonClient
from consumers.rewards.judge import LlmJudge
from schemas.records import Reward
from tests.unit.consumers.rewards.helpers import Rig, rewards_of, sample, turn_until, write_samples
from topics.catalog import REWARDS
from topics.clock import Deadline

Answer = Callable[[dict[str, object]], tuple[int, object]]


class Server(ThreadingHTTPServer):
    """Answers each POST with what `answer` makes of it."""

    daemon_threads = True
    answer: Answer

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[dict[str, object]] = []
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        self.server.tokens.add(self.headers.get("Authorization"))
        status, values = self.server.answer(body)
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def scored(rig: Rig, num: int, plugin: str, **settings: object) -> dict[int, Reward]:
    """The rewards of `num` samples by group."""
    write_samples(rig.log, (sample(group, completion_text=f"text {group}") for group in range(num)))
    stage = rig.stage("math", **({"plugin": plugin} | settings))
    turn_until(stage, lambda: len(rewards_of(rig.log, REWARDS)) >= num)
    stage.stop(deadline=Deadline.after(5))
    return {reward.group: reward for reward in rewards_of(rig.log, REWARDS)}


def groups_of(body: dict[str, object]) -> list[int]:
    samples = body["samples"]
    assert isinstance(samples, list)
    return [one["group"] for one in samples]


def test_a_batch_goes_there_and_back_and_one_bad_entry_is_one_failure(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(body: dict[str, object]) -> tuple[int, object]:
        entries = {1: {"failure": "too rude"}, 2: None, 3: "7", 4: True}
        return 200, {"rewards": [entries.get(group, group / 2) for group in groups_of(body)]}

    server.answer = answer
    monkeypatch.setenv("SCORER_TOKEN", "abc")
    options = {"url": server.url, "token_env": "SCORER_TOKEN"}
    rewards = scored(Rig(), 8, "remote_http", options=options)
    assert {group: one.value for group, one in rewards.items() if one.failure is None} == {0: 0, 5: 2.5, 6: 3, 7: 3.5}
    assert str(rewards[1].failure) == "ValueError: too rude"
    assert all(str(rewards[group].failure).startswith("not_a_number") for group in (2, 3, 4))
    assert server.tokens == {"Bearer abc"}
    first = server.seen[0]["samples"]
    assert isinstance(first, list)
    assert first[0]["completion"] == f"text {first[0]['group']}"


def test_503_is_tried_again_until_all_is_scored_and_none_twice(server: Server) -> None:
    """Case 22."""
    refused = threading.Semaphore(12)

    def answer(body: dict[str, object]) -> tuple[int, object]:
        if refused.acquire(blocking=False):
            return 503, {}
        return 200, {"rewards": [1.0 for _ in groups_of(body)]}

    server.answer = answer
    patient = {"retry_backoff_s": 0.01, "batch_size": 2}
    rewards = scored(Rig(), 10, "remote_http", options={"url": server.url}, **patient)
    assert [one.value for one in rewards.values()] == [1.0] * 10


def test_a_service_that_is_away_is_asked_for_batches_not_for_each_sample(server: Server) -> None:
    refused = threading.Semaphore(2)

    def answer(body: dict[str, object]) -> tuple[int, object]:
        if refused.acquire(blocking=False):
            return 503, {}
        return 200, {"rewards": [1.0 for _ in groups_of(body)]}

    server.answer = answer
    rewards = scored(Rig(), 64, "remote_http", options={"url": server.url}, retry_backoff_s=0.01)
    assert [one.value for one in rewards.values()] == [1.0] * 64
    assert len(server.seen) < 20, "64 samples are two batches of 32 and some tries"


@pytest.mark.parametrize(
    ("status", "values"), [(404, {}), (200, {"rewards": []}), (200, [1.0]), (200, {"rewards": "12"})]
)
def test_a_refusal_or_another_form_is_a_failure_at_once(server: Server, status: int, values: object) -> None:
    server.answer = lambda _: (status, values)
    rewards = scored(Rig(), 1, "remote_http", options={"url": server.url})
    assert rewards[0].value is None
    assert str(rewards[0].failure).startswith("ValueError: ")
    assert len(server.seen) == 1


def test_a_judge_gives_its_grade_as_a_share_of_the_scale(server: Server) -> None:
    replies = {0: "7", 1: "Grade: 10", 2: "I will not.", 3: "11", 4: "0"}

    def answer(body: dict[str, object]) -> tuple[int, object]:
        (group,) = (at for at in replies if f"text {at}\n" in str(body["messages"][0]["content"]))  # type: ignore[index]
        return 200, {"choices": [{"message": {"content": replies[group]}}]}

    server.answer = answer
    rewards = scored(Rig(), 5, "llm_judge", options={"url": f"{server.url}/v1", "model": "m"})
    assert {group: one.value for group, one in rewards.items()} == {0: 0.7, 1: 1.0, 2: None, 3: None, 4: 0.0}
    assert "gave no grade from 0 to 10" in str(rewards[2].failure)


def test_what_is_judged_is_no_template() -> None:
    judge = LlmJudge(url="http://host/v1", model="m", instructions="{prompt}|{completion}|{answer}")
    judged = sample(prompt_text="{completion}", completion_text="{answer} {high}", answer="4")
    assert judge._request(judged) == "{completion}|{answer} {high}|4"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "host", "model": "m"}, "http://"),
        ({"url": "http://h", "model": "m", "low": 1, "high": 1}, "low"),
        ({"url": "http://h", "model": "m", "instructions": "grade it"}, "completion"),
        ({"url": "http://h", "model": "m", "token_env": "NO_SUCH_VARIABLE"}, "token_env"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LlmJudge(**options)  # type: ignore[arg-type]


def test_the_library_sets_no_limit_of_its_own_on_an_answer(server: Server) -> None:
    """`timeout_s` may be longer than the five minutes that it has by default."""
    server.answer = lambda _: (200, {})

    async def limit_of_a_session() -> float | None:
        client = JsonClient(server.url)
        await client.post({})
        assert client._session is not None
        total = client._session.timeout.total
        await client.close()
        return total

    assert asyncio.run(limit_of_a_session()) is None
