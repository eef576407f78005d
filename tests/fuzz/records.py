"""Decoders of records: Avro frames, the checks behind them, and what folds them (ledger, commands)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from consumers.rewards import builtin, verdict
from pipeline.history import ClosedSet, LedgerView, Lineages
from producers.commands import CommandBoard
from schemas import _fastavro, codec, packed, plans, records, validation
from schemas.codec import Codec, decode, encode, headers_of, key_of, record_type_of
from schemas.errors import CodecError, RlweaveError
from schemas.records import (
    Command,
    LedgerSealed,
    LineageStarted,
    Outcome,
    PromptGroup,
    Record,
    Reward,
    Sample,
    Version,
)
from tests.fuzz.decoder import Decode, Decoder, Violated
from tests.fuzz.mutate import mutate_frame, mutate_items, mutate_text, pack_items, unpack_items
from tests.unit.ops.little_run import little_run
from tests.unit.schemas.examples import SAMPLE as EXAMPLE
from topics import dead_letters
from topics.catalog import COMMANDS, LEDGER
from topics.clock import ManualClock

GOLDEN = Path(__file__).parents[1] / "unit" / "schemas" / "golden"
PARTITIONS = 4


def golden_frames(*names: str) -> list[bytes]:
    """Bytes of every shipped schema version, or of these records only."""
    paths = sorted(GOLDEN.glob("*.bin"))
    return [path.read_bytes() for path in paths if not names or path.stem.rpartition("_v")[0] in names]


def _frame(folder: Path) -> Decode:
    """Decoding, and that what was decoded can be written and read again."""

    def run(data: bytes) -> object:
        if len(data) < 2:  # stands for a record without a value
            return dead_letters.readable(None, COMMANDS.records, tombstones=not data)
        record = dead_letters.readable(data, get_args(records.Record), tombstones=False)
        if record is None or record_type_of(data) is not type(record):
            raise Violated(f"the head of a frame of {type(record).__name__} names another type")
        try:
            again = encode(record)
            repeated = encode(decode(again, type(record)))
        except CodecError as error:
            raise Violated(f"what was decoded cannot be written: {error.message}") from error
        if again != repeated:
            raise Violated("decoding and encoding change the bytes")
        return again, key_of(record), headers_of(record), _as_command(data)

    return run


def _as_command(data: bytes) -> list[str]:
    """Why it is no command, on its topic and off it."""
    said = []
    for read in (partial(decode, expect=Command), partial(dead_letters.readable, record_types=(), tombstones=True)):
        try:
            read(data)
        except CodecError as error:
            said.append(error.message)
    return said


def _content(folder: Path) -> Decode:
    """The checks of one record's content; what passes them has the shapes that stages count on."""

    def run(data: bytes) -> object:
        record = decode(data)
        validation.check_possible(record)
        if isinstance(record, Sample):
            _check_shapes(record)
        elif isinstance(record, Reward):
            validation.check_reward(record)
        elif isinstance(record, PromptGroup):
            validation.check_prompt(record)
            return packed.unpack_i32(record.token_ids or b"").sum()
        return repr(record)

    return run


def _check_shapes(sample: Sample) -> None:
    packed.unpack_i32(sample.prompt_tokens)  # a reader may look at them before they are checked
    validation.check_sample(sample, 8)
    if sample.failure is not None:
        return
    tokens, mask = (
        packed.unpack_i32(sample.completion_tokens),
        packed.unpack_mask(sample.loss_mask, num_tokens=len(sample.completion_tokens) // 4),
    )
    logprobs = packed.unpack_f32(sample.logprobs or b"")
    labels = sum(run.num_tokens for run in sample.version_runs)
    if not len(tokens) == len(mask) == len(logprobs) == labels > 0 or tokens.min() < 0 or not logprobs.max() <= 1e-6:
        raise Violated("a checked sample has arrays that differ")
    records.birth_version(sample.version_runs)


def _ledger(folder: Path) -> Decode:
    """Records of several ledger partitions, folded; what cannot be read is left out, as readers do."""

    def run(data: bytes) -> object:
        added = _without_contradictions(_readable_items(data, LEDGER.records))
        view, other = LedgerView(PARTITIONS), LedgerView(PARTITIONS)
        refused = [_add(view, place, record) for place, record in added]
        for place, record in sorted(added, key=lambda each: each[0]):  # another interleaving of the partitions
            _add(other, place, record)
        for place, record in added:  # and once more
            _add(other, place, record)
        said, again = _facts(view), _facts(other)
        if said[:-1] != again[:-1]:
            raise Violated(f"the order of reading counts: {said} and {again}")
        return said, sum(refused)

    return run


def _without_contradictions(added: Sequence[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """One origin per lineage: the broker's fence sees to that."""
    origins: dict[int, tuple[int, int]] = {}
    return [
        (place, record)
        for place, record in added
        if not isinstance(record, LineageStarted)
        or origins.setdefault(record.lineage, (record.parent, record.branch_step))
        == (record.parent, record.branch_step)
    ]


def _add(view: LedgerView, place: int, record: Record) -> bool:
    """Whether it was refused."""
    if not isinstance(record, Outcome | LineageStarted | LedgerSealed):
        raise Violated(f"{type(record).__name__} on the ledger")
    try:
        view.add(place, record)
    except RlweaveError:
        return True
    return False


def _facts(view: LedgerView) -> tuple[object, ...]:
    closed = view.closed
    if ClosedSet.from_json(closed.to_json()) != closed or len(closed) != view.num_closed:
        raise Violated("a closed set is another one after it was written")
    limits = dict(view.lineages.limits)
    lineages = view.lineages.current, sorted(limits.items()), [view.lineages.is_known(each) for each in limits]
    closed_text = (closed.watermark, sorted(closed.to_json().items(), key=str), view.is_closed(closed.watermark))
    horizon = view.horizon
    if horizon is not None:
        beyond = Version(lineage=horizon.lineage, step=horizon.step + 1)
        if not view.is_made(horizon) or view.is_made(beyond):
            raise Violated(f"{horizon} is the newest version that can exist, and is not")
    origins = sorted(view.lineages.origins.items())
    return lineages, origins, horizon, closed_text, view.step, view.next_seq(0), view.sealed is None, view.sealed


def _commands(folder: Path) -> Decode:
    """Commands in the order of a topic, as a producer takes them in."""

    def run(data: bytes) -> object:
        board = CommandBoard("rollout", clock=ManualClock())
        taken: list[bool] = []
        for _, record in _readable_items(data, COMMANDS.records):
            if isinstance(record, Command):
                before = board.epoch
                taken.append(board.add(record))
                if board.epoch < before:
                    raise Violated("an epoch went back")
        kinds = ("publish", "scale", "rate", "drain", "credit", "heartbeat")
        return taken, board.epoch, board.draining, board.silence_s, [repr(board.latest(kind)) for kind in kinds]

    return run


def _scores(folder: Path) -> Decode:
    """The rewards that read what a model wrote: completion and reference answer, with a zero byte between them."""
    scorers = (builtin.ExactMatch(ignore_case=True), builtin.NumberMatch())

    def run(data: bytes) -> object:
        completion, _, reference = data.decode("utf-8", "replace").partition("\0")
        sample = replace(EXAMPLE, completion_text=completion, answer=reference)
        said: list[object] = []
        for scorer in scorers:
            try:
                said.append(verdict.of_value(scorer.score(sample)))
            except ValueError as error:  # documented; the consumer makes a failure of it
                said.append(verdict.of_trouble(verdict.of_error(error), num_retries=1))
        return said

    return run


def _readable_items(data: bytes, types: tuple[type, ...]) -> Sequence[tuple[int, Record]]:
    found = []
    for place, value in unpack_items(data):
        try:
            record = dead_letters.readable(value, types, tombstones=True)
        except CodecError:
            continue
        if record is not None:
            found.append((place % PARTITIONS, record))
    return found


def _ledgers() -> list[bytes]:
    """The golden records, and the ledger of a run whose second lineage makes outcomes of the first one void."""
    golden = [golden_frames(name)[0] for name in ("outcome", "lineage_started", "ledger_sealed")]
    made = [(place, encode(record)) for topic, place, _, record in little_run() if topic is LEDGER]
    return [pack_items(made), pack_items([(3, frame) for frame in golden])]


def _orders() -> list[bytes]:
    frames = golden_frames("command")
    return [pack_items([(0, frame) for frame in frames]), *(pack_items([(0, frame)]) for frame in frames)]


_items: Callable[..., bytes] = partial(mutate_items, item=mutate_frame)
_SCHEMAS = (Codec.decode, Codec.record_type_of, codec.decode, codec._no_reader, _fastavro.read, plans.from_body)

RECORDS = (
    Decoder(
        name="frame",
        seeds=golden_frames,
        start=_frame,
        mutate=mutate_frame,
        covers=(*_SCHEMAS, dead_letters.readable, validation.check_possible),
    ),
    Decoder(
        name="content",
        seeds=partial(golden_frames, "sample", "reward", "prompt_group", "outcome"),
        start=_content,
        mutate=mutate_frame,
        covers=(
            *(validation.check_possible, validation.check_sample, validation.check_reward, validation.check_prompt),
            *(validation._prompt_problem, validation._sampling_problem, validation._token_problem),
            *(validation._check_runs, validation._check_numbers, validation._negative_token, validation._lengths),
            *(packed.unpack_i32, packed.unpack_f32, packed.unpack_u8, packed._view, validation.is_temperature),
        ),
    ),
    Decoder(
        name="ledger",
        seeds=_ledgers,
        start=_ledger,
        mutate=_items,
        covers=(LedgerView, Lineages, ClosedSet.add, ClosedSet.to_json),
    ),
    Decoder(
        name="scores",
        seeds=lambda: [b"so it is 1,234.5e-3\x001.2345", b"no\0no", b"= \xe2\x88\x923\0-3", b"1e999999999\x001"],
        start=_scores,
        mutate=mutate_text,
        covers=(builtin.ExactMatch.score, builtin.NumberMatch.score, builtin.last_number, verdict.of_error),
    ),
    Decoder(name="commands", seeds=_orders, start=_commands, mutate=_items, covers=(CommandBoard,)),
)
