"""The delta codec: lossless for any content, close to the entropy, idempotent, and deaf to malformed bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.weights import delta
from pipeline.weights.delta import TensorBuffer, changed_positions, encode_tensor, header, parse, write_patch
from pipeline.weights.delta_state import apply_bytes, delta_spans
from pipeline.weights.rice import MAX_SHIFT, decode_positions, encode_positions
from pipeline.weights.state import tensor_entries
from pipeline.weights.wire_state import WireState
from schemas.errors import WeightsError

BASE = "ab" * 32
GOLDEN = Path(__file__).parent / "golden"
SPAN = delta.SPAN_ELEMENTS

quick = settings(max_examples=60, deadline=None, database=None)


def state_of(tensors: dict[str, torch.Tensor], *, ties: dict[str, str] | None = None) -> WireState:
    state = WireState.empty(tensor_entries(tensors, ties=ties or {}, wire_dtype=None))
    state.fill(tensors)
    return state


def bytes_of(old: WireState, new: WireState, *, base: str = BASE) -> bytes:
    spans = delta_spans(old, new, base_digest=base)
    return b"".join(bytes(piece) for span in spans for piece in span.pieces)


def same(first: WireState, second: WireState) -> bool:
    return all(np.array_equal(a.data, b.data) for a, b in zip(first.buffers, second.buffers, strict=True))


def some_states() -> tuple[WireState, WireState]:
    """Every element size, a scalar, an empty and a frozen tensor, a tie, a tensor of which most changed."""
    rng = torch.Generator().manual_seed(3)
    old = {
        "a.bf16": torch.randn(300, 7, generator=rng).to(torch.bfloat16),
        "b.u8": torch.arange(50, dtype=torch.uint8),
        "c.f32": torch.randn(1001, generator=rng),
        "d.i64": torch.arange(33),
        "e.scalar": torch.tensor(1.5),
        "f.empty": torch.empty(0, 4),
        "g.frozen": torch.randn(64, generator=rng),
        "h.dense": torch.randn(40, generator=rng),
    }
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a.bf16"].view(-1)[[0, 5, 6, 2099]] += 1
    new["b.u8"][49] = 7
    new["c.f32"][::10] *= 2
    new["d.i64"][[1, 2, 3]] = -1
    new["e.scalar"] += 1
    new["h.dense"] += 1
    return state_of(old, ties={"tied": "a.bf16"}), state_of(new, ties={"tied": "a.bf16"})


@quick
@given(
    item=st.sampled_from([1, 2, 4, 8]),
    size=st.integers(0, 3000),
    density=st.sampled_from([0.0, 0.0005, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_change_of_any_density_comes_out_bit_for_bit(item: int, size: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, size * item, np.uint8)
    new = old.copy()
    chosen = rng.random(size) < density
    new.reshape(size, item)[chosen] = rng.integers(0, 256, (int(chosen.sum()), item), np.uint8)
    before, after = TensorBuffer(data=old, item_bytes=item), TensorBuffer(data=new, item_bytes=item)
    spans = list(encode_tensor(0, old=before, new=after))
    data = header(BASE) + b"".join(bytes(piece) for span in spans for piece in span.pieces)
    for patch in parse(data, base_digest=BASE, sizes=[(size, item)]):
        write_patch(patch, before)
        assert delta.check_patch(patch, before)
    assert np.array_equal(old, new)
    assert len(data) <= size * item + delta.HEADER.size + delta.RECORD.size


@quick
@given(st.sets(st.integers(0, SPAN - 1), min_size=1, max_size=200))
def test_positions_come_back_and_nothing_else_does(chosen: set[int]) -> None:
    positions = np.array(sorted(chosen), np.uint32)
    coded = encode_positions(positions)
    arguments = {"count": positions.size, "shift": coded.shift, "bound": SPAN}
    assert np.array_equal(decode_positions(coded.unary, coded.low, **arguments), positions)
    with pytest.raises(WeightsError):
        decode_positions(coded.unary, coded.low, **{**arguments, "count": positions.size + 1})
    with pytest.raises(WeightsError):
        decode_positions(coded.unary, coded.low, **{**arguments, "bound": int(positions[-1])})


@pytest.mark.parametrize(("density", "limit_pct"), [(0.001, 0.20), (0.01, 1.65), (0.05, 7.6)])
def test_a_delta_is_as_short_as_promised(density: float, limit_pct: float) -> None:
    """Shares of the full bytes, and within one percent of the entropy of positions and values."""
    rng = np.random.default_rng(0)
    num_elements = 2 * SPAN + 12_345
    old = rng.integers(0, 2**16, num_elements, dtype=np.uint16)
    new = old.copy()
    chosen = rng.random(num_elements) < density
    new[chosen] ^= 1
    spans = encode_tensor(
        0,
        old=TensorBuffer(data=old.view(np.uint8), item_bytes=2),
        new=TensorBuffer(data=new.view(np.uint8), item_bytes=2),
    )
    share = sum(span.num_bytes for span in spans) / old.nbytes
    share_of_changes = chosen.mean()
    bits = -share_of_changes * math.log2(share_of_changes) - (1 - share_of_changes) * math.log2(1 - share_of_changes)
    assert 100 * share <= limit_pct
    assert share <= 1.01 * (bits + 16 * share_of_changes) / 16 + 3 * delta.RECORD.size / old.nbytes


def test_clustered_changes_cost_little_more_than_their_values() -> None:
    """Rows of an embedding: a few long runs; the mean gap would suggest a wide code for each of them."""
    old = np.zeros(SPAN, np.uint16)
    new = old.copy()
    new[5000:9096] = 1
    new[800_000:804_096] = 2
    spans = encode_tensor(
        0,
        old=TensorBuffer(data=old.view(np.uint8), item_bytes=2),
        new=TensorBuffer(data=new.view(np.uint8), item_bytes=2),
    )
    values_bytes = 2 * 4096 * 2
    assert sum(span.num_bytes for span in spans) < values_bytes * 1.8


def test_changes_are_bits_not_numbers() -> None:
    """NaN is equal to itself and the two zeros differ."""
    old = np.array([np.nan, 0.0, 1.0], np.float32).view(np.uint8)
    new = np.array([np.nan, -0.0, 1.0], np.float32).view(np.uint8)
    assert changed_positions(old, new, item_bytes=4).tolist() == [1]


def test_a_whole_state_with_every_kind_of_tensor() -> None:
    old, new = some_states()
    data = bytes_of(old, new)
    apply_bytes(data, state=old, state_digest=BASE)
    assert same(old, new)
    apply_bytes(data, state=old, state_digest=BASE)  # twice is once
    assert same(old, new)


def test_what_did_not_change_has_no_bytes() -> None:
    old, _ = some_states()
    assert bytes_of(old, old) == header(BASE)
    assert list(encode_tensor(0, old=old.buffers[6], new=old.buffers[6])) == []


def test_fifty_deltas_in_a_row_are_bit_identical() -> None:
    rng = np.random.default_rng(5)
    truth = {"w": torch.randn(70_000).to(torch.bfloat16), "b": torch.randn(777)}
    held = state_of(truth)
    base = held.digest()
    for _ in range(50):
        before = state_of(truth)
        for tensor in truth.values():
            chosen = torch.from_numpy(rng.integers(0, tensor.numel(), max(1, tensor.numel() // 100)))
            tensor.view(-1)[chosen] += torch.randn(chosen.numel()).to(tensor.dtype)
        after = state_of(truth)
        apply_bytes(bytes_of(before, after, base=base), state=held, state_digest=base)
        base = after.digest()
        assert held.digest() == base
    assert same(held, state_of(truth))


def test_spans_longer_than_one_are_numbered_by_their_place() -> None:
    old = np.zeros(SPAN + 10, np.uint8)
    new = old.copy()
    new[[3, SPAN + 9]] = 1
    before = TensorBuffer(data=old, item_bytes=1)
    spans = list(encode_tensor(0, old=before, new=TensorBuffer(data=new, item_bytes=1)))
    data = header(BASE) + b"".join(bytes(piece) for span in spans for piece in span.pieces)
    for patch in parse(data, base_digest=BASE, sizes=[(old.size, 1)]):
        write_patch(patch, before)
    assert np.flatnonzero(old).tolist() == [3, SPAN + 9]


def test_another_base_is_named_and_nothing_is_written() -> None:
    old, new = some_states()
    before = old.digest()
    with pytest.raises(WeightsError, match=f"belongs to base {BASE}, the state at hand is {before}"):
        apply_bytes(bytes_of(old, new), state=old, state_digest=before)
    assert old.digest() == before


def test_a_base_with_one_altered_element_is_found_by_its_span() -> None:
    old, new = some_states()
    data = bytes_of(old, new)
    old.buffers[2].data[5] ^= 1
    with pytest.raises(WeightsError, match=r"'c\.f32' has other bytes"):
        apply_bytes(data, state=old, state_digest=BASE)


def test_records_out_of_order_are_refused() -> None:
    old, new = some_states()
    records = [
        b"".join(bytes(piece) for piece in span.pieces) for span in list(delta_spans(old, new, base_digest=BASE))[1:]
    ]
    for wrong in (records[::-1], [records[0], *records]):
        with pytest.raises(WeightsError, match="out of order"):
            parse(header(BASE) + b"".join(wrong), base_digest=BASE, sizes=old.sizes)


@pytest.fixture(scope="module")
def golden() -> bytes:
    return (GOLDEN / "delta_v1.bin").read_bytes()


class TestFuzz:
    """Whatever is done to good bytes: a `WeightsError`, or patches that stay inside the state."""

    def test_the_golden_bytes_are_what_is_written_today(self, golden: bytes) -> None:
        assert bytes_of(*some_states()) == golden

    def test_every_truncation_is_refused(self, golden: bytes) -> None:
        """Between two records as well, once the result is verified: what follows is then missing."""
        old, new = some_states()
        for length in range(0, len(golden) - 1, 3):
            state, _ = some_states()
            try:
                apply_bytes(golden[:length], state=state, state_digest=BASE)
            except WeightsError:
                assert state.digest() == old.digest()
            else:
                assert state.digest() != new.digest()

    @settings(max_examples=400, deadline=None, database=None)
    @given(data=st.data())
    def test_altered_bytes_never_write_outside(self, golden: bytes, data: st.DataObject) -> None:
        altered = bytearray(golden)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(delta.HEADER.size, len(golden) - 1))
            altered[at] = data.draw(st.integers(0, 255))
        state, _ = some_states()
        check_or_refuse(bytes(altered), state)

    @settings(max_examples=100, deadline=None, database=None)
    @given(st.binary(max_size=300))
    def test_random_bytes_are_refused(self, tail: bytes) -> None:
        state, _ = some_states()
        check_or_refuse(header(BASE) + tail, state)

    def test_forged_counts_allocate_nothing(self) -> None:
        """A record that claims the most it can, with a few bytes behind it."""
        sizes = [(SPAN, 8)]
        for counts in (
            (SPAN, SPAN, 2**32 - 1, 0),
            (SPAN, SPAN, 0, MAX_SHIFT),
            (SPAN, 2**32 - 1, 8, 3),
            (SPAN, 1, 0, 99),
        ):
            record = delta.RECORD.pack(0, 0, *counts, 0, 8, bytes(32))
            with pytest.raises(WeightsError):
                parse(header(BASE) + record + b"\xff" * 64, base_digest=BASE, sizes=sizes)


def check_or_refuse(data: bytes, state: WireState) -> None:
    try:
        patches = parse(data, base_digest=BASE, sizes=state.sizes)
    except WeightsError:
        return
    for patch in patches:
        write_patch(patch, state.buffers[patch.tensor])
