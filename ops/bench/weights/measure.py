"""Carries out all sets at one rate, and again at a lower one when the processors were too busy.

Role: the driver. All figures of a result come from one network at one rate, in one go.
Invariants: the goodput that figures are multiples of is measured in the same go, by one plain fetch on the same links.
Failure: what `one_set` raises; the network and its processes are gone then as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ops.bench.weights import schemes, words
from ops.bench.weights.crew import Crew
from ops.bench.weights.faults import STANDBY, DomainSeedDies, EngineDies, Fault, SourceRestarts
from ops.bench.weights.material import Material, make_material
from ops.bench.weights.one_set import OneSet, SetOrder, SetResult
from ops.bench.weights.plan import FAR, LOWERED_SHARE, MAX_CPU_BUSY, NEAR, PORT, SLOW_SHARE, SOURCE, WeightsPlan
from ops.netlab.lab import Lab, open_lab

ALONE = ("alone", "alone_again")  # plain fetches; the faster one gives the goodput, so others' work flatters no figure
ALONE_SLOW = ("alone_slow", "alone_slow_again")
_START_LIMIT_S = 60.0
_SPARE_S = 30.0  # a set may take so much longer than twice what its scheme needs


@dataclass(kw_only=True)
class Measured:
    """All sets at one rate."""

    rate_mbit: float
    results: dict[str, SetResult] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # set -> bytes of what travelled

    @property
    def cpu_busy_max(self) -> float:
        """Of the set that kept the processors busiest."""
        return max(result.cpu_busy for result in self.results.values())

    @property
    def cpu_own_max(self) -> float:
        """The same by the nodes alone."""
        return max(result.cpu_own for result in self.results.values())

    def goodput_bytes_s(self, names: Sequence[str]) -> float:
        """The best of some plain fetches."""
        return max(self.sizes[name] / self.results[name].last_s for name in names)

    def over_ideal(self, name: str) -> float:
        """A set's time in multiples of size / goodput; of the slow link's goodput where there are two domains."""
        alone = ALONE_SLOW if self.results[name].crosses else ALONE
        return self.results[name].last_s * self.goodput_bytes_s(alone) / self.sizes[name]

    def copies(self, num_bytes: int, *, name: str) -> float:
        """Bytes in multiples of what travelled."""
        return num_bytes / self.sizes[name]


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One set to come.

    Attributes:
        multiple: of the ideal time, what the scheme needs.
        fault: makes the fault when the set begins.
    """

    name: str
    scheme: schemes.Scheme
    multiple: float = 1.0
    crosses: bool = False
    fault: Callable[[Lab], Fault] | None = None


def measure(plan: WeightsPlan, *, say: Callable[[str], None]) -> Measured:
    """Measure until the processors were not too busy, or the rate has been lowered often enough.

    Args:
        say: gets a line when a set is done.

    Raises:
        NetlabError: this machine cannot make the network.
        BenchError, DeadlineExceeded: a set failed.
    """
    with open_lab(plan.lab(rate_mbit=plan.rate_mbit), room_bytes=plan.room_bytes) as lab:
        driver = _Driver(plan, lab=lab, say=say)
        driver.start()
        for num_lowered in range(plan.num_lowered + 1):
            is_last = num_lowered == plan.num_lowered
            measured = driver.run(plan.rate_mbit * LOWERED_SHARE**num_lowered, stop_when_busy=not is_last)
            if measured.cpu_busy_max <= MAX_CPU_BUSY or is_last:
                return measured
            say(f"processors {measured.cpu_busy_max:.0%} busy, over {MAX_CPU_BUSY:.0%}: all again at a lower rate")
    raise words.BenchError(f"the rate may be lowered {plan.num_lowered} times: nothing was measured")


class _Driver:
    """The network with its nodes and what travels."""

    def __init__(self, plan: WeightsPlan, *, lab: Lab, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._lab = lab
        self._say = say
        self._crew = Crew(lab.start)
        self._token = secrets.token_urlsafe(32)
        self._materials: list[Material] = []

    def start(self) -> None:
        """Start all nodes, and make what travels meanwhile."""
        nodes = (SOURCE, *self._plan.engines)
        for node in nodes:
            self._crew.start(node, host=node)
        shares = (1.0, self._plan.crossing_share, self._plan.probe_share)
        self._materials = [self._material(share, step=step) for step, share in enumerate(shares, start=1)]
        self._crew.wait(nodes, words.Hello, limit_s=_START_LIMIT_S)

    def run(self, rate_mbit: float, *, stop_when_busy: bool) -> Measured:
        """All sets at one rate; only the first ones when one of them kept the processors too busy."""
        self._shape(rate_mbit)
        measured = Measured(rate_mbit=rate_mbit)
        for step in steps(restart_s=self._plan.restart_s):
            material = self._material_of(step)
            result = self._carry_out(step, material=material, rate_mbit=rate_mbit)
            measured.results[step.name], measured.sizes[step.name] = result, material.size_bytes
            self._say(f"{step.name}: {result.last_s:.2f} s, processors {result.cpu_busy:.0%} busy")
            if stop_when_busy and result.cpu_busy > MAX_CPU_BUSY:
                break
        return measured

    def _carry_out(self, step: _Step, *, material: Material, rate_mbit: float) -> SetResult:
        far = self._plan.far_engines if step.crosses else ()
        for engine in self._plan.engines:
            self._lab.plug(engine, domain=FAR if engine in far else NEAR)
        self._start_missing({engine: engine for engine in self._plan.engines if engine not in self._crew.nodes})
        fault = None if step.fault is None else step.fault(self._lab)
        if isinstance(fault, SourceRestarts):
            self._start_missing({STANDBY: SOURCE})
        slowest_bytes_s = rate_mbit * (SLOW_SHARE if step.crosses else 1.0) * 1e6 / 8
        order = SetOrder(
            name=step.name,
            scheme=step.scheme,
            engines=_engines(step, plan=self._plan),
            material=material,
            limit_s=2 * step.multiple * material.size_bytes / slowest_bytes_s + _SPARE_S,
            far_engines=far,
            fault=fault,
        )
        return OneSet(order, lab=self._lab, crew=self._crew, token=self._token).run()

    def _start_missing(self, nodes: dict[str, str]) -> None:
        for node, host in nodes.items():
            self._crew.start(node, host=host)
        self._crew.wait(nodes, words.Hello, limit_s=_START_LIMIT_S)

    def _shape(self, rate_mbit: float) -> None:
        for node in (SOURCE, *self._plan.engines):
            self._lab.shape(node, rate_mbit=rate_mbit)
        self._lab.shape_between(rate_mbit=rate_mbit * SLOW_SHARE)

    def _material(self, share: float, *, step: int) -> Material:
        plan = self._plan
        num_chunks = max(1, round(plan.size_bytes * share / plan.chunk_bytes))
        return make_material(
            self._lab.folder / SOURCE,
            size_bytes=num_chunks * plan.chunk_bytes,
            chunk_bytes=plan.chunk_bytes,
            seed=f"http://{self._lab.plan.address(SOURCE)}:{PORT}",
            step=step,
        )

    def _material_of(self, step: _Step) -> Material:
        whole, crossing, probe = self._materials
        if step.name in ALONE_SLOW:
            return probe
        return crossing if step.crosses else whole


def steps(*, restart_s: float) -> Sequence[_Step]:
    """All sets; the one that keeps processors busiest comes first, to know soon when the rate is too high."""
    ours, chain = schemes.OURS, schemes.CHAIN
    return (
        _Step(name=ALONE[0], scheme=schemes.SINGLE_SOURCE),
        _Step(name="ours", scheme=ours),
        _Step(name="chain", scheme=chain),
        _Step(name="tree", scheme=schemes.TREE, multiple=2.0),
        _Step(name="single_source", scheme=schemes.SINGLE_SOURCE, multiple=8.0),
        _Step(name="ours_one_killed", scheme=ours, fault=lambda _: EngineDies()),
        _Step(name="chain_one_killed", scheme=chain, fault=lambda _: EngineDies()),
        _Step(name="ours_source_killed", scheme=ours, fault=lambda _: SourceRestarts(away_s=restart_s)),
        _Step(name=ALONE[1], scheme=schemes.SINGLE_SOURCE),
        _Step(name=ALONE_SLOW[0], scheme=schemes.SINGLE_SOURCE, crosses=True),
        _Step(name="slow_link", scheme=ours, crosses=True),
        _Step(name=ALONE_SLOW[1], scheme=schemes.SINGLE_SOURCE, crosses=True),
        _Step(name="domain_seed_killed", scheme=ours, crosses=True, fault=_seed_dies),
    )


def _engines(step: _Step, *, plan: WeightsPlan) -> tuple[str, ...]:
    if step.name in ALONE:
        return plan.engines[:1]
    return plan.engines[-1:] if step.name in ALONE_SLOW else plan.engines


def _seed_dies(lab: Lab) -> Fault:
    return DomainSeedDies(crossed_before_bytes=lab.crossed(NEAR))
