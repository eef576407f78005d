"""What of the scheduler's commands is shown, and what is folded."""

from __future__ import annotations

from ops.dashboard.decisions import decisions
from ops.live.picture import CommandPicture


def command(at_ms: int, kind: str, reason: str, *, version: str = "", replicas: int | None = None) -> CommandPicture:
    target = "rollout" if kind == "publish" else "prompts"
    return CommandPicture(at_ms=at_ms, target=target, kind=kind, reason=reason, version=version, replicas=replicas)


def staged(at_ms: int, step: int, *, more: str = "") -> CommandPicture:
    return command(
        at_ms, "publish", f"version 1.{step} is staged and is the newest, in 2 waves{more}", version=f"1.{step}"
    )


def wave(at_ms: int, step: int) -> CommandPicture:
    why = "wave 2 of 2: the engines before it are done or gone"
    return command(at_ms, "publish", why, version=f"1.{step}")


def test_decisions_are_not_hidden_by_versions() -> None:
    publishes = [staged(at_ms, at_ms) for at_ms in range(3, 60)]
    found = decisions([command(1, "credit", "late"), command(2, "scale", "2 to 3", replicas=3), *publishes])
    assert [(each.what, each.why) for each in found["decided"]] == [
        ("scale to prompts: 3", "2 to 3"),
        ("credit to prompts", "late"),
    ]
    assert (found["folded"][0].version, found["folded"][0].num) == ("1.59", 57)


def test_a_version_that_was_overtaken_before_its_last_wave_is_said_and_one_that_was_not_is_not() -> None:
    found = decisions([staged(1, 1), wave(2, 1), staged(3, 2), staged(4, 3), wave(5, 3), staged(6, 4)])
    [_, overtaken] = found["folded"]
    assert (overtaken.what, overtaken.version, overtaken.num, overtaken.at_ms) == ("superseded", "1.2", 1, 4)
    assert overtaken.why == "v1.3 was there before wave 2 of 2 was let out"


def test_skipped_versions_are_told_with_the_last_version_that_went_out() -> None:
    found = decisions([staged(1, 1), wave(2, 1), staged(3, 4, more="; after 1.1, those in between are skipped")])
    [_, skipped] = found["folded"]
    assert (skipped.version, skipped.why) == ("1.4", "after v1.1, those in between are skipped")


def test_no_command_is_no_row() -> None:
    assert decisions([]) == {"decided": [], "folded": []}
