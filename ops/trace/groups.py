"""The life of a sample, and of a prompt with all its samples.

Data in: `GroupRecords`. Data out: `Life`.
Invariants: of several attempts the one that won is told, or the last one where none did; the others are named. A sample
goes on when all rewards of its attempt are there that the learner used, or when the last record of it was written.
What was scored after its outcome (re-scoring) is apart (`ops.trace.rescored`).
Failure: `TraceError` when the group has no such member; a hop of which no record tells the time is named as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.trace.gather import GroupRecords, Stamped, attempts_of
from ops.trace.life import Hops, Life
from ops.trace.rescored import at_outcome, named, rescored
from ops.trace.target import TraceError
from ops.trace.turns import add_turns
from ops.trace.versions import add_making, add_serving, making_of
from schemas.reasons import Result
from schemas.records import MemberOutcome, Reward, Sample, birth_version

_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What of a group is told."""

    attempt: str
    samples: Sequence[Stamped[Sample]]
    rewards: Sequence[Stamped[Reward]]  # up to the outcome
    late: Sequence[Stamped[Reward]]  # after it
    others: Sequence[str]  # attempts


def sample_life(records: GroupRecords, member: int, *, run: str) -> Life:
    """One member.

    Raises:
        TraceError: the group has no such member.
    """
    prompt = records.prompt
    size = None if prompt is None else prompt.record.group_size
    if size is not None and member >= size:
        raise TraceError(
            f"group {records.group} has {size} members, from 0 on; there is no member {member}",
            hint=f"the whole group: `rlweave trace {run} {records.group}`",
        )
    told = _told(records)
    hops, unknown = Hops(), list[str]()
    own = [each for each in told.samples if each.record.member == member]
    at_ms = None if prompt is None else float(prompt.record.created_unix_ms)
    if own:
        at_ms = _add_sample(hops, own[0], admitted_ms=at_ms)
        rewards = [each for each in told.rewards if each.record.member == member]
        at_ms = _add_rewards(hops, rewards, written_ms=at_ms)
        at_ms = _add_reference(hops, records, member=member, told=told, at_ms=at_ms)
    else:
        unknown.append("is generated: no sample of it is on the log")
    _add_end(hops, records, at_ms=at_ms, unknown=unknown)
    return Life(
        run=run,
        kind="sample",
        id=f"{run}/{records.group}/{member}",
        end=_end(records, member=member),
        hops=hops.all(),
        facts=_facts(told),
        unknown=tuple(unknown),
        num_clock_skews=hops.num_clock_skews,
        afterwards=rescored([each for each in told.late if each.record.member == member]),
    )


def prompt_life(records: GroupRecords, *, run: str) -> Life:
    """A group: each hop from its first member to its last."""
    told, prompt = _told(records), records.prompt
    hops, unknown = Hops(), list[str]()
    at_ms = None if prompt is None else float(prompt.record.created_unix_ms)
    if told.samples:
        at_ms = _add_all(hops, told, admitted_ms=at_ms)
    else:
        unknown.append("is generated: no sample of it is on the log")
    _add_end(hops, records, at_ms=at_ms, unknown=unknown)
    return Life(
        run=run,
        kind="prompt",
        id=f"{run}/{records.group}",
        end=_end(records, member=None),
        hops=hops.all(),
        facts=_facts(told),
        unknown=tuple(unknown),
        num_clock_skews=hops.num_clock_skews,
        afterwards=rescored(told.late),
    )


def _told(records: GroupRecords) -> _Told:
    attempts = attempts_of(records.samples)
    won = None if records.outcome is None else records.outcome.record.attempt
    attempt = won if won in attempts else attempts[-1] if attempts else ""
    rewards = [each for each in records.rewards if each.record.attempt == attempt]
    in_time, late = at_outcome(rewards, outcome=records.outcome)
    return _Told(
        attempt=attempt,
        samples=_first([each for each in records.samples if each.record.attempt == attempt]),
        rewards=in_time,
        late=late,
        others=[each for each in attempts if each != attempt],
    )


def _first(samples: Sequence[Stamped[Sample]]) -> list[Stamped[Sample]]:
    """The first copy of each member."""
    found: dict[int, Stamped[Sample]] = {}
    for each in samples:
        found.setdefault(each.record.member, each)
    return [found[member] for member in sorted(found)]


def _add_sample(hops: Hops, stamped: Stamped[Sample], *, admitted_ms: float | None) -> float:
    sample = stamped.record
    begun_ms, made_ms = float(sample.started_unix_ms), float(sample.finished_unix_ms)
    if admitted_ms is not None:
        hops.add("waits for an engine", span=(admitted_ms, begun_ms), stage="rollout", who=sample.producer)
    if sample.turn_ms:
        add_turns(hops, sample, note=_made(sample))
    else:
        name = "is generated" if sample.failure is None else "is generated, and fails"
        hops.add(name, span=(begun_ms, made_ms), stage="rollout", who=sample.producer, note=_made(sample))
    hops.add("waits for its group, is written", span=(made_ms, stamped.unix_ms), stage="rollout", who=sample.producer)
    return max(made_ms, float(stamped.unix_ms))


def _add_rewards(hops: Hops, rewards: Sequence[Stamped[Reward]], *, written_ms: float) -> float:
    """All of a sample; returns when the last one with a weight was on the log."""
    at_ms = written_ms
    for stamped in rewards:
        reward, name = stamped.record, named(stamped.record, among=rewards)
        scored_ms = float(reward.scored_unix_ms)
        begun_ms = max(written_ms, scored_ms - reward.duration_ms)
        said = f"{reward.value:.4g}" if reward.value is not None else f"failed: {reward.failure}"
        who, stage = reward.producer, "reward"
        hops.add(f"waits for reward {name}", span=(written_ms, begun_ms), stage=stage, who=who)
        hops.add(f"is scored by {name}", span=(begun_ms, scored_ms), stage=stage, who=who, note=said)
        hops.add(f"reward {name} is written", span=(scored_ms, stamped.unix_ms), stage=stage, who=who)
        if reward.weight > 0:
            at_ms = max(at_ms, scored_ms, float(stamped.unix_ms))
    return at_ms


def _add_reference(hops: Hops, records: GroupRecords, *, member: int, told: _Told, at_ms: float) -> float:
    written = [each.unix_ms for each in told.samples if each.record.member == member]
    for stamped in records.references:
        score = stamped.record
        if (score.member, score.attempt) == (member, told.attempt):
            span = (float(written[0]) if written else at_ms, float(stamped.unix_ms))
            hops.add("is scored by the reference", span=span, stage="reference", who=score.producer)
            at_ms = max(at_ms, span[1])
    return at_ms


def _add_all(hops: Hops, told: _Told, *, admitted_ms: float | None) -> float:
    samples = [each.record for each in told.samples]
    begun_ms, made_ms = min(each.started_unix_ms for each in samples), max(each.finished_unix_ms for each in samples)
    slowest = max(samples, key=lambda each: each.finished_unix_ms)
    who, written_ms = slowest.producer, float(max(each.unix_ms for each in told.samples))
    if admitted_ms is not None:
        hops.add("waits for an engine", span=(admitted_ms, begun_ms), stage="rollout", who=who)
    note = f"{len(samples)} samples, the last one is member {slowest.member}"
    hops.add("is generated", span=(begun_ms, made_ms), stage="rollout", who=who, note=note)
    hops.add("is written", span=(made_ms, written_ms), stage="rollout", who=who)
    at_ms = max(float(made_ms), written_ms)
    names = [(named(each.record, among=told.rewards), each) for each in told.rewards]
    for name in dict.fromkeys(name for name, _ in names):
        own = [each for own_name, each in names if own_name == name]
        first = min(own, key=lambda each: each.record.scored_unix_ms - each.record.duration_ms)
        first_ms = first.record.scored_unix_ms - first.record.duration_ms
        last = max(own, key=lambda each: each.unix_ms)
        spent_s = sum(each.record.duration_ms for each in own) / 1000
        note = f"{len(own)} samples, {spent_s:.3f} s of its work, the last one is member {last.record.member}"
        earliest_ms = min(each.unix_ms for each in told.samples)
        begun = max(first_ms, float(earliest_ms))
        hops.add(f"waits for reward {name}", span=(earliest_ms, begun), stage="reward", who=first.record.producer)
        hops.add(
            f"is scored by {name}", span=(begun, last.unix_ms), stage="reward", who=last.record.producer, note=note
        )
        if any(each.record.weight > 0 for each in own):
            at_ms = max(at_ms, float(last.unix_ms))
    return at_ms


def _add_end(hops: Hops, records: GroupRecords, *, at_ms: float | None, unknown: list[str]) -> None:
    """From the last word on the group to its outcome, and on with its version."""
    outcome, version = records.outcome, records.version
    if outcome is None or version is None or at_ms is None:
        return
    who = ""
    if outcome.record.result != Result.TRAINED:
        note = outcome.record.reason if outcome.record.reason is not None else ""
        hops.add("waits for its outcome", span=(at_ms, outcome.unix_ms), stage="learner", who=who, note=note)
        return
    making = making_of(version)
    if making.cut_ms is None:
        hops.add("waits for a batch, is trained and published", span=(at_ms, outcome.unix_ms), stage="learner")
        unknown.append("when the batch was cut: no event tells")
        return
    hops.add("waits for its batch", span=(at_ms, making.cut_ms), stage="learner", who=making.instance)
    published_ms = add_making(hops, version, making=making, unknown=unknown)
    add_serving(hops, version, published_ms=published_ms, unknown=unknown)


def _end(records: GroupRecords, *, member: int | None) -> str:
    if records.outcome is None:
        return "open: the ledger has no outcome of it"
    outcome = records.outcome.record
    at = f"{outcome.lineage}.{outcome.step}"
    own = next((each for each in outcome.members if each.member == member), None)
    if member is None or own is None:
        counts = [f"{sum(each.result == word for each in outcome.members)} {word}" for word in Result]
        reason = "" if outcome.reason is None else f" ({outcome.reason})"
        return f"{outcome.result} at {at}{reason}: {', '.join(counts)}"
    return _end_of(own, at=at)


def _end_of(member: MemberOutcome, *, at: str) -> str:
    if member.result != Result.TRAINED:
        return f"{member.result} at {at}: {member.reason}"
    rewards = ", ".join(f"{use.name} {use.value:.4g}" for use in member.rewards)
    return f"trained into {at}, born of {member.version} at age {member.age}" + (f", {rewards}" if rewards else "")


def _made(sample: Sample) -> str:
    if sample.failure is not None:
        return sample.failure
    parts = [f"{len(sample.completion_tokens) // _BYTES_PER_TOKEN} tokens", sample.finish_reason]
    if sample.version_runs:
        versions = list(dict.fromkeys(str(run.version) for run in sample.version_runs))
        parts.append(f"by {birth_version(sample.version_runs)}" + (f" to {versions[-1]}" if len(versions) > 1 else ""))
    if sample.turns:
        parts.append(f"{len(sample.turns) // _BYTES_PER_TOKEN} turns")
    return ", ".join(part for part in parts if part)


def _facts(told: _Told) -> dict[str, str]:
    facts = {"attempt": told.attempt} if told.attempt else {}
    if told.others:
        facts["other attempts"] = ", ".join(told.others)
    return facts
