"""How the ranks of a learner find each other and connect.

    rank 0:  listens -> says where (file) -> has every rank's hello -> "go" -> connects
    others:  read where -> say hello ------------------------------> "go" -> connect

Role: rendezvous only; afterwards `RankGroup` is all that is used.
Data in: address and port from the settings, or from the file that rank 0 writes into the run's folder. Data out: a
`RankGroup`.
Invariants: rank 0 meets the others after it has fenced its predecessor, so ranks of an earlier set meet nobody; all
ranks have the same settings, checked by digest; every wait has a deadline and ends when the stage is asked to stop.
Failure: `RankLost` naming who did not come; `SettingsError` when settings differ; `LeaseHeld` for a process in whose
place another one took part.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from consumers.learner.ranks.backends import Store, gloo, nccl, own_address, reach_store, serve_store
from consumers.learner.ranks.group import Backends, RankGroup
from consumers.learner.ranks.messages import Message
from consumers.learner.ranks.missing import MissingRanks
from consumers.learner.settings import LearnerSettings
from pipeline.flow import count_received
from pipeline.stage import StageContext, host_of
from pipeline.traffic.classes import TrafficClass
from pipeline.weights.scopes import SAME_DOMAIN, SAME_HOST
from schemas.errors import CodecError, LeaseHeld, RankLost, SettingsError
from topics.clock import Deadline

PLACE_FILE = "learner-ranks.json"
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Which rank this process is, and what it must have in common with the others."""

    rank: int
    settings: LearnerSettings
    digest: str  # of everything that must be the same on all ranks
    on_gpu: bool


class Hello(Message):
    """What a rank says of itself."""

    instance: str
    digest: str


class Place(Message):
    """Where rank 0 listens."""

    host: str
    port: int
    session: str | None  # of this set of ranks; None: not known beforehand


class Go(Message):
    """The ranks begin."""

    instances: tuple[str, ...] = ()  # by rank; empty: they will not begin


def digest_of(*values: Mapping[str, object]) -> str:
    """A digest of plain values: the same for the same ones."""
    return hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


def host(context: StageContext, seat: Seat, *, deadline: Deadline) -> RankGroup | None:
    """Rank 0: wait for the others, then connect. None: the stage was asked to stop meanwhile.

    Raises:
        RankLost: a rank did not come in time.
        SettingsError: a rank has other settings, or the address cannot be listened on.
    """
    settings, num_ranks = seat.settings, seat.settings.ranks
    try:
        store = serve_store(settings.rendezvous_host, settings.rendezvous_port)
    except (OSError, RuntimeError) as error:
        raise SettingsError(
            f"learner.rendezvous_host {settings.rendezvous_host} with port {settings.rendezvous_port} cannot be "
            f"listened on: {error}",
            hint="give an address of rank 0's host, and a free port or 0",
        ) from error
    place = Place(host=settings.rendezvous_host, port=store.port, session=secrets.token_hex(8))
    store.set("session", place.session or "")
    _write_place(context.run.folder / PLACE_FILE, place)
    names = {rank: f"hello/{rank}" for rank in range(1, num_ranks)}
    while missing := [rank for rank, name in names.items() if not store.check([name])]:
        if context.stop.wait(_POLL_S):
            return None
        if deadline.expired:
            raise RankLost(
                f"waited {deadline.limit_s:g} s for learner rank(s) {', '.join(map(str, missing))} of {num_ranks}; the "
                "run cannot go on without them",
                hint="start each with `rlweave run learner --slot RANK`; their logs say why one did not come",
            )
    hellos = {rank: Hello.parse(store.get(name)) for rank, name in names.items()}
    for rank, hello in hellos.items():
        if hello.digest != seat.digest:
            store.set("go", Go().to_bytes().decode())
            raise SettingsError(
                f"learner rank {rank} ({hello.instance}) was started with other settings than rank 0",
                hint="give every rank the same run file and the same --set options",
            )
    instances = (context.instance, *(hellos[rank].instance for rank in range(1, num_ranks)))
    store.set("go", Go(instances=instances).to_bytes().decode())
    return _connect(context, seat, store=store, instances=instances)


def join(context: StageContext, seat: Seat, *, deadline: Deadline) -> RankGroup | None:
    """Another rank: find rank 0, say hello, connect. None: the stage was asked to stop meanwhile.

    Raises:
        RankLost: rank 0 was not there in time.
        SettingsError: rank 0 found that the settings differ.
        LeaseHeld: another process took part as this rank.
    """
    while not context.stop.requested:
        if deadline.expired:
            raise RankLost(
                f"learner rank {seat.rank} waited {deadline.limit_s:g} s for a rank 0 that gathers ranks",
                hint="start rank 0 with `rlweave run learner --slot 0`; its log says what it waits for. A host without "
                "the run's folder needs learner.rendezvous_port",
            )
        try:
            found = _say_hello(context, seat, deadline=deadline)
        except (OSError, RuntimeError):  # rank 0 is not there yet, or went away: try again
            found = None
        if found is not None:
            store, instances = found
            return _connect(context, seat, store=store, instances=instances)
        context.stop.wait(_POLL_S)
    return None


def _say_hello(context: StageContext, seat: Seat, *, deadline: Deadline) -> tuple[Store, tuple[str, ...]] | None:
    """Wait at rank 0 for the others; None when there is nobody to wait at."""
    place = _place(context, seat.settings)
    if place is None:
        return None
    store = reach_store(place.host, place.port)
    if place.session is not None and store.get("session") != place.session.encode():
        return None
    if store.check(["go"]):  # those ranks have begun, and will end, as they miss us or have another one
        return None
    store.set(f"hello/{seat.rank}", Hello(instance=context.instance, digest=seat.digest).to_bytes().decode())
    while not store.check(["go"]):
        if context.stop.wait(_POLL_S) or deadline.expired or _place(context, seat.settings) != place:
            return None
    instances = Go.parse(store.get("go")).instances
    if not instances:
        raise SettingsError(
            "rank 0 found that the ranks have different settings", hint="its log says which rank differs from it"
        )
    if instances[seat.rank] != context.instance:
        raise LeaseHeld(
            f"{instances[seat.rank]} takes part as learner rank {seat.rank}; this process does not",
            hint="start every rank once",
        )
    return store, instances


def _connect(context: StageContext, seat: Seat, *, store: Store, instances: tuple[str, ...]) -> RankGroup:
    settings = seat.settings
    num_ranks, limit_s = settings.ranks, settings.collective_limit_s
    lost = MissingRanks(context=context, instances=dict(enumerate(instances)), limit_s=limit_s)
    try:
        address = own_address(settings.rendezvous_host)
        control = gloo(store, rank=seat.rank, num_ranks=num_ranks, address=address, limit_s=limit_s)
        gradients = nccl(store, rank=seat.rank, num_ranks=num_ranks, limit_s=limit_s) if seat.on_gpu else control
    except OSError as error:
        raise SettingsError(
            f"learner.rendezvous_host {settings.rendezvous_host} cannot be reached from here: {error}",
            hint="give an address of rank 0's host that every rank's host can reach",
        ) from error
    except RuntimeError as error:
        raise lost("connecting the ranks", error) from error
    backends = Backends(control=control, gradients=gradients, store=store)
    before = instances[seat.rank - 1]  # in the ring; ranks of several hosts are taken to be in one domain
    scope = SAME_HOST if host_of(before) == host_of(context.instance) else SAME_DOMAIN
    received = partial(count_received(context.metrics, traffic=TrafficClass.GRADIENTS), scope)
    return RankGroup(backends, rank=seat.rank, num_ranks=num_ranks, lost=lost, received=received)


def _place(context: StageContext, settings: LearnerSettings) -> Place | None:
    if settings.rendezvous_port > 0:
        return Place(host=settings.rendezvous_host, port=settings.rendezvous_port, session=None)
    try:
        return Place.parse((context.run.folder / PLACE_FILE).read_bytes())
    except (OSError, CodecError):
        return None


def _write_place(path: Path, place: Place) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_bytes(place.to_bytes())
    aside.replace(path)
