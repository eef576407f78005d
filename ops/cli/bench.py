"""`rlweave bench`: measure rlweave against peers and limits."""

# ruff: noqa: PLC0415 - commands import what they call when they are called, so help stays quick

from __future__ import annotations

import signal
from pathlib import Path

import click

from ops.cli.run import state_dir_option

ABOUT = {
    "admission": "tokens per second and preemptions of a real vLLM whose cache is small, with a fixed number of "
    "sequences and by its pressure.",
    "algorithms": "each one against its float64 reference and on the demo's task; some ten minutes.",
    "codec": "a sample to bytes and back, against Avro arrays, orjson and json.",
    "dashboard": "how soon a run of a million samples can be looked at, and the memory that takes; about five minutes.",
    "deltas": "length of weight deltas, and encoding and applying them beside a memory copy and plain torch.",
    "elastic": "how soon the number of processes follows a load that doubles and halves, a rollout that is killed, "
    "and a slot that is lent to the learner and comes back; about four minutes.",
    "environments": "trajectories that wait for a slow tool, parked against held; about three minutes.",
    "ingest": "what the learner does with a sample before it trains, as a share of raw reading of the same bytes; "
    "it uses the broker given, else the local services, else services of its own for the while.",
    "lora": "bytes per publish and rewards of low-rank adapters beside the whole model; about a minute.",
    "metrics": "processor time of a run with and without metrics and events, in pairs; about five minutes.",
    "observe": "three planted faults (a slow reward, a slow link for weights, a slow learner), and how soon the "
    "verdict of `rlweave top` names each; about six minutes.",
    "rewards": "five rewards of which one hangs, one raises, one gives NaN and one is away for 20 s, against a clean "
    "run; then 100,000 samples of the past scored in one command beside training; about seven minutes.",
    "schedule": "trained samples per second under each scheduling policy, on fixed workloads, in a simulator and on "
    "real stages; about half an hour.",
    "soak": "the demo's work without an end, and what grows: memory, open files, lag.",
    "stragglers": "steps with and without packing the last completions of a batch.",
    "swap": "how long generation stands still for new weights with 64 requests in flight, against the bare load.",
    "trace": "half a second planted in the environment or the reward of known samples, trained, dropped and "
    "failed, and whether `rlweave trace` finds it at that hop; under two minutes.",
    "traffic": "a version to a few hosts alone, beside a checkpoint upload, and beside one that stands back (needs "
    "root); about three minutes.",
    "weights": "a version to many hosts on a network of shaped links (needs root), ours beside one source for all, a "
    "tree and a chain, and with hosts killed half-way; about seven minutes.",
}
NAMES = tuple(ABOUT)
_HELP = "\n\n".join(["Run one benchmark and print its table.", *(f"{name}: {about}" for name, about in ABOUT.items())])


@click.command(help=_HELP)
@click.argument("name", type=click.Choice(NAMES), metavar="NAME")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Also write the numbers here."
)
@click.option("--quick", is_flag=True, help="Few and short repeats: shows that it works, not how fast it is.")
@click.option("--kafka", metavar="HOST:PORT", help="ingest, metrics, dashboard: use this broker.")
@click.option("--engine", type=click.Choice(["torch", "vllm"]), help="swap, environments: measure this engine only.")
@click.option(
    "--minutes", type=click.FloatRange(min=0.2), help="soak: how long; default 30. observe: each fault; default 1."
)
@state_dir_option
def bench(
    name: str,
    *,
    json_file: Path | None,
    quick: bool,
    kafka: str | None,
    engine: str | None,
    minutes: float | None,
    state_dir: Path,
) -> int:
    """See `ABOUT`."""
    from ops.bench.catalog import BENCHES, BenchRequest
    from ops.outputs import check_file, writing

    if json_file is not None:
        check_file(json_file, setting="--json")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    request = BenchRequest(quick=quick, kafka=kafka, state_dir=state_dir, say=_say, engine=engine, minutes=minutes)
    result = BENCHES[name](request)
    click.echo(result.text())
    if json_file is not None:
        with writing(json_file, setting="--json"):
            result.save(json_file)
    return 0


def _say(line: str) -> None:
    click.echo(line, err=True)
