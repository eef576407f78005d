"""Decoders of weights: manifests, deltas, positions, and the words between peers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from pipeline.weights import arrays, delta, delta_state, manifest, news, rice
from pipeline.weights.chunks import check_digest
from pipeline.weights.delta import TensorBuffer
from pipeline.weights.dtypes import tensor_num_bytes
from pipeline.weights.manifest import BaseRef, EncodedState, build_manifest
from pipeline.weights.wire_state import WireState
from schemas.codec import decode, encode
from schemas.errors import WeightsError
from schemas.records import ChunkRef, Manifest, TensorEntry, Version
from tests.fuzz.decoder import Decode, Decoder, Violated
from tests.fuzz.mutate import INTS, mutate_bytes, mutate_frame, mutate_json
from tests.fuzz.records import golden_frames

_BASE_DIGEST = "ab" * 32
_POSITIONS = struct.Struct("<IBIH")  # count, shift, bound, bytes of unary codes
_ENTRIES = (
    TensorEntry(name="a", dtype="U8", shape=(delta.SPAN_ELEMENTS + 40,), num_bytes=delta.SPAN_ELEMENTS + 40),
    TensorEntry(name="b", dtype="BF16", shape=(600,), num_bytes=1200),
    TensorEntry(name="c", dtype="BF16", shape=(600,), num_bytes=0, tied_to="b"),
    TensorEntry(name="d", dtype="I64", shape=(5, 10), num_bytes=400),
    TensorEntry(name="e", dtype="F32", shape=(), num_bytes=4),
)


def _manifest(folder: Path) -> Decode:
    """The gate in front of fetch and decode, and the two views of a manifest behind it."""

    def run(data: bytes) -> object:
        record = decode(data, Manifest)
        manifest.check_manifest(record)
        views = [view for view in (manifest.as_anchor(record), manifest.as_delta(record)) if view is not None]
        if not views:
            raise Violated("a checked manifest is neither an anchor nor a delta")
        for view in views:
            manifest.check_manifest(view)
        stored = sum(chunk.num_bytes for chunk in manifest.all_chunks(record))
        if record.encoding == "full" and record.num_bytes > stored:
            raise Violated("a checked anchor is longer than its chunks")
        for entry in record.tensors:
            if entry.tied_to is None and entry.num_bytes <= 2**16:
                _check_memory(entry)
        return [encode(view) for view in views]

    return run


def _check_memory(entry: TensorEntry) -> None:
    """What passed the gate can be laid out."""
    tensor, view = arrays.new_tensor(entry)
    if len(view) != entry.num_bytes or tuple(tensor.shape) != entry.shape:
        raise Violated(f"{entry} is laid out as {len(view)} bytes")


def _delta(folder: Path) -> Decode:
    """A delta parsed, and written onto a small state when all of it is well-formed."""
    base, state = _state(0), _state(0)

    def run(data: bytes) -> object:
        for buffer, untouched in zip(state.buffers, base.buffers, strict=True):
            buffer.data[:] = untouched.data
        try:
            patches = delta.parse(data, base_digest=_BASE_DIGEST, sizes=state.sizes)
            delta_state.apply_bytes(data, state=state, state_digest=_BASE_DIGEST)
        except WeightsError as error:
            if "after it was applied" not in error.message:
                _check_untouched(state, base)
            raise
        _check_untouched(state, base, beside={patch.tensor for patch in patches})
        return [(patch.tensor, patch.first, patch.num_elements) for patch in patches]

    return run


def _check_untouched(state: WireState, base: WireState, *, beside: set[int] | frozenset[int] = frozenset()) -> None:
    for number, (ours, theirs) in enumerate(zip(state.buffers, base.buffers, strict=True)):
        if number not in beside and not np.array_equal(ours.data, theirs.data):
            raise Violated(f"tensor {number} was written although the delta does not change it")


def _positions(folder: Path) -> Decode:
    """Rice codes alone, with any counts."""

    def run(data: bytes) -> object:
        if len(data) < _POSITIONS.size:
            return "too short"
        count, shift, bound, num_unary = _POSITIONS.unpack_from(data)
        unary, low = data[_POSITIONS.size :][:num_unary], data[_POSITIONS.size + num_unary :]
        found = rice.decode_positions(unary, low, count=count, shift=shift, bound=bound)
        if found.size != count or int(found[-1]) >= bound or (np.diff(found.astype(np.int64)) <= 0).any():
            raise Violated(f"{found.size} positions, {count} announced, or out of order, or not below {bound}")
        coded = rice.encode_positions(found)
        again = rice.decode_positions(coded.unary, coded.low, count=count, shift=coded.shift, bound=bound)
        if not np.array_equal(found, again):
            raise Violated("positions change when they are coded again")
        return found.tobytes()

    return run


def _news(folder: Path) -> Decode:
    """A line of news, and a request for them."""

    def run(data: bytes) -> object:
        return _reading(lambda: _line(data)), _reading(lambda: _request(data))

    return run


def _reading(read: Callable[[], object]) -> object:
    try:
        return read()
    except WeightsError as error:
        return error.message


def _line(data: bytes) -> news.News:
    found = news.decode_news(data)
    if news.decode_news(news.encode_news(found)) != found:
        raise Violated("news change when they are written and read")
    return found


def _request(data: bytes) -> news.NewsRequest:
    found = news.decode_request(data)
    if news.decode_request(news.encode_request(found)) != found:
        raise Violated("a request changes when it is written and read")
    return found


def _state(seed: int, *, changed: float = 1.0) -> WireState:
    """A small state; `changed` is the share of elements that differ from seed 0."""
    state = WireState.empty(_ENTRIES)
    for number, buffer in enumerate(state.buffers):
        draw = np.random.default_rng(number)
        buffer.data[:] = draw.integers(0, 256, buffer.data.size, dtype=np.uint8)
        if seed:
            _change(buffer, np.random.default_rng((seed, number)), share=changed)
    return state


def _change(buffer: TensorBuffer, draw: np.random.Generator, *, share: float) -> None:
    elements = buffer.data.reshape(-1, buffer.item_bytes)
    elements[draw.random(len(elements)) < share] ^= 0x55


@cache
def _deltas() -> tuple[bytes, ...]:
    """Deltas from seed 0: with few changes, some, and so many that whole spans are sent."""
    base = _state(0)
    made = []
    for seed, share in ((1, 0.0002), (2, 0.02), (3, 0.3), (4, 0.0)):
        spans = delta_state.delta_spans(base, _state(seed, changed=share), base_digest=_BASE_DIGEST)
        made.append(b"".join(bytes(piece) for span in spans for piece in span.pieces))
    return tuple(data for data in made if len(data) < 2**17)


def _mutate_delta(data: bytes, draw: Random) -> bytes:
    """Change one number of one record's head, or any bytes."""
    if draw.random() < 0.4 or len(data) < delta.HEADER.size + delta.RECORD.size:
        return mutate_bytes(data, draw)
    changed = bytearray(data)
    places = list(_record_places(data))
    fields = list(delta.RECORD.unpack_from(data, place := draw.choice(places)))
    number = draw.randrange(len(fields) - 1)
    limit = (2**32, 2**32, 2**32, 2**32, 2**32, 2**16, 2**8, 2**8)[number]
    fields[number] = draw.choice((draw.choice(INTS), fields[number] + draw.choice((-1, 1)), draw.randrange(40))) % limit
    delta.RECORD.pack_into(changed, place, *fields)
    return bytes(changed)


def _record_places(data: bytes) -> Sequence[int]:
    """Where the heads of the records of a well-formed delta are; the first one at least."""
    places, place = [], delta.HEADER.size
    while place + delta.RECORD.size <= len(data):
        places.append(place)
        _, _, num_elements, count, num_unary, shift, kind, size, _ = delta.RECORD.unpack_from(data, place)
        place += delta.RECORD.size
        place += num_elements * size if kind else num_unary + rice.low_num_bytes(count, shift=shift) + count * size
    return places


def _coded() -> list[bytes]:
    made = []
    for positions in ([0], [5, 6, 7, 300], list(range(0, 60_000, 700)), [1, 2**24, 2**24 + 2**20]):
        coded = rice.encode_positions(np.array(positions, np.uint32))
        head = _POSITIONS.pack(len(positions), coded.shift, positions[-1] + 1, len(coded.unary))
        made.append(head + coded.unary + coded.low)
    return made


def _manifests() -> list[bytes]:
    """The golden ones, and one of each kind that passes the check."""
    chunks = (ChunkRef(digest="cd" * 32, num_bytes=2**20), ChunkRef(digest="ce" * 32, num_bytes=1644))
    num_bytes = sum(entry.num_bytes for entry in _ENTRIES)
    whole = EncodedState(tensors=_ENTRIES, chunks=chunks, state_digest="ef" * 32, num_bytes=num_bytes)
    bare = EncodedState(tensors=_ENTRIES, chunks=(), state_digest="ef" * 32, num_bytes=num_bytes)
    base = BaseRef(version=Version(lineage=1, step=5), state_digest=_BASE_DIGEST, chunks=chunks[1:])
    version, seeds = Version(lineage=1, step=6), ("http://10.0.0.1:8000", "https://[::1]:81/")
    made = [
        build_manifest(state, run="demo", version=version, seeds=seeds, created_unix_ms=0, delta=delta_of)
        for state, delta_of in ((whole, None), (whole, base), (bare, base))
    ]
    return [*golden_frames("manifest"), *map(encode, made)]


def _lines() -> list[bytes]:
    member = news.Member(url="http://10.0.0.1:8000", domain="rack-1", swarm="1.6")
    digests = ("ab" * 32, "cd" * 32)
    request = news.NewsRequest(want=digests, member=member)
    lines = [news.News(), news.News(chunks=digests, joined=(member,), left=(member,))]
    return [news.encode_request(request), *map(news.encode_news, lines)]


WEIGHTS = (
    Decoder(
        name="manifest",
        seeds=_manifests,
        start=_manifest,
        mutate=mutate_frame,
        covers=(
            *(manifest.check_manifest, manifest.check_peer_url, manifest.as_delta, manifest.as_anchor),
            *(manifest._check_tensors, manifest._check_tensor, manifest._check_chunks, manifest._check_full),
            *(manifest._check_delta, manifest._check_base, manifest._check_pieces, check_digest, tensor_num_bytes),
        ),
    ),
    Decoder(
        name="delta",
        seeds=lambda: list(_deltas()),
        start=_delta,
        mutate=_mutate_delta,
        covers=(
            *(delta.parse, delta._parse_record, delta.write_patch, delta.check_patch, delta._span),
            *(delta_state.apply_bytes, rice.decode_positions, rice._unpack_low, rice.low_num_bytes),
        ),
    ),
    Decoder(
        name="positions",
        seeds=_coded,
        start=_positions,
        covers=(rice.decode_positions, rice._unpack_low, rice.low_num_bytes),
    ),
    Decoder(
        name="news",
        seeds=_lines,
        start=_news,
        mutate=mutate_json,
        covers=(
            *(news.decode_news, news.decode_request, news._object, news._digests, news._members, news._member),
            *(news._text, manifest.check_peer_url, check_digest),
        ),
    ),
)
