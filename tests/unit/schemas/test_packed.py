"""Packed arrays keep their values, and refuse what the dtype cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CodecError
from schemas.packed import pack_f16, pack_f32, pack_i32, pack_u8, unpack_f16, unpack_f32, unpack_i32, unpack_u8


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_i32_round_trip(values: list[int]) -> None:
    assert unpack_i32(pack_i32(values)).tolist() == values
    assert pack_i32(np.array(values, np.int64)) == pack_i32(values)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_f32_round_trip(values: list[float]) -> None:
    assert unpack_f32(pack_f32(values)).tolist() == values


@given(st.lists(st.integers(0, 255)))
def test_u8_round_trip(values: list[int]) -> None:
    assert unpack_u8(pack_u8(values)).tolist() == values


def test_bytes_are_little_endian_whatever_comes_in() -> None:
    assert pack_i32([1, -2]) == bytes.fromhex("01000000feffffff")
    assert pack_i32(np.array([1, -2], ">i4")) == bytes.fromhex("01000000feffffff")
    assert pack_f32(np.array([1.0], ">f8")) == bytes.fromhex("0000803f")
    assert pack_u8(np.array([True, False])) == b"\x01\x00"


def test_unpacked_arrays_share_memory_and_are_read_only() -> None:
    data = pack_f32([1.0, 2.0])
    array = unpack_f32(data)
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 3.0


def test_nan_and_infinities_are_kept() -> None:
    assert np.isnan(unpack_f32(pack_f32([float("nan")]))).all()
    assert unpack_f32(pack_f32([float("-inf")])).tolist() == [float("-inf")]


@pytest.mark.parametrize("values", [[2**31], [-(2**31) - 1], [2**70], [1.5], [[1]], ["1"], [None], [[1], [1, 2]]])
def test_i32_refuses(values: list[int]) -> None:
    with pytest.raises(CodecError):
        pack_i32(values)


@pytest.mark.parametrize("values", [[-1], [256], [0.5]])
def test_u8_refuses(values: list[int]) -> None:
    with pytest.raises(CodecError):
        pack_u8(values)


@pytest.mark.parametrize("values", [[1.0, 1e39], ["a"], [None], [1j], [[1.0]]])
def test_f32_refuses(values: list[float]) -> None:
    with pytest.raises(CodecError):
        pack_f32(values)


@pytest.mark.parametrize("unpack", [unpack_i32, unpack_f32])
def test_part_of_a_value_is_refused(unpack: object) -> None:
    assert callable(unpack)
    with pytest.raises(CodecError, match="7 bytes are no whole number"):
        unpack(b"1234567")


def test_float16_rounds_keeps_what_is_not_finite_and_refuses_what_it_does_not_hold() -> None:
    assert unpack_f16(pack_f16([0.1, -2.5])).tolist() == [0.0999755859375, -2.5]
    kept = unpack_f16(pack_f16([float("nan"), float("-inf")]))
    assert np.isnan(kept[0])
    assert kept[1] == float("-inf")
    with pytest.raises(CodecError, match=r"value 70000\.0 at index 1 is beyond float16"):
        pack_f16([1.0, 70_000.0])
    with pytest.raises(CodecError, match="no whole number of float16"):
        unpack_f16(b"abc")
