"""What a laboratory network looks like, and the commands that make it. Pure: nothing is run here.

The picture, for two domains:

    host 0  eth0====p0  bridge d0  between0====between1  bridge d1  p2====eth0  host 2
    host 1  eth0====p1  bridge d0                        bridge d1  p3====eth0  host 3

Each host is a namespace of its own; the bridges are in one more, the hub. `====` is a veth pair. Every direction of
every pair is shaped by a token bucket (tbf): a host's uplink at `eth0`, its downlink at its port in the hub.
Invariants: no interface is ever in the namespace of the machine itself; names carry who made them (`leftovers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.netlab.tools import NetlabError

HOST_DEVICE = "eth0"
MAX_HOSTS = 250
_MAX_NAME_CHARS = 32
_NETWORK = "10.0.0.0/24"
_MTU_BYTES = 1500
_BURST_S = 0.004  # of the rate at once: enough for timers that come late
_MIN_BURST_BYTES = 128 * 1024  # above one large segment (64 KiB), which would be cut up otherwise
_QUEUE_MS = 20  # a full queue adds this much delay
_CONGESTION_CONTROL = "cubic"  # in every Linux; what the machine itself uses does not matter


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine of the network.

    Attributes:
        domain: the bridge it is plugged into at first.
    """

    name: str
    domain: str


@dataclass(frozen=True, kw_only=True)
class LabPlan:
    """A network.

    Attributes:
        rate_mbit: of each host's link, in each direction, headers included.
        between_mbit: of the link between the two domains, in each direction; not used with one domain.
    """

    hosts: tuple[Host, ...]
    domains: tuple[str, ...]
    rate_mbit: float
    between_mbit: float = 0.0

    def check(self) -> None:
        """Refuse a plan that cannot be made.

        Raises:
            NetlabError: saying what does not fit.
        """
        names = [host.name for host in self.hosts]
        if not 1 <= len(names) <= MAX_HOSTS or len(set(names)) != len(names):
            raise NetlabError(f"{len(names)} hosts, {len(set(names))} names: 1 to {MAX_HOSTS} with names of their own")
        bad = [name for name in names if not (name.isalnum() and name.isascii() and len(name) <= _MAX_NAME_CHARS)]
        if bad or "hub" in names:
            raise NetlabError(f"host name {[*bad, 'hub'][0]!r}: 1 to {_MAX_NAME_CHARS} letters and digits, not 'hub'")
        if not 1 <= len(self.domains) <= 2 or len(set(self.domains)) != len(self.domains):
            raise NetlabError(f"domains {list(self.domains)}: one, or two with names of their own")
        strange = {host.domain for host in self.hosts} - set(self.domains)
        if strange:
            raise NetlabError(f"hosts in domains {sorted(strange)}, there are {list(self.domains)}")
        if self.rate_mbit <= 0 or (len(self.domains) == 2 and self.between_mbit <= 0):
            raise NetlabError(f"rates of {self.rate_mbit} and {self.between_mbit} Mbit/s: they must be above 0")

    def address(self, name: str) -> str:
        """A host's IPv4 address."""
        return f"10.0.0.{self.index(name) + 1}"

    def port(self, name: str) -> str:
        """The device in the hub that a host's cable ends at."""
        return f"p{self.index(name)}"

    def bridge(self, domain: str) -> str:
        """The device of a domain in the hub."""
        return f"d{self.domains.index(domain)}"

    def index(self, name: str) -> int:
        """A host's place in `hosts`.

        Raises:
            NetlabError: there is no such host.
        """
        for index, host in enumerate(self.hosts):
            if host.name == name:
                return index
        raise NetlabError(f"no host {name!r}; there are {[host.name for host in self.hosts]}")


def between(domain: int) -> str:
    """The end of the link between two domains at a domain's bridge."""
    return f"between{domain}"


def hub_lines(plan: LabPlan, *, namespaces: dict[str, str]) -> list[str]:
    """`ip` commands in the hub: bridges, cables, and what is plugged in where.

    Args:
        namespaces: of each host.
    """
    lines = []
    for domain in plan.domains:
        lines += [f"link add {plan.bridge(domain)} type bridge stp_state 0", f"link set {plan.bridge(domain)} up"]
    if len(plan.domains) == 2:
        lines.append(f"link add {between(0)} type veth peer name {between(1)}")
        lines += [f"link set {between(number)} master d{number} up" for number in range(2)]
    for host in plan.hosts:
        port, namespace = plan.port(host.name), namespaces[host.name]
        lines.append(f"link add {port} type veth peer name {HOST_DEVICE} netns {namespace}")
        lines.append(f"link set {port} master {plan.bridge(host.domain)} up")
    return lines


def host_lines(plan: LabPlan, name: str) -> list[str]:
    """`ip` commands in a host's namespace."""
    return [
        "link set lo up",
        f"address add {plan.address(name)}/24 dev {HOST_DEVICE}",
        f"link set {HOST_DEVICE} mtu {_MTU_BYTES} up",
        f"route replace {_NETWORK} dev {HOST_DEVICE} src {plan.address(name)} congctl {_CONGESTION_CONTROL}",
    ]


def hub_shapes(plan: LabPlan) -> list[str]:
    """`tc` commands in the hub: downlinks, and the link between domains."""
    lines = [shape_line(plan.port(host.name), rate_mbit=plan.rate_mbit) for host in plan.hosts]
    if len(plan.domains) == 2:
        lines += between_shapes(rate_mbit=plan.between_mbit)
    return lines


def between_shapes(*, rate_mbit: float) -> list[str]:
    """`tc` commands in the hub for the link between two domains."""
    return [shape_line(between(number), rate_mbit=rate_mbit) for number in range(2)]


def shape_line(device: str, *, rate_mbit: float) -> str:
    """The `tc` command that limits what leaves a device."""
    rate_bits = round(rate_mbit * 1e6)
    burst_bytes = max(_MIN_BURST_BYTES, round(rate_bits / 8 * _BURST_S))
    return f"qdisc replace dev {device} root tbf rate {rate_bits}bit burst {burst_bytes} latency {_QUEUE_MS}ms"


def namespace_names(plan: LabPlan, *, prefix: str) -> dict[str, str]:
    """Host name -> namespace, and `hub` -> its own."""
    return {name: f"{prefix}.{name}" for name in ["hub", *(host.name for host in plan.hosts)]}


def exec_argv(namespace: str, argv: Sequence[str]) -> list[str]:
    """A command line that runs `argv` in a namespace; the process keeps its id."""
    return ["ip", "netns", "exec", namespace, *argv]
