"""Names at the target, and the marker that says that a checkpoint is whole there.

Role: what `sending` writes and `restoring` reads.
Data in and out: `upload.json`: the files of a checkpoint, each with size, digest and its parts in order.
Invariants: names of files are those of a checkpoint, so nothing that is read back is written elsewhere; the sizes of
parts add up. A part's name is its digest: what is there under it, whole, need not be sent again.
Failure: `UploadError` for a marker that is none.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from schemas.errors import UploadError
from schemas.records import Version

MARKER = "upload.json"
PARTS = "parts"
FORMAT = 1
MAX_PART_BYTES = 1024**3
FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a file."""

    digest: str  # blake3, 64 hex digits; its name at the target
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class UploadedFile:
    """A file of a checkpoint."""

    name: str
    num_bytes: int
    parts: tuple[Part, ...]  # in order


@dataclass(frozen=True, kw_only=True)
class Marker:
    """Content of `upload.json`."""

    format: int
    files: tuple[UploadedFile, ...]

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(file.num_bytes for file in self.files)

    @property
    def part_sizes(self) -> dict[str, int]:
        """Bytes of each part, by name; one that occurs twice is there once."""
        return {part.digest: part.num_bytes for file in self.files for part in file.parts}


_MARKER = TypeAdapter(Marker)


def encode_marker(marker: Marker) -> bytes:
    """As JSON."""
    return orjson.dumps(asdict(marker), option=orjson.OPT_INDENT_2)


def decode_marker(content: bytes) -> Marker:
    """Read a marker.

    Raises:
        UploadError: it is none, or of another format.
    """
    try:
        marker = _MARKER.validate_json(content)
    except ValidationError as error:
        raise UploadError(f"{MARKER} is none of a checkpoint: {error.error_count()} thing(s) are wrong") from error
    if marker.format != FORMAT:
        raise UploadError(f"{MARKER} has format {marker.format}, this release reads {FORMAT}")
    names = [file.name for file in marker.files]
    if sorted(names) != sorted(FILES):
        raise UploadError(f"{MARKER} names the files {names!r:.200}, a checkpoint has {list(FILES)}")
    for file in marker.files:
        bad = [
            part.digest
            for part in file.parts
            if _DIGEST.fullmatch(part.digest) is None or not 0 <= part.num_bytes <= MAX_PART_BYTES
        ]
        if bad or sum(part.num_bytes for part in file.parts) != file.num_bytes:
            raise UploadError(f"{MARKER}: the parts of {file.name} do not make its {file.num_bytes} bytes")
    return marker


def version_of(name: str) -> Version | None:
    """The version a folder's name says; None: it says none."""
    found = _VERSION.fullmatch(name)
    version = None if found is None else Version(lineage=int(found[1]), step=int(found[2]))
    return version if str(version) == name else None


def whole_versions(folder: Path) -> list[Version]:
    """Versions of the checkpoints in a local folder that have their manifest, newest first."""
    if not folder.is_dir():
        return []
    found = [version_of(path.name) for path in folder.iterdir() if (path / "manifest.json").is_file()]
    return sorted((version for version in found if version is not None), reverse=True)
