"""A laboratory network on paper: what cannot be made is refused, and the commands say what was planned."""

from __future__ import annotations

import re

import pytest

from ops.netlab import plan
from ops.netlab.plan import Host, LabPlan
from ops.netlab.tools import NetlabError

TWO = (Host(name="left", domain="a"), Host(name="right", domain="b"))


def _plan(**changes: object) -> LabPlan:
    values = {"hosts": TWO, "domains": ("a", "b"), "rate_mbit": 200.0, "between_mbit": 50.0} | changes
    return LabPlan(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hosts": ()}, "0 hosts"),
        ({"hosts": (TWO[0], TWO[0])}, "2 hosts, 1 names"),
        ({"hosts": (Host(name="a b", domain="a"),)}, "host name 'a b'"),
        ({"hosts": (Host(name="hub", domain="a"),)}, "host name 'hub'"),
        ({"hosts": (Host(name="x", domain="c"),)}, "hosts in domains"),
        ({"domains": ("a", "b", "c")}, "one, or two"),
        ({"domains": ("a", "a")}, "one, or two"),
        ({"rate_mbit": 0.0}, "above 0"),
        ({"between_mbit": 0.0}, "above 0"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(NetlabError, match=re.escape(said)):
        _plan(**changes).check()


def test_one_domain_needs_no_rate_between_domains() -> None:
    _plan(hosts=(TWO[0],), domains=("a",), between_mbit=0.0).check()


def test_every_host_has_an_address_of_its_own() -> None:
    hosts = tuple(Host(name=f"h{number}", domain="a") for number in range(plan.MAX_HOSTS))
    wide = _plan(hosts=hosts, domains=("a",))
    wide.check()
    addresses = {wide.address(host.name) for host in hosts}
    assert len(addresses) == plan.MAX_HOSTS
    assert all(0 < int(address.rpartition(".")[2]) < 255 for address in addresses)


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(NetlabError, match="no host 'middle'"):
        _plan().address("middle")


def test_both_directions_of_every_link_are_shaped() -> None:
    lines = plan.hub_shapes(_plan())
    shaped = {line.split()[3]: line for line in lines}
    assert set(shaped) == {"p0", "p1", "between0", "between1"}
    assert "rate 200000000bit" in shaped["p0"]
    assert "rate 50000000bit" in shaped["between1"]


def test_a_burst_holds_a_whole_large_segment() -> None:
    """A token bucket cuts up what is longer than its burst, which costs processor time."""
    for rate_mbit in (1.0, 200.0, 10_000.0):
        burst = re.search(r"burst (\d+)", plan.shape_line("p0", rate_mbit=rate_mbit))
        assert burst is not None
        assert int(burst[1]) >= 65536 + 1514


def test_hosts_are_plugged_into_their_domains() -> None:
    names = plan.namespace_names(_plan(), prefix="x.1")
    assert names == {"hub": "x.1.hub", "left": "x.1.left", "right": "x.1.right"}
    lines = plan.hub_lines(_plan(), namespaces=names)
    assert "link add p1 type veth peer name eth0 netns x.1.right" in lines
    assert "link set p0 master d0 up" in lines
    assert "link set p1 master d1 up" in lines
    assert "link add between0 type veth peer name between1" in lines
