"""What a run's settings say that its pictures need.

Data in: a run file. Data out: `RunFacts`.
"""

from __future__ import annotations

from ops.live.picture import RunFacts
from ops.run_file import RunFile


def facts_of(run_file: RunFile | None) -> RunFacts:
    """Of the settings; nothing of a run without any."""
    if run_file is None:
        return RunFacts()
    run = run_file.run
    return RunFacts(
        max_steps=run.max_steps,
        max_staleness=None if run.on_stale == "train" else run.max_staleness,
        groups_per_step=run.groups_per_step,
        group_size=run.group_size,
        credit_groups=run.credit_groups,
    )
