"""Carries out all sets: a version goes to the engines alone, beside an unmanaged upload, and a managed one, in turns.

Role: the driver.
Data in: a plan. Data out: `Measured`.
Invariants: every set begins with empty engines and an empty store, all engines begin at one moment of the clock, and
the figure is the time until the last of them has every chunk verified. Sets that are compared alternate, so that other
work on the machine meets all of them. An upload runs for a while before the publish begins, and still runs when it
ends: one that is over by then makes the set worthless, and it is refused.
Failure: `BenchError`, `DeadlineExceeded`, `NetlabError`; the network and its processes are gone then as well.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ops.bench.traffic.plan import PORT, SOURCE, STORE, STORE_PORT, TrafficPlan
from ops.bench.weights import words
from ops.bench.weights.cpu import read_times
from ops.bench.weights.crew import Crew
from ops.bench.weights.material import Material, make_material
from ops.netlab.lab import Lab, open_lab
from pipeline.uploads.layout import FILES

ALONE, UNMANAGED, MANAGED = "alone", "unmanaged", "managed"
SLOW_ALONE, SLOW_MANAGED = "slow_alone", "slow_managed"  # engines take a part of the link only
KINDS = (ALONE, UNMANAGED, MANAGED)
SLOW_KINDS = (SLOW_ALONE, SLOW_MANAGED)
_START_LIMIT_S = 60.0
_AT_LEAD_S = 0.3  # from the order to the beginning: every node has read it by then
_SHARES = {FILES[0]: 1 / 3, FILES[1]: 2 / 3}  # of a checkpoint, by file: weights, and two moments


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """One publish.

    Attributes:
        upload_before_bytes_s: of the upload, before the publish began; 0: there was none.
        upload_during_bytes_s: while it ran.
        held_up_s: that checkpoints stood back meanwhile.
        upload_s: of the whole upload; None: it was cut off when the publish was over.
    """

    seconds: float
    upload_before_bytes_s: float
    upload_during_bytes_s: float
    held_up_s: float
    upload_s: float | None
    cpu_busy: float


@dataclass(kw_only=True)
class Measured:
    """All sets, by kind."""

    sets: dict[str, list[SetResult]] = field(default_factory=lambda: {kind: [] for kind in (*KINDS, *SLOW_KINDS)})
    upload_alone_s: float = 0.0


def measure(plan: TrafficPlan, *, say: Callable[[str], None]) -> Measured:
    """Measure.

    Args:
        say: gets a line when a set is done.

    Raises:
        NetlabError: this machine cannot make the network.
        BenchError, DeadlineExceeded: a set failed.
    """
    with open_lab(plan.lab, room_bytes=plan.room_bytes) as lab:
        driver = _Driver(plan, lab=lab)
        driver.start()
        measured = Measured(upload_alone_s=driver.upload_alone())
        say(f"upload alone: {measured.upload_alone_s:.2f} s")
        for number in range(plan.num_repeats):
            for kind in (*KINDS, *(SLOW_KINDS if number < plan.num_slow_repeats else ())):
                result = driver.publish(kind)
                measured.sets[kind].append(result)
                say(f"{kind}: {result.seconds:.2f} s, processors {result.cpu_busy:.0%} busy")
        return measured


class _Driver:
    def __init__(self, plan: TrafficPlan, *, lab: Lab) -> None:
        self._plan = plan
        self._lab = lab
        self._crew = Crew(lab.start)
        self._token = secrets.token_urlsafe(32)
        self._checkpoint = lab.folder / "checkpoint"
        self._store = lab.folder / "store"
        self._num_sets = 0
        self._material: Material

    def start(self) -> None:
        """Start all hosts, and make what travels meanwhile."""
        nodes = (SOURCE, *self._plan.engines)
        for node in nodes:
            self._crew.start(node, host=node)
        self._store.mkdir()
        self._checkpoint.mkdir()
        for name in FILES:
            num_bytes = round(self._plan.checkpoint_bytes * _SHARES.get(name, 0)) or 4096
            (self._checkpoint / name).write_bytes(np.random.default_rng(num_bytes).bytes(num_bytes))
        self._material = make_material(
            self._lab.folder / SOURCE,
            size_bytes=self._plan.size_bytes,
            chunk_bytes=self._plan.chunk_bytes,
            seed=f"http://{self._address(SOURCE)}:{PORT}",
            step=1,
        )
        self._start_store()
        self._crew.wait(nodes, words.Hello, limit_s=_START_LIMIT_S)

    def upload_alone(self) -> float:
        """Seconds of a managed upload that nothing disturbs."""
        self._serve(is_managed=True, folder=self._lab.folder / "none")
        found = self._crew.ask({SOURCE: self._upload_order("alone")}, words.Uploaded, limit_s=self._limit_s)
        self._stop()
        return found[SOURCE].seconds

    def publish(self, kind: str) -> SetResult:
        """One set."""
        self._num_sets += 1
        folder = self._lab.folder / f"set{self._num_sets}"
        has_upload, is_managed = kind not in (ALONE, SLOW_ALONE), kind in (MANAGED, SLOW_MANAGED)
        self._serve(is_managed=is_managed, folder=folder)
        began_s = time.monotonic()
        if has_upload:
            self._crew.tell(SOURCE, self._upload_order(f"set{self._num_sets}"))
            time.sleep(self._plan.lead_s)
        at_s = time.monotonic() + _AT_LEAD_S
        for engine in self._plan.engines:
            self._crew.tell(engine, self._fetch_order(at_s, is_slow=kind in SLOW_KINDS))
        time.sleep(max(0.0, at_s - time.monotonic()))
        times, before = read_times(), self._count()
        done = self._crew.wait(self._plan.engines, words.Done, limit_s=self._limit_s)
        busy, after, end_s = read_times().busy_since(times), self._count(), time.monotonic()
        if has_upload and after.uploaded_bytes >= self._plan.checkpoint_bytes:
            raise words.BenchError(f"{kind}: the upload was over before the publish; nothing was measured")
        upload_s = None
        if is_managed:
            upload_s = self._crew.wait([SOURCE], words.Uploaded, limit_s=self._limit_s)[SOURCE].seconds
        self._check()
        self._stop()
        shutil.rmtree(folder)
        return SetResult(
            seconds=max(each.at_s for each in done.values()) - at_s,
            upload_before_bytes_s=before.uploaded_bytes / (at_s - began_s) if has_upload else 0.0,
            upload_during_bytes_s=(after.uploaded_bytes - before.uploaded_bytes) / (end_s - at_s),
            held_up_s=after.held_up_s - before.held_up_s,
            upload_s=upload_s,
            cpu_busy=busy,
        )

    def _start_store(self) -> None:
        path = os.pathsep.join(part for part in (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")) if part)
        argv = [
            *(sys.executable, "-m", "ops.bench.traffic.store"),
            *(self._address(STORE), str(STORE_PORT), str(self._store)),
        ]
        process: subprocess.Popen[bytes] = self._lab.start(STORE, argv, env=os.environ | {"PYTHONPATH": path})
        if process.stdout is None or b"ready" not in process.stdout.readline():
            raise words.BenchError("the store did not start", hint="pip install pyftpdlib, or `make setup`")

    def _serve(self, *, is_managed: bool, folder: Path) -> None:
        def order(node: str) -> words.Serve:
            return words.Serve(
                root=str(self._material.root if node == SOURCE else folder / node),
                host=self._address(node),
                port=PORT,
                token=self._token,
                max_bytes=2 * self._plan.size_bytes,
                managed=is_managed,
                link_bytes_s=self._plan.link_bytes_s,
            )

        self._crew.ask({node: order(node) for node in (SOURCE, *self._plan.engines)}, words.Serving)

    def _fetch_order(self, at_s: float, *, is_slow: bool) -> words.Fetch:
        return words.Fetch(
            manifest_file=str(self._material.manifest_file),
            at_s=at_s,
            limit_s=self._limit_s,
            seeds=[f"http://{self._address(SOURCE)}:{PORT}"],
            peers=[],
            swarm=f"set{self._num_sets}",
            rate_bytes_s=self._plan.slow_share * self._plan.link_bytes_s if is_slow else 0.0,
        )

    def _upload_order(self, name: str) -> words.Upload:
        return words.Upload(
            folder=str(self._checkpoint),
            url=f"ftp://{self._address(STORE)}:{STORE_PORT}/",
            name=f"bench/{name}",
            part_bytes=self._plan.part_bytes,
            parallel=self._plan.parallel,
        )

    def _count(self) -> words.Counted:
        return self._crew.ask({SOURCE: words.Count()}, words.Counted)[SOURCE]

    def _check(self) -> None:
        """Read every byte again.

        Raises:
            BenchError: an engine does not have all of them.
        """
        order = words.Check(manifest_file=str(self._material.manifest_file))
        found = self._crew.ask(dict.fromkeys(self._plan.engines, order), words.Checked, limit_s=self._limit_s)
        if any(each.num_bytes != self._material.size_bytes for each in found.values()):
            raise words.BenchError(f"an engine has other bytes than were published: {found}")

    def _stop(self) -> None:
        nodes = (SOURCE, *self._plan.engines)
        self._crew.ask(dict.fromkeys(nodes, words.Stop()), words.Stopped)
        for left in self._store.iterdir():
            shutil.rmtree(left)

    def _address(self, node: str) -> str:
        return self._lab.plan.address(node)

    @property
    def _limit_s(self) -> float:
        return 30.0 + 4 * (self._plan.size_bytes + self._plan.checkpoint_bytes) / self._plan.link_bytes_s
