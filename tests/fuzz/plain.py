"""The fuzzer without a library: seeded, guided by the lines of the decoder that ran for the first time.

Role: what the test suite runs, and what there is where atheris is not.
Data in: a decoder, a seed, a limit. Data out: a `Report`.
Invariants: the same seed tries the same inputs in the same order; only those that reached a new line are kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.decoder import Decode, Decoder, Finding, finish, try_input
from tests.fuzz.lines import LineTracer
from tests.fuzz.mutate import mutate_bytes

_MEASURED = 16  # every so many inputs memory is measured too
_PATIENCE = 16  # times as long as its processor time, for a decoder that waits, or a busy machine


@dataclass(kw_only=True)
class Report:
    """What fuzzing one decoder found."""

    num_inputs: int = 0
    share: float = 0.0  # of the decoder's lines that ran
    missed: list[str] = field(default_factory=list)  # lines that never ran
    corpus: list[bytes] = field(default_factory=list)
    findings: dict[tuple[str, str], tuple[Finding, bytes]] = field(default_factory=dict)  # one per kind and place

    def note(self, finding: Finding | None, data: bytes) -> None:
        """Keep the shortest input of each finding."""
        if finding is not None:
            known = self.findings.get((finding.kind, finding.place))
            if known is None or len(data) < len(known[1]):
                self.findings[finding.kind, finding.place] = (finding, data)


def fuzz(decoder: Decoder, folder: Path, *, seconds: float, seed: int) -> Report:
    """Try the golden inputs, then changes of them, until so much processor time is used.

    A decoder that waits, or a busy machine, ends it after `_PATIENCE` times as long.
    """
    draw, tracer, report = Random(seed), LineTracer(decoder.covers), Report()
    decode = decoder.start(folder)
    report.corpus = [data for data in decoder.seeds() if _try(decoder, decode, data, tracer=tracer, report=report)]
    end_s, used_s = time.monotonic() + _PATIENCE * seconds, time.process_time() + seconds
    while time.process_time() < used_s and time.monotonic() < end_s:
        data = min(draw.choice(report.corpus), draw.choice(report.corpus), key=len)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            data = mutate_bytes(data, draw) if draw.random() < 0.2 else decoder.mutate(data, draw)
        if _try(decoder, decode, data, tracer=tracer, report=report):
            report.corpus.append(data)
    finish(decode)
    report.share = tracer.share
    report.missed = [f"{Path(file).name}:{number}" for file, number in tracer.missed]
    return report


def replay(decoder: Decoder, folder: Path, *, corpus: list[bytes]) -> Report:
    """Run inputs again for the lines they reach, without judging them."""
    tracer, report = LineTracer(decoder.covers), Report(corpus=corpus)
    decode = decoder.start(folder)
    for data in corpus:
        tracer.run(lambda: try_input(decode, data))  # noqa: B023 - called at once
    finish(decode)
    report.share = tracer.share
    report.missed = [f"{Path(file).name}:{number}" for file, number in tracer.missed]
    return report


def _try(decoder: Decoder, decode: Decode, data: bytes, *, tracer: LineTracer, report: Report) -> bool:
    """Whether the input is worth keeping."""
    before = len(tracer.seen)
    bytes_per_byte = decoder.bytes_per_byte if report.num_inputs % _MEASURED == 0 else 0
    finding = tracer.run(lambda: try_input(decode, data, bytes_per_byte=bytes_per_byte))
    if finding is not None and finding.kind == "slow":  # it may be the tracing
        finding = try_input(decode, data)
    report.num_inputs += 1
    report.note(finding, data)
    return finding is None and (len(tracer.seen) > before or not report.corpus)
