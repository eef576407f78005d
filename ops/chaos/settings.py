"""What `rlweave chaos` is asked to do, and the run it does it to.

Role: one value for the request, one for the limits, and the run file that follows from them.
Invariants: the run is small but whole: every stage, two rollout producers, a reward of two processes and a shadow
reward, a model that really learns. Life times of leases and sessions are short, so that a fault can outlast them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from ops.run_file import RunFile, Toml, parse_run_file

LEASE_S = 2.0
ROLLOUT_SESSION_S = 6.0
REWARD_SESSION_S = 10.0  # what a reader has when nothing else is said
PARTITIONS = 8
GROUP_DEADLINE_S = 15.0
WITHOUT_END = 1_000_000  # steps: the run goes on until it is told to come to its end
LAST_STEPS = 3  # trained after the last fault, up to the seal
CONTEXT_TOKENS = 32
REWARD = "sum"  # whose plug-in runs in processes of its own
CALL_S = 8.0  # longest call of that plug-in
_NUM_TASKS = 2000
_STORE_BYTES = 10 * 2**20  # three of them are on the small disk


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is waited for at most. Seconds are those of an idle machine; `scale` stretches them on a busy one.

    Attributes:
        recovery_s: from the end of a fault until training goes on; beyond it is a hang.
        total_s: of the whole; no fault is begun after it.
        proof_steps: steps that must be trained after a fault, so that every stage has had a part in one.
        rss_mib: of one process of the run.
        server_rss_mib: of a broker, or Redis.
        slope_mib_min: growth of a process that has settled.
        num_files: further open files of a process that has settled.
    """

    recovery_s: float = 120.0
    total_s: float = 5400.0
    start_s: float = 180.0
    proof_steps: int = 4
    rss_mib: float = 1500.0
    server_rss_mib: float = 1500.0
    slope_mib_min: float = 20.0
    num_files: int = 64


@dataclass(frozen=True, kw_only=True)
class ChaosSettings:
    """One request.

    Attributes:
        only: kinds to draw from; empty: all.
        folder: of the run; everything is written into it.
        audit_each: audit and oracle after each fault, not only at the end.
    """

    faults: int = 20
    seed: int = 1
    brokers: int = 1
    ranks: int = 1
    quick: bool = False
    only: tuple[str, ...] = ()
    folder: Path
    audit_each: bool = True
    limits: Limits = Limits()

    @property
    def run(self) -> str:
        """Name of the run."""
        return f"chaos-{self.seed}"

    @property
    def services_dir(self) -> Path:
        """State directory of the servers, which are the run's own."""
        return self.folder / "services"

    @property
    def notes_dir(self) -> Path:
        """Plan, faults, verdict, and what faults need."""
        return self.folder / "chaos"


def chaos_run_file(settings: ChaosSettings, *, bootstrap: str, redis_url: str) -> RunFile:
    """The run that faults are put to.

    Raises:
        SettingsError: this version of rlweave does not know several ranks.
    """
    tasks = str(_write_tasks(settings))
    values: dict[str, Toml] = {
        "run": _run(settings),
        "kafka": {"bootstrap": bootstrap, "replication_factor": settings.brokers},
        "redis": {"url": redis_url, "lease_s": LEASE_S},
        "model": {"path": str(settings.folder / "model")},
        "weights": {
            "anchor_every": 10,
            "chunk_bytes": 64 * 1024,
            "fetch_deadline_s": 20.0,
            "store_max_bytes": _STORE_BYTES,
        },
        "prompts": {"max_tokens": 3, "source": {"files": [tasks]}},
        "rollout": {
            "replicas": 2,
            "max_sequences": 16,
            "max_prompts_in_flight": 16,
            "session_timeout_s": ROLLOUT_SESSION_S,
        },
        "rewards": {
            REWARD: {
                "plugin": "ops.chaos.scorer:PacedScorer",
                "replicas": 1 if settings.quick else 2,
                "num_workers": 1,
                "timeout_s": CALL_S,
            },
            **({} if settings.quick else {"shadow": {"plugin": "number_match", "weight": 0.0}}),
        },
        "learner": _learner(settings, tasks=tasks),
        "supervisor": {"restart_backoff_s": 0.2, "max_backoff_s": 2.0, "healthy_s": 5.0, "max_restarts": 60},
    }
    return parse_run_file(values, origin="chaos")


def _run(settings: ChaosSettings) -> Toml:
    return {
        "name": settings.run,
        "dir": str(settings.folder.parent),
        "seed": settings.seed,
        "partitions": PARTITIONS,
        "groups_per_step": 4,
        "group_size": 4,
        "max_steps": WITHOUT_END,
        "max_staleness": 2,
        "group_deadline_s": GROUP_DEADLINE_S,
        "heartbeat_s": 0.5,
        "stop_grace_s": 30.0,
    }


def _learner(settings: ChaosSettings, *, tasks: str) -> Toml:
    learner: dict[str, Toml] = {
        "oracle_file": str(settings.folder / "oracle.jsonl"),
        "silent_notice_s": 20.0,
        "silent_end_s": 3600.0,  # a hang is named from outside, with what every stage was doing
        "optimizer": {"learning_rate": 5e-4},
        "cloning": {"num_steps": 150, "source": {"files": [tasks]}},
        "checkpoint": {"every_steps": 5},
    }
    if settings.ranks > 1:
        learner |= {"ranks": settings.ranks, "collective_limit_s": 40.0}
    return learner


def _write_tasks(settings: ChaosSettings) -> Path:
    draw = random.Random(settings.seed)  # noqa: S311 - repeatable, no secret
    pairs = [(draw.randrange(10), draw.randrange(10)) for _ in range(_NUM_TASKS)]
    path = settings.folder / "tasks.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"question": f"{a} + {b} =", "answer": str(a + b)}) + "\n" for a, b in pairs))
    return path
