"""The peer process of a host: serves every chunk store that the run has on this machine, and uploads checkpoints.

Role: the stage around `PeerServer`, and the sender of its host: as weights leave through it, it knows at once when
others have to stand back (`pipeline.traffic`). On the learner's host checkpoints are among these (`pipeline.uploads`).
Data in: the chunk files of the learner, the rollout producers, or both, which may come after it has started, and
checkpoints; `commands`. Data out: HTTP, uploads.
Invariants: it outlives the restarts of those it serves, so versions that were published stay fetchable; its directory
entry is renewed before it expires. One that died without an orderly stop is followed by one on the same port, since
manifests name it.
Failure: `WeightsError` when the address cannot be bound, a TLS file cannot be used or the server stopped; Redis being
away is told once and does not matter, as manifests name their seeds. A failing upload is told and tried again.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from pipeline.redis_client import RedisClient
from pipeline.settings import WeightsSettings
from pipeline.stage import TURN_S, StageContext
from pipeline.traffic.classes import TrafficClass
from pipeline.traffic.orders import TrafficOrders
from pipeline.traffic.phase_file import PhaseReader, phase_path
from pipeline.traffic.sender import HostSender
from pipeline.traffic.settings import TrafficSettings
from pipeline.uploads.settings import UploadSettings
from pipeline.uploads.uploader import Uploader
from pipeline.weights.chunks import stores_in
from pipeline.weights.directory import PeerDirectory, PeerInfo
from pipeline.weights.peer import MAX_STREAMS, PeerServer, PeerSettings
from pipeline.weights.peer_file import read_peer_file
from pipeline.weights.tls import server_context
from pipeline.weights.tokens import run_token
from schemas.errors import UploadError, WeightsError
from topics.clock import Deadline

_TTL_S = 30.0  # of the directory entry
_ANNOUNCE_S = 10.0
_SPARE_FILES = 256  # what the process has open besides streams and uploads


class PeerStage:
    """See the module. Constructing it does no I/O.

    Args:
        context: of the process.
        settings: `[weights]`.
        redis: holds the directory; None: manifests alone say where chunks are.
        traffic: `[traffic]`.
        uploads: where checkpoints go; without a URL nowhere.
    """

    def __init__(
        self,
        context: StageContext,
        settings: WeightsSettings,
        *,
        redis: RedisClient | None = None,
        traffic: TrafficSettings | None = None,
        uploads: UploadSettings | None = None,
    ) -> None:
        self._context = context
        self._settings = settings
        self._traffic = traffic if traffic is not None else TrafficSettings()
        self._sender = self._new_sender()
        self._orders = TrafficOrders(context, self._sender)
        self._uploader = None if uploads is None or uploads.upload is None else self._new_uploader(uploads)
        self._directory = PeerDirectory(redis, run=context.run.name, ttl_s=_TTL_S)
        self._server: PeerServer | None = None
        self._announced_s = 0.0
        self._warning = ""

    @property
    def finished(self) -> bool:
        """Never: it serves until it is stopped."""
        return False

    @property
    def url(self) -> str:
        """Base URL while it serves; empty before."""
        return "" if self._server is None else self._server.url

    def start(self, *, deadline: Deadline) -> None:  # noqa: ARG002 - the server has its own limit
        """Serve, and say so.

        Raises:
            WeightsError: the address cannot be bound, or the folder or a TLS file cannot be used.
            DeadlineExceeded: the server did not come up.
        """
        self._server, url = self._serve()
        self._context.events.enter("serving")
        self._context.events.notice("peer_serves", details={"url": url})
        self._announce()
        if self._uploader is not None:
            self._uploader.start()

    def turn(self) -> None:
        """Renew the directory entry when it is time, and hear the scheduler.

        Raises:
            WeightsError: the server has stopped.
            UploadError: the thread of the uploads has stopped.
        """
        if self._server is None or not self._server.alive:
            raise WeightsError("the peer server has stopped; weights of this host cannot be fetched")
        if self._context.clock.monotonic() - self._announced_s >= _ANNOUNCE_S:
            self._announce()
        if self._uploader is not None and not self._uploader.alive:
            raise UploadError("the thread that uploads checkpoints has stopped; this process begins anew")
        self._orders.turn()
        self._context.stop.wait(TURN_S)

    def stop(self, *, deadline: Deadline) -> None:
        """Leave the directory and stop serving; an upload that can be finished in time is."""
        self._orders.close()
        if self._uploader is not None and self._uploader.alive:
            self._uploader.stop(deadline=deadline)
        if self._server is not None and self._server.alive:
            self._directory.withdraw(self._context.instance)
            self._server.stop()

    def _new_sender(self) -> HostSender:
        metrics, traffic, run = self._context.metrics, self._traffic, self._context.run

        def count(sent: TrafficClass, num_bytes: int) -> None:
            metrics.count("traffic_bytes", num_bytes, traffic=sent)

        def held_up(waiting: TrafficClass, seconds: float) -> None:
            metrics.count("traffic_held_up_s", seconds, traffic=waiting)

        return HostSender(
            traffic.permit,
            managed=traffic.managed,
            phase=PhaseReader(phase_path(run.folder)),
            on_sent=count,
            on_held_up=held_up,
        )

    def _new_uploader(self, settings: UploadSettings) -> Uploader:
        context = self._context
        return Uploader(
            settings,
            run=context.run.name,
            folder=context.run.folder,
            sender=self._sender,
            clock=context.clock,
            events=context.events,
            metrics=context.metrics,
        )

    def _serve(self) -> tuple[PeerServer, str]:
        """A server on the port that is set, else on that of a predecessor, else on a free one."""
        _allow_open_files(MAX_STREAMS + 2 * self._settings.max_uploads + _SPARE_FILES)
        run, settings, metrics = self._context.run, self._settings, self._context.metrics
        folder = run.folder / "weights"
        offered = PeerSettings(
            stores=partial(stores_in, folder),
            folder=folder,
            token=run_token(run.folder, token_file=settings.token_file),
            host=settings.host,
            port=settings.port,
            advertised_url=settings.advertised_url,
            domain=settings.domain,
            max_uploads=settings.max_uploads,
            upload_bytes_s=settings.upload_bytes_s,
            sender=self._sender,
            tls=server_context(cert=settings.tls_cert, key=settings.tls_key),
            on_served_bytes=lambda num_bytes: metrics.count("weight_bytes", num_bytes, direction="sent"),
        )
        former = read_peer_file(folder)
        port = None if former is None else urlsplit(former["url"]).port
        if settings.port == 0 and settings.advertised_url is None and port is not None:
            server = PeerServer(replace(offered, port=port))
            try:
                return server, server.start()
            except WeightsError as error:  # somebody else has it by now
                self._context.events.notice("peer_moved", details={"why": error.message})
        server = PeerServer(offered)
        return server, server.start()

    def _announce(self) -> None:
        self._announced_s = self._context.clock.monotonic()
        warning = self._directory.announce(self._context.instance, PeerInfo(url=self.url, domain=self._settings.domain))
        if warning and warning != self._warning:
            self._context.events.notice("redis_unavailable", details={"warning": warning})
        self._warning = warning


def _allow_open_files(number: int) -> None:
    """Raise our soft limit where the system lets us; beyond it connections would wait."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
