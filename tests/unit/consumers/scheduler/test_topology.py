"""Where further processes go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.snapshot import Scalable, Snapshot
from consumers.scheduler.topology import TopologySettings, place, placed
from tests.unit.consumers.scheduler.test_waves import engine

TOPOLOGY = TopologySettings.model_validate(
    {
        "seed": "west",
        "domains": {
            "west": {"processes": 4, "hosts": ["w1", "w2"]},
            "east": {"processes": 8, "uplink_gbit_s": 2.0},
            "far": {"inside_gbit_s": 100.0, "uplink_gbit_s": 5.0},
        },
    }
)


@pytest.mark.parametrize(
    ("stage", "fleet", "domain"),
    [
        ("rollout", {}, "west"),
        ("rollout", {("learner", "west"): 2, ("rollout", "west"): 2}, "far"),
        ("rollout", {("learner", "west"): 4, ("rollout", "east"): 1}, "east"),
        ("rollout", {("learner", "west"): 4, ("rollout", "east"): 8}, "far"),
        ("learner", {("learner", "east"): 1}, "east"),
        ("learner", {}, "west"),
        ("learner", {("rollout", "west"): 4}, "far"),
        ("reward", {}, "far"),
    ],
    ids=[
        "near the seed",
        "the seed's domain is full: the fastest link",
        "where engines are already, for one copy crosses in any case",
        "that one is full too",
        "ranks together",
        "the first rank with the seed",
        "no room there: the fastest inside",
        "where there is room",
    ],
)
def test_place(stage: str, fleet: dict[tuple[str, str], int], domain: str) -> None:
    assert place(stage, fleet=fleet, topology=TOPOLOGY) == domain


domains = st.sampled_from(["west", "east", "far", "elsewhere"])


@settings(deadline=None)
@given(st.dictionaries(st.tuples(st.sampled_from(["learner", "rollout", "reward"]), domains), st.integers(0, 9)))
def test_a_domain_without_room_is_never_picked(fleet: dict[tuple[str, str], int]) -> None:
    for stage in ("learner", "rollout", "reward"):
        name = place(stage, fleet=fleet, topology=TOPOLOGY)
        assert name is not None, "far has room for any number"
        most = TOPOLOGY.domains[name].processes
        assert most is None or sum(num for (_, there), num in fleet.items() if there == name) < most


def test_a_command_for_more_says_where_and_one_for_fewer_does_not() -> None:
    target = Scalable(target="rollout", group="g", least=1, most=9, initial=2)
    snapshot = Snapshot(now_s=0, observed_s=0, instances=(engine("a", 1, domain="east"),), fleet=(target,))
    drafts = [CommandDraft(target="rollout", kind="scale", replicas=replicas, reason="because") for replicas in (3, 1)]
    more, fewer = placed(drafts, snapshot, topology=TOPOLOGY)
    assert (more.targets, more.reason) == (("west",), "because; in west")
    assert fewer == drafts[1]
    assert placed(drafts, snapshot, topology=TopologySettings()) == drafts, "no topology"
    assert placed([replace(drafts[0], targets=("far",))], snapshot, topology=TOPOLOGY)[0].targets == ("far",)


def test_a_seed_that_is_no_domain_is_refused() -> None:
    with pytest.raises(ValidationError, match="none of the domains: there are none"):
        TopologySettings(seed="west")
