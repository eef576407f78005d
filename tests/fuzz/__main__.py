"""Fuzz decoders for a while: `python -m tests.fuzz [NAME ...] --seconds 600`.

Role: one process per decoder, one after the other; a table of what was tried, found and reached.
Data in: golden bytes. Data out: `FOLDER/NAME/`: the corpus that grew from them, and an input for each finding.
Failure: exit code 1 when a contract was broken, or when fewer lines ran than `--coverage` asks for.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from tests.fuzz.catalog import DECODERS
from tests.fuzz.decoder import Decoder, finish, try_input
from tests.fuzz.plain import Report, fuzz, replay

ROOT = Path(__file__).parents[2]
_SPARE_S = 600.0  # start, and the input at work when the time is over; long on a busy machine


@dataclass(kw_only=True)
class Row:
    """One line of the table."""

    name: str
    num_inputs: int = 0
    seconds: float = 0.0
    share: float = 0.0
    grown_bytes: int = 0  # resident memory after the start
    slowest_s: float = 0.0
    findings: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz what was named, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz decoders from golden bytes.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DECODERS)}; none: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "fuzz", help="for corpora and findings")
    parser.add_argument("--coverage", type=float, default=0.9, help="share of each decoder's lines that must run")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--replay", type=Path, help="try one input of the decoder named, and say what came of it")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in DECODERS]
    if unknown:
        parser.error(f"no decoder {', '.join(unknown)}; choose of {', '.join(DECODERS)}")
    if given.replay is not None:
        return _replay_one(DECODERS[given.names[0]], given.replay)
    is_guided = not given.plain and importlib.util.find_spec("atheris") is not None
    rows = []
    for name in given.names or DECODERS:
        run = _guided if is_guided else _plain
        rows.append(run(DECODERS[name], given.folder / name, seconds=given.seconds))
        _print(rows[-1])
    broken = [row.name for row in rows if row.findings or row.share < given.coverage]
    print(
        f"{len(rows)} decoders, {sum(len(row.findings) for row in rows)} findings; not good enough: {broken or 'none'}"
    )
    return 1 if broken else 0


def _replay_one(decoder: Decoder, path: Path) -> int:
    with TemporaryDirectory() as folder:
        decode = decoder.start(Path(folder))
        finding = try_input(decode, path.read_bytes(), bytes_per_byte=decoder.bytes_per_byte)
        finish(decode)
    print("nothing is wrong with it" if finding is None else f"{finding.kind} {finding.place}\n  {finding.said}")
    return 0 if finding is None else 1


def _guided(decoder: Decoder, folder: Path, *, seconds: int) -> Row:
    """In a process of its own, started again when an input ends it."""
    corpus, row, began_s = folder / "corpus", Row(name=decoder.name), time.monotonic()
    for path in (corpus, folder / "findings"):
        path.mkdir(parents=True, exist_ok=True)
    for data in decoder.seeds():
        (corpus / sha256(data).hexdigest()[:16]).write_bytes(data)
    while (left_s := began_s + seconds - time.monotonic()) > 1:
        command = [sys.executable, "-m", "tests.fuzz.guided", decoder.name, str(folder), str(int(left_s))]
        with (folder / "log.txt").open("ab") as log:
            code = _run(command, log=log, limit_s=seconds + _SPARE_S)
        _add_report(row, folder / "report.json")
        if code != 0:
            row.findings.append(f"the process ended with {code}, see {folder}")
            break
    row.seconds = time.monotonic() - began_s
    with TemporaryDirectory() as scratch:
        inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]
        reached = replay(decoder, Path(scratch), corpus=inputs)
    row.share, row.missed = reached.share, reached.missed
    return row


def _run(command: Sequence[str], *, log: IO[bytes], limit_s: float) -> int:
    """The exit code; it is killed at the limit."""
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _add_report(row: Row, path: Path) -> None:
    if not path.exists():
        return
    report = json.loads(path.read_text())
    path.unlink()
    row.num_inputs += report["num_inputs"]
    row.grown_bytes = max(row.grown_bytes, report["peak_bytes"] - report["start_bytes"])
    row.slowest_s = max(row.slowest_s, report["slowest_s"])
    row.findings += [f"{place}: {said}" for place, said in report["findings"].items()]


def _plain(decoder: Decoder, folder: Path, *, seconds: int) -> Row:
    began_s = time.monotonic()
    with TemporaryDirectory() as scratch:
        report = fuzz(decoder, Path(scratch), seconds=seconds, seed=time.time_ns())
    _keep(report, folder)
    said = [f"{finding.kind} {finding.place}: {finding.said}" for finding, _ in report.findings.values()]
    return Row(
        name=decoder.name,
        num_inputs=report.num_inputs,
        seconds=time.monotonic() - began_s,
        share=report.share,
        findings=said,
        missed=report.missed,
    )


def _keep(report: Report, folder: Path) -> None:
    shutil.rmtree(folder / "findings", ignore_errors=True)
    (folder / "findings").mkdir(parents=True)
    for finding, data in report.findings.values():
        (folder / "findings" / sha256(f"{finding.kind} {finding.place}".encode()).hexdigest()[:12]).write_bytes(data)


def _print(row: Row) -> None:
    rate = row.num_inputs / max(row.seconds, 1e-9)
    print(
        f"{row.name:<12} {row.num_inputs:>10,} inputs {row.seconds:6.0f} s {rate:8,.0f}/s  lines {row.share:6.1%}  "
        f"memory +{row.grown_bytes / 2**20:.0f} MiB  slowest {row.slowest_s:.2f} s  findings {len(row.findings)}",
        flush=True,
    )
    for said in row.findings:
        print(f"    {said[:600]}")
    if row.missed:
        print(f"    not reached: {' '.join(row.missed[:40])}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
