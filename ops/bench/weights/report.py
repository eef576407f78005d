"""The table and the numbers of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping

from ops.bench.result import Number, Table
from ops.bench.weights.measure import ALONE, ALONE_SLOW, Measured
from ops.bench.weights.one_set import SetResult
from ops.bench.weights.plan import MAX_CPU_BUSY, NEAR, SOURCE, WeightsPlan

# Set, JSON key of its time, what it is, what is wanted of it.
_ROWS = (
    ("single_source", "single_source_over_ideal", "each engine from the source", ""),
    ("tree", "tree_over_ideal", "binary tree, by chunk", ""),
    ("chain", "chain_over_ideal", "chain, by chunk", ""),
    ("ours", "ours_over_ideal", "ours", "at most 1.3"),
    ("chain_one_killed", "chain_over_ideal_one_killed", "chain, an engine killed half-way", ""),
    ("ours_one_killed", "ours_over_ideal_one_killed", "ours, an engine killed half-way", "at most 1.6"),
    ("ours_source_killed", "ours_over_ideal_source_killed", "ours, the source's peer restarted half-way", ""),
    ("slow_link", "slow_link_over_ideal", "ours, two domains", ""),
    ("domain_seed_killed", "ours_over_ideal_domain_seed_killed", "ours, two domains, its seed killed", "at most 1.6"),
)
_HEADERS = ("version to all engines", "x size / goodput", "wanted", "source sent", "slow link", "processors")


def values(measured: Measured, *, plan: WeightsPlan) -> dict[str, Number]:
    """The numbers of the network."""
    ours, slow = measured.results["ours"], measured.results["slow_link"]
    return {
        **{key: round(measured.over_ideal(name), 4) for name, key, _, _ in _ROWS},
        "source_copies": round(_source_copies(ours, measured=measured), 4),
        "source_copies_served": round(measured.copies(ours.served_bytes, name="ours"), 4),
        "slow_link_copies": round(_crossed_copies(slow, measured=measured), 4),
        "slow_link_copies_domain_seed_killed": round(
            _crossed_copies(measured.results["domain_seed_killed"], measured=measured), 4
        ),
        "goodput_mbit": round(_mbit(measured.goodput_bytes_s(ALONE)), 2),
        "slow_goodput_mbit": round(_mbit(measured.goodput_bytes_s(ALONE_SLOW)), 2),
        "rate_mbit": measured.rate_mbit,
        "wanted_rate_mbit": plan.rate_mbit,
        "chunk_bytes": plan.chunk_bytes,
        "num_engines": plan.num_engines,
        "size_bytes": measured.sizes["ours"],
        "slow_link_size_bytes": measured.sizes["slow_link"],
        "cpu_busy_max": round(measured.cpu_busy_max, 4),
        "cpu_own_max": round(measured.cpu_own_max, 4),
    }


def table(measured: Measured, *, shares: Mapping[str, Number]) -> Table:
    """One row a set, then the deltas."""
    rows = [
        _row(measured.results[name], what=what, wanted=wanted, measured=measured) for name, _, what, wanted in _ROWS
    ]
    rows += [(f"{key.replace('_', ' ')}", f"{value:.3f}", "", "", "", "") for key, value in shares.items()]
    return Table(title="Weights to many hosts", headers=_HEADERS, rows=tuple(rows))


def notes(measured: Measured, *, plan: WeightsPlan) -> tuple[str, ...]:
    """What the figures are of."""
    lowered = f" (lowered from {plan.rate_mbit:g}: the processors were too busy)"
    still = (
        f"The processors were over {MAX_CPU_BUSY:.0%} busy at this rate as well ({measured.cpu_own_max:.0%} by the "
        "nodes): times are longer than the links make them."
    )
    return (
        f"1 source and {plan.num_engines} engines, {measured.sizes['ours'] / 2**20:g} MiB in chunks of "
        f"{plan.chunk_bytes / 2**10:g} KiB, each link {measured.rate_mbit:g} Mbit/s both ways"
        f"{lowered if measured.rate_mbit < plan.rate_mbit else ''}; goodput of one plain fetch "
        f"{_mbit(measured.goodput_bytes_s(ALONE)):.1f} Mbit/s.",
        f"Two domains: {measured.sizes['slow_link'] / 2**20:g} MiB, half of the engines beyond a link of "
        f"{_mbit(measured.goodput_bytes_s(ALONE_SLOW)):.1f} Mbit/s goodput, which is their ideal.",
        "Copies are bytes at the link, headers included, over the size. Time: until the last engine that lives has "
        "verified every chunk. Processors: used by the nodes, of used by all that runs here.",
        *([still] if measured.cpu_busy_max > MAX_CPU_BUSY else []),
    )


def _row(result: SetResult, *, what: str, wanted: str, measured: Measured) -> tuple[str, ...]:
    crossed = f"{_crossed_copies(result, measured=measured):.2f} copies" if result.crosses else ""
    return (
        what,
        f"{measured.over_ideal(result.name):.2f}",
        wanted,
        f"{_source_copies(result, measured=measured):.2f} copies",
        crossed,
        f"{result.cpu_own:.0%} of {result.cpu_busy:.0%}",
    )


def _source_copies(result: SetResult, *, measured: Measured) -> float:
    return measured.copies(result.links.up[SOURCE], name=result.name)


def _crossed_copies(result: SetResult, *, measured: Measured) -> float:
    return measured.copies(result.links.crossed[NEAR], name=result.name)


def _mbit(bytes_s: float) -> float:
    return bytes_s * 8 / 1e6
