"""Decoders of what learner ranks say to each other: commands, summaries, reports, the state they begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from consumers.learner.outcomes import OutcomeDraft
from consumers.learner.ranks import messages
from consumers.learner.ranks.messages import Command, Message, Summary, Taken, pack_report, unpack_report
from consumers.learner.ranks.state import Start
from schemas.errors import CodecError
from schemas.reasons import Result
from schemas.records import MemberOutcome, RewardUse, Version
from tests.fuzz.decoder import Decode, Decoder
from tests.fuzz.mutate import mutate_bytes, mutate_json

_HEAD_BYTES = 4


def _parsed(*kinds: type[Message]) -> Callable[[Path], Decode]:
    """Each input is tried as every kind of message that a rank may get."""

    def decode(data: bytes) -> object:
        return [_result(kind, data) for kind in kinds]

    return lambda _: decode


def _result(kind: type[Message], data: bytes) -> object:
    try:
        found = kind.parse(data)
    except CodecError as error:
        return type(error).__name__
    if isinstance(found, Command):
        return found, found.plan()
    if isinstance(found, Summary):
        return found, found.offers(), messages.waiting_of([found])
    return found


def _report(data: bytes) -> str:
    try:
        return repr(unpack_report(data))  # a NaN is not equal to itself
    except CodecError as error:
        return type(error).__name__  # the library's own words hold an address


def _messages() -> list[bytes]:
    said: list[Message] = [
        Command(do="read", step=3, wait_s=0.05, engine_ready=True, num_ready=4, closed=(1, 2)),
        Command(do="train", step=4, groups=((3, 8, ()), (6, 8, (1, 7)))),
        Command(do="leave", text="asked to"),
        Summary(num_ready=2, blocked=True, unscored={"match": 3}, offered=((-1, 5, 8, ()), (4, 6, 8, (2,)))),
        Start.parse(
            b'{"step":4,"origins":[[1,0,0],[2,1,4]],"places":[["prompts",0,7]],"watermark":3,"above":[5],'
            b'"model":[{"name":"w","dtype":"float32","shape":[2,3]}],"optimizer":[]}'
        ),
    ]
    return [message.to_bytes() for message in said]


def _reports() -> list[bytes]:
    member = MemberOutcome(
        member=0,
        attempt="a",
        result=Result.TRAINED,
        version=Version(lineage=2, step=3),
        age=1,
        rewards=(RewardUse(name="match", value=0.5, weight=1.0),),
    )
    draft = OutcomeDraft(group=7, result=Result.TRAINED, reason=None, attempt="a", members=(member,))
    return [
        pack_report(Taken(drafts=[draft, draft], positions={("prompts", 1): 5}, topic_ids={"prompts": "p"})),
        pack_report(Taken(drafts=[], positions={}, topic_ids={})),
    ]


def _mutate_report(data: bytes, draw: Random) -> bytes:
    """Change the JSON part and make its length fit, or change the outcomes behind it."""
    end = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    head, bodies = data[_HEAD_BYTES:end], data[end:]
    if draw.random() < 0.5:
        head = mutate_json(head, draw)
    else:
        bodies = mutate_bytes(bodies, draw)
    return len(head).to_bytes(_HEAD_BYTES, "little") + head + bodies


RANKS = (
    Decoder(
        name="rank-messages",
        seeds=_messages,
        start=_parsed(Command, Summary, Start),
        mutate=mutate_json,
        covers=(Message.parse, Command.plan, Summary.offers, messages.waiting_of),
    ),
    Decoder(
        name="rank-report",
        seeds=_reports,
        start=lambda _: _report,
        mutate=_mutate_report,
        covers=(unpack_report, messages._as_draft),
    ),
)
