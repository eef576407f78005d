"""Publishing in waves over any course of events: engines that come, go, load and fail in any order, a learner that
publishes, a scheduler that restarts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.scheduler.settings import SchedulerSettings
from consumers.scheduler.snapshot import InstanceSeen, Publishing, Snapshot, Standing
from consumers.scheduler.waves import Step, next_publish, num_at_once
from pipeline.waves import is_released
from tests.unit.consumers.scheduler.test_waves import NOW_S, SETTINGS, engine, v


@dataclass
class Course:
    """A run in miniature. Engines follow the rule of `pipeline.waves`."""

    share: float
    now_s: float = NOW_S
    began_s: float = 0.0
    staged: int = 0
    engines: dict[str, InstanceSeen] = field(default_factory=dict)  # those that live
    lost: set[str] = field(default_factory=set)  # live for the scheduler only, until they have been silent
    standing: Publishing | None = None
    num_joined: int = 0

    @property
    def settings(self) -> SchedulerSettings:
        return SETTINGS.model_copy(update={"keep_generating_share": self.share})

    def apply(self, what: str, which: int) -> None:
        live = sorted(set(self.engines) - self.lost)
        name = live[which % len(live)] if live else ""
        match what:
            case "publish":
                self.staged += 1
            case "join" if len(self.engines) < 7:
                self.join(None)
            case "return" if len(self.engines) < 7:  # it was out of sight, and serves something old
                self.join(max(0, self.staged - which))
            case "load" if name:
                self.load(name)
            case "vanish" if name:
                self.lost.add(name)
            case "leave" if name:
                del self.engines[name]
            case "wait":
                self.wait(0.1 + which * 4.0)
            case "restart" if self.standing is not None:
                self.began_s = self.now_s
                released = {name: self.now_s for names in self.standing.released for name in names}
                self.standing = replace(self.standing, released_s=released)

    def join(self, step: int | None) -> None:
        self.num_joined += 1
        name = f"e{self.num_joined}"
        self.engines[name] = replace(engine(name, step), heard_s=self.now_s)

    def load(self, name: str) -> None:
        one, publish = self.engines[name], self.standing
        if publish is None or (one.version is not None and one.version >= publish.version):
            return
        if one.version is None or self.has_leave(name, publish):
            self.engines[name] = replace(one, version=publish.version)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for name in set(self.engines) - self.lost:
            self.engines[name] = replace(self.engines[name], heard_s=self.now_s)
        gone = {name for name in self.lost if self.engines[name].age_s(self.now_s) > SETTINGS.silence_s}
        self.engines = {name: one for name, one in self.engines.items() if name not in gone}
        self.lost -= gone

    def has_leave(self, name: str, publish: Publishing) -> bool:
        return is_released(name, targets=publish.targets, waves=publish.waves, wave=publish.wave)

    def generating(self) -> list[InstanceSeen]:
        return [one for one in self.engines.values() if one.version is not None]

    def waited_for(self) -> set[str]:
        """Engines that may stand still at any moment: with leave for the version in force, and not overdue."""
        publish = self.standing
        if publish is None:
            return set()
        behind = [one for one in self.generating() if one.version is not None and one.version < publish.version]
        since_s = {one.instance: publish.released_s.get(one.instance, self.now_s) for one in behind}
        return {
            name
            for name, at_s in since_s.items()
            if self.has_leave(name, publish) and self.now_s - at_s < SETTINGS.wave_limit_s
        }

    def decide(self) -> Step | None:
        snapshot = Snapshot(
            now_s=self.now_s,
            observed_s=self.now_s - self.began_s,
            instances=tuple(self.engines[name] for name in sorted(self.engines)),
            staged=(v(self.staged),),
            horizon=v(self.staged),
            standing=Standing(publish=self.standing),
        )
        step = next_publish(snapshot, self.settings)
        assert step == next_publish(snapshot, self.settings), "a pure function"
        if step is not None:
            self.standing = step.publish
        return step


courses = st.lists(
    st.tuples(
        st.sampled_from(["publish", "join", "return", "load", "load", "load", "vanish", "leave", "wait", "restart"]),
        st.integers(0, 6),
    ),
    max_size=60,
)
shares = st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0])


@given(st.integers(0, 6), shares, courses)
@settings(max_examples=300, deadline=None, database=None)
def test_a_command_never_lets_more_stand_still_than_allowed(
    num: int, share: float, course: list[tuple[str, int]]
) -> None:
    run = Course(share)
    for _ in range(num):
        run.join(0)
    for what, which in course:
        run.apply(what, which)
        before = run.waited_for()
        step = run.decide()
        if step is None:
            continue
        allowed = num_at_once(len(run.generating()), share)
        after = run.waited_for()
        assert len(after) <= max(allowed, len(before))
        assert len(after - before) <= max(0, allowed - len(after & before))
        assert all(names or not index for index, names in enumerate(step.publish.waves)), "only the first may be empty"
        named = [name for names in step.publish.waves for name in names]
        assert len(set(named)) == len(named)
        assert run.decide() is None, "a decision carried out leaves nothing to do"


@given(st.integers(0, 6), shares, courses)
@settings(max_examples=200, deadline=None, database=None)
def test_everybody_gets_leave_in_the_end(num: int, share: float, course: list[tuple[str, int]]) -> None:
    """Also when no engine ever loads again."""
    run = Course(share)
    for _ in range(num):
        run.join(0)
    for what, which in course:
        run.apply(what, which)
        run.decide()
    for _ in range(12):
        run.wait(SETTINGS.wave_limit_s)
        run.decide()
    publish = run.standing
    assert publish is not None
    assert publish.version == v(run.staged)
    assert all(run.has_leave(one.instance, publish) or one.version == publish.version for one in run.generating())


@given(st.integers(1, 6), shares)
@settings(deadline=None, database=None)
def test_engines_that_load_when_they_may_all_end_on_it(num: int, share: float) -> None:
    run = Course(share)
    for _ in range(num):
        run.join(0)
    run.staged = 1
    commands = 0
    while any(one.version != v(1) for one in run.generating()):
        assert run.decide() is not None, "nobody may load and nothing is decided"
        commands += 1
        for name in sorted(run.waited_for()):
            run.load(name)
    assert commands == -(-num // num_at_once(num, share))
