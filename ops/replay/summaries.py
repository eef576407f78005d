"""What a person wants to know of a record first: a few lines per record type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from schemas.errors import CodecError
from schemas.packed import unpack_f32, unpack_i32, unpack_mask
from schemas.records import (
    Command,
    DeadLetter,
    Evaluation,
    LedgerSealed,
    LineageStarted,
    Manifest,
    MemberOutcome,
    Outcome,
    PromptGroup,
    Record,
    ReferenceScore,
    Reward,
    Sample,
    StageEvent,
    VersionRun,
)


def summary(record: Record) -> Iterator[str]:
    """A few lines about one record, without control characters: what a record says must not steer a terminal."""
    return map(_in_one_line, _summary(record))


def _summary(record: Record) -> Iterator[str]:
    match record:
        case Sample():
            yield from _sample(record)
        case PromptGroup():
            yield from _prompt(record)
        case Reward():
            said = f"= {record.value:g}" if record.value is not None else f"failed: {printable(record.failure or '')}"
            yield f"{record.name} {said} (weight {record.weight:g}, plug-in {record.plugin_version})"
            yield f"attempt {record.attempt}, sample at offset {record.sample_offset}, took {record.duration_ms:.1f} ms"
        case ReferenceScore():
            values = "none" if record.logprobs is None else _shown(unpack_f32, record.logprobs)
            yield f"log-probabilities {values}" if record.failure is None else f"failed: {printable(record.failure)}"
            yield f"attempt {record.attempt}, sample at offset {record.sample_offset}, model {record.model_digest[:12]}"
        case Outcome():
            yield from _outcome(record)
        case Evaluation():
            said = "no score" if record.mean is None else f"mean {record.mean:g}, of the best {record.best_mean:g}"
            yield f"{record.name} on version {record.version}: {said}"
            yield f"{record.num_scored} scored, {record.num_failed} failed, took {record.duration_s:.1f} s"
        case DeadLetter():
            yield f"from {record.topic}[{record.partition}] {record.offset}, read by {record.reader}"
            yield f"because: {printable(record.error)}"
            yield f"value: {'none' if record.value is None else record.value.hex()}"
        case _:
            yield _one_line(record)


def token_table(sample: Sample) -> Iterator[str]:
    """Token ids of the prompt, then one line per completion token."""
    try:
        prompt, tokens = unpack_i32(sample.prompt_tokens), unpack_i32(sample.completion_tokens)
        logprobs = None if sample.logprobs is None else unpack_f32(sample.logprobs)
    except CodecError as error:
        yield f"tokens cannot be shown: {error.message}"
        return
    mask = unpack_mask(sample.loss_mask, num_tokens=len(tokens))
    # Taken as tokens come, since a run may claim any length.
    versions = (_version(run) for run in sample.version_runs for _ in range(run.num_tokens))
    yield f"prompt tokens: {' '.join(str(token) for token in prompt.tolist())}"
    yield f"{'position':>8} {'token':>8} {_in_one_line(sample.logprobs_kind):>12} {'mask':>4} version"
    for index, token in enumerate(tokens.tolist()):
        logprob = f"{logprobs[index]:.6f}" if logprobs is not None and index < len(logprobs) else "-"
        trains = str(mask[index]) if index < len(mask) else "-"
        yield f"{index:>8} {token:>8} {logprob:>12} {trains:>4} {next(versions, '-')}"


def printable(text: str) -> str:
    """Text without control characters other than line ends."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def _in_one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")


def _sample(sample: Sample) -> Iterator[str]:
    if sample.failure is not None:
        yield f"failed: {printable(sample.failure)} (attempt {sample.attempt}, by {sample.producer})"
        return
    runs = ", ".join(f"{_version(run)} x {run.num_tokens}" for run in sample.version_runs)
    num_tokens = len(sample.completion_tokens) // 4
    yield f"attempt {sample.attempt}, by {sample.producer}"
    yield f"{num_tokens} tokens, {sample.finish_reason}, versions {runs}"
    if sample.turns:
        said = _pairs(sample.environment_facts)
        yield f"{len(sample.turns) // 4} turns with {_in_one_line(sample.environment)}{said}"
        yield f"turns end at {_shown(unpack_i32, sample.turns)}, rewards {_shown(unpack_f32, sample.step_rewards)}"
        if sample.turn_ms:
            yield f"environment and model by turns, ms: {_shown(unpack_i32, sample.turn_ms)}"
    yield from _labelled("prompt", sample.prompt_text)
    yield from _labelled("completion", sample.completion_text)
    if sample.answer is not None:
        yield from _labelled("answer", sample.answer)


def _shown(unpack: Callable[[bytes], NDArray[np.int32] | NDArray[np.float32]], data: bytes) -> str:
    try:
        return " ".join(f"{value:g}" for value in unpack(data).tolist()) if data else "none"
    except CodecError:
        return data.hex()


def _version(run: VersionRun) -> str:
    return f"{run.version}{'' if run.verified else ' unverified'}"


def _prompt(prompt: PromptGroup) -> Iterator[str]:
    yield f"{prompt.group_size} members, source {prompt.source} item {prompt.source_index} of epoch {prompt.epoch}"
    if prompt.text is not None:
        yield from _labelled("prompt", prompt.text)
    for message in prompt.messages if prompt.messages is not None else ():
        yield from _labelled(message.role, message.content)
    if prompt.token_ids is not None:
        yield f"prompt: {len(prompt.token_ids) // 4} token ids"
    if prompt.answer is not None:
        yield from _labelled("answer", prompt.answer)


def _outcome(outcome: Outcome) -> Iterator[str]:
    reason = "" if outcome.reason is None else f" ({outcome.reason})"
    yield f"{outcome.result}{reason} by step {outcome.lineage}.{outcome.step}, seq {outcome.seq}"
    yield f"attempt {outcome.attempt if outcome.attempt is not None else 'none'}"
    yield from (_member(member) for member in outcome.members)


def _member(member: MemberOutcome) -> str:
    parts = [f"member {member.member}: {member.result}"]
    parts += [f"({member.reason})"] if member.reason is not None else []
    parts += [f"version {member.version}"] if member.version is not None else []
    parts += [f"age {member.age}"] if member.age is not None else []
    parts += [f"{use.name} = {use.value:g}" for use in member.rewards]
    return " ".join(parts)


def _one_line(record: Record) -> str:
    match record:
        case LineageStarted():
            origin = f"{record.parent}.{record.branch_step}"
            return f"lineage {record.lineage} from {origin}, by {record.holder}, seq {record.seq}"
        case LedgerSealed():
            return f"lineage {record.lineage} sealed at step {record.step}, {record.num_groups} groups: {record.reason}"
        case Manifest():
            parts = f"{len(record.tensors)} tensors, {len(record.chunks)} chunks"
            if record.listing:
                parts = f"listed apart in {sum(chunk.num_bytes for chunk in record.listing)} bytes"
            size = f"{parts}, {record.num_bytes} bytes"
            return f"version {record.version}, {record.encoding}, {size}"
        case StageEvent():
            version = "" if record.version is None else f", version {record.version}"
            said = _pairs({**record.details, **{name: f"{value:g}" for name, value in record.gauges.items()}})
            return printable(f"{record.instance} {record.kind} {record.name}{version}{said}")
        case Command():
            what = {
                "version": record.version,
                "wave": f"{record.wave + 1} of {len(record.waves)}" if record.waves else None,
                "replicas": record.replicas,
                "rate": record.rate,
                "drain": record.drain,
            }
            said = _pairs({name: str(value) for name, value in what.items() if value is not None})
            return printable(f"{record.kind} to {record.target}{said}, epoch {record.epoch}, because {record.reason}")
        case _:
            return type(record).__name__


def _pairs(values: Mapping[str, str]) -> str:
    return "" if not values else ": " + ", ".join(f"{name} {value}" for name, value in values.items())


def _labelled(label: str, text: str) -> Iterator[str]:
    first, *more = printable(text).split("\n")
    yield f"{label}: {first}"
    yield from (f"  {line}" for line in more)
