"""Audits a run, from reading to verdict, for those who have its settings."""

from __future__ import annotations

from dataclasses import dataclass

from ops.audit.findings import KEPT_PER_KIND
from ops.audit.read import read_all
from ops.audit.report import AuditReport, AuditSettings, judge
from ops.audit.show import lines_of
from ops.replay.sources import KafkaSource, Source
from ops.run_file import RunFile
from pipeline.credentials import client_config
from topics.access import READER
from topics.kafka.raw import RawLog
from topics.log import Log


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The verdict on a run."""

    report: AuditReport

    @property
    def balanced(self) -> bool:
        """Whether everything is accounted for."""
        return self.report.balanced

    def text(self) -> str:
        """For people."""
        return "\n".join(lines_of(self.report))


def audit_run(log: Log, *, run_file: RunFile) -> Audited:
    """Audit the run of `log`, on the broker that the resolved `run_file` names.

    Raises:
        RunNotFound: it has no topics.
        LogUnavailable, LogError: the broker does not answer, or refuses.
    """
    raw = RawLog(run_file.kafka.bootstrap, config=client_config(run_file.kafka, role=READER))
    source = KafkaSource(raw, run=log.run)
    return Audited(report=audit_source(source, max_age=age_bound(run_file)))


def audit_source(source: Source, *, max_age: int | None, kept_per_kind: int = KEPT_PER_KIND) -> AuditReport:
    """Read everything and judge it; `max_age` in versions, None: no bound."""
    fold, windows = read_all(source)
    settings = AuditSettings(max_age=max_age, kept_per_kind=kept_per_kind)
    return judge(fold, windows=windows, settings=settings, run=source.run)


def age_bound(run_file: RunFile | None) -> int | None:
    """The bound a run promises, in versions; None: none, or the settings are not known."""
    if run_file is None or run_file.run.on_stale == "train":
        return None
    return run_file.run.max_staleness
