"""Sets a run up for faults, and takes everything down again.

Order: (1) remains of an earlier run of this folder go; (2) servers; (3) model, topics, token, small disks, links and
clocks; (4) the programs, each with its own settings where it has a link, its own environment where it has a clock.
Invariants: whatever was begun is ended, in reverse order, however the run ends; only what was started here is ended.
Failure: `ServicesError`, `SettingsError`, `ChaosError`; nothing is left behind then, either.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ops.chaos.clocks import CLOCKED, Clock
from ops.chaos.disks import Disks
from ops.chaos.faults import Layout
from ops.chaos.links import Links
from ops.chaos.plan import Plan
from ops.chaos.servers import Servers
from ops.chaos.settings import CONTEXT_TOKENS, ChaosSettings, chaos_run_file
from ops.run_checks import check_run
from ops.run_file import RunFile, save_run_file
from ops.services.manager import services_down
from ops.services.model import ServicesSettings
from ops.supervisor.processes import Program
from ops.wiring import open_log, programs
from pipeline.stage import CONNECT_S
from pipeline.weights.tokens import load_or_create_token
from topics.clock import Deadline

SETTINGS_FILE = "settings.json"
_TRACEBACKS = {"PYTHONFAULTHANDLER": "1"}  # a process that is aborted leaves what its threads were doing in its log
_PLACE = "local"  # of servers that are not there yet


@dataclass(frozen=True, kw_only=True)
class StageSet:
    """What a run is played on."""

    settings: ChaosSettings
    run_file: RunFile
    servers: Servers
    links: Links
    clocks: dict[str, Clock]
    disks: Disks | None

    def programs(self, run_file: RunFile) -> list[Program]:
        """Every process of the run, with what faults need of it."""
        settings_file = self.settings.folder / SETTINGS_FILE
        save_run_file(run_file, settings_file)
        return [self._prepared(program, run_file) for program in programs(run_file, settings_file=settings_file)]

    def _prepared(self, program: Program, run_file: RunFile) -> Program:
        if program.name in self.links.by_name:
            own = self.settings.notes_dir / f"{program.name}.json"
            kafka = run_file.kafka.model_copy(update={"bootstrap": self.links.by_name[program.name].bootstrap})
            save_run_file(run_file.model_copy(update={"kafka": kafka}), own)
            shared = str(self.settings.folder / SETTINGS_FILE)
            program = replace(program, arguments=tuple(str(own) if a == shared else a for a in program.arguments))
        environment = {**program.environment, **_TRACEBACKS}
        clock = self.clocks.get(program.name)
        if clock is None:
            return replace(program, environment=environment)
        return replace(program, environment={**environment, **clock.environment}, command=CLOCKED)


def layout_of(settings: ChaosSettings) -> Layout:
    """What the plan may choose from; nothing is started for it."""
    run_file = chaos_run_file(settings, bootstrap=_PLACE, redis_url=_PLACE)
    all_programs = programs(run_file, settings_file=settings.folder / SETTINGS_FILE)
    return Layout(
        programs={program.name: program.stage for program in all_programs},
        brokers=settings.brokers,
        partitions=run_file.run.partitions,
    )


def clear(settings: ChaosSettings) -> None:
    """Take down what an earlier run of this folder left, and delete it."""
    if not settings.folder.exists():
        return
    Disks(settings.folder).close()
    if settings.services_dir.exists():
        services_down(ServicesSettings(state_dir=settings.services_dir))
    shutil.rmtree(settings.folder)


def set_up(settings: ChaosSettings, plan: Plan, *, leaving: ExitStack, say: Callable[[str], None]) -> StageSet:
    """Steps (2) to (4); what must be taken down is put on `leaving`."""
    say(f"services: {settings.brokers} broker(s) and a Redis of their own")
    servers = Servers(settings.services_dir, brokers=settings.brokers)
    leaving.callback(servers.close)
    servers.start()
    run_file = chaos_run_file(settings, bootstrap=servers.bootstrap, redis_url=servers.redis_url)
    check_run(run_file)
    _make_model(run_file)
    log = open_log(run_file)
    log.connect(deadline=Deadline.after(CONNECT_S))
    log.admin().ensure_topics()
    load_or_create_token(settings.folder / "peer-token")
    disks = Disks(settings.folder) if plan.disks else None
    if disks is not None:
        leaving.callback(disks.close)
        disks.mount()
    links = Links(plan.links, brokers=servers.bootstrap.split(","))
    leaving.callback(links.close)
    clocks = {name: Clock(settings.notes_dir / f"{name}.clock") for name in plan.clocks}
    return StageSet(settings=settings, run_file=run_file, servers=servers, links=links, clocks=clocks, disks=disks)


def _make_model(run_file: RunFile) -> None:
    from pipeline.engines.tiny import TinyShape, make_tiny_model  # noqa: PLC0415 - heavy

    shape = TinyShape(hidden_size=32, num_heads=2, num_kv_heads=1)
    make_tiny_model(run_file.model.path, seed=run_file.run.seed, context_tokens=CONTEXT_TOKENS, shape=shape)
