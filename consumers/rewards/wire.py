"""What goes through the pipes between a reward consumer and the processes that score for it.

Role: frames of a 4-byte little-endian length and content. To the process: first JSON (`Begin`), then jobs, which are a
number and samples in the wire format of the log (`schemas.codec`). From it: JSON, first `Ready` or `Refused`, then
`Reply` per job.
Invariants: nothing that is read is run or unpickled; lengths are bounded before memory is taken.
Failure: `WireError` for anything else, which the reader treats like the death of the other side.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from consumers.rewards.call import Answer
from consumers.rewards.settings import RewardSettings
from consumers.rewards.verdict import MAX_FAILURE_CHARS, Trouble, Verdict
from schemas.codec import decode, encode
from schemas.errors import CodecError, PluginError, RlweaveError, SettingsError
from schemas.records import Sample

MAX_JOB_BYTES = 2**31 - 1  # a batch of the largest samples
MAX_SAID_BYTES = 16 * 1024 * 1024
_LENGTH = struct.Struct("<I")
_JOB = struct.Struct("<II")  # number, how many samples


class WireError(RlweaveError):
    """Bytes from the other side of the pipe are no frame of this protocol."""


@dataclass(frozen=True, kw_only=True)
class Begin:
    """How a process begins."""

    settings: RewardSettings
    python_path: str | None  # PYTHONPATH of the reward consumer, for what the plug-in starts


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The plug-in is loaded."""

    version: str
    batches: bool  # takes more than one sample at a time
    is_async: bool
    max_workers: int | None = None  # most processes that it is to be loaded in


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The plug-in cannot be loaded."""

    kind: Literal["plugin", "settings"]
    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came of one job."""

    number: int
    answer: Answer
    waited_ms: float = 0.0  # of its duration: it was ready to run, and others had the processors


Said = Ready | Refused | Reply


def refusal(error: PluginError | SettingsError) -> Refused:
    """What a process says that cannot load the plug-in."""
    kind: Literal["plugin", "settings"] = "settings" if isinstance(error, SettingsError) else "plugin"
    return Refused(kind=kind, message=error.message, hint=error.hint)


def frame(content: bytes) -> bytes:
    """A frame of this content."""
    return _LENGTH.pack(len(content)) + content


def frame_length(head: bytes | bytearray, *, limit: int) -> int:
    """Length of the content after these 4 bytes.

    Raises:
        WireError: it is over the limit.
    """
    length = int(_LENGTH.unpack(head)[0])
    if length > limit:
        raise WireError(f"a frame of {length} bytes, at most {limit} are allowed")
    return length


def take_frames(buffer: bytearray, *, limit: int) -> Iterator[bytes]:
    """Whole frames at the beginning of a buffer, which are taken out of it.

    Raises:
        WireError: a frame is over the limit.
    """
    at = 0
    while len(buffer) - at >= _LENGTH.size:
        end = at + _LENGTH.size + frame_length(buffer[at : at + _LENGTH.size], limit=limit)
        if end > len(buffer):
            break
        yield bytes(buffer[at + _LENGTH.size : end])
        at = end
    del buffer[:at]


def encode_begin(begin: Begin) -> bytes:
    """The first frame's content."""
    return orjson.dumps({"settings": begin.settings.model_dump(mode="json"), "python_path": begin.python_path})


def decode_begin(content: bytes) -> Begin:
    """Read the first frame."""
    values = orjson.loads(content)
    return Begin(settings=RewardSettings.model_validate(values["settings"]), python_path=values["python_path"])


def encode_job(number: int, samples: Sequence[Sample]) -> bytes:
    """A job's content."""
    parts = [_JOB.pack(number, len(samples))]
    for sample in samples:
        parts.append(frame(encode(sample)))
    return b"".join(parts)


def decode_job(content: bytes) -> tuple[int, tuple[Sample, ...]]:
    """A job's number and samples.

    Raises:
        WireError: it is something else.
    """
    try:
        number, num_samples = _JOB.unpack_from(content)
        rest = bytearray(memoryview(content)[_JOB.size :])
        records = [decode(each) for each in take_frames(rest, limit=MAX_JOB_BYTES)]
    except (struct.error, CodecError) as error:
        raise WireError(f"a job cannot be read: {error}") from error
    samples = tuple(record for record in records if isinstance(record, Sample))
    if len(samples) != num_samples or len(records) != num_samples or rest:
        raise WireError(f"a job of {num_samples} samples holds {len(records)} records")
    return number, samples


def encode_said(said: Said) -> bytes:
    """Content of what a scoring process says."""
    if isinstance(said, Ready):
        values: dict[str, object] = {"version": said.version, "batches": said.batches, "is_async": said.is_async}
        values |= {"max_workers": said.max_workers}
    elif isinstance(said, Refused):
        values = {"refused": said.kind, "message": said.message, "hint": said.hint}
    else:
        answer = said.answer
        values = {"job": said.number, "ms": answer.duration_ms, "waited_ms": said.waited_ms}
        if answer.trouble is not None:
            values |= {"trouble": answer.trouble.said, "kind": answer.trouble.kind}
        else:
            values |= {"verdicts": [one.value if one.failure is None else one.failure for one in answer.verdicts]}
    return orjson.dumps(values)


def decode_said(content: bytes) -> Said:
    """Read what a scoring process says; the plug-in runs in it, so nothing is taken for granted.

    Raises:
        WireError: it is something else.
    """
    try:
        values = orjson.loads(content)
        return _said(values)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"what a scoring process said cannot be read: {error!r:.200}") from error


def _said(values: dict[str, object]) -> Said:
    if "version" in values:
        most = values["max_workers"]
        return Ready(
            version=str(values["version"]),
            batches=values["batches"] is True,
            is_async=values["is_async"] is True,
            max_workers=None if most is None else max(1, _number(most)),
        )
    if "refused" in values:
        kind: Literal["plugin", "settings"] = "settings" if values["refused"] == "settings" else "plugin"
        return Refused(kind=kind, message=str(values["message"]), hint=str(values["hint"]))
    return Reply(number=_number(values["job"]), answer=_answer(values), waited_ms=_ms(values, "waited_ms"))


def _answer(values: dict[str, object]) -> Answer:
    duration_ms = _ms(values, "ms")
    if "trouble" in values:
        kind = values["kind"]
        if kind not in ("error", "transient", "lost"):
            raise ValueError(f"kind = {kind!r}")
        said = str(values["trouble"])[:MAX_FAILURE_CHARS]
        return Answer(trouble=Trouble(said=said, kind=kind), duration_ms=duration_ms)
    given = values["verdicts"]
    if not isinstance(given, list):
        raise TypeError("verdicts are no list")
    return Answer(verdicts=tuple(_verdict(one) for one in given), duration_ms=duration_ms)


def _ms(values: dict[str, object], name: str) -> float:
    found = values[name]
    if isinstance(found, bool) or not isinstance(found, float | int):
        raise TypeError(f"{name} = {found!r:.80}")
    return float(found)


def _verdict(value: object) -> Verdict:
    if isinstance(value, str):
        return Verdict(failure=value[:MAX_FAILURE_CHARS])
    if isinstance(value, float | int) and not isinstance(value, bool):
        return Verdict(value=float(value))
    raise TypeError(f"a verdict of {value!r:.80}")


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"job = {value!r:.80}")
    return value
