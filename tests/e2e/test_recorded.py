"""A run killed three times is trained again in recorded mode, undisturbed, and ends in the same bits."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from ops.cli.main import main
from ops.services.model import ServicesInfo
from pipeline.exit_codes import ExitCode
from schemas.reasons import Result
from tests.e2e.processes import Process, child_with, signal_pid, spawn
from tests.e2e.support import Run, Value, Watch, check_books, small_run
from topics.catalog import EVENTS, LEDGER

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KILLS = 3  # so that a lineage has a parent and a grandparent that branch
STEPS = 16


def test_a_run_killed_three_times_is_trained_again_to_the_same_bits(
    services: ServicesInfo, run_name: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Value] = {
        "run.max_steps": STEPS,
        "learner.checkpoint.every_steps": 3,
        "learner.loss.minibatches": 2,
        "learner.optimizer.warmup_steps": 3,
    }
    with small_run(tmp_path, run_name, services=services, model=model, changes=changes) as run:
        process = run.up()
        watch = run.watch(EVENTS, LEDGER)
        for number in range(1, KILLS + 1):
            kill_learner(process, watch, lineage=number)
        assert process.wait(150) == 0, run.outputs()
        watch.close()
        seen = check_books(run)
        lineages = seen.ledger.lineages
        assert lineages.current == KILLS + 1
        void = [each for each in seen.outcomes if not lineages.survives(each.lineage, each.step)]
        assert any(each.result == Result.TRAINED for each in void), "no death undid a step"
        before = run.log.admin().describe()
        again = retrained(run, tmp_path / "again")
        assert again.wait(120) == 0, again.output()
        assert "all the same, bit for bit" in again.output()
        assert "note:" not in again.output(), "same machine, same software"
        check_result(run, tmp_path / "again", lineage=lineages.current)
        check_refusals(run, capsys)
        after = run.log.admin().describe()
        assert {name: after[name] for name in before} == before, "recorded mode writes nothing to the run"


def kill_learner(process: Process, watch: Watch, *, lineage: int) -> None:
    """When the learner of this lineage has done two steps more than it began with."""

    def done() -> bool:
        steps = {each.step for each in watch.outcomes if each.lineage == lineage and each.result == Result.TRAINED}
        return len(steps) >= 2

    watch.until(done, what=f"two steps of lineage {lineage}")
    signal_pid(child_with(process, " run learner "), signal.SIGKILL)


def retrained(run: Run, into: Path, *more: str) -> Process:
    """`rlweave retrain`, with another number of threads in its environment than the run had."""
    given = ("retrain", "--run", run.name, "--dir", str(run.folder / "runs"), "--into", str(into), *more)
    process = spawn(given, log_file=run.folder / f"{into.name}.log", env={"OMP_NUM_THREADS": "2"})
    run.processes.append(process)
    return process


def check_result(run: Run, folder: Path, *, lineage: int) -> None:
    """Weights, optimizer and generator are those of the run's last checkpoint, byte for byte."""
    last = run.run_folder / "checkpoints" / f"{lineage}.{STEPS}"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (folder / "state" / name).read_bytes() == (last / name).read_bytes(), name
    weights, exported = load_file(last / "model.safetensors"), load_file(folder / "model" / "model.safetensors")
    assert weights.keys() == exported.keys()
    assert all((weights[name] == exported[name]).all() for name in weights)
    report = json.loads((folder / "report.json").read_text())
    assert report["same"] is True
    assert report["num_compared"] == STEPS + 1
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert len({line["training_digest"] for line in lines}) == STEPS + 1, "every step changed something"


def check_refusals(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """What differs, what is not there and a folder in use have their exit codes; in this process, which has torch."""

    def ended(into: str, *more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(["retrain", "--run", run.name, "--dir", str(run.folder / "runs"), "--into", into, *more])
        said = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, said.out + said.err

    new = str(run.folder / "refused")
    code, said = ended(new, "--until-step", str(STEPS + 1))
    assert (code, Path(new).exists()) == (ExitCode.ERROR, False), said
    assert f"the ledger ends with step {STEPS}" in said
    code, said = ended(str(run.folder / "again"))
    assert code == ExitCode.USAGE, said
    code, said = ended(str(run.run_folder / "again"))
    assert code == ExitCode.USAGE, said
    tasks = run.folder / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("1 +", "9 +"))
    code, said = ended(new, "--check")
    assert code == ExitCode.DIVERGED, said
    assert "step 0 is the first that differs" in said
    assert not (Path(new) / "model").exists()
