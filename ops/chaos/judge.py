"""What came of a run: audit and oracle, held against what faults destroyed.

Role: `Judge` asks audit and oracle, at any time; `Verdict` weighs what they say and adds it to what was found before.
Data in: the run's topics, by the audit and by the oracle (which shares no code with it); the ids that faults destroyed;
the losses that stages announced. Data out: sets of ids.
Invariants: an id that is gone counts as announced only if a fault destroyed it *and* the audit, or an event, names it;
everything else that is gone is lost. What two checks find counts once.
Failure: `ChaosError` when the oracle could not check.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.audit.findings import Kind
from ops.audit.report import AuditReport
from ops.audit.run import age_bound, audit_source
from ops.chaos.errors import ChaosError
from ops.chaos.world import Doomed, World
from ops.replay.sources import KafkaSource
from ops.run_file import RunFile
from topics.catalog import PROMPTS, REFERENCE_SCORES, REWARDS, SAMPLES, WEIGHTS

_ORACLE = Path(__file__).with_name("oracle.py")
_SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "avro"
_ORACLE_S = 300.0
_LISTS = ("lost", "twice", "only_in_oracle", "only_in_ledger")
_LOOKS, _LOOK_S = 4, 1.0
_ALL = 10**9  # findings of a kind that are kept
# Findings that a destroyed record explains, and the topic it was on.
_MISSING = {
    Kind.MISSING_SAMPLE: SAMPLES.name,
    Kind.MISSING_REWARD: REWARDS.name,
    Kind.MISSING_REFERENCE: REFERENCE_SCORES.name,
    Kind.MISSING_MANIFEST: WEIGHTS.name,
    Kind.MISSING_PROMPT: PROMPTS.name,
}


@dataclass
class Verdict:
    """Ids by what became of them, as text for people."""

    lost: set[str] = field(default_factory=set)
    announced: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    unaccounted: set[str] = field(default_factory=set)
    trained: int = 0  # in the surviving history, as the oracle counts them
    audited: int = 0  # most that one audit judged: it passes over groups whose prompts are gone from the log
    undecodable: int = 0

    @property
    def broken(self) -> set[str]:
        """All that must not be."""
        return self.lost | self.twice | self.unaccounted

    def add_audit(self, report: AuditReport, *, doomed: Doomed) -> None:
        """Weigh what the audit found."""
        self.audited = max(self.audited, report.produced)
        self.undecodable = sum(report.undecodable.values())
        for finding in report.findings:
            topic = _MISSING.get(finding.kind)
            if topic is not None and doomed.has(topic, finding.what):
                self.announced.add(f"{topic} {finding.what}")
            elif topic is not None:
                self.lost.add(str(finding))
            elif finding.kind == Kind.TRAINED_TWICE:
                self.twice.add(finding.what)
            else:
                self.unaccounted.add(str(finding))

    def add_oracle(
        self, said: Mapping[str, set[str]], *, doomed: Doomed, told: set[str], is_closed: Callable[[int], bool]
    ) -> None:
        """Weigh what the oracle found.

        Args:
            said: its lists, by name.
            told: topics of which the learner said that records are gone.
            is_closed: whether a group has an outcome in the surviving history.
        """
        self.twice.update(said["twice"])
        for name in ("only_in_oracle", "only_in_ledger"):
            self.unaccounted.update(f"{name}: {each}" for each in said[name])
        for each in said["lost"]:
            if not doomed.has(PROMPTS.name, each):
                self.lost.add(f"oracle: {each}")
            elif is_closed(int(each.rpartition("/")[2])):
                continue  # its prompt is gone, and it had its outcome
            elif PROMPTS.name in told:
                self.announced.add(f"{PROMPTS.name} {each}")
            else:
                self.lost.add(f"oracle: {each}, destroyed and not told of")


class Judge:
    """Judges one run.

    Args:
        run_file: of the run.
    """

    def __init__(self, world: World, *, run_file: RunFile) -> None:
        self._world = world
        self._run_file = run_file
        self.verdict = Verdict()

    def look(self) -> list[str]:
        """Audit and oracle; returns what is new and bad, for people.

        Raises:
            ChaosError: the oracle could not check.
            LogError: the broker does not answer.
        """
        before = self.verdict.broken
        world = self._world
        source = KafkaSource(world.raw, run=world.run)
        report = audit_source(source, max_age=age_bound(self._run_file), kept_per_kind=_ALL)
        self.verdict.add_audit(report, doomed=world.doomed)
        said = self._settled_oracle()
        told = {loss.details.get("topic", "") for loss in world.watch.announced() if loss.stage == "learner"}
        self.verdict.add_oracle(said, doomed=world.doomed, told=told, is_closed=world.watch.is_closed)
        return sorted(self.verdict.broken - before)

    def _oracle(self) -> tuple[int, dict[str, list[str]]]:
        """The number of ids trained, and its lists."""
        command = [sys.executable, str(_ORACLE), "--bootstrap", self._world.servers.bootstrap, "--run", self._world.run]
        command += ["--oracle-file", str(self._run_file.learner.oracle_file), "--avro-dir", str(_SCHEMAS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ORACLE_S, check=False)
        if done.returncode not in (0, 1):
            raise ChaosError(f"the oracle could not check: {done.stderr.strip()[-500:]}")
        said = json.loads(done.stdout)
        return int(said["trained_ids"]), {name: said[name] for name in _LISTS}

    def _settled_oracle(self) -> dict[str, set[str]]:
        """What the oracle finds again and again. It reads partitions one after the other, and a transaction that
        becomes visible in between is half there."""
        found: dict[str, set[str]] | None = None
        for _ in range(_LOOKS):
            self.verdict.trained, said = self._oracle()
            now = {name: set(said[name]) for name in _LISTS}
            found = now if found is None else {name: found[name] & now[name] for name in _LISTS}
            if not any(found.values()):
                break
            time.sleep(_LOOK_S)
        return {} if found is None else found
