"""How often Python looks for reference cycles in a stage process.

Role: records are trees without cycles, so counting references frees them; passes over many thousand of them that find
nothing cost a reader about a tenth of its time.
Invariants: cycles are still collected, only less often. Called once, when a process begins.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 20, 20)  # Python's own: (700, 10, 10)


def calm_collector() -> None:
    """Collect less often, and leave alone what exists now, such as modules, for the life of the process."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
