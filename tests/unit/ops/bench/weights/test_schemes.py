"""Who asks whom, with and without a dead one in between; and how busy processors are read."""

from __future__ import annotations

import pytest

from ops.bench.weights.cpu import CpuTimes, parse_times
from ops.bench.weights.plan import SOURCE, WeightsPlan
from ops.bench.weights.schemes import CHAIN, OURS, SINGLE_SOURCE, TREE, living_ancestor

ENGINES = tuple("abcdefgh")


def test_a_single_source_is_asked_by_all() -> None:
    assert set(SINGLE_SOURCE.parents(ENGINES).values()) == {SOURCE}


def test_in_a_binary_tree_nobody_is_asked_by_more_than_two() -> None:
    parents = TREE.parents(ENGINES)
    assert parents["a"] == parents["b"] == SOURCE
    assert parents["h"] == "c"
    assert max(list(parents.values()).count(node) for node in (SOURCE, *ENGINES)) == 2


def test_in_a_chain_everybody_is_asked_by_one() -> None:
    parents = CHAIN.parents(ENGINES)
    assert sorted(parents.values()) == sorted((SOURCE, *ENGINES[:-1]))
    assert parents["d"] == "c"


def test_ours_gives_nobody_a_parent() -> None:
    assert OURS.parents(ENGINES) == {}


def test_behind_dead_ones_the_next_living_is_asked() -> None:
    parents = CHAIN.parents(ENGINES)
    assert living_ancestor("d", parents=parents, dead=()) == "c"
    assert living_ancestor("d", parents=parents, dead={"c", "b"}) == "a"
    assert living_ancestor("c", parents=parents, dead={"a", "b"}) == SOURCE


def test_half_of_the_engines_are_in_the_far_domain() -> None:
    assert len(WeightsPlan().far_engines) == 4
    assert len(WeightsPlan.quick().far_engines) == 2


def test_busy_is_all_that_is_not_idle_or_waiting_for_a_disk() -> None:
    before = parse_times("cpu  10 0 10 100 20 5 5 0 3 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert before == CpuTimes(idle=120, total=150)
    assert CpuTimes(idle=145, total=250).busy_since(before) == pytest.approx(0.75)
    assert before.busy_since(before) == 0
