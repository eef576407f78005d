"""`rlweave export`: a published version as a directory that other tools load."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

from pathlib import Path

import click

from ops.cli.common import broker_options, known_settings, open_raw_log, run_option


@click.command()
@run_option
@click.option("--version", "version_text", metavar="L.S", help="Lineage and step; default: the newest one.")
@click.option("--adapter", is_flag=True, help="The low-rank adapters alone, as a folder that peft loads.")
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@broker_options
def export(
    run: str,
    *,
    version_text: str | None,
    adapter: bool,
    target: Path,
    kafka: str | None,
    runs_dir: Path,
    state_dir: Path,
) -> None:
    """Write a published version into DIR, which must not exist yet.

    Configuration and tokenizer come from the run's model directory, weights from the run's chunk stores or its peers.
    `from_pretrained` and vLLM load the result. Adapters of a run with [learner.lora] are merged into the weights of the
    model directory, or written alone with --adapter.
    """
    from ops.export import ExportForm, export_version, published_versions
    from ops.outputs import check_folder
    from ops.replay.select import parse_version
    from ops.replay.sources import KafkaSource

    wanted = None if version_text is None else parse_version(version_text)
    if version_text is not None and wanted is None:
        raise click.UsageError(f"--version {version_text!r} is not lineage.step, such as 1.30")
    check_folder(target, setting="DIR")
    settings = known_settings(run, runs_dir=runs_dir)
    source = KafkaSource(open_raw_log(kafka, settings=settings, state_dir=state_dir), run=run)
    wire = settings.weights.wire_dtype
    done = export_version(
        published_versions(source),
        wanted,
        target=target,
        model=settings.model.path,
        folder=runs_dir / run,
        weights=settings.weights,
        form=ExportForm(adapter=adapter, dtype=wire if wire is not None else settings.model.dtype),
    )
    click.echo(f"version {done.version} ({done.num_bytes:,} bytes, state {done.state_digest}) is in {target}")
