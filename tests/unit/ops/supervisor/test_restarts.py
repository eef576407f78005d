"""When a dead process is started again: pure decisions."""

from __future__ import annotations

import pytest

from ops.supervisor.restarts import GiveUp, Restart, RestartPolicy
from ops.supervisor.settings import SupervisorSettings
from pipeline.exit_codes import RESTART_IS_FUTILE, ExitCode

SETTINGS = SupervisorSettings(restart_backoff_s=1.0, max_backoff_s=5.0, healthy_s=60.0, max_restarts=5)


def waits(policy: RestartPolicy, *, num: int, lived_s: float = 1.0) -> list[float]:
    decisions = [policy.decide(code=-9, lived_s=lived_s) for _ in range(num)]
    return [each.after_s for each in decisions if isinstance(each, Restart)]


def test_the_wait_doubles_up_to_its_bound() -> None:
    assert waits(RestartPolicy(SETTINGS), num=5) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_healthy_life_resets_wait_and_count() -> None:
    policy = RestartPolicy(SETTINGS)
    waits(policy, num=5)
    assert waits(policy, num=1, lived_s=60.0) == [1.0]
    assert waits(policy, num=5) == [2.0, 4.0, 5.0, 5.0]


def test_too_many_in_a_row_end_the_run_with_the_code_or_1_for_a_signal() -> None:
    for code, expected in ((-9, ExitCode.ERROR), (0, ExitCode.ERROR), (ExitCode.UNAVAILABLE, ExitCode.UNAVAILABLE)):
        policy = RestartPolicy(SETTINGS)
        for _ in range(5):
            assert isinstance(policy.decide(code=int(code), lived_s=0.1), Restart)
        decision = policy.decide(code=int(code), lived_s=0.1)
        assert isinstance(decision, GiveUp)
        assert decision.code == expected
        assert "5 restarts in a row" in decision.reason


@pytest.mark.parametrize("code", sorted(RESTART_IS_FUTILE))
def test_an_exit_that_a_restart_does_not_mend_ends_the_run_at_once(code: ExitCode) -> None:
    decision = RestartPolicy(SETTINGS).decide(code=int(code), lived_s=1000.0)
    assert decision == GiveUp(code=int(code), reason=decision.reason if isinstance(decision, GiveUp) else "")
    assert code.name.lower() in getattr(decision, "reason", "")
