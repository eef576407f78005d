"""From a target to its life.

Data in: a `Source` and a `Target`. Data out: `Life`.
Failure: `TraceError`, errors of the log.
"""

from __future__ import annotations

from ops.replay.sources import Source
from ops.trace.gather import gather_group, gather_version
from ops.trace.groups import prompt_life, sample_life
from ops.trace.life import Life
from ops.trace.target import Target
from ops.trace.versions import version_life


def trace(source: Source, target: Target) -> Life:
    """The life.

    Raises:
        TraceError: the run has nothing of that name.
        LogError: the broker does not answer.
    """
    if target.version is not None:
        return version_life(gather_version(source, target.version), run=source.run)
    group = 0 if target.group is None else target.group
    records = gather_group(source, group)
    if target.member is None:
        return prompt_life(records, run=source.run)
    return sample_life(records, target.member, run=source.run)
