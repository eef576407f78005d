"""One set: all engines fetch one version in one way, with at most one fault, and what that took.

Invariants: every set begins with empty engines and the same source; all begin at one moment of the clock; the figure is
the time from that moment until the last engine that lives has every chunk verified. Afterwards each engine's chunks are
read again: a set whose bytes are not right gives no figure.
Failure: `BenchError`, `DeadlineExceeded`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.weights import words
from ops.bench.weights.cpu import read_times
from ops.bench.weights.crew import Crew, Gone, Heard, refuse
from ops.bench.weights.faults import Fault, Nothing
from ops.bench.weights.material import Material
from ops.bench.weights.plan import FAR, NEAR, PORT, SOURCE
from ops.bench.weights.schemes import Scheme, living_ancestor
from ops.netlab.counters import LinkBytes
from ops.netlab.lab import Lab
from topics.clock import Deadline

_LEAD_S = 0.3  # from the order to the beginning: every node has read it by then
_CHECK_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class SetOrder:
    """What to carry out.

    Attributes:
        far_engines: those of `engines` that are in the far domain.
        limit_s: after which it is given up.
    """

    name: str
    scheme: Scheme
    engines: tuple[str, ...]
    material: Material
    limit_s: float
    far_engines: tuple[str, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """What it took.

    Attributes:
        seconds: by engine; one that was killed is not in it.
        links: what went over each link, headers included.
        served_bytes: of chunks, by the source's peer process; of its successor where it was restarted.
        cpu_busy: share of all processors, by all that runs on the machine, 0 to 1.
        cpu_own: the same by the nodes alone, of those that live.
        crosses: there were two domains.
    """

    name: str
    seconds: dict[str, float]
    links: LinkBytes
    served_bytes: int
    cpu_busy: float
    cpu_own: float
    crosses: bool
    victim: str
    notices: tuple[str, ...]

    @property
    def last_s(self) -> float:
        """Until the last engine was done."""
        return max(self.seconds.values())


class OneSet:
    """Carries out one order; see the module."""

    def __init__(self, order: SetOrder, *, lab: Lab, crew: Crew, token: str) -> None:
        self.lab = lab
        self.crew = crew
        self.engines = order.engines
        self.far_engines = order.far_engines
        self.size_bytes = order.material.size_bytes
        self._order = order
        self._token = token
        self._fault: Fault = order.fault if order.fault is not None else Nothing()
        self._folder = lab.folder / order.name
        self._parents = order.scheme.parents(order.engines)
        self._dead: set[str] = set()
        self._done: dict[str, words.Done] = {}
        self._at_s = 0.0

    def run(self) -> SetResult:
        """Do it, and leave nodes that serve nothing.

        Raises:
            BenchError: a node failed, or has wrong bytes.
            DeadlineExceeded: it took too long.
        """
        self.crew.ask({node: self.serve_order(node) for node in self._nodes}, words.Serving)
        links, times, counted = self.lab.counters(), read_times(), self._count()
        self._at_s = time.monotonic() + _LEAD_S
        for engine in self.engines:
            self.crew.tell(engine, self._fetch_order(engine))
        self._follow()
        busy, links = read_times().busy_since(times), self.lab.counters().since(links)
        seconds, counted_after = time.monotonic() - self._at_s, self._count()
        self._check()
        self.crew.ask({node: words.Stop() for node in self._nodes if node in self.crew.nodes}, words.Stopped)
        shutil.rmtree(self._folder)
        return SetResult(
            name=self._order.name,
            seconds={engine: done.at_s - self._at_s for engine, done in self._done.items()},
            links=links,
            served_bytes=counted_after[SOURCE].served_bytes,
            cpu_busy=busy,
            cpu_own=_cpu_s(counted_after, since=counted) / seconds / (os.cpu_count() or 1),
            crosses=bool(self.far_engines),
            victim=self._fault.victim,
            notices=tuple(f"{engine}: {notice}" for engine, done in self._done.items() for notice in done.notices),
        )

    def serve_order(self, node: str) -> words.Serve:
        """What a node serves: the source what it has, an engine a folder of its own."""
        material = self._order.material
        return words.Serve(
            root=str(material.root if node == SOURCE else self._folder / node),
            host=self.lab.plan.address(node),
            port=PORT,
            token=self._token,
            max_bytes=2 * material.size_bytes,
            domain=self._domain(node),
            tell_at_bytes=self._fault.tell_at_bytes(SOURCE, site=self) if node == SOURCE else 0,
        )

    @property
    def _nodes(self) -> Sequence[str]:
        return (SOURCE, *self.engines)

    def _fetch_order(self, engine: str) -> words.Fetch:
        swarm = self._order.name if not self._parents else ""
        asked = self._url(SOURCE if swarm else living_ancestor(engine, parents=self._parents, dead=self._dead))
        return words.Fetch(
            manifest_file=str(self._order.material.manifest_file),
            at_s=self._at_s,
            limit_s=self._order.limit_s,
            seeds=[asked] if asked == self._url(SOURCE) else [],
            peers=[] if asked == self._url(SOURCE) else [asked],
            parallel=self._order.scheme.parallel,
            domain=self._domain(engine),
            swarm=swarm,
            tell_at_bytes=0 if engine in self._dead else self._fault.tell_at_bytes(engine, site=self),
        )

    def _domain(self, node: str) -> str:
        return FAR if node in self.far_engines else NEAR

    def _url(self, node: str) -> str:
        return f"http://{self.lab.plan.address(node)}:{PORT}"

    def _follow(self) -> None:
        """Hear the nodes until every engine that lives is done."""
        deadline = Deadline.after(self._order.limit_s + _LEAD_S)
        while missing := set(self.engines) - self._done.keys() - self._dead:
            deadline.check(f"{', '.join(sorted(missing))} in {self._order.name}")
            look_s = self._fault.look_s if self._fault.look_s is not None else deadline.remaining_s()
            for heard in self.crew.hear(limit_s=min(look_s, deadline.remaining_s())):
                self._take(heard)
            self._fault.look(self)
        if self._order.fault is not None and not self._fault.victim:
            raise words.BenchError(f"{self._order.name}: nothing was killed, all was done before")

    def _take(self, heard: Heard) -> None:
        match heard.answer:
            case words.Done():
                self._done[heard.node] = heard.answer
            case words.Reached():
                self._fault.reached(heard.node, site=self)
            case Gone() if heard.node == self._fault.victim:
                self._fault.gone(heard.node, site=self)
                self._lose(heard.node)
            case _:
                refuse(heard)

    def _lose(self, victim: str) -> None:
        """Those that asked the dead one ask the next above it."""
        if victim not in self.engines:
            return
        self._dead.add(victim)
        self._done.pop(victim, None)
        for engine, parent in self._parents.items():
            if parent in self._dead and engine not in self._dead and engine not in self._done:
                self.crew.tell(engine, self._fetch_order(engine))

    def _count(self) -> dict[str, words.Counted]:
        nodes = [node for node in self._nodes if node in self.crew.nodes]
        return self.crew.ask(dict.fromkeys(nodes, words.Count()), words.Counted)

    def _check(self) -> None:
        """Read every byte again.

        Raises:
            BenchError: an engine does not have all of them.
        """
        order = words.Check(manifest_file=str(self._order.material.manifest_file))
        checked = self.crew.ask(dict.fromkeys(self._done, order), words.Checked, limit_s=_CHECK_LIMIT_S)
        wrong = {engine: found.num_bytes for engine, found in checked.items() if found.num_bytes != self.size_bytes}
        if wrong:
            raise words.BenchError(f"{self._order.name}: of {self.size_bytes} bytes these are right: {wrong}")


def _cpu_s(now: dict[str, words.Counted], *, since: dict[str, words.Counted]) -> float:
    """Processor time that nodes used; one that was started meanwhile has no before."""
    return sum(one.cpu_s - since[node].cpu_s for node, one in now.items() if one.pid == since[node].pid)
