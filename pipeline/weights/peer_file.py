"""Where the peer server of this host is: a small file that every process of the run on this machine can read.

Role: the learner names the server as the seed of its versions, rollouts name it as their own host.
Data in and out: `peer.json` in `<run folder>/weights`.
Invariants: whole or absent; a server that ends takes its own file away, not that of a successor. One that was killed
leaves it behind, so it says where a server was, not that it lives.
Failure: an unreadable file counts as absent; `WeightsError` when it cannot be written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

import orjson

from pipeline.weights.files import atomic_write, make_folder
from pipeline.weights.manifest import check_peer_url
from schemas.errors import WeightsError

PEER_FILE = "peer.json"


class PeerFile(TypedDict):
    """Content of `peer.json`."""

    url: str
    pid: int


def read_peer_file(folder: Path) -> PeerFile | None:
    """Where the peer server of this host is; None when there is no (readable) peer file in `folder`."""
    try:
        content: object = orjson.loads((folder / PEER_FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(content, dict):
        return None
    url, pid = content.get("url"), content.get("pid")
    if not isinstance(url, str) or not isinstance(pid, int):
        return None
    try:
        return PeerFile(url=check_peer_url(url), pid=pid)
    except WeightsError:
        return None


def write_peer_file(folder: Path, *, url: str) -> None:
    """Say that this process serves at `url`.

    Raises:
        WeightsError: the folder cannot be written.
    """
    make_folder(folder)
    atomic_write(folder / PEER_FILE, orjson.dumps(PeerFile(url=url, pid=os.getpid())), tmp_dir=folder)


def remove_peer_file(folder: Path, *, url: str) -> None:
    """Remove it unless a successor has replaced it."""
    if read_peer_file(folder) == PeerFile(url=url, pid=os.getpid()):
        (folder / PEER_FILE).unlink(missing_ok=True)
