"""States to chunks and back: bytes, dtypes, ties, and every way a manifest or a chunk can be wrong."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3

from pipeline.weights.chunks import ChunkStore, digest_of
from pipeline.weights.manifest import EncodedState, build_manifest, check_manifest
from pipeline.weights.state import decode_arrays, decode_state, encode_state
from schemas.errors import WeightsError
from schemas.records import Manifest, Version
from tests.unit.pipeline.weights.helpers import new_store, small_version


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return new_store(tmp_path / "store")


def _manifest(state: EncodedState) -> Manifest:
    return build_manifest(state, run="r", version=Version(lineage=1, step=0), seeds=(), created_unix_ms=0)


def _state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "z.bias": torch.randn(7),
        "embed": torch.randn(33, 5).to(torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "ids": torch.arange(11),
        "odd": torch.tensor([True, False, True]),
        "turned": torch.randn(6, 9).t(),  # not contiguous
    }


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 10_000])
def test_a_state_comes_back_bit_for_bit(store: ChunkStore, chunk_bytes: int) -> None:
    tensors = _state()
    encoded = encode_state(tensors, ties={}, wire_dtype=None, chunk_bytes=chunk_bytes, store=store)
    decoded = decode_state(_manifest(encoded), store)
    assert list(decoded) == sorted(tensors)
    for name, tensor in tensors.items():
        assert decoded[name].dtype == tensor.dtype
        assert torch.equal(decoded[name], tensor)


def test_the_stream_is_tensors_by_name_little_endian_without_padding(store: ChunkStore) -> None:
    tensors = {"b": torch.tensor([1.0, -2.0]), "a": torch.tensor([1.0], dtype=torch.bfloat16)}
    encoded = encode_state(tensors, ties={}, wire_dtype=None, chunk_bytes=4, store=store)
    stream = b"".join(store.get(chunk.digest) for chunk in encoded.chunks)
    assert stream == b"\x80\x3f" + struct.pack("<2f", 1.0, -2.0)
    assert [chunk.num_bytes for chunk in encoded.chunks] == [4, 4, 2]
    assert encoded.state_digest == blake3(stream).hexdigest()


def test_bfloat16_survives_with_not_a_number_and_signed_zero(store: ChunkStore) -> None:
    bits = torch.tensor([0x7FC1, -0x8000, 0x7F80, 1], dtype=torch.int16)
    encoded = encode_state({"w": bits.view(torch.bfloat16)}, ties={}, wire_dtype=None, store=store)
    assert torch.equal(decode_state(_manifest(encoded), store)["w"].view(torch.int16), bits)


def test_the_wire_dtype_casts_floating_tensors_only(store: ChunkStore) -> None:
    tensors = {"w": torch.tensor([1.001, 2.0]), "n": torch.tensor([5])}
    encoded = encode_state(tensors, ties={}, wire_dtype="BF16", store=store)
    decoded = decode_state(_manifest(encoded), store)
    assert torch.equal(decoded["w"], tensors["w"].to(torch.bfloat16))
    assert decoded["n"].dtype == torch.int64


@pytest.mark.parametrize("alias_is_present", [True, False])
def test_a_tied_tensor_has_no_bytes_and_shares_its_owner(store: ChunkStore, alias_is_present: bool) -> None:
    embed = torch.randn(4, 3)
    tensors = {"embed": embed, "lm_head": embed} if alias_is_present else {"embed": embed}
    encoded = encode_state(tensors, ties={"lm_head": "embed"}, wire_dtype="BF16", store=store)
    assert encoded.num_bytes == 4 * 3 * 2
    entry = encoded.tensors[1]
    assert (entry.name, entry.tied_to, entry.num_bytes, entry.shape) == ("lm_head", "embed", 0, (4, 3))
    decoded = decode_state(_manifest(encoded), store)
    assert decoded["lm_head"] is decoded["embed"]


def test_a_tie_between_tensors_that_differ_is_refused(store: ChunkStore) -> None:
    tensors = {"a": torch.zeros(3), "b": torch.ones(3)}
    with pytest.raises(WeightsError, match="'b' is declared tied to 'a' but differs"):
        encode_state(tensors, ties={"b": "a"}, wire_dtype=None, store=store)


@pytest.mark.parametrize("ties", [{"b": "absent"}, {"b": "a", "a": "c"}, {"b": "b"}])
def test_a_tie_without_an_owner_is_refused(store: ChunkStore, ties: dict[str, str]) -> None:
    tensors = {name: torch.zeros(3) for name in "abc"}
    with pytest.raises(WeightsError, match="no bytes of its own"):
        encode_state(tensors, ties=ties, wire_dtype=None, store=store)


def test_numpy_and_torch_give_the_same_chunks(store: ChunkStore) -> None:
    array = np.arange(30, dtype=">f4").reshape(5, 6).T  # big-endian and not contiguous
    ours = encode_state({"w": array}, ties={}, wire_dtype="F16", chunk_bytes=16, store=store)
    other = torch.from_numpy(array.astype("<f4"))
    assert ours == encode_state({"w": other}, ties={}, wire_dtype="F16", chunk_bytes=16, store=store)
    np.testing.assert_array_equal(decode_arrays(_manifest(ours), store)["w"], array.astype("<f2"))


def test_numpy_refuses_a_dtype_it_does_not_have(store: ChunkStore) -> None:
    encoded = encode_state({"w": torch.zeros(2, dtype=torch.bfloat16)}, ties={}, wire_dtype=None, store=store)
    with pytest.raises(WeightsError, match="numpy has no dtype BF16"):
        decode_arrays(_manifest(encoded), store)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wire_dtype": "I8"}, "wire dtype 'I8' is not one of"),
        ({"chunk_bytes": 0}, "chunks of 0 bytes"),
        ({"tensors": {"w": torch.zeros(1, dtype=torch.complex64)}}, "complex64 has no name on the wire"),
    ],
)
def test_arguments_that_cannot_work_are_refused(store: ChunkStore, change: dict[str, object], message: str) -> None:
    arguments = {"tensors": _state(), "ties": {}, "wire_dtype": None, "store": store} | change
    with pytest.raises(WeightsError, match=message):
        encode_state(arguments.pop("tensors"), **arguments)  # type: ignore[arg-type]


def test_a_chunk_altered_on_disk_stops_the_decode(store: ChunkStore) -> None:
    manifest = small_version(store)
    path = store.path_of(manifest.chunks[-1].digest)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(WeightsError, match=f"{manifest.chunks[-1].digest} was altered on disk"):
        decode_arrays(manifest, store)


def test_exchanged_chunks_stop_the_decode(store: ChunkStore) -> None:
    """Case 41."""
    manifest = small_version(store)
    first, second, *rest = manifest.chunks
    with pytest.raises(WeightsError, match=f"chunks give state [0-9a-f]+, not {manifest.state_digest}"):
        decode_arrays(replace(manifest, chunks=(second, first, *rest)), store)


def test_a_chunk_of_another_length_than_the_manifest_says_stops_the_decode(store: ChunkStore) -> None:
    manifest = small_version(store)
    short = replace(manifest.chunks[0], digest=store.put(b"x" * 4095).digest)
    with pytest.raises(WeightsError, match="has 4095 bytes, not 4096"):
        decode_arrays(replace(manifest, chunks=(short, *manifest.chunks[1:])), store)


def _with_tensor(manifest: Manifest, **change: object) -> Manifest:
    first, *rest = manifest.tensors
    return replace(manifest, tensors=(replace(first, **change), *rest))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: replace(m, chunks=m.chunks[:-1]), r"its 9 chunks add up to 36864 bytes, the manifest says 40012"),
        (lambda m: replace(m, tensors=m.tensors[:-1]), "its tensors add up to 40000 bytes"),
        (lambda m: replace(m, tensors=m.tensors[::-1]), "not unique and in order"),
        (lambda m: replace(m, tensors=(m.tensors[0], *m.tensors)), "not unique and in order"),
        (lambda m: replace(m, num_bytes=m.num_bytes + 1), "its tensors add up to"),
        (lambda m: replace(m, state_digest="../x"), "not 64 lower-case hex digits"),
        (lambda m: replace(m, encoding="magic"), "encoding 'magic' is not one of full"),
        (lambda m: replace(m, base_digest="0" * 64), "has no base"),
        (lambda m: replace(m, seeds=("file:///etc",)), "is not http"),
        (lambda m: replace(m, chunks=(m.chunks[-1], *m.chunks[:-1])), "not of one size"),
        (lambda m: replace(m, chunks=(replace(m.chunks[0], digest="x"), *m.chunks[1:])), "not 64 lower-case"),
        (lambda m: replace(m, chunks=(replace(m.chunks[0], num_bytes=2**40), *m.chunks[1:])), "allowed are 1 to"),
        (lambda m: _with_tensor(m, dtype="F16"), "takes 20000 bytes, the manifest says 40000"),
        (lambda m: _with_tensor(m, dtype="F7"), "dtype 'F7' is not one of"),
        (lambda m: _with_tensor(m, shape=(-10_000,)), "negative dimension"),
        (lambda m: _with_tensor(m, tied_to="nothing", num_bytes=0), "no bytes of its own"),
        (lambda m: _with_tensor(m, tied_to="b", num_bytes=0), "differs in dtype or shape"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    store: ChunkStore, damage: Callable[[Manifest], Manifest], message: str
) -> None:
    manifest = small_version(store)
    check_manifest(manifest)
    with pytest.raises(WeightsError, match=message) as caught:
        check_manifest(damage(manifest))
    assert "manifest of version 1.2 is refused" in caught.value.message


def test_an_owner_pins_every_chunk_of_a_state(tmp_path: Path) -> None:
    store = new_store(tmp_path, max_bytes=0)
    encoded = encode_state(_state(), ties={}, wire_dtype=None, chunk_bytes=50, store=store, owner="learner.1.0")
    store.sweep()
    assert decode_state(_manifest(encoded), store)
    assert store.pins()["learner.1.0"] == {chunk.digest for chunk in encoded.chunks}


def test_numpy_states_travel_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, pipeline.weights.fetcher, pipeline.weights.peer\n"
        "from tests.unit.pipeline.weights.helpers import new_store, small_version\n"
        "from pipeline.weights.state import decode_arrays\n"
        "store = new_store(pathlib.Path(sys.argv[1]))\n"
        "decode_arrays(small_version(store), store)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 0


def test_an_empty_state_has_no_chunks(store: ChunkStore) -> None:
    encoded = encode_state({}, ties={}, wire_dtype=None, store=store)
    assert encoded.chunks == ()
    assert encoded.state_digest == digest_of(b"")
    assert decode_state(_manifest(encoded), store) == {}
