"""Rewards of one name told apart, and those that came after the outcome.

Data in: rewards of one attempt of a group, its outcome. Data out: those that were in time; `Afterwards` of the others.
Invariants: a value that the learner used was in time, whatever the clocks say; two plug-in versions of a name are two
rewards; a copy of a value (re-scored once more) counts once.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence

from ops.trace.gather import Stamped
from ops.trace.life import Afterwards
from schemas.records import Outcome, Reward


def at_outcome(
    rewards: Sequence[Stamped[Reward]], *, outcome: Stamped[Outcome] | None
) -> tuple[list[Stamped[Reward]], list[Stamped[Reward]]]:
    """The first copy of each up to the outcome, all of them where there is none; and those after it."""
    if outcome is None:
        return _first(rewards), []
    used = {use.name for member in outcome.record.members for use in member.rewards}
    in_time, late = list[Stamped[Reward]](), list[Stamped[Reward]]()
    for each in rewards:
        was_used = each.record.weight > 0 and each.record.name in used
        (in_time if was_used or each.unix_ms <= outcome.unix_ms else late).append(each)
    return _first(in_time), late


def named(reward: Reward, *, among: Sequence[Stamped[Reward]]) -> str:
    """Its name, with the plug-in's version where there are several of that name."""
    versions = {each.record.plugin_version for each in among if each.record.name == reward.name}
    return reward.name if len(versions) < 2 else f"{reward.name} (plug-in {reward.plugin_version})"


def rescored(late: Sequence[Stamped[Reward]]) -> tuple[Afterwards, ...]:
    """One for each reward and plug-in version, in the order of their times."""
    kinds = list(dict.fromkeys((each.record.name, each.record.plugin_version) for each in late))
    found = [
        _afterwards([each.record for each in late if (each.record.name, each.record.plugin_version) == kind])
        for kind in kinds
    ]
    return tuple(sorted(found, key=lambda each: each.last_ms))


def _afterwards(rewards: Sequence[Reward]) -> Afterwards:
    last = max(rewards, key=lambda each: each.scored_unix_ms)
    members = {each.member for each in rewards}
    if len(members) > 1:
        values = [each.value for each in rewards if each.value is not None]
        said = f"{len(members)} samples" + (f", mean {sum(values) / len(values):.4g}" if values else "")
    else:
        said = f"{last.value:.4g}" if last.value is not None else f"failed: {last.failure}"
    again = "" if len(rewards) == len(members) else f"; {len(rewards)} records, as some were scored more than once"
    return Afterwards(
        name=f"reward {last.name}",
        plugin_version=last.plugin_version,
        first_ms=float(min(each.scored_unix_ms for each in rewards)),
        last_ms=float(last.scored_unix_ms),
        who=last.producer,
        note=said + again,
    )


def _first(rewards: Sequence[Stamped[Reward]]) -> list[Stamped[Reward]]:
    found: dict[tuple[str, str, int], Stamped[Reward]] = {}
    for each in rewards:
        found.setdefault((each.record.name, each.record.plugin_version, each.record.member), each)
    return list(found.values())
