"""What went over each link, from the token buckets' own counters, and who sent what, from the connections.

Data in: `tc -s -j qdisc show`, `ss -tinHO`. Data out: bytes; those of links with the Ethernet, IP and TCP headers of
every packet, also of those that the kernel moves together as one large segment: that is what the shaping counts too.
Failure: `NetlabError` when `tc` says something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from ops.netlab.tools import NetlabError, run_tool

_RECEIVED = re.compile(r"\bbytes_received:([0-9]+)")


@dataclass(frozen=True, kw_only=True)
class LinkBytes:
    """Bytes since the network was made.

    Attributes:
        up: by host, what it sent.
        down: by host, what reached it.
        crossed: by domain, what left it for the other one.
    """

    up: Mapping[str, int]
    down: Mapping[str, int]
    crossed: Mapping[str, int]

    def since(self, before: LinkBytes) -> LinkBytes:
        """The difference."""
        return LinkBytes(
            up={name: value - before.up[name] for name, value in self.up.items()},
            down={name: value - before.down[name] for name, value in self.down.items()},
            crossed={name: value - before.crossed[name] for name, value in self.crossed.items()},
        )


def sent_bytes(namespace: str) -> dict[str, int]:
    """Bytes that passed the token bucket of each device of a namespace.

    Raises:
        NetlabError: `tc` failed or said something unexpected.
    """
    return parse_sent_bytes(run_tool(["tc", "-n", namespace, "-s", "-j", "qdisc", "show"]))


def parse_sent_bytes(text: str) -> dict[str, int]:
    """Read `tc -s -j qdisc show`.

    Raises:
        NetlabError: it is something else.
    """
    try:
        entries: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise NetlabError(f"tc gave no JSON ({error}): {text[:80]!r}") from error
    found: dict[str, int] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("kind") == "tbf":
            device, num_bytes = entry.get("dev"), entry.get("bytes")
            if isinstance(device, str) and isinstance(num_bytes, int):
                found[device] = num_bytes
    return found


def received_bytes(namespace: str) -> dict[str, int]:
    """Bytes of content that the open TCP connections of a namespace received, by the address of the other side.

    Raises:
        NetlabError: `ss` failed.
    """
    return parse_received_bytes(run_tool(["ip", "netns", "exec", namespace, "ss", "-tinHO"]))


def parse_received_bytes(text: str) -> dict[str, int]:
    """Read `ss -tinHO`: one connection a line."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words, received = line.split(), _RECEIVED.search(line)
        if len(words) > 4 and received is not None:
            address = words[4].rpartition(":")[0]
            found[address] = found.get(address, 0) + int(received[1])
    return found
