"""The policy that the documentation shows, taken from there and loaded as a person would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.stage import load_policy
from tests.unit.consumers.scheduler.test_scaling import run

PAGE = Path(__file__).parents[4] / "docs" / "concepts" / "scheduling.md"


@pytest.mark.parametrize(("max_steps", "commanded"), [(15, 3), (1000, 1)])
def test_the_policy_of_the_documentation_works(max_steps: int, commanded: int, tmp_path: Path) -> None:
    """Ten steps are done."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "halves.py"
    file.write_text(code)
    policy = load_policy(f"{file}:decide")
    (draft,) = [each for each in policy(run(max_steps=max_steps), SchedulerSettings()) if each.kind == "scale"]
    assert (draft.target, draft.replicas) == ("rollout", commanded)
