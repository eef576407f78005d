"""What was said in a run, and what differs from the defaults."""

from __future__ import annotations

import math
from pathlib import Path

from ops.report.journal import KEPT, Journal
from ops.report.marks import with_gaps
from ops.report.tables import changed, launches, table
from ops.run_record import Json
from schemas.records import StageEvent
from tests.unit.ops.report.made_run import settings


def notice(
    name: str, *, stage: str, unix_ms: int = 0, gauges: dict[str, float] | None = None, **details: str
) -> StageEvent:
    return StageEvent(
        run="made",
        stage=stage,
        instance=f"{stage}-a",
        kind="notice",
        name=name,
        seq=0,
        gauges=gauges or {},
        details=details,
        monotonic_s=0.0,
        unix_ms=unix_ms,
    )


def test_a_version_is_followed_from_the_optimizer_to_the_first_and_the_last_engine() -> None:
    journal = Journal()
    sizes = {"new_bytes": 10.0, "state_bytes": 100.0}
    journal.add(notice("staged", stage="learner", unix_ms=1000, gauges=sizes, version="1.3"))
    for unix_ms in (2500, 1500, 4000):
        journal.add(notice("swapped", stage="rollout", unix_ms=unix_ms, version="1.3"))
    journal.add(notice("swapped", stage="rollout", unix_ms=9000, version="1.9"))
    trip = journal.trips["1.3"]
    assert (trip.first_served_s, trip.last_served_s) == (0.5, 3.0)
    assert (trip.new_bytes, trip.state_bytes) == (10.0, 100.0)
    assert set(journal.trips) == {"1.3"}


def test_an_engine_whose_clock_is_behind_took_no_time() -> None:
    journal = Journal()
    journal.add(notice("staged", stage="learner", unix_ms=1000, version="1.1"))
    journal.add(notice("swapped", stage="rollout", unix_ms=400, version="1.1"))
    assert journal.trips["1.1"].first_served_s == 0.0


def test_decisions_are_kept_with_their_reasons_and_publishing_is_none() -> None:
    journal = Journal()
    journal.add(notice("commanded", stage="scheduler", target="rollout", kind="publish", reason="new", version="1.2"))
    for number in range(3 * KEPT):
        why = f"reason {number}"
        said = notice("commanded", stage="scheduler", target="rollout", kind="scale", reason=why, replicas=str(number))
        journal.add(said)
    kept = journal.decisions
    assert journal.num_decisions == 3 * KEPT
    assert (len(kept), kept[0].what, kept[0].why) == (2 * KEPT, "rollout: 0", "reason 0")
    assert kept[-1].why == f"reason {3 * KEPT - 1}"


def test_notices_are_counted_and_the_last_one_is_shown() -> None:
    journal = Journal()
    journal.add(notice("peer_fault", stage="rollout", unix_ms=1, fault="slow"))
    journal.add(notice("peer_fault", stage="rollout", unix_ms=2, fault="bad", gauges={"num": 2.0}))
    journal.add(notice("step", stage="learner"))
    told = journal.told["rollout", "peer_fault"]
    assert (told.num, told.last_unix_ms, told.last) == (2, 2, "fault bad, num 2")
    assert set(journal.told) == {("rollout", "peer_fault")}


def test_settings_that_are_not_the_default_are_named_with_it(tmp_path: Path) -> None:
    found = {name: (value, default) for name, value, default in changed(settings("made", folder=tmp_path))}
    assert found["run.partitions"] == (4, 8)
    assert found["run.name"] == ("made", None)
    assert found["rewards.sum.weight"] == (2.0, 1.0)
    assert found["prompts.source.files"] == (["prompts.jsonl"], [])
    assert "learner.optimizer.learning_rate" not in found


def test_launches_are_told_with_code_and_packages() -> None:
    versions: Json = {"python": "3.11", "torch": None, "code_git": "abcdefabcdefabcdef"}
    began: dict[str, Json] = {"event": "began", "unix_ms": 0, "host": "<h>", "stages": ["learner"]}
    html = launches([began | {"versions": versions}, {"event": "ended", "code": 0}])
    assert "1970-01-01 00:00:00" in html
    assert "&lt;h&gt;" in html
    assert "<td>abcdefabcdef</td>" in html
    assert "<td>python 3.11</td>" in html
    assert html.count("<tr>") == 2


def test_no_line_is_drawn_across_a_time_in_which_nothing_was_heard() -> None:
    times, values = with_gaps([0.5, 1.5, 9.5], [1.0, 2.0, 3.0], width_s=1.0)
    assert times == [0.5, 1.5, 5.5, 9.5]
    assert [math.isnan(value) for value in values] == [False, False, True, False]
    assert with_gaps([], [], width_s=1.0) == ([], [])


def test_a_table_without_rows_says_so() -> None:
    assert table("Notices", ("a", "b"), rows=[]) == '<p class="muted">Notices: none.</p>'
