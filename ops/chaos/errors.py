"""What goes wrong with chaos itself."""

from __future__ import annotations

from schemas.errors import RlweaveError


class ChaosError(RlweaveError):
    """A fault could not be brought about, or healed."""


class RunEnded(RlweaveError):
    """The run under test ended by itself, or the tool could not go on with it."""
