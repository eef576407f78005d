"""Who may load a published version now: the one reading of a publish command that scheduler and engines share.

Role: the rule between `consumers.scheduler.waves`, which releases waves, and the engines, which wait for theirs.
Data in and out: fields of a publish command; yes or no for one instance.
Invariants: pure. Everybody it is for may fetch and verify at once; only the load waits for its wave.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

Waves = Sequence[Collection[str]]


def is_target(instance: str, *, targets: Collection[str]) -> bool:
    """Whether the command is for this instance; no targets: for every one."""
    return not targets or instance in targets


def is_released(instance: str, *, targets: Collection[str], waves: Waves, wave: int) -> bool:
    """Whether this instance may load now.

    Args:
        wave: index of the last of `waves` that may load. Who is in none of them, as it joined later, may load with
            the last one; without waves all may.
    """
    if not is_target(instance, targets=targets):
        return False
    if any(instance in names for names in waves[: max(0, wave + 1)]):
        return True
    return wave >= len(waves) - 1 and not any(instance in names for names in waves)
