"""A slot of a pool goes from rollout to the learner and back, with real ranks: no step is lost or done twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from schemas.reasons import Result
from schemas.records import LineageStarted, StageEvent
from tests.e2e.support import Value, Watch, check_books, small_run

pytestmark = [pytest.mark.integration, pytest.mark.slow]
STEPS, LENT, BACK = 12, 3, 6  # all of them, the step after which a slot is lent, and the one after which it comes back
SLOTS = 3
# Admission stands still until a change is over, so that the run cannot end before it; then it is 3 steps per second.
POLICY = f"""
from consumers.scheduler.policy import CommandDraft, decide as decide_static

def decide(snapshot, settings):
    step = 0 if snapshot.horizon is None else snapshot.horizon.step
    wanted = {{"rollout": 1, "learner": 2}} if {LENT} <= step < {BACK} else {{"rollout": 2, "learner": 1}}
    drafts = [each for each in decide_static(snapshot, settings) if each.kind != "rate"]
    for each in snapshot.fleet:
        name, number = each.target, wanted[each.target]
        if snapshot.replicas_wanted(each) != number:
            drafts.append(CommandDraft(target=name, kind="scale", replicas=number, reason="test"))
    as_wanted = all(
        snapshot.replicas_heard(each, silence_s=settings.silence_s) == wanted[each.target] for each in snapshot.fleet
    )
    rate = 12.0 if as_wanted else 0.0
    if snapshot.standing.rate != rate:
        drafts.append(CommandDraft(target="prompts", kind="rate", rate=rate, reason="test"))
    assert snapshot.slots == {SLOTS}
    return drafts
"""


@pytest.mark.timeout(300)
def test_a_slot_is_lent_to_the_learner_and_comes_back(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "lends.py").write_text(POLICY)
    changes: dict[str, Value] = {
        "run.max_steps": STEPS,
        "run.slots": SLOTS,
        "rollout.replicas": 2,
        "rollout.min_replicas": 1,
        "learner.max_ranks": 2,
        "learner.compare_every_steps": 1,
        "learner.checkpoint.every_steps": STEPS,  # those that are left are of the changes
        "scheduler.policy": f"{tmp_path / 'lends.py'}:decide",
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        assert process.wait(240) == 0, run.outputs()
        seen = check_books(run)
        trained = [each for each in seen.outcomes if each.result == Result.TRAINED]
        assert Counter(each.step for each in trained) == dict.fromkeys(range(1, STEPS + 1), 4), "of all lineages"
        assert _ranks(seen) == {1: 1, 2: 2, 3: 1}
        assert not seen.events("scheduler", name="policy_failed")
        _check_pool(seen)
        stops = [dict(each.details) for each in seen.events("learner", name="stopped")]
        assert [each["code"] for each in stops] == ["0"] * 4, "no process of it was ended by force"
        assert "killing it" not in process.output()


def _ranks(seen: Watch) -> dict[int, int]:
    """Ranks of each lineage, as the ledger keeps it."""
    begun = (each.record for each in seen.envelopes if isinstance(each.record, LineageStarted))
    return {each.lineage: json.loads(each.facts["settings"])["ranks"] for each in begun}


def _check_pool(seen: Watch) -> None:
    """By the supervisor's heartbeats, and by what processes say of their beginnings and ends, in the topic's order."""
    for each in seen.events("supervisor", kind="heartbeat"):
        gauges = each.gauges
        assert gauges["slots"] == SLOTS
        assert sum(value for name, value in gauges.items() if name.startswith("replicas") and "reward" not in name) <= 3
    alive: set[str] = set()
    ended: set[str] = set()
    most = 0
    for record in (envelope.record for envelope in seen.envelopes):
        if isinstance(record, StageEvent) and record.stage in ("rollout", "learner"):
            alive.add(record.instance)
            if record.name == "stopped":
                ended.add(record.instance)
            most = max(most, len(alive - ended))
    assert most == SLOTS
