"""One chaos run: faults at random moments of a real run, and the judgement.

Order: (1) the plan is drawn; (2) the run is set up and trains its first steps; (3) fault by fault: a pause, the fault,
its end, the wait until training goes on, then audit and oracle; (4) the run is stopped, taken up again for its last
steps and sealed; (5) it is judged.
Invariants: everything has a limit; a hang, or a run that ended by itself, ends (3) and is judged as it stands; whatever
was started is ended, on an interrupt, too.
Failure: `SettingsError`, `ServicesError`, `ChaosError`. Broken promises are no errors: they are in the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import orjson

from ops.chaos.crew import Crew
from ops.chaos.errors import ChaosError, RunEnded
from ops.chaos.judge import Judge
from ops.chaos.plan import Plan, Planned, draw_plan
from ops.chaos.recovery import absent_programs, busy_scale, wait_recovered
from ops.chaos.result import ChaosResult, Done, as_json
from ops.chaos.settings import LAST_STEPS, ChaosSettings
from ops.chaos.stage_set import StageSet, clear, layout_of, set_up
from ops.chaos.vitals import Vitals, note_series, unbounded
from ops.chaos.watch import Watch
from ops.chaos.world import World
from ops.run_ends import LogEnds
from ops.run_file import RunFile
from ops.wiring import open_log
from schemas.errors import RlweaveError
from topics.clock import Deadline
from topics.kafka.raw import RawLog

_FIRST_STEPS = 3
_POLL_S = 0.1
PLAN_FILE, FAULTS_FILE, VITALS_FILE, RESULT_FILE = "plan.json", "faults.jsonl", "vitals.csv", "result.json"

Say = Callable[[str], None]


def run_chaos(settings: ChaosSettings, *, say: Say) -> ChaosResult:
    """See the module.

    Raises:
        SettingsError: a kind of fault does not exist, or none can be done here.
        ServicesError: the servers do not start.
        ChaosError: the run does not begin to train, or a check could not be made.
    """
    clear(settings)
    plan = draw_plan(settings, layout_of(settings))  # (1)
    _note_plan(settings, plan)
    for kind, why in plan.not_run.items():
        say(f"not run: {kind}: {why}")
    result = ChaosResult(
        seed=settings.seed,
        brokers=settings.brokers,
        ranks=settings.ranks,
        planned=len(plan.faults),
        not_run=plan.not_run,
    )
    began_s = time.monotonic()
    with ExitStack() as leaving:
        stage_set = set_up(settings, plan, leaving=leaving, say=say)
        one = _ChaosRun(stage_set, plan, result=result, say=say, leaving=leaving)
        one.play()
    result.wall_s = time.monotonic() - began_s
    note_series(settings.notes_dir / VITALS_FILE, result.series)
    (settings.notes_dir / RESULT_FILE).write_bytes(orjson.dumps(as_json(result), option=orjson.OPT_INDENT_2))
    return result


class _ChaosRun:
    def __init__(self, stage_set: StageSet, plan: Plan, *, result: ChaosResult, say: Say, leaving: ExitStack) -> None:
        self._set = stage_set
        self._settings = stage_set.settings
        self._plan = plan
        self._result = result
        self._say = say
        self._leaving = leaving
        self._began_s = time.monotonic()
        run_file = stage_set.run_file
        watch = Watch(lambda: open_log(run_file), data_partitions=run_file.run.partitions)
        leaving.callback(watch.close)
        self._world = World(
            settings=self._settings,
            crew=self._crew(run_file),
            servers=stage_set.servers,
            watch=watch,
            log=open_log(run_file),
            raw=RawLog(stage_set.servers.bootstrap),
            links=stage_set.links.by_name,
            clocks=stage_set.clocks,
            disks=stage_set.disks,
            say=say,
        )
        self._judge = Judge(self._world, run_file=run_file)
        self._vitals = Vitals(lambda: {**self._world.crew.pids(), **self._world.servers.pids()})
        leaving.callback(self._vitals.close)
        leaving.callback(self._stop_crew)

    def play(self) -> None:
        """Steps (2) to (5); fills the result."""
        world, result = self._world, self._result
        world.watch.start()
        self._vitals.start()
        world.crew.start()
        try:
            self._wait_first_steps()  # (2)
            for planned in self._plan.faults:  # (3)
                if not self._go_through(planned):
                    break
            self._end_run()  # (4)
        except RunEnded as error:
            result.ended = error.message
            self._say(error.message)
        self._conclude()  # (5)

    def _wait_first_steps(self) -> None:
        deadline = Deadline.after(self._settings.limits.start_s * busy_scale())
        while self._world.watch.num_steps() < _FIRST_STEPS or absent_programs(self._world, since_s=1.0):
            self._world.check_running()
            if deadline.expired:
                raise ChaosError(
                    f"the run did not begin to train within {deadline.limit_s:.0f} s",
                    hint=f"see the logs in {self._settings.folder / 'logs'}",
                )
            time.sleep(_POLL_S)
        self._say(f"the run trains; {self._passed()}")

    def _go_through(self, planned: Planned) -> bool:
        """One fault; False when no further one makes sense."""
        world, result = self._world, self._result
        if time.monotonic() - self._began_s > self._settings.limits.total_s:
            result.ended = f"the total limit of {self._settings.limits.total_s:g} s ended before {planned}"
            return False
        world.wait(planned.pause_s)
        step, began_s = world.watch.last_step, time.monotonic()
        self._say(f"[{self._passed()}] fault {planned.number} of {result.planned} at step {step}: {planned}")
        self._bring_about(planned)
        healed_s = time.monotonic()
        recovery = wait_recovered(world, began_s=began_s, healed_s=healed_s)
        done = Done(
            number=planned.number,
            kind=planned.kind,
            details=str(planned.fault),
            step=step,
            held_s=round(healed_s - began_s, 2),
            recovery_s=round(recovery.recovery_s, 2),
            stall_s=round(recovery.stall_s, 2),
            hang=recovery.hang,
        )
        self._note_done(done)
        if recovery.hang:
            world.crew.abort()
            world.hangs.append(f"fault {planned.number}, {planned}: {recovery.hang}")
            self._say(f"  HANG: {recovery.hang}")
            return False
        self._say(f"  goes on {recovery.recovery_s:.1f} s after its end; longest time without a step {done.stall_s} s")
        if self._settings.audit_each:
            self._look()
        return True

    def _bring_about(self, planned: Planned) -> None:
        """Inject, hold, heal; heals also when interrupted."""
        try:
            try:
                planned.fault.inject(self._world)
                self._world.wait(planned.fault.hold_s)
            finally:
                planned.fault.heal(self._world)
        except RunEnded:
            raise
        except RlweaveError as error:  # of the tool: the broker does not take what it writes, a server does not start
            raise RunEnded(f"{planned}: {error.message}") from error

    def _end_run(self) -> None:
        """Stop, and take the run up again for its last steps, which end with the seal."""
        world = self._world
        self._say(f"[{self._passed()}] the run is stopped, and taken up again to its end")
        world.crew.stop(grace_s=self._set.run_file.run.stop_grace_s)
        world.hangs += world.crew.disorderly
        settings = self._set.run_file.run.model_copy(update={"max_steps": world.watch.last_step + LAST_STEPS})
        last = self._set.run_file.model_copy(update={"run": settings})
        world.crew = self._crew(last)
        world.crew.start()
        limit_s = 2 * self._settings.limits.recovery_s * busy_scale()
        code = world.crew.join(limit_s=limit_s)
        if not LogEnds(world.log, run_file=last).is_complete():
            world.hangs.append(f"the run did not come to its end within {limit_s:.0f} s: {world.crew.last_words()}")
        elif code != 0:
            raise RunEnded(f"the run ended with code {code}: {world.crew.last_words()}")

    def _conclude(self) -> None:
        world, result = self._world, self._result
        self._stop_crew()
        self._vitals.close()
        self._say(f"[{self._passed()}] audit and oracle")
        self._look()
        result.verdict = self._judge.verdict
        result.hangs += world.hangs
        result.announced_offsets = sum(loss.num_lost for loss in world.watch.announced())
        result.destroyed_records = world.doomed.num_records
        result.series = self._vitals.series()
        result.unbounded = unbounded(self._vitals.series(), limits=self._settings.limits)
        result.steps = world.watch.num_steps()

    def _look(self) -> None:
        try:
            new = self._judge.look()
        except RlweaveError as error:
            self._result.verdict.unaccounted.add(f"could not be checked: {error.message}")
            self._judge.verdict.unaccounted.add(f"could not be checked: {error.message}")
            new = [error.message]
        for line in new[:5]:
            self._say(f"  FOUND: {line}")
        if len(new) > 5:
            self._say(f"  FOUND: {len(new) - 5} more")

    def _stop_crew(self) -> None:
        """End what is left, replaced processes included."""
        for process in self._world.left:
            process.kill()
            process.wait()
        self._world.left.clear()
        self._world.crew.stop()

    def _crew(self, run_file: RunFile) -> Crew:
        return Crew(
            self._set.programs(run_file),
            run_file.supervisor,
            ends=LogEnds(open_log(run_file), run_file=run_file),
            say=lambda line: self._say(f"    {line}"),
        )

    def _note_done(self, done: Done) -> None:
        self._result.done.append(done)
        with (self._settings.notes_dir / FAULTS_FILE).open("ab") as file:
            file.write(orjson.dumps(done, option=orjson.OPT_APPEND_NEWLINE))

    def _passed(self) -> str:
        return f"{time.monotonic() - self._began_s:6.1f} s"


def _note_plan(settings: ChaosSettings, plan: Plan) -> None:
    settings.notes_dir.mkdir(parents=True, exist_ok=True)
    planned = [{"number": each.number, "pause_s": each.pause_s, "what": str(each)} for each in plan.faults]
    content = {"seed": settings.seed, "faults": planned, "not_run": plan.not_run}
    (settings.notes_dir / PLAN_FILE).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
