"""Trajectories between engine and environment: who speaks next, who waits, who is through.

Role: drives the environments of all members that one engine works on.
Data in: members as they begin, generations as they end, answers of environments. Data out: `Move`s: a request for the
engine, an ended trajectory, a failed one.
Invariants: a trajectory that waits for its environment is not in the engine. For `park_after_s` its slot is kept for
it, then it is parked: the slot is for others, up to `max_parked`, and up to as many trajectories as keep the slots
busy (Little's law: of a round of tool and turn, the slot is needed for the turn): more would only grow old. Every
trajectory that began gives one last move, unless it was forgotten. One that fails begins anew, with the same seeds,
within `max_retries` and `episode_limit_s`.
Failure: `PluginError` when the environment blocks its event loop again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeAlias

from pipeline.engines.base import Conversing, Engine, Generation, GenerationRequest
from pipeline.environments.base import Action, Observation, Task
from pipeline.environments.host import STEP, EnvironmentHost, Reply
from pipeline.environments.opening import open_environment
from pipeline.environments.settings import EnvironmentSettings
from pipeline.environments.trajectory import Told, Trajectory
from pipeline.stage import StageContext
from schemas.errors import EngineError
from schemas.reasons import Reason
from schemas.records import PromptGroup

_NUM_SPANS = 64  # calls that a return is predicted from, and turns
_SLACK = 1.25  # more in flight than tools and turns of typical length need: neither comes evenly
_SHORTEST_TURN_S = 1e-3
ENDED = "ended"  # fact: how a trajectory ended
DONE, TURNS, LENGTH = "done", "turns", "length"


@dataclass(frozen=True, kw_only=True)
class Say:
    """The model's turn."""

    request: GenerationRequest


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A trajectory is through."""

    key: str
    whole: Generation
    told: Told


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A trajectory without a sample."""

    key: str
    reason: str


Move: TypeAlias = Say | Ended | Failed


@dataclass(kw_only=True)
class _Member:
    """One trajectory and its tries."""

    task: Task
    request: GenerationRequest
    trajectory: Trajectory
    began_s: float
    num_retries: int = 0
    waits_since_s: float | None = None  # for its environment
    answered_s: float = 0.0  # by its environment, last
    submitted_s: float | None = None  # to the engine, for the turn that goes on


class Episodes:
    """See the module. Called from the engine's thread.

    Args:
        host: runs the environments.
        engine: whose sequences go on.
    """

    def __init__(
        self, host: EnvironmentHost, *, engine: Conversing, settings: EnvironmentSettings, context: StageContext
    ) -> None:
        self._host = host
        self._engine = engine
        self._settings = settings
        self._context = context
        self._limit_s = settings.longest_s(context.run.group_deadline_s)
        self._members: dict[str, _Member] = {}
        self._parked: frozenset[str] = frozenset()
        self._spans: deque[float] = deque(maxlen=_NUM_SPANS)  # of answers
        self._turn_spans: deque[float] = deque(maxlen=_NUM_SPANS)  # in the engine
        self._tells_return = False

    @property
    def num_waiting(self) -> int:
        """Trajectories that wait for their environment."""
        return sum(member.waits_since_s is not None for member in self._members.values())

    @property
    def parked(self) -> Collection[str]:
        """Those of them that hold no slot, as of the last look."""
        return self._parked

    @property
    def num_held(self) -> int:
        """Those whose slot is kept for them."""
        return self.num_waiting - len(self._parked)

    def is_full(self, slots: int) -> bool:
        """Whether nothing new should begin: so many are parked, or more could not be served by so many slots."""
        if len(self._parked) >= self._settings.max_parked:
            return True
        if not self._spans or not self._turn_spans:
            return False
        away_s, turn_s = fmean(self._spans), max(fmean(self._turn_spans), _SHORTEST_TURN_S)
        return len(self._members) >= slots * (1 + _SLACK * away_s / turn_s)

    def begin(self, task: Task, request: GenerationRequest) -> None:
        """Take a member on; its key is the id of its request."""
        now_s = self._context.clock.monotonic()
        self._members[request.request_id] = _Member(
            task=task, request=request, trajectory=self._anew(request), began_s=now_s, waits_since_s=now_s
        )
        self._host.begin(request.request_id, task)

    def submitted(self, keys: Iterable[str]) -> None:
        """The engine begins with turns of these."""
        for key in keys:
            self._members[key].submitted_s = self._context.clock.monotonic()

    def said(self, generation: Generation) -> None:
        """The model has taken a turn; its environment answers."""
        member = self._members[generation.request_id]
        trajectory, now_s = member.trajectory, self._context.clock.monotonic()
        if member.submitted_s is not None:
            self._turn_spans.append(now_s - member.submitted_s)
        self._context.metrics.count("turns_made")
        self._context.metrics.count("tokens_prefilled_again", trajectory.num_prefilled_again(generation))
        trajectory.say(generation)
        trajectory.spent_s.append(now_s - member.answered_s)
        member.waits_since_s, member.submitted_s = now_s, None
        action = Action(
            text=generation.text,
            turn=trajectory.num_turns - 1,
            finish_reason=generation.finish_reason,
            last=trajectory.is_last_turn,
        )
        self._host.step(generation.request_id, action)

    def moves(self, *, wait_s: float = 0.0) -> list[Move]:
        """What follows from the answers that are there; waits at most so long for the first."""
        found = [move for reply in self._host.poll(wait_s=wait_s) for move in self._answered(reply)]
        found += self._overdue()
        self._park()
        return found

    def forget(self, keys: Iterable[str]) -> None:
        """Nothing more is to come of these."""
        gone = [key for key in keys if self._members.pop(key, None) is not None]
        self._host.forget(gone)
        self._parked -= frozenset(gone)

    def report(self) -> None:
        """Tell how many are parked, and when one of them may return: the median of what is left of a typical call."""
        metrics = self._context.metrics
        metrics.gauge("parked_sequences", len(self._parked))
        return_s = self.return_s()
        if return_s is not None:
            metrics.gauge("parked_return_s", return_s)
        elif self._tells_return:
            metrics.absent("parked_return_s")
        self._tells_return = return_s is not None

    def return_s(self) -> float | None:
        """Predicted time until a parked trajectory goes on, median over them; None: nothing is parked, or not known."""
        if not self._parked or not self._spans:
            return None
        now_s, typical_s = self._context.clock.monotonic(), median(self._spans)
        since = [self._members[key].waits_since_s for key in self._parked]
        return median([max(0.0, at_s + typical_s - now_s) for at_s in since if at_s is not None])

    def close(self) -> None:
        """Close every environment."""
        self._members.clear()
        self._host.close()

    def _anew(self, request: GenerationRequest) -> Trajectory:
        return Trajectory(
            request=request,
            max_turns=self._settings.max_turns,
            max_tokens=self._settings.max_tokens,
            context_tokens=self._engine.context_tokens,
        )

    def _answered(self, reply: Reply) -> list[Move]:
        member = self._members.get(reply.key)
        if member is None:
            return []
        member.answered_s = self._context.clock.monotonic()
        if member.waits_since_s is not None:
            member.trajectory.spent_s.append(member.answered_s - member.waits_since_s)
        member.waits_since_s = None
        self._context.metrics.observe("environment_s", reply.spent_s, call=reply.call)
        if reply.call == STEP and reply.observation is not None:
            self._spans.append(reply.spent_s)
        if reply.observation is None:
            return self._failed(reply.key, error=f"{reply.call}: {reply.error}", timed_out=reply.timed_out)
        try:
            member.trajectory.reward(reply.observation)
        except ValueError as error:
            return self._failed(reply.key, error=f"{reply.call}: {error}", timed_out=False)
        return [self._go_on(reply.key, reply.observation)]

    def _go_on(self, key: str, observation: Observation) -> Move:
        trajectory = self._members[key].trajectory
        if observation.done and trajectory.num_turns:
            return self._end(key, why=DONE)
        if trajectory.num_turns >= self._settings.max_turns:
            return self._end(key, why=TURNS)
        text = self._settings.template.replace("{text}", observation.text) if observation.text else ""
        if trajectory.hear(self._engine.encode_text(text), text=text):
            return Say(request=trajectory.next_request())
        if trajectory.num_turns:
            return self._end(key, why=LENGTH)
        return self._lose(
            key, error="its first words leave no room for one of the model's", reason=Reason.PROMPT_INVALID
        )

    def _end(self, key: str, *, why: str) -> Move:
        trajectory = self._members[key].trajectory
        trajectory.facts.setdefault(ENDED, why)
        self._context.metrics.count("episodes_ended", how=why)
        self.forget([key])
        return Ended(key=key, whole=trajectory.whole(), told=trajectory.told(self._settings.plugin))

    def _failed(self, key: str, *, error: str, timed_out: bool) -> list[Move]:
        """Begin anew, or give up."""
        member, settings = self._members[key], self._settings
        reason = Reason.ENVIRONMENT_TIMED_OUT if timed_out else Reason.ENVIRONMENT_FAILED
        self._context.metrics.count("environment_failures", reason=reason)
        delay_s = settings.retry_backoff_s * 2.0**member.num_retries
        now_s = self._context.clock.monotonic()
        if member.num_retries >= settings.max_retries or now_s + delay_s > member.began_s + self._limit_s:
            return [self._lose(key, error=error, reason=reason)]
        member.num_retries += 1
        member.trajectory = self._anew(member.request)
        member.waits_since_s = now_s
        self._host.begin(key, member.task, delay_s=delay_s)
        return []

    def _overdue(self) -> list[Move]:
        """Trajectories that wait beyond the time they have in all."""
        first_s = self._context.clock.monotonic() - self._limit_s
        late = [key for key, each in self._members.items() if each.waits_since_s is not None and each.began_s < first_s]
        error = f"not through after {self._limit_s:g} s"
        return [self._lose(key, error=error, reason=Reason.ENVIRONMENT_TIMED_OUT) for key in late]

    def _lose(self, key: str, *, error: str, reason: Reason) -> Move:
        member = self._members[key]
        details = {"group": str(member.task.group), "member": str(member.task.member), "error": error, "reason": reason}
        self._context.events.notice("environment_failed", details=details, num_retries=member.num_retries)
        self._context.metrics.count("episodes_ended", how=reason)
        self.forget([key])
        return Failed(key=key, reason=reason)

    def _park(self) -> None:
        """Those that have waited for long enough."""
        since_s = self._context.clock.monotonic() - self._settings.park_after_s
        self._parked = frozenset(
            key
            for key, member in self._members.items()
            if member.waits_since_s is not None and member.waits_since_s <= since_s
        )


def open_episodes(settings: EnvironmentSettings, *, engine: Engine, context: StageContext) -> Episodes:
    """Load the environment's plug-in; its loop is begun with the first trajectory.

    Raises:
        EngineError: the engine makes whole completions only.
        PluginError, SettingsError: of the plug-in.
    """
    if not isinstance(engine, Conversing):
        raise EngineError(
            f"the engine {type(engine).__name__} cannot go on with what an environment says",
            hint="it needs context_tokens and encode_text (pipeline.engines.base.Conversing), or a run file without "
            "[environment]",
        )
    host = EnvironmentHost(open_environment(settings), settings=settings)
    return Episodes(host, engine=engine, settings=settings, context=context)


def task_of(prompt: PromptGroup, *, member: int, text: str) -> Task:
    """What an environment is told of a member; `text` is the prompt as the engine sees it."""
    return Task(
        run=prompt.run,
        group=prompt.group,
        member=member,
        prompt=text,
        answer=prompt.answer,
        metadata=prompt.metadata,
        seed=prompt.seed,
    )
