"""A traffic command is a desired state like any other: it stands, is read back, and may be replaced."""

from __future__ import annotations

from consumers.scheduler.policy import CommandDraft
from consumers.scheduler.standing import StandingCommands
from pipeline.traffic.orders import KIND, TARGETS
from pipeline.traffic.permit import permit_of

RATES = {"link": 1e9, "checkpoints": 4e8, "checkpoints@forward_backward": 0.0}


def test_what_was_commanded_stands_for_a_successor() -> None:
    former, later = StandingCommands(run="r"), StandingCommands(run="r")
    draft = CommandDraft(target=TARGETS[0], kind=KIND, rates=RATES, reason="a quiet night")
    command = former.issue(draft, unix_ms=0)
    former.issued(draft, now_s=1.0)
    later.add(command, now_s=5.0)
    assert former.standing.traffic == later.standing.traffic == RATES
    assert permit_of(command.rates).link_bytes_s == 1e9
    assert later.epoch == command.epoch + 1
