"""The long fuzzer: atheris (libFuzzer) over instrumented decoders, in a process of its own.

Role: `python -m tests.fuzz.guided NAME FOLDER SECONDS`, started by `python -m tests.fuzz`.
Data in: `FOLDER/corpus`. Data out: a larger corpus, `FOLDER/findings`, and `FOLDER/report.json`, renewed every second.
Invariants: memory is limited by the system; a finding does not end the run; inputs that end the process are left in
`FOLDER` by libFuzzer.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from tests.fuzz.decoder import Decode, Decoder

MEMORY_BYTES = 4 * 2**30  # address space of the process: torch alone maps 2 GiB
_MAX_INPUT_BYTES = 2**18
_PACKAGES = ["schemas", "topics", "pipeline", "producers", "consumers", "ops"]
_MEASURED = 64  # every so many inputs memory is measured too
_WRITE_S = 1.0


@dataclass(kw_only=True)
class Progress:
    """Content of `report.json`."""

    num_inputs: int = 0
    slowest_s: float = 0.0
    peak_bytes: int = 0  # resident, of the whole process
    start_bytes: int = 0  # resident, before the first input
    findings: dict[str, str] = field(default_factory=dict)  # kind and place -> what was said


class Guided:
    """One decoder under libFuzzer."""

    def __init__(self, decoder: Decoder, folder: Path, *, seconds: float) -> None:
        from tests.fuzz.decoder import try_input  # noqa: PLC0415 - after the instrumentation began

        self._try = try_input
        self._decoder = decoder
        self._folder = folder
        (folder / "scratch").mkdir(exist_ok=True)
        self._decode: Decode = decoder.start(folder / "scratch")
        self._progress = Progress(start_bytes=_resident_bytes())
        self._write_at_s = 0.0
        self._end_s = time.monotonic() + seconds

    def one(self, data: bytes) -> None:
        """Try one input."""
        self._progress.num_inputs += 1
        measured = self._progress.num_inputs % _MEASURED == 0
        began_s = time.monotonic()
        finding = self._try(self._decode, data, bytes_per_byte=self._decoder.bytes_per_byte if measured else 0)
        now_s = time.monotonic()
        if not measured:
            self._progress.slowest_s = max(self._progress.slowest_s, now_s - began_s)
        if finding is not None:
            name = f"{finding.kind} {finding.place}"
            if name not in self._progress.findings:
                self._progress.findings[name] = finding.said
                (self._folder / "findings" / sha256(name.encode()).hexdigest()[:12]).write_bytes(data)
        if now_s >= min(self._write_at_s, self._end_s):
            self._write_at_s = now_s + _WRITE_S
            self._progress.peak_bytes = _resident_bytes()
            (self._folder / "report.json").write_text(json.dumps(asdict(self._progress), indent=2))
        if now_s >= self._end_s:  # libFuzzer itself first finishes what it is about, which may be long
            os._exit(0)  # what it keeps is on the disk already

    def mutate(self, data: bytes, max_bytes: int, seed: int) -> bytes:
        """A structured change, or one of libFuzzer's own."""
        draw = Random(seed)
        if draw.random() < 0.4:
            return bytes(atheris.Mutate(data, max_bytes))
        return self._decoder.mutate(data, draw)[:max_bytes]


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Fuzz until the time is over; libFuzzer ends the process."""
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with atheris.instrument_imports(include=_PACKAGES):
        from tests.fuzz.catalog import DECODERS  # noqa: PLC0415 - what is imported here is instrumented
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    guided = Guided(DECODERS[name], folder, seconds=seconds)
    options = [
        *(f"-max_len={_MAX_INPUT_BYTES}", "-timeout=120", "-rss_limit_mb=3000"),
        *(f"-artifact_prefix={folder}{os.sep}", "-print_final_stats=0", "-verbosity=0", "-len_control=0"),
    ]
    atheris.Setup([sys.argv[0], *options, str(folder / "corpus")], guided.one, custom_mutator=guided.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
