"""Decoders of the pipes between a reward consumer and the processes that score for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consumers.rewards import wire
from consumers.rewards.call import Answer
from consumers.rewards.verdict import Trouble, Verdict
from tests.fuzz.decoder import Decode, Decoder, Violated
from tests.unit.schemas.examples import SAMPLE


def _said_seeds() -> Sequence[bytes]:
    answers = (
        Answer(verdicts=(Verdict(value=0.5), Verdict(failure="non_finite: nan")), duration_ms=1.5),
        Answer(trouble=Trouble(said="ConnectionResetError: 503", kind="transient")),
    )
    said: list[wire.Said] = [wire.Reply(number=3, answer=answer) for answer in answers]
    said += [
        wire.Ready(version="7", batches=True, is_async=False, max_workers=1),
        wire.Refused(kind="plugin", message="no such plug-in", hint="there are others"),
    ]
    return [wire.frame(wire.encode_said(each)) for each in said]


def _said(folder: Path) -> Decode:
    """Frames of a scoring process; what was read can be said again."""

    def run(data: bytes) -> object:
        buffer = bytearray(data)
        found = [wire.decode_said(content) for content in wire.take_frames(buffer, limit=wire.MAX_SAID_BYTES)]
        for each in found:
            if isinstance(each, wire.Reply) and each.answer.trouble is not None and each.answer.verdicts:
                raise Violated("verdicts and trouble in one answer")
        return repr(found), len(buffer)

    return run


def _jobs(folder: Path) -> Decode:
    """A job; its samples can be sent again."""

    def run(data: bytes) -> object:
        number, samples = wire.decode_job(data)
        again = wire.decode_job(wire.encode_job(number, samples))
        if again[0] != number or len(again[1]) != len(samples):
            raise Violated("a job changes when it is sent again")
        return number, len(samples)

    return run


SCORERS = (
    Decoder(
        name="scorer-said",
        seeds=_said_seeds,
        start=_said,
        covers=(wire.take_frames, wire.frame_length, wire.decode_said, wire._said, wire._answer, wire._verdict),
    ),
    Decoder(
        name="scorer-jobs",
        seeds=lambda: [wire.encode_job(1, [SAMPLE]), wire.encode_job(2, [SAMPLE] * 3)],
        start=_jobs,
        covers=(wire.take_frames, wire.frame_length, wire.decode_job),
    ),
)
