"""`rlweave bench elastic`: how soon the number of processes follows the load, and what lending a slot costs.

Order: (1) servers of its own; (2) the course of elasticity; (3) the course of lending; (4) tables.
What is real: Kafka, every stage, the supervisor, the scheduler's commands, torch ranks that sum gradients. What is not:
the time that a sequence and a step take, so that the machine's own speed decides nothing but starts and stops.
Failure: `ServicesError`; `BenchError` when something does not come about.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ops.bench import result
from ops.bench.elastic.course import Elasticity, Lending, play_elasticity, play_lending
from ops.bench.elastic.plan import ElasticPlan
from ops.chaos.servers import Servers


def bench_elastic(plan: ElasticPlan, *, say: Callable[[str], None]) -> result.BenchResult:
    """Measure.

    Raises:
        ServicesError: the servers do not start.
        BenchError: a run does not begin, ends by itself, or does not change.
    """
    noise = result.Noise()
    with ExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="rlweave-bench-")))
        servers = Servers(folder / "services", brokers=1)  # (1)
        leaving.callback(servers.close)
        servers.start()
        elasticity = play_elasticity(plan, folder=folder / "elasticity", servers=servers, say=say)  # (2)
        lending = play_lending(plan, folder=folder / "lending", servers=servers, say=say)  # (3)
    return elastic_result(elasticity, lending, noise=noise)


def elastic_result(elasticity: Elasticity, lending: Lending, *, noise: result.Noise) -> result.BenchResult:
    """What was measured, as a table and as numbers."""
    values = {**_elasticity_values(elasticity), **_lending_values(lending)}
    return result.BenchResult(
        name="elastic",
        table=_table(values),
        values=values,
        notes=_notes(elasticity, lending),
        noise=noise.values(num_repeats=1),
    )


def _elasticity_values(found: Elasticity) -> dict[str, result.Number]:
    return {
        "double_needed_rollouts": _rounded(found.doubled.needed),
        "double_within_one_s": _rounded(found.doubled.within_one_s),
        "double_best_s": _rounded(found.doubled.best_s),
        "double_scale_commands": found.doubled.num_commands,
        "halve_needed_rollouts": _rounded(found.halved.needed),
        "halve_within_one_s": _rounded(found.halved.within_one_s),
        "halve_best_s": _rounded(found.halved.best_s),
        "halve_scale_commands": found.halved.num_commands,
        "kill_restarted_s": _rounded(found.restarted_s),
        "kill_serving_s": _rounded(found.serving_s),
        "elastic_lost_ids": found.lost_ids,
        "elastic_balanced": int(found.balanced),
    }


def _lending_values(found: Lending) -> dict[str, result.Number]:
    return {
        "lend_total_s": _rounded(found.lent.total_s),
        "lend_away_s": _rounded(found.lent.away_s),
        "return_total_s": _rounded(found.returned.total_s),
        "return_away_s": _rounded(found.returned.away_s),
        "step_one_rank_s": _rounded(found.steps_s.get(1)),
        "step_two_ranks_s": _rounded(found.steps_s.get(2)),
        "lend_most_held_slots": found.most_held,
        "lend_steps_twice": found.steps_twice,
        "lend_lost_ids": found.lost_ids,
        "lend_balanced": int(found.balanced),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


_ROWS = (
    ("load doubles", "double_within_one_s", "double_best_s", "double_scale_commands"),
    ("load halves", "halve_within_one_s", "halve_best_s", "halve_scale_commands"),
)
_MOVES = (
    ("a slot is lent to the learner", "lend_total_s", "lend_away_s"),
    ("it comes back", "return_total_s", "return_away_s"),
)


def _table(values: dict[str, result.Number]) -> result.Table:
    changes = [(name, *(_text(values[key]) for key in keys)) for name, *keys in _ROWS]
    killed = ("a rollout is killed: processes, serving", *(_text(values[f"kill_{key}_s"]) for key in _KILL), "-")
    moves = [(name, *(_text(values[key]) for key in keys), "2") for name, *keys in _MOVES]
    return result.Table(
        title="The real supervisor: seconds until the number of processes follows",
        headers=("what happens", "within one / all done, s", "best / learner away, s", "scale commands"),
        rows=(*changes, killed, *moves),
    )


_KILL = ("restarted", "serving")


def _text(value: result.Number) -> str:
    return "not" if value is None else f"{value:g}"


def _notes(elasticity: Elasticity, lending: Lending) -> tuple[str, ...]:
    one, two = lending.steps_s.get(1), lending.steps_s.get(2)
    steps = "" if one is None or two is None else f" A step took {one:.2f} s with one rank, {two:.2f} s with two."
    books = "balanced" if elasticity.balanced and lending.balanced else "NOT BALANCED"
    return (
        f"Sample ids lost: {elasticity.lost_ids} and {lending.lost_ids}; audits: {books}. Steps done twice: "
        f"{lending.steps_twice}.",
        f"Of 3 slots at most {lending.most_held} were held at a time.{steps}",
        f"Rollouts since the load doubled ({elasticity.doubled.needed:.2f} would just do): "
        + ", ".join(f"{number} at {at_s:.0f} s" for at_s, number in elasticity.doubled.course)
        + f"; since it halved ({elasticity.halved.needed:.2f}): "
        + ", ".join(f"{number} at {at_s:.0f} s" for at_s, number in elasticity.halved.course)
        + ".",
    )
