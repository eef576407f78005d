"""What the benchmark and its nodes say to one another: one JSON object a line over the node's input and output.

Invariants: times are of the monotonic clock, which all processes of one machine share, whatever their namespace.
Failure: `BenchError` for a line that is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

import orjson

from schemas.errors import RlweaveError


class BenchError(RlweaveError):
    """The benchmark cannot be carried out."""


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Order: serve the chunk store in a folder. Answered by `Serving`."""

    root: str
    host: str
    port: int
    token: str
    max_bytes: int
    domain: str = ""
    tell_at_bytes: int = 0  # `Reached` when so much has been served; 0: never
    managed: bool = False  # background traffic stands back for weights
    link_bytes_s: float = 0.0  # that the host's link carries; 0: not told


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Order: upload a checkpoint while serving. Answered by `Uploaded` or `Failed`; a later one replaces it."""

    folder: str
    url: str
    name: str
    part_bytes: int
    parallel: int


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Order: bring a version into the store. Answered by `Done` or `Failed`; a later one replaces it."""

    manifest_file: str
    at_s: float  # when to begin
    limit_s: float
    seeds: list[str]  # have every chunk
    peers: list[str]  # have some, and get more
    parallel: int = 0  # chunks in flight; 0: as a run has it
    domain: str = ""
    swarm: str = ""  # with it the node is a member that shares the work with others; empty: it only asks
    tell_at_bytes: int = 0  # `Reached` when so much is in the store; 0: never
    rate_bytes_s: float = 0.0  # most that is taken; 0: as fast as it goes


@dataclass(frozen=True, kw_only=True)
class Check:
    """Order: read every chunk of a version. Answered by `Checked`."""

    manifest_file: str


@dataclass(frozen=True, kw_only=True)
class Count:
    """Order: say what was served. Answered by `Counted`."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Order: stop serving. Answered by `Stopped`."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The node can take orders."""

    pid: int


@dataclass(frozen=True, kw_only=True)
class Serving:
    """It serves."""

    url: str


@dataclass(frozen=True, kw_only=True)
class Reached:
    """`tell_at_bytes` was passed."""

    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Done:
    """Every chunk is there and verified."""

    at_s: float
    bytes_fetched: int
    bytes_local: int
    notices: list[str]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """An order could not be carried out."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found."""

    num_bytes: int  # of chunks with the right bytes


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What it did so far."""

    pid: int
    served_bytes: int  # since it serves
    cpu_s: float  # of the process
    uploaded_bytes: int = 0  # of the checkpoint, by the last `Upload`
    held_up_s: float = 0.0  # that checkpoints stood back, since it serves


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """The checkpoint is at the target, whole."""

    seconds: float
    sent_bytes: int


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """It does not serve any more."""


Order = Serve | Upload | Fetch | Check | Count | Stop
Answer = Hello | Serving | Reached | Done | Failed | Checked | Counted | Uploaded | Stopped

_Word = TypeVar("_Word")

_ORDERS: dict[str, type[Order]] = {kind.__name__: kind for kind in (Serve, Upload, Fetch, Check, Count, Stop)}
_ANSWERS: dict[str, type[Answer]] = {
    kind.__name__: kind for kind in (Hello, Serving, Reached, Done, Failed, Checked, Counted, Uploaded, Stopped)
}


def encode(word: Order | Answer) -> bytes:
    """One line, with its end."""
    return orjson.dumps({"kind": type(word).__name__, **asdict(word)}) + b"\n"


def decode_order(line: bytes) -> Order:
    """Read a line.

    Raises:
        BenchError: it is no order.
    """
    return _decode(line, _ORDERS)


def decode_answer(line: bytes) -> Answer:
    """Read a line.

    Raises:
        BenchError: it is no answer.
    """
    return _decode(line, _ANSWERS)


def _decode(line: bytes, kinds: Mapping[str, type[_Word]]) -> _Word:
    try:
        content = orjson.loads(line)
        return kinds[content.pop("kind")](**content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BenchError(f"a node of the benchmark was told or said {line[:200]!r}: {error!r}") from error
