"""A whole run where every stage has a user of its own that may do nothing else, and no secret is seen anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.services.model import ServicesInfo
from pipeline.exit_codes import ExitCode
from tests.e2e.processes import LIMIT_S, ROOT, children_of
from tests.e2e.support import Run, Value, small_run
from topics.catalog import EVENTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]
STEPS = 3


def command(run: Run, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=run.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def secrets_of(services: ServicesInfo) -> dict[str, str]:
    assert services.access is not None
    return {path.name: path.read_text().strip() for path in services.access.credentials_dir.glob("*.password")}


def test_a_run_over_tls_with_a_user_per_stage_balances_and_tells_no_secret(
    secure_services: ServicesInfo, run_name: str, tmp_path: Path, model: Path
) -> None:
    changes: dict[str, Value] = {"run.max_steps": STEPS, "learner.cloning.num_steps": 2}
    with small_run(tmp_path, run_name, services=secure_services, model=model, changes=changes) as run:
        _check_without_rules(run)
        applied = command(run, "acls", "--config", str(run.config), "--apply")
        assert applied.returncode == 0, applied.stderr
        process = run.up()
        watch = run.watch(EVENTS)
        watch.until_step(1)
        arguments = "\n".join(children_of(process.pid).values())
        shown = command(run, "status", "--run", run_name, "--dir", str(tmp_path / "runs"), "--json")
        assert process.wait(120) == 0, run.outputs()
        watch.to_end()
        watch.close()
        assert "does not allow" not in _logs(run), "a stage asked for what its role may not"
        assert watch.events("supervisor", kind="heartbeat"), process.output()
        assert "scale commands cannot be read" not in process.output()
        report = run.audit()
        assert report.balanced, "\n".join(map(str, report.findings))
        assert shown.returncode == 0, shown.stderr
        audited = command(run, "audit", "--run", run_name, "--dir", str(tmp_path / "runs"))
        assert audited.returncode == 0, audited.stdout + audited.stderr
        again = command(
            run, "retrain", "--run", run_name, "--dir", str(tmp_path / "runs"), "--into", "again", "--check"
        )
        assert again.returncode == 0, again.stdout + again.stderr
        said = run.outputs() + arguments + shown.stdout + shown.stderr + audited.stdout + repr(watch.envelopes)
        _check_nothing_leaked(run, said=said)


def _check_without_rules(run: Run) -> None:
    """A stage whose rules are missing ends with one error that names them, and so does one with a wrong password."""
    reward = run.stage("reward")
    wrong = run.folder / "wrong"
    wrong.mkdir()
    (wrong / "peer.user").write_text("peer\n")
    (wrong / "peer.password").write_text("not-this-one\n")
    peer = run.start("run", "peer", "--set", f"kafka.credentials_dir={wrong}")
    for process, parts in (
        (reward, [f"read rlweave.{run.name}.samples", "hint: "]),
        (peer, ["refused the credentials of user 'peer'", "kafka.credentials_dir"]),
    ):
        assert process.wait() == ExitCode.DENIED, process.output()
        assert process.output().count("error: ") == 1, process.output()
        assert all(part in process.output() for part in parts), process.output()
        assert "Traceback" not in process.output()
        assert "not-this-one" not in process.output()


def _logs(run: Run) -> str:
    return "".join(path.read_text(errors="replace") for path in (run.run_folder / "logs").glob("*.log"))


def _check_nothing_leaked(run: Run, *, said: str) -> None:
    files = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    assert run.run_folder / "settings.json" in files
    for name, secret in secrets_of(run.services).items():
        assert secret not in said, f"{name} was told"
        holding = [path for path, content in files.items() if secret.encode() in content]
        assert holding == [], f"{name} is in {holding}"
