"""What processes said besides their phases: commands, and what a person should know.

Data in: notices. Data out: `CommandPicture`, `NoticePicture`.
Invariants: bounded; a text is no longer than `MOST_CHARS`.
"""

from __future__ import annotations

from collections import deque

from ops.live.picture import CommandPicture, NoticePicture
from schemas.records import StageEvent

MOST_COMMANDS, MOST_NOTICES, MOST_CHARS = 256, 256, 400
ROUTINE = frozenset(
    {
        "step",
        "staged",
        "swapped",
        "commanded",
        "epoch",
        "recovered",
        "peer_serves",
        "fetch_superseded",
        "stage_superseded",
        "traffic_permitted",
        "lease_skipped",
        "reference_loaded",
    }
)


class Notices:
    """Call `add` with each notice."""

    def __init__(self) -> None:
        self._commands: deque[CommandPicture] = deque(maxlen=MOST_COMMANDS)
        self._notices: deque[NoticePicture] = deque(maxlen=MOST_NOTICES)

    def add(self, event: StageEvent, *, at_ms: int) -> None:
        """Take one."""
        if event.name == "commanded":
            self._commands.append(_command(event, at_ms=at_ms))
        elif event.name not in ROUTINE:
            self._notices.append(
                NoticePicture(
                    at_ms=at_ms,
                    stage=event.stage,
                    instance=event.instance,
                    name=event.name,
                    text=described(event)[:MOST_CHARS],
                    details={name: value[:MOST_CHARS] for name, value in event.details.items()},
                    gauges=event.gauges,
                )
            )

    def commands(self) -> tuple[CommandPicture, ...]:
        """The last ones, oldest first."""
        return tuple(self._commands)

    def notices(self) -> tuple[NoticePicture, ...]:
        """The last ones, oldest first."""
        return tuple(self._notices)


def described(event: StageEvent) -> str:
    """A notice in a line: the sentence it brings, or its name and details."""
    if text := event.details.get("text"):
        return text
    details = ", ".join(f"{name} {value}" for name, value in event.details.items() if value)
    return f"{event.stage}: {event.name}: {details}" if details else f"{event.stage}: {event.name}"


def _command(event: StageEvent, *, at_ms: int) -> CommandPicture:
    details, replicas = event.details, event.details.get("replicas", "")
    version = details.get("version", "")
    return CommandPicture(
        at_ms=at_ms,
        target=details.get("target", ""),
        kind=details.get("kind", ""),
        reason=details.get("reason", "")[:MOST_CHARS],
        version="" if version == "None" else version,
        replicas=int(replicas) if replicas.isdecimal() and len(replicas) < 9 else None,
    )
