"""What processes said besides their phases: commands, and what a person should know.

Data in: notices. Data out: `CommandPicture`, `NoticePicture`.
Invariants: bounded; a text is no longer than `MOST_CHARS`.
"""

from __future__ import annotations

from collections import deque

from ops.live.picture import CommandPicture, NoticePicture
from ops.live.process import ending_of
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
        self._commands: deque[CommandPicture] = deque(maxlen=MOST_COMMANDS // 2)  # those that are no publish
        self._publishes: deque[CommandPicture] = deque(maxlen=MOST_COMMANDS // 2)  # so many that the others would go
        self._notices: deque[NoticePicture] = deque(maxlen=MOST_NOTICES)

    def add(self, event: StageEvent, *, at_ms: int) -> None:
        """Take one."""
        if event.name == "commanded":
            command = _command(event, at_ms=at_ms)
            (self._publishes if command.kind == "publish" else self._commands).append(command)
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
        return tuple(sorted((*self._commands, *self._publishes), key=lambda each: each.at_ms))

    def notices(self) -> tuple[NoticePicture, ...]:
        """The last ones, oldest first."""
        return tuple(self._notices)


def described(event: StageEvent) -> str:
    """A notice in a line: the sentence it brings, or its name and details."""
    if text := event.details.get("text"):
        return text
    if event.name == "stopped":
        why = ending_of(event.details)
        return f"{event.stage}: stopped" + (f": {why}" if why else "")
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
