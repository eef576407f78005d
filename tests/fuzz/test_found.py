"""What fuzzing found and was mended, each by a small input."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import tracemalloc
from pathlib import Path

import orjson
import pytest
import torch
from blake3 import blake3

from consumers.learner import checkpoint, facts
from ops.replay import select
from ops.replay.summaries import summary, token_table
from ops.run_file import load_run_file
from pipeline.history import ClosedSet
from pipeline.lease import Lease, LeaseState
from pipeline.secrets import check_no_password, shown
from pipeline.weights import model_files
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.download import ClientSettings, PeerClient
from pipeline.weights.dtypes import tensor_num_bytes
from pipeline.weights.peer import PeerServer, PeerSettings
from pipeline.weights.peer_board import Problem
from schemas import _fastavro, _items, plans
from schemas.codec import MARKER, decode, encode
from schemas.errors import CheckpointError, CodecError, RecordInvalid, SettingsError, WeightsError
from schemas.records import ChunkRef, Message, Record, Sample, TensorEntry, Version, VersionRun
from schemas.registry import shipped
from tests.fuzz.records import golden_frames
from tests.fuzz.stored import FakeRedis, save_whole
from tests.unit.schemas.examples import EXAMPLES, PROMPT, SAMPLE

MANY = 100_000
RUN_OF_NOTHING = VersionRun(num_tokens=0, version=Version(lineage=0, step=0))
MINIMAL = '[run]\nname = "a"\n[model]\npath = "m"\n[prompts.source]\nfiles = ["x"]\n[rewards.sum]\nplugin = "p"\n'


def frame_of(record: Record) -> bytes:
    """Its frame, without the encoder's own checks."""
    version = shipped().current_of(type(record).__name__)
    body = plans.to_body(type(record))(record)
    return _fastavro.write(version.schema, body, prefix=MARKER + version.fingerprint)


@pytest.mark.parametrize(
    "record",
    [
        dataclasses.replace(SAMPLE, version_runs=(RUN_OF_NOTHING,) * MANY),
        dataclasses.replace(PROMPT, messages=(Message(role="", content=""),) * MANY),
        dataclasses.replace(PROMPT, metadata={f"{number:x}": "" for number in range(4 * MANY)}),
    ],
    ids=["runs", "messages", "metadata"],
)
def test_a_frame_of_countless_items_is_refused_by_reader_and_writer(record: Record) -> None:
    """300 kB of it took 50 MB: 32 MiB, which compress to nothing, would have taken 5 GB."""
    with pytest.raises(CodecError, match="would fill the memory"):
        decode(frame_of(record))
    with pytest.raises(CodecError, match="would fill the memory"):
        encode(record)


def test_a_manifest_of_a_very_large_model_passes() -> None:
    [manifest] = [example for example in EXAMPLES if type(example).__name__ == "Manifest"]
    names = (f"model.layers.{number // 400}.mlp.experts.{number % 400}.up_proj.weight" for number in range(9_000))
    tensors = tuple(TensorEntry(name=name, dtype="BF16", shape=(7168, 2048), num_bytes=1) for name in names)
    chunks = (ChunkRef(digest="ab" * 32, num_bytes=2**22),) * 16_000
    large = dataclasses.replace(manifest, tensors=tensors, chunks=chunks)  # type: ignore[arg-type]
    assert decode(encode(large)) == large


@pytest.mark.parametrize("frame", golden_frames(), ids=lambda frame: frame[2:10].hex())
def test_counting_items_walks_a_frame_to_its_exact_end(frame: bytes) -> None:
    schema = shipped().by_fingerprint[frame[2:10]].schema
    walk = _items._Walk(frame, 10, 1000)
    _items._step(schema, {})(walk)
    assert walk.at == len(frame)


def test_a_long_frame_that_is_cut_short_is_told_by_the_decoder() -> None:
    frame = frame_of(dataclasses.replace(SAMPLE, completion_text="x" * 200_000))
    with pytest.raises(CodecError, match="cannot be read"):
        decode(frame[:150_000])


@pytest.mark.parametrize("shape", [(2**62,) * 300, (2,) * 65, (2**62, 4), (0, 2**62, 2**62)])
def test_a_shape_beyond_any_memory_is_refused(shape: tuple[int, ...]) -> None:
    """Its size had more digits than Python writes out, and took its time to compute."""
    with pytest.raises(WeightsError, match="the tensor was refused"):
        tensor_num_bytes("F32", shape)


@pytest.mark.parametrize(
    "reply", ["", "yours", "yours a None 100", "yours a 1 2 3", "other b 1 soon", f"yours a {'9' * 30} 1"]
)
def test_an_entry_that_is_no_lease_protects_nothing_and_says_so(reply: str) -> None:
    redis = FakeRedis()
    redis.value = reply
    lease = Lease(redis, key="k", owner="a", ttl_s=1.0)
    for result in (lease.acquire(), lease.renew()):
        assert result.state is LeaseState.UNKNOWN
        assert "not protected" in result.warning


def test_a_lease_of_a_chunk_store_that_is_not_text_pins_what_can_be_read(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path, max_bytes=1)
    store.pin("learner", {"ab" * 32})
    with (tmp_path / "pins" / "learner").open("ab") as file:
        file.write(b"\xff\x80\n" + b"cd" * 32)
    assert store.pins() == {"learner": frozenset({"ab" * 32, "cd" * 32})}


@pytest.mark.parametrize("text", ["9" * 5000, "\u0663"])
def test_numbers_no_record_can_hold_are_no_selection(text: str) -> None:
    assert select.parse_version(f"{text}.1") is None
    for parse, given in (
        (select.parse_bounds, f"1..{text}"),
        (select.parse_times, f"{text}.."),
        (select.parse_versions, f"1.{text}"),
        (select.parse_sample, f"{text}/0"),
        (select.parse_place, f"samples/0/{text}"),
    ):
        with pytest.raises(select.SelectionError):
            parse(given)


def test_a_run_of_any_length_is_shown_as_far_as_there_are_tokens() -> None:
    """The table had one entry for every token that a run claimed."""
    claimed = VersionRun(num_tokens=2**62, version=Version(lineage=1, step=5))
    lines = list(token_table(dataclasses.replace(SAMPLE, version_runs=(claimed,))))
    assert [line.split()[-1] for line in lines[2:]] == ["1.5"] * 4


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_no_text_of_a_record_reaches_the_terminal_as_a_command(example: Record) -> None:
    texts = {name: f"{value}\x1b[2J\nx" for name, value in vars(example).items() if isinstance(value, str)}
    evil = dataclasses.replace(example, **texts)  # type: ignore[arg-type]
    shown = [*summary(evil), *(token_table(evil) if isinstance(evil, Sample) else ())]
    assert [line for line in shown if not line.isprintable()] == []


@pytest.mark.parametrize(
    "line",
    [f"x = {'[' * 5000}", f"x = {'9' * 5000}", "x = '\udc80'", f"x = 0x{'f' * 5000}"],
    ids=["nested", "digits", "bytes", "hexadecimal"],
)
def test_a_run_file_beyond_all_bounds_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(MINIMAL.replace('name = "a"', f'name = "a"\n{line}').encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError):
        load_run_file(path)


@pytest.mark.parametrize("text", ["[" * 5000, "9" * 5000, f"0x{'f' * 5000}"], ids=["nested", "digits", "hexadecimal"])
def test_an_override_beyond_all_bounds_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    with pytest.raises(SettingsError, match=r"run\.group_size"):
        load_run_file(path, overrides=[f"run.group_size={text}"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lineage", "one"),
        ("positions", ["samples/0"]),
        ("positions", {"samples": 1}),
        ("closed", []),
        ("closed", {"watermark": 1, "above": [None]}),
        ("closed", {"watermark": 1, "above": [-1]}),
        ("topic_ids", None),
    ],
)
def test_a_checkpoint_whose_state_is_none_is_refused_whatever_its_digest(
    tmp_path: Path, name: str, value: object
) -> None:
    path = tmp_path / "1.7"
    save_whole(path)
    state = orjson.loads((path / "state.json").read_bytes()) | {name: value}
    content = orjson.dumps(state)
    (path / "state.json").write_bytes(content)
    manifest = orjson.loads((path / "manifest.json").read_bytes())
    manifest["files"]["state.json"] = {"num_bytes": len(content), "blake3": blake3(content).hexdigest()}
    (path / "manifest.json").write_bytes(orjson.dumps(manifest))
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path)


@pytest.mark.parametrize("state", [None, torch.zeros(3, dtype=torch.uint8), torch.zeros(5056)])
def test_a_generator_state_that_is_none_is_refused(state: torch.Tensor | None) -> None:
    with pytest.raises(CheckpointError, match="random generator"):
        checkpoint.restore_generator(torch.Generator(), state)


def test_an_index_of_model_files_that_names_no_files_names_none(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(
        b'{"weight_map": {"a": 1, "b": ["x"], "c": "m", "d": "../m"}}'
    )
    assert model_files._paths(tmp_path) == [tmp_path / "m"]


def test_a_closed_set_holds_group_numbers_only() -> None:
    with pytest.raises(ValueError, match="a closed set is"):
        ClosedSet.from_json({"watermark": 1, "above": ["7"]})  # type: ignore[list-item]


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_number_that_settings_in_use_cannot_hold_is_refused_by_name(tmp_path: Path, number: int) -> None:
    """It was accepted, and then could not be written for the stages."""
    file = tmp_path / "run.toml"
    file.write_text(f"{MINIMAL}[prompts.source.config]\ndepths = [1, {number}]\n")
    with pytest.raises(SettingsError, match=r"prompts\.source\.config\.depths\.1 = .*is of 64 bits"):
        load_run_file(file)


def test_settings_in_the_ledger_are_read_up_to_a_length() -> None:
    """200 kB of names that mean nothing took two seconds to refuse."""
    text = "{" + ",".join(f'"{number}":0' for number in range(20_000)) + "}"
    with pytest.raises(RecordInvalid, match=r"characters, at most 32768 are read"):
        facts.arithmetic_in({facts.SETTINGS: text})


def test_a_login_is_looked_for_in_one_pass() -> None:
    """30 kB of what is nearly one took half a minute."""
    check_no_password("http://[::1" * 200_000)
    assert shown("redis://user:word@host?password=other") == "'redis://***@host?password=***'"
    assert shown("see redis://host:1 and mail a@b") == "'see redis://host:1 and mail a@b'"
    with pytest.raises(SettingsError, match="holds a password"):
        check_no_password("redis://user:w@rd@host")


def test_a_length_that_a_peer_only_claims_takes_no_memory() -> None:
    """119 bytes took 100 MB."""
    tracemalloc.start()
    found = asyncio.run(_download_of(b"HTTP/1.1 200 OK\r\nContent-Length: 104857596\r\n\r\nshort"))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, Problem)
    assert most < 10 * 2**20


async def _download_of(answer: bytes) -> bytearray | Problem:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, PeerClient(ClientSettings(token="t")) as client:
        chunk = ChunkRef(digest="de" * 32, num_bytes=0)
        return await client.download(f"http://{host}:{port}", chunk=chunk, limit_s=10)


def test_a_request_that_is_no_http_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A traceback for each, which quoted the line that carries the token, before anybody had shown one."""
    server = PeerServer(PeerSettings(stores=[ChunkStore(tmp_path, max_bytes=1)], token="a-token-of-the-run"))
    host, _, port = server.start().removeprefix("http://").partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nAuthorization: Bearer a-token\x00-of-the-run\r\n\r\n")
            assert b" 400 " in connection.recv(100)
    finally:
        server.stop()
    assert caplog.records == []
