"""Runs `ip`, `tc` and `ss`, and says what is missing when they cannot be run.

Failure: `NetlabError` with the command's own words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from schemas.errors import RlweaveError

_LIMIT_S = 20.0
_PROGRAMS = ("ip", "tc", "ss")


class NetlabError(RlweaveError):
    """A laboratory network cannot be made or read on this machine."""


def require_tools() -> None:
    """See that this process may make networks.

    Raises:
        NetlabError: a program or the right is missing.
    """
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise NetlabError(
            f"{', '.join(missing)} not found; no network was made",
            hint="install iproute2 (Debian: apt install iproute2)",
        )
    if os.geteuid() != 0:
        raise NetlabError(
            f"network namespaces need root, this is user {os.geteuid()}; no network was made",
            hint="run the command with sudo, or as root in a container that has CAP_SYS_ADMIN and CAP_NET_ADMIN",
        )


def run_tool(argv: Sequence[str], *, lines: Sequence[str] = ()) -> str:
    """Run one command and give its output.

    Args:
        lines: commands for a `-batch -` that `argv` ends with.

    Raises:
        NetlabError: it failed, or took too long.
    """
    text = "".join(f"{line}\n" for line in lines)
    said = " ".join(argv)
    try:
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetlabError(f"{said} did not run: {error}") from error
    if done.returncode != 0:
        words = " ".join(done.stderr.split())
        raise NetlabError(f"{said} failed ({done.returncode}): {words}", hint=_hint(words))
    return done.stdout


def batch(program: str, namespace: str | None, *, lines: Sequence[str]) -> None:
    """Run many commands of one program in one process, in a namespace (None: the one this process is in).

    Raises:
        NetlabError: one of them failed.
    """
    where = () if namespace is None else ("-n", namespace)
    run_tool([program, *where, "-batch", "-"], lines=lines)


def _hint(words: str) -> str:
    if "Operation not permitted" in words:
        return "root is there but not its rights: a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN"
    if "qdisc kind is unknown" in words:
        return "the kernel lacks this queueing discipline: load its module (modprobe sch_tbf)"
    if "Unknown device type" in words:
        return "the kernel lacks this kind of device: load its module (modprobe veth bridge)"
    return ""
