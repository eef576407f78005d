"""The policy that the documentation shows, taken from there and loaded as a person would."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.stage import load_policy
from tests.unit.consumers.scheduler.test_scaling import run

PAGE = Path(__file__).parents[4] / "docs" / "scheduling.md"


@pytest.mark.parametrize(("hour", "commanded"), [(3, 3), (14, 1)])
def test_the_policy_of_the_documentation_works(
    hour: int, commanded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "night.py"
    file.write_text(code)
    policy = load_policy(f"{file}:decide")
    now = time.struct_time((2026, 1, 1, hour, 0, 0, 3, 1, 0))
    monkeypatch.setattr(time, "localtime", lambda: now)
    (draft,) = [each for each in policy(run(), SchedulerSettings()) if each.kind == "scale"]
    assert (draft.target, draft.replicas) == ("rollout", commanded)
