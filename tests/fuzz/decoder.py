"""What is fuzzed, and the contract every decoder is held to.

Role: one `Decoder` per kind of bytes that come from a wire, a disk or a user; `try_input` judges one input.
The contract: only errors of this package come out; the same bytes give the same result; time and memory stay in
proportion to the input.
Data in and out: bytes; a `Finding`, or None when the contract holds.
"""

from __future__ import annotations

import time
import traceback
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from schemas.errors import RlweaveError
from tests.fuzz.mutate import Mutator, mutate_bytes

Decode: TypeAlias = Callable[[bytes], object]

LIMIT_S = 1.0  # of processor time for one input
SPARE_BYTES = 40 * 2**20  # of memory for one input, whatever its length: a frame of 128 KiB may be 65,536 small records
BYTES_PER_BYTE = 32  # of memory for each byte of an input
_PACKAGES = ("schemas/", "topics/", "pipeline/", "producers/", "consumers/", "ops/", "tests/")


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """One decoder.

    Attributes:
        name: on the command line.
        seeds: golden inputs; nothing else is in a corpus at first.
        start: makes the function under test, which may use the folder and have a `close`. What it gives back must
            compare equal for equal bytes; errors of this package are results as well.
        covers: functions and classes whose lines count as this decoder.
        mutate: the structured changes that suit its inputs.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    start: Callable[[Path], Decode]
    covers: tuple[object, ...]
    mutate: Mutator = mutate_bytes
    bytes_per_byte: int = BYTES_PER_BYTE


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken contract."""

    kind: str  # "error", "differs", "slow" or "memory"
    place: str  # innermost line of ours; findings of one kind and place are one
    said: str


def finish(decode: Decode) -> None:
    """Let go of what a function under test holds."""
    close = getattr(decode, "close", None)
    if close is not None:
        close()


class Violated(Exception):
    """A decoder's result contradicts what its module promises."""


def try_input(decode: Decode, data: bytes, *, bytes_per_byte: int = 0) -> Finding | None:
    """Hold one input against the contract.

    Args:
        bytes_per_byte: memory is measured as well, which takes longer; 0: it is not.
    """
    began_s = time.process_time()
    try:
        first = _result(decode, data)
        took_s = time.process_time() - began_s
        if took_s > LIMIT_S:
            return Finding(kind="slow", place=_kind_of(first), said=f"{took_s:.2f} s for {len(data)} bytes")
        second = _result(decode, data)
    except Exception as error:  # noqa: BLE001 - finding these is what this is for
        said = "".join(traceback.format_exception_only(error)).strip()
        return Finding(kind="error", place=f"{type(error).__name__} at {_place(error)}", said=said[:2000])
    if first != second:
        return Finding(kind="differs", place=_kind_of(first), said=f"{first!r:.500} and {second!r:.500}")
    return _measured(decode, data, bytes_per_byte=bytes_per_byte) if bytes_per_byte else None


def _measured(decode: Decode, data: bytes, *, bytes_per_byte: int) -> Finding | None:
    tracemalloc.start()
    try:
        result = _result(decode, data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak_bytes <= SPARE_BYTES + bytes_per_byte * len(data):
        return None
    return Finding(kind="memory", place=_kind_of(result), said=f"{peak_bytes:,} bytes for an input of {len(data):,}")


def _result(decode: Decode, data: bytes) -> object:
    try:
        return decode(data)
    except RlweaveError as error:
        return f"{type(error).__name__}: {error.message} | {error.hint}"


def _kind_of(result: object) -> str:
    return result.partition(":")[0] if isinstance(result, str) else type(result).__name__


def _place(error: BaseException) -> str:
    """File and line of the innermost frame of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if any(f"/{package}" in frame.filename for package in _PACKAGES)]
    own = [frame for frame in own if "site-packages" not in frame.filename and "tests/fuzz/" not in frame.filename]
    frame = (own or frames)[-1]
    return f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"
