"""What the browser gets: plain files of this package, read once.

Data out: files by name with type and tag.
Invariants: only the names listed by the package itself are served, so a path in a request opens nothing.
Failure: none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

_TYPES: Mapping[str, str] = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One file."""

    content: bytes
    content_type: str
    etag: str


def load_assets() -> dict[str, Asset]:
    """All files by name."""
    found: dict[str, Asset] = {}
    for entry in files(__name__).iterdir():
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
            found[entry.name] = Asset(content=content, content_type=kind, etag=tag)
    return found
