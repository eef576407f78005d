"""By what a group in flight is answered for.

A prompt's own delivery, to be acknowledged in the work queue; or another process's word, which holds the delivery and
is told when the group is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from topics.log import Envelope


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A group taken over from another process."""

    holder: str  # instance that answers for the prompt


Ticket: TypeAlias = Envelope | Taken
