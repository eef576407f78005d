"""A few numbers that the learner's process and the yard share, in a file that both map.

Role: what the two tell each other: the step, whether one is being trained, ranks, the beginning of model time.
Data in and out: 8-byte little-endian numbers at fixed places; each is written by one side only.
Invariants: a reader sees a number whole: one aligned word.
Failure: `OSError` when the file cannot be made or mapped.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_INT, _FLOAT = struct.Struct("<q"), struct.Struct("<d")
_STEP, _WORKING, _RANKS, _BEGAN_S, _STEPPED_S = (8 * place for place in range(5))
_SIZE = 8 * 5


class Board:
    """See the module.

    Args:
        path: the file; made by whoever opens it first.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            if path.stat().st_size < _SIZE:
                file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)

    @property
    def step(self) -> int:
        """The last step done; by the learner."""
        return self._int(_STEP)

    @property
    def stepped_s(self) -> float:
        """When that was, on the machine's monotonic clock; by the learner."""
        return float(_FLOAT.unpack_from(self._map, _STEPPED_S)[0])

    def stepped(self, step: int, *, at_s: float) -> None:
        """A step is done."""
        _FLOAT.pack_into(self._map, _STEPPED_S, at_s)
        _INT.pack_into(self._map, _STEP, step)

    @property
    def working(self) -> bool:
        """Whether a step is being trained; by the learner."""
        return self._int(_WORKING) != 0

    @working.setter
    def working(self, working: bool) -> None:
        """Say so."""
        _INT.pack_into(self._map, _WORKING, int(working))

    @property
    def ranks(self) -> int:
        """Ranks of the next step; by the yard."""
        return self._int(_RANKS)

    @ranks.setter
    def ranks(self, ranks: int) -> None:
        """Say so."""
        _INT.pack_into(self._map, _RANKS, ranks)

    @property
    def began_s(self) -> float:
        """Beginning of model time, on the machine's monotonic clock; by the yard."""
        return float(_FLOAT.unpack_from(self._map, _BEGAN_S)[0])

    @began_s.setter
    def began_s(self, began_s: float) -> None:
        """Say so."""
        _FLOAT.pack_into(self._map, _BEGAN_S, began_s)

    def _int(self, place: int) -> int:
        return int(_INT.unpack_from(self._map, place)[0])
