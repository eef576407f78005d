"""One consumer group, one plug-in: the claim on a group id.

Role: refuses a reward whose group id is in use by another plug-in, which would split the samples between the two.
Data in and out: every member shows its fingerprint in its client id; the broker lists the members of a group.
Invariants: the truth is the broker's own list of members, so there is no second place that can disagree with it; a
member that died is listed until its session ends, and a successor with the same fingerprint is welcome at once. Two
that start in the same moment both find the list empty; they look again after joining, and the larger fingerprint
leaves.
Failure: `LeaseHeld` naming the member in the way. When the broker does not answer, the second look is left out.
"""

from __future__ import annotations

import logging

from schemas.errors import LeaseHeld, LogError
from topics.log import Admin

_log = logging.getLogger(__name__)


def client_id(instance: str, *, name: str, fingerprint: str) -> str:
    """What a member shows of itself."""
    return f"{instance}@{name}#{fingerprint}"


def check_free(admin: Admin, group: str, *, fingerprint: str) -> None:
    """Before joining: nobody else is there, or only members like this one.

    Raises:
        LeaseHeld: naming the member that is different.
        LogError: the broker did not say.
    """
    for other in admin.members(group):
        if _fingerprint_of(other) != fingerprint:
            raise _clash(group, other)


def check_still_ours(admin: Admin, group: str, *, fingerprint: str) -> None:
    """After joining: of two different plug-ins that raced, the one with the larger fingerprint leaves.

    Raises:
        LeaseHeld: naming the member that stays.
    """
    try:
        members = admin.members(group)
    except LogError as error:
        _log.warning("the members of %s are unknown: %s", group, error.message)
        return
    for other in members:
        if _fingerprint_of(other) < fingerprint:
            raise _clash(group, other)


def _fingerprint_of(member: str) -> str:
    """Empty for a member that is none of ours: it is smaller than any fingerprint, so we leave."""
    return member.rpartition("#")[2] if "#" in member else ""


def _clash(group: str, other: str) -> LeaseHeld:
    return LeaseHeld(
        f"consumer group {group!r} is in use by {other!r}, which runs another plug-in, version, option, weight or "
        "reward name; the two would split the samples between them, so this one does not start",
        hint="take out `group`, so that it follows from the reward's name, choose another one, or stop the other first",
    )
