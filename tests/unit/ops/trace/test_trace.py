"""A life is told hop by hop, and what is slow is found where it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson
import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ops.cli.trace import trace as command
from ops.trace.life import Life
from ops.trace.otel import export
from ops.trace.run import trace
from ops.trace.show import as_json, lines_of
from ops.trace.target import Target, TraceError, parse_target
from schemas.records import Version
from tests.unit.ops.trace.slow_run import DROPPED, FAILED, GROUP, HOPS, OPEN, RUN, TRAINED, SlowRun

INJECTED_S = 0.5
SAMPLE_HOPS = {
    TRAINED: [hop for hop in HOPS if hop != "waits for its outcome"],
    DROPPED: [*list(HOPS)[:6], "waits for its outcome"],
    FAILED: [*list(HOPS)[:3], "waits for its outcome"],
}
CASES = [(fate, hop) for fate, hops in SAMPLE_HOPS.items() for hop in hops]


def life_of(run: SlowRun, *, member: int | None = 1, version: Version | None = None) -> Life:
    target = Target(run=RUN, version=version) if version is not None else Target(run=RUN, group=GROUP, member=member)
    return trace(run.source, target)


@pytest.mark.parametrize(("fate", "hop"), CASES)
def test_half_a_second_more_is_found_at_its_hop(fate: str, hop: str) -> None:
    usual, slow = life_of(SlowRun(fate)), life_of(SlowRun(fate, slow=hop, more_s=INJECTED_S))
    assert slow.slowest is not None
    assert slow.slowest.name.startswith(hop)
    more_s = {after.name: after.took_s - before.took_s for before, after in zip(usual.hops, slow.hops, strict=True)}
    found = more_s.pop(slow.slowest.name)
    assert found == pytest.approx(INJECTED_S, rel=0.1)
    assert max(more_s.values()) < 0.01, "and nowhere else"


@pytest.mark.parametrize("fate", [TRAINED, DROPPED, FAILED])
def test_a_sample_is_told_from_its_prompt_to_its_end(fate: str) -> None:
    life = life_of(SlowRun(fate))
    assert [hop.name.removesuffix(", and fails") for hop in life.hops] == SAMPLE_HOPS[fate]
    assert life.whole_s == pytest.approx(sum(HOPS[hop] for hop in SAMPLE_HOPS[fate]), abs=0.005)
    ends = {
        TRAINED: "trained into 1.1, born of 1.0 at age 0, sum 1",
        DROPPED: "dropped at 1.1: stale",
        FAILED: "failed at 1.1: engine_failed",
    }
    assert life.end == ends[fate]
    assert (life.unknown, life.num_clock_skews) == ((), 0)


def test_a_prompt_and_a_version_have_lives_too() -> None:
    run = SlowRun(TRAINED)
    prompt = life_of(run, member=None)
    assert prompt.hops[1].note == "2 samples, the last one is member 0"
    assert prompt.end == "trained at 1.1: 2 trained, 0 dropped, 0 failed"
    version = life_of(run, version=Version(lineage=1, step=1))
    assert [hop.name for hop in version.hops] == SAMPLE_HOPS[TRAINED][7:]
    assert version.end == "served by 1 engine(s)"


def test_the_text_marks_the_slowest_hop_and_json_has_all() -> None:
    life = life_of(SlowRun(TRAINED, slow="is scored by sum"))
    marked = [line for line in lines_of(life) if "<- slowest" in line]
    assert len(marked) == 1
    assert "0.540 s  is scored by sum" in marked[0]
    found = orjson.loads(orjson.dumps(as_json(life)))
    assert found["slowest"] == "is scored by sum"
    assert len(found["hops"]) == len(life.hops)


@pytest.mark.parametrize("fate", [TRAINED, DROPPED])
@pytest.mark.parametrize("member", [1, None])
def test_what_was_scored_after_the_end_is_apart(fate: str, member: int | None) -> None:
    usual, run = life_of(SlowRun(fate), member=member), SlowRun(fate)
    run.rescore(after_s=300, plugin_version="aa")
    run.rescore(after_s=40, plugin_version="bb")
    life = life_of(run, member=member)
    assert (life.hops, life.whole_s, life.slowest) == (usual.hops, usual.whole_s, usual.slowest)
    assert [each.plugin_version for each in life.afterwards] == ["aa", "bb"]
    said = "0.75" if member == 1 else "2 samples, mean 0.5"
    assert [each.note for each in life.afterwards] == [said, said]
    assert sum("reward digits (plug-in bb) [reward-host-2]" in line for line in lines_of(life)) == 1
    assert len(as_json(life)["afterwards"]) == 2  # type: ignore[arg-type]


def test_a_reward_scored_again_by_the_same_plug_in_counts_its_members_once() -> None:
    run = SlowRun(TRAINED)
    run.rescore(after_s=300, plugin_version="aa", num_copies=2)
    (again,) = life_of(run, member=None).afterwards
    assert again.note == "2 samples, mean 0.5; 4 records, as some were scored more than once"


def test_a_group_without_an_outcome_tells_two_plug_ins_of_a_name_apart() -> None:
    run = SlowRun(OPEN)
    run.rescore(after_s=1, plugin_version="aa")
    run.rescore(after_s=1, plugin_version="bb")
    waits = {hop.name: hop.who for hop in life_of(run, member=None).hops if hop.name.startswith("waits for reward d")}
    assert waits == {f"waits for reward digits (plug-in {each})": f"reward-host-2-{each}" for each in ("aa", "bb")}


def test_a_version_without_a_base_says_that_it_is_whole() -> None:
    life = life_of(SlowRun(TRAINED), version=Version(lineage=1, step=1))
    assert life.facts["base"] == "a whole version (no base)"


def test_what_is_not_there_is_said() -> None:
    run = SlowRun(TRAINED)
    with pytest.raises(TraceError, match="no group 77"):
        trace(run.source, Target(run=RUN, group=77, member=0))
    with pytest.raises(TraceError, match="has 2 members"):
        life_of(run, member=2)
    with pytest.raises(TraceError, match=r"no version 3\.1"):
        life_of(run, version=Version(lineage=3, step=1))
    assert trace(run.source, Target(run=RUN, group=0, member=0)).end == "open: the ledger has no outcome of it"


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (("demo", "12/3"), Target(run="demo", group=12, member=3)),
        (("demo/12/3",), Target(run="demo", group=12, member=3)),
        (("demo", "demo/12/3"), Target(run="demo", group=12, member=3)),
        (("demo", "12"), Target(run="demo", group=12)),
        (("demo", "1.40"), Target(run="demo", version=Version(lineage=1, step=40))),
        (("demo/1.40",), Target(run="demo", version=Version(lineage=1, step=40))),
    ],
)
def test_names_of_all_forms_are_understood(words: tuple[str, ...], target: Target) -> None:
    assert parse_target(words) == target


@pytest.mark.parametrize("words", [("demo",), ("demo", "x"), ("demo", "1/2/3"), ("demo", "-1"), ("demo", "1.x")])
def test_other_names_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(TraceError, match="names nothing that can be traced"):
        parse_target(words)


def test_three_words_are_too_many() -> None:
    found = CliRunner().invoke(command, ["demo", "1", "2"]).exception
    assert isinstance(found, TraceError)


class Receiver(ThreadingHTTPServer):
    """A receiver of OTLP over HTTP that keeps what it gets."""

    def __init__(self, *, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.requests: list[ExportTraceServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/traces":
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_life_is_sent_as_spans_with_ids_that_stay(receiver: Receiver) -> None:
    life = life_of(SlowRun(TRAINED, slow="is scored by sum"))
    assert export(life, endpoint=receiver.url) == len(life.hops) + 1
    assert export(life, endpoint=receiver.url) == len(life.hops) + 1
    first, second = (_spans(request) for request in receiver.requests)
    assert first == second, "the same life is the same trace"
    assert {trace_id for trace_id, _, _ in first} == {first[0][0]}
    names = {name: took_s for _, name, took_s in first}
    assert names["is scored by sum"] == pytest.approx(0.54, abs=0.001)
    assert f"sample {RUN}/{GROUP}/1" in names


def test_the_environment_names_the_receiver(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    export(life_of(SlowRun(FAILED)))
    assert len(receiver.requests) == 1


def test_a_receiver_that_refuses_is_named(receiver: Receiver) -> None:
    receiver.status = 400
    with pytest.raises(TraceError, match="did not take the spans"):
        export(life_of(SlowRun(FAILED)), endpoint=receiver.url)


def test_a_receiver_is_named_without_its_password_and_any_time_is_sent(receiver: Receiver) -> None:
    life = life_of(SlowRun(FAILED))
    hop = replace(life.hops[0], began_ms=-5.0, ended_ms=2.0**63)
    receiver.status = 400
    url = receiver.url.replace("//", "//user:s3cret-7@")
    with pytest.raises(TraceError, match="did not take") as refused:
        export(replace(life, hops=(hop,)), endpoint=url)
    assert "s3cret-7" not in refused.value.message
    assert len(receiver.requests) == 1


def _spans(request: ExportTraceServiceRequest) -> list[tuple[bytes, str, float]]:
    return sorted(
        (span.trace_id, span.name, (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )
