"""Nodes as real processes on this machine's own network: what they do when told, and what is said when they cannot."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ops.bench.weights import words
from ops.bench.weights.crew import Crew, Gone, Heard
from ops.bench.weights.material import Material, make_material
from schemas.errors import DeadlineExceeded
from topics.clock import Deadline

SIZE_BYTES = 8 * 64 * 1024
TOKEN = "token-of-a-benchmark"


class _Machine:
    """Starts nodes without a network of their own."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, host: str, argv: Sequence[str], *, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env))
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            with process:  # closes its input, at which a node ends
                pass


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """`source` and `engine`; a test of how one ends starts its own."""
    machine = _Machine()
    crew = Crew(machine.start)
    for node in ("source", "engine"):
        crew.start(node, host=node)
    crew.wait(("source", "engine"), words.Hello)
    yield crew
    living = [process for process in machine.processes if process.poll() is None]
    machine.end()
    assert living
    assert all(process.returncode == 0 for process in living), "those that were not killed end when their input ends"


@pytest.fixture
def material(tmp_path: Path) -> Material:
    return make_material(tmp_path / "source", size_bytes=SIZE_BYTES, chunk_bytes=64 * 1024, seed="http://x:1", step=1)


def _serve(root: Path, *, tell_at_bytes: int = 0) -> words.Serve:
    return words.Serve(
        root=str(root), host="127.0.0.1", port=0, token=TOKEN, max_bytes=2 * SIZE_BYTES, tell_at_bytes=tell_at_bytes
    )


def _fetch(material: Material, url: str, *, limit_s: float = 20.0, tell_at_bytes: int = 0) -> words.Fetch:
    return words.Fetch(
        manifest_file=str(material.manifest_file),
        at_s=time.monotonic(),
        limit_s=limit_s,
        seeds=[url],
        peers=[],
        parallel=2,
        tell_at_bytes=tell_at_bytes,
    )


def _until(crew: Crew, *kinds: type[words.Answer | Gone]) -> list[Heard]:
    """What is heard, until something of each kind is in it."""
    limit_s, heard = time.monotonic() + 20, list[Heard]()
    while not {type(one.answer) for one in heard} >= set(kinds):
        assert time.monotonic() < limit_s, heard
        heard += crew.hear(limit_s=1)
    return heard


@pytest.fixture(autouse=True)
def _nobody_serves(crew: Crew) -> Iterator[None]:
    yield
    crew.ask(dict.fromkeys(("source", "engine"), words.Stop()), words.Stopped)


def test_a_version_is_fetched_counted_and_checked(crew: Crew, material: Material, tmp_path: Path) -> None:
    serving = crew.ask({"source": _serve(material.root), "engine": _serve(tmp_path / "engine")}, words.Serving)
    fetch = _fetch(material, serving["source"].url)
    done = crew.ask({"engine": fetch}, words.Done)["engine"]
    assert done.bytes_fetched == SIZE_BYTES
    assert fetch.at_s < done.at_s <= time.monotonic()
    deadline = Deadline.after(20)
    while (served := crew.ask({"source": words.Count()}, words.Counted)["source"].served_bytes) < SIZE_BYTES:
        deadline.check("the last chunk to be counted, which is after it was sent")
    assert served == SIZE_BYTES
    check = words.Check(manifest_file=str(material.manifest_file))
    assert crew.ask({"engine": check}, words.Checked)["engine"].num_bytes == SIZE_BYTES
    chunk = next(path for path in (tmp_path / "engine" / "chunks").glob("*/*"))
    chunk.write_bytes(bytes(64 * 1024))
    assert crew.ask({"engine": check}, words.Checked)["engine"].num_bytes == SIZE_BYTES - 64 * 1024


def test_marks_are_told_once_on_both_sides(crew: Crew, material: Material, tmp_path: Path) -> None:
    half = SIZE_BYTES // 2
    serve: dict[str, words.Order] = {
        "source": _serve(material.root, tell_at_bytes=half),
        "engine": _serve(tmp_path / "engine"),
    }
    url = crew.ask(serve, words.Serving)["source"].url
    crew.tell("engine", _fetch(material, url, tell_at_bytes=half))
    heard = _until(crew, words.Done)
    crew.tell("source", words.Count())
    heard += _until(crew, words.Counted)
    marks = {one.node: one.answer.num_bytes for one in heard if isinstance(one.answer, words.Reached)}
    assert marks.keys() == {"source", "engine"}
    assert all(half <= num_bytes < SIZE_BYTES for num_bytes in marks.values())
    assert sum(isinstance(one.answer, words.Reached) for one in heard) == 2


def test_a_later_fetch_replaces_one_that_gets_nowhere(crew: Crew, material: Material, tmp_path: Path) -> None:
    crew.ask({"engine": _serve(tmp_path / "engine")}, words.Serving)
    crew.tell("engine", _fetch(material, "http://127.0.0.1:9"))
    url = crew.ask({"source": _serve(material.root)}, words.Serving)["source"].url
    assert crew.ask({"engine": _fetch(material, url)}, words.Done)["engine"].bytes_fetched == SIZE_BYTES


def test_a_fetch_that_fails_is_said(crew: Crew, material: Material, tmp_path: Path) -> None:
    crew.ask({"engine": _serve(tmp_path / "engine")}, words.Serving)
    with pytest.raises(words.BenchError, match=r"node engine: waited 0\.3 s for 8 of 8 chunks"):
        crew.ask({"engine": _fetch(material, "http://127.0.0.1:9", limit_s=0.3)}, words.Done)


def test_an_order_out_of_turn_is_said(crew: Crew, material: Material) -> None:
    with pytest.raises(words.BenchError, match="while it serves no store"):
        crew.ask({"engine": words.Check(manifest_file=str(material.manifest_file))}, words.Checked)


def test_a_killed_node_is_gone_and_another_takes_its_name(crew: Crew) -> None:
    crew.kill("source")
    assert _until(crew, Gone) == [Heard(node="source", answer=Gone())]
    assert crew.nodes == {"engine"}
    with pytest.raises(words.BenchError, match="node source has ended"):
        crew.tell("source", words.Count())
    crew.start("standby", host="source")
    crew.wait(["standby"], words.Hello)
    crew.rename("standby", to="source")
    assert crew.ask({"source": words.Count()}, words.Counted)["source"].served_bytes == 0


def test_a_node_that_ends_by_itself_ends_the_wait(crew: Crew) -> None:
    crew.start("third", host="third")
    crew.kill("third")
    with pytest.raises(words.BenchError, match="node third ended by itself"):
        crew.wait(["third"], words.Stopped)


def test_a_silent_node_is_named_after_the_limit(crew: Crew) -> None:
    with pytest.raises(DeadlineExceeded, match="Stopped of nodes engine"):
        crew.wait(["engine"], words.Stopped, limit_s=0.1)
