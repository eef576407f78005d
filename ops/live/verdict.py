"""Which side of a run starves, and why, in a sentence: the one judgement that every view shows.

Role: a pure function of a picture; `top`, the dashboard and the report show what it says.
The learner is what a run is for, so it begins there. Does it wait for data? Then whoever holds the open groups is slow:
a group is unstarted, in an engine, before a reward, or ready, and in a steady state most groups are where the least
passes (Little's law). Does it not wait, and those before it do, for credit? Then it is the slow one itself.
Data in: `RunPicture`. Data out: `Verdict`.
Invariants: what is unknown decides nothing; shares are over the picture's window, which begins when the learner is at
work; numbers in the text are those that decided.
Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ops.live import causes
from ops.live.crew import at_work
from ops.live.measures import Measures, RewardMeasures, measures_of
from ops.live.picture import ProcessPicture, RunPicture, Verdict

STARVES = 0.2  # the learner waits for data for at least so much of its time
IDLES = 0.3  # rollouts wait for prompts for so much of theirs
LATE = 0.15  # they wait for weights for so much of theirs
HOLDS = 0.4  # part of the open groups that lie before one stage
LOADED = 0.4  # part of its time that a reward computes, as its calls add up to; others wait on servers
BEHIND_STEPS = 2.0  # steps that its queue takes it
BUSY = 0.6  # part of its time that a stage works
YOUNG_S = 5.0  # with less than that nothing is said
GATHERING_S = 15.0  # processes of one start are heard within so much time
_STAGES = ("learner", "rollout", "prompts")
_STARTING = ("starting", "cloning", "waiting_for_peer", "waiting_for_ranks")


def judge(picture: RunPicture) -> Verdict:
    """The verdict on a run."""
    found = _without_work(picture)
    if found is None:
        measures = measures_of(picture)
        found = _starved(picture, measures) if measures.learner_waits >= STARVES else _fed(measures)
        found = replace(
            found,
            text=found.text + causes.lost(measures),
            evidence=tuple(_evidence(picture, measures)),
            is_provisional=not picture.is_settled,
        )
    held = picture.held
    return found if held is None or held.kind != found.kind else replace(found, since_ms=held.since_ms)


def _without_work(picture: RunPicture) -> Verdict | None:
    """What there is to say when the pipeline does not flow."""
    if picture.trouble:
        text = f"the broker cannot be read, so this is as of its last word: {picture.trouble}"
        return Verdict(kind="trouble", text=text, advice="is it up, and reached from this machine? It is tried again")
    totals, working = picture.totals, [each for each in picture.processes if each.standing == "at work"]
    if picture.share_read < 1.0:
        return Verdict(kind="starting", text=f"reading what there is of the run: {picture.share_read:.0%}")
    if totals.sealed:
        return Verdict(kind="finished", text=f"the run ended: step {totals.step}, its ledger is sealed")
    if not working:
        return _nobody(picture)
    learners = [each for each in working if each.stage == "learner" and each.phase in _STARTING]
    if learners:
        return Verdict(kind="starting", text=f"the learner is at its start: {_spoken(learners[0].phase)}")
    return _missing(picture, working)


def _missing(picture: RunPicture, working: Sequence[ProcessPicture]) -> Verdict | None:
    """A stage that nobody does, or that nobody can have done for long."""
    heard = {each.name for each in working}
    silent = {each.name for each in picture.processes if each.stage == "reward" and each.standing == "not heard"}
    gone = [stage for stage in _STAGES if not at_work(working, stage)] + sorted(silent - heard)
    if not gone:
        began = f"the learner began {picture.window_s:.0f} s ago"
        return Verdict(kind="starting", text=began) if picture.window_s < YOUNG_S else None
    if all(picture.now_ms - each.began_ms < GATHERING_S * 1000 for each in working):
        return Verdict(kind="starting", text=f"not heard yet: {', '.join(gone)}")
    return Verdict(
        kind="missing",
        text=f"not heard: {', '.join(gone)}; the others wait for it",
        advice="look at its log, and start it again: `rlweave up`, or `rlweave run STAGE`",
    )


def _nobody(picture: RunPicture) -> Verdict:
    if not picture.processes:
        return Verdict(kind="nobody", text="no process was heard yet", advice="start the run: `rlweave up`")
    advice = f"go on with it: `rlweave runs resume {picture.run}`"
    if (why := causes.stopped(picture)) is not None:
        text = f"all processes stopped{why}, at step {picture.totals.step}; the run is not sealed"
        return Verdict(kind="stopped", text=text, advice=advice)
    text = f"no process is heard; the run stopped at step {picture.totals.step} and is not sealed"
    return Verdict(kind="nobody", text=text, advice=advice)


def _starved(picture: RunPicture, measures: Measures) -> Verdict:
    """The learner waits: who holds the groups?"""
    paused = next((each for each in measures.rewards if each.is_paused), None)
    slowest = measures.slowest_reward
    if paused is not None:
        return _paused(paused, measures)
    if measures.rollouts_wait_weights >= LATE or measures.is_behind:
        return _weights(measures)
    if slowest is not None and _is_slow(slowest, measures):
        return _reward(slowest, measures)
    if measures.rollouts_wait_prompts >= IDLES and measures.rollouts_generate < BUSY:
        return _idle(picture, measures)
    return _generating(measures)


def _is_slow(reward: RewardMeasures, measures: Measures) -> bool:
    """Whether groups wait for it, and not for a moment only: it has its hands full, or steps of work before it."""
    if reward.held < max(HOLDS, measures.held_generating):
        return False
    is_behind = reward.lag_s is not None and reward.lag_s >= BEHIND_STEPS * (measures.step_s or 0.0)
    return reward.load >= LOADED or is_behind


def _generating(measures: Measures) -> Verdict:
    """Rollouts are the slow ones; at what?"""
    if measures.rollouts_parked >= BUSY / 2:
        return _parked(measures)
    return _swaps(measures) if measures.rollouts_swap >= STARVES else _rollout(measures)


def _fed(measures: Measures) -> Verdict:
    """The learner has work."""
    waits = f"the learner waits {measures.learner_waits:.0%} of its time for data"
    if measures.rollouts_wait_weights >= LATE or measures.is_behind:
        return _weights(measures)
    if measures.rollouts_wait_prompts >= IDLES and measures.prompts_wait_credit >= IDLES:
        return _learner(measures)
    if measures.rollouts_wait_prompts >= IDLES:
        text = f"{waits}, rollouts {measures.rollouts_wait_prompts:.0%} of theirs for prompts"
    else:
        text = f"{waits}, and rollouts generate {measures.rollouts_generate:.0%} of theirs"
    if not measures.has_scheduler:
        return Verdict(
            kind="scheduler",
            text=f"no scheduler is heard: engines fetch new versions by themselves, late; else {text}",
            advice="start it again: `rlweave run scheduler`",
        )
    return Verdict(kind="balanced", text=f"no side starves: {text}")


def _learner(measures: Measures) -> Verdict:
    step = "" if measures.step_s is None else f" (a step takes {measures.step_s:.2g} s{causes.best_step(measures)})"
    ready = f"{measures.ready_groups:.0f} groups are ready for it, and " if measures.ready_groups else ""
    turns = ""
    if measures.learner_waits >= STARVES and measures.credit is not None:
        turns = f"; it waits for the rest, as at most {measures.credit:.0f} groups may be open"
    return Verdict(
        kind="learner",
        text=f"the learner is the slowest: it works {1 - measures.learner_waits:.0%} of its time{step}; {ready}"
        f"rollouts wait {measures.rollouts_wait_prompts:.0%} of theirs for prompts, as the credit is used up{turns}",
        advice="more learner ranks (`learner.ranks`), or fewer rollouts for the same speed",
    )


def _paused(reward: RewardMeasures, measures: Measures) -> Verdict:
    return Verdict(
        kind="reward",
        text=f"the learner waits {measures.learner_waits:.0%} of its time: reward {reward.name} is paused, as too many "
        "of its samples failed",
        advice="its last notice says what failed most often; it tries again by itself",
    )


def _reward(reward: RewardMeasures, measures: Measures) -> Verdict:
    coming = "" if measures.samples_per_s is None else f", and samples come at {measures.samples_per_s:.0f}/s"
    scores = "" if reward.scored_per_s is None else f" scores {reward.scored_per_s:.0f}/s{causes.best_scored(reward)}"
    queue = "" if reward.lag_records is None else f"; {reward.lag_records:,.0f} samples wait for it"
    if reward.lag_s is not None:
        queue += f" ({reward.lag_s:.0f} s of its work)"
    return Verdict(
        kind="reward",
        text=f"the learner waits {measures.learner_waits:.0%} of its time for rewards: reward {reward.name}{scores}"
        f"{coming if not queue else ''}{queue}",
        advice=f"more processes of it (`rewards.{reward.name}.replicas`, now {reward.num_processes}), or a faster "
        "plug-in",
    )


def _weights(measures: Measures) -> Verdict:
    parts = []
    if measures.serve_s is not None:
        step = "" if measures.step_s is None else f", and a step takes {measures.step_s:.2g} s"
        parts.append(f"from published to served takes {measures.serve_s:.1f} s{step}")
    if measures.versions_behind:
        parts.append(f"engines are up to {_num(measures.versions_behind, 'version')} behind")
    if chain := causes.credit_chain(measures):
        parts.append(chain)
    if waits := causes.waits(measures):
        parts.append(waits)
    return Verdict(
        kind="weights",
        text=f"weights reach the engines late: {'; '.join(parts)}",
        advice=f"look at the link from the learner's host{causes.fetch(measures)}, at the rates of "
        "class weights, and at `weights` for smaller versions",
    )


def _parked(measures: Measures) -> Verdict:
    return Verdict(
        kind="rollout",
        text=f"the learner waits {measures.learner_waits:.0%} of its time for data: rollouts wait "
        f"{measures.rollouts_parked:.0%} of theirs for their environment",
        advice="a faster environment, or more trajectories at a time (`rollout.max_sequences`, credit)",
    )


def _swaps(measures: Measures) -> Verdict:
    return Verdict(
        kind="weights",
        text=f"engines stand still {measures.rollouts_swap:.0%} of their time to load weights; the learner waits "
        f"{measures.learner_waits:.0%} of its time for data",
        advice="publish less often (`scheduler.publish_within_versions`)",
    )


def _rollout(measures: Measures) -> Verdict:
    made = "" if measures.tokens_per_s is None else f", {measures.tokens_per_s:,.0f} tokens/s"
    samples = "" if measures.samples_per_s is None else f", {measures.samples_per_s:.0f} samples/s"
    return Verdict(
        kind="rollout",
        text=f"the learner waits {measures.learner_waits:.0%} of its time for samples: {measures.num_rollouts} "
        f"rollout(s) generate {measures.rollouts_generate:.0%} of theirs{samples}{made}",
        advice="more rollouts (`rollout.replicas`), more sequences at a time, or shorter completions",
    )


def _idle(picture: RunPicture, measures: Measures) -> Verdict:
    """Learner and rollouts wait: for a source that gives nothing, or for each other."""
    idle = f"the learner waits {measures.learner_waits:.0%} of its time, rollouts {measures.rollouts_wait_prompts:.0%}"
    if measures.prompts_wait_credit < 0.5:
        last = [each for each in picture.commands if each.target == "prompts" and each.kind == "rate"][-1:]
        why = f"; last command: {last[0].reason}" if last else ""
        per_s = "" if measures.groups_per_s is None else f" gives {measures.groups_per_s:.2g} groups/s"
        return Verdict(
            kind="prompts",
            text=f"{idle}: the prompt source{per_s}, and the credit is not used up{why}",
            advice="look at the prompt producer and its source",
        )
    slowest = measures.slowest_reward
    if slowest is not None and slowest.busy >= 0.9 and (slowest.lag_records is None or slowest.held >= HOLDS / 2):
        return _reward(slowest, measures)
    works = 1 - measures.learner_waits
    if works >= BUSY and works >= 2 * max(measures.rollouts_generate, measures.reward_load):
        return _learner(measures)
    return _turns(idle, measures)


def _turns(idle: str, measures: Measures) -> Verdict:
    """Nobody is slow: what is made and what is trained fill no time together."""
    open_most = "so few" if measures.credit is None else f"at most {measures.credit:.0f}"
    late = "" if not measures.publish_lag else f", reckoned with versions that serve {measures.publish_lag:.0f} late"
    lag, bound = measures.publish_lag, measures.bound
    is_weights = bool(lag) and lag is not None and bound is not None and lag >= bound
    return Verdict(
        kind="weights" if is_weights else "credit",
        text=f"{idle}: they wait for each other by turns, as {open_most} groups may be open{late}",
        advice="a larger `run.max_staleness` lets more groups be open; smaller steps make the turns shorter",
    )


def _evidence(picture: RunPicture, measures: Measures) -> Iterator[str]:
    if not picture.is_settled:
        yield "provisional: the learner is hardly past its first step, so waiting for the first weights counts"
    if not measures.has_scheduler:
        yield "no scheduler is heard: lag is unknown, engines fetch by themselves"
    yield f"learner: waits {measures.learner_waits:.0%}"
    yield (
        f"rollouts: generate {measures.rollouts_generate:.0%}, wait for prompts {measures.rollouts_wait_prompts:.0%}, "
        f"for weights {measures.rollouts_wait_weights:.0%}"
    )
    if measures.open_groups is not None:
        credit = "" if measures.credit is None else f" of {measures.credit:.0f}"
        yield f"open groups: {measures.open_groups:.0f}{credit}"
    if measures.trained_per_s is not None and measures.best_trained_per_s is not None:
        yield f"trained: {measures.trained_per_s:.0f} samples/s, {measures.best_trained_per_s:.0f}/s at its best"
    stale = picture.drops.get("stale", 0)
    if stale and stale >= 0.05 * (stale + picture.totals.trained):
        yield f"dropped as stale: {stale:,} of {stale + picture.totals.trained:,} ids"


def _num(value: float, noun: str) -> str:
    return f"{value:.0f} {noun}" + ("" if round(value) == 1 else "s")


def _spoken(phase: str) -> str:
    return phase.replace("_", " ")
