"""`rlweave topics`: the topics of a run as they are, beside what the catalog wants."""

# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli.common import broker_options, json_flag, open_raw_log, run_option, saved_settings

if TYPE_CHECKING:
    from ops.topic_facts import TopicFacts


@click.command()
@run_option
@json_flag
@broker_options
def topics(run: str, *, as_json: bool, kafka: str | None, runs_dir: Path, state_dir: Path) -> int:
    """Show partitions, offsets and limits of a run's topics; exit with 1 when one is not as wanted."""
    import orjson

    from ops.topic_facts import topic_facts
    from pipeline.exit_codes import ExitCode

    settings = saved_settings(run, runs_dir=runs_dir)
    log = open_raw_log(kafka, settings=settings, state_dir=state_dir)
    facts = topic_facts(log, run, data_partitions=None if settings is None else settings.run.partitions)
    if as_json:
        click.echo(orjson.dumps([each.values() for each in facts], option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo(
            f"{'topic':<16} {'partitions':>10} {'offsets':>12} {'records':>10} {'cleanup':>8} {'kept':>8} {'max':>9}"
        )
        for each in facts:
            click.echo(_line(each))
            for problem in each.problems:
                click.echo(f"  wrong: {problem}")
    return int(ExitCode.OK if all(not each.problems for each in facts) else ExitCode.ERROR)


def _line(facts: TopicFacts) -> str:
    if not facts.offsets:
        return f"{facts.name:<16} {'absent':>10}"
    low = min(low for low, _ in facts.offsets.values())
    high = max(high for _, high in facts.offsets.values())
    kept = "for ever" if facts.retention_ms == -1 else f"{facts.retention_ms // 86_400_000} d"
    size = f"{facts.max_bytes / 2**20:.1f} MiB"
    offsets, records = f"{low}..{high}", f"<= {facts.num_offsets}"
    return (
        f"{facts.name:<16} {len(facts.offsets):>10} {offsets:>12} {records:>10} {facts.cleanup:>8} {kept:>8} {size:>9}"
    )
