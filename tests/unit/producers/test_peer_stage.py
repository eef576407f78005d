"""The peer process as a stage: serves the chunks of its host, counts them, and lives without Redis."""

from __future__ import annotations

import resource
import ssl
import urllib.request
from pathlib import Path

import pytest
import trustme

from pipeline.redis_client import RedisClient
from pipeline.settings import WeightsSettings
from pipeline.traffic.settings import TrafficSettings
from pipeline.uploads.layout import MARKER
from pipeline.uploads.settings import UploadSettings
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.download import ClientSettings
from pipeline.weights.fetcher import fetch
from pipeline.weights.peer import MAX_STREAMS
from pipeline.weights.peer_file import read_peer_file, write_peer_file
from pipeline.weights.peer_stage import PeerStage
from pipeline.weights.tls import client_context
from pipeline.weights.tokens import bearer, load_or_create_token
from schemas.errors import WeightsError
from schemas.records import ChunkRef, Command
from tests.unit.pipeline.uploads.material import TOTAL, make_checkpoint
from tests.unit.producers.world import World, events_of, started
from topics.catalog import COMMANDS
from topics.clock import Deadline, SystemClock
from topics.memory import MemoryLog


@pytest.fixture
def world(memory_log: MemoryLog, tmp_path: Path) -> World:
    return World(log=memory_log, folder=tmp_path, clock=SystemClock())


def test_serves_the_learners_chunks(world: World, tmp_path: Path) -> None:
    context = world.context("peer")
    stage = PeerStage(context, WeightsSettings())
    started(stage)
    stage.turn()
    world.seeds = (stage.url,)
    manifest = world.publish(1, 0)
    token = load_or_create_token(world.run.folder / "peer-token")
    store = ChunkStore(tmp_path / "other", max_bytes=2**20)
    assert (
        fetch(manifest, store=store, client=ClientSettings(token=token), deadline=Deadline.after(10)).bytes_fetched == 8
    )
    found = read_peer_file(world.store.root.parent)
    assert found is not None
    assert found["url"] == stage.url
    stage.stop(deadline=Deadline.after(5))
    assert context.metrics.snapshot()["weight_bytes{direction=sent}"] == 8
    assert read_peer_file(world.store.root.parent) is None


def test_stores_that_are_made_later_are_served_as_well(world: World, tmp_path: Path) -> None:
    stage = PeerStage(world.context("peer"), WeightsSettings())
    started(stage)
    engines = ChunkStore(world.run.folder / "weights" / "engines", max_bytes=2**20)
    chunk = engines.put(b"from another host")
    got = _fetch_chunk(stage.url, chunk, token=load_or_create_token(world.run.folder / "peer-token"), tls=None)
    assert got == b"from another host"
    stage.stop(deadline=Deadline.after(5))


def test_tls_files_make_it_https(world: World, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stage = PeerStage(world.context("peer"), WeightsSettings(tls_cert=tmp_path / "both.pem"))
    started(stage)
    chunk = world.store.put(b"abc")
    found = read_peer_file(world.run.folder / "weights")
    assert found is not None
    assert found["url"].startswith("https://")
    token = load_or_create_token(world.run.folder / "peer-token")
    assert _fetch_chunk(found["url"], chunk, token=token, tls=client_context(ca=tmp_path / "ca.pem")) == b"abc"
    stage.stop(deadline=Deadline.after(5))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tls_cert": "nowhere.pem"}, "tls_cert nowhere.pem cannot be read"),
        ({"tls_key": "nowhere.pem"}, "tls_cert is not set"),
        ({"upload_bytes_s": {"weights": 0.0}}, "must be above 0"),
        ({"upload_bytes_s": {"UPPER": 1.0}}, "traffic class 'UPPER'"),
    ],
)
def test_settings_that_cannot_be_end_the_start(world: World, fields: dict[str, object], says: str) -> None:
    stage = PeerStage(world.context("peer"), WeightsSettings.model_validate(fields))
    with pytest.raises(WeightsError, match=says):
        started(stage)
    stage.stop(deadline=Deadline.after(5))
    assert read_peer_file(world.run.folder / "weights") is None


def test_a_successor_of_one_that_died_takes_its_port(world: World) -> None:
    first = PeerStage(world.context("peer"), WeightsSettings())
    started(first)
    url = first.url
    first.stop(deadline=Deadline.after(5))
    write_peer_file(world.run.folder / "weights", url=url)  # as one that was killed leaves it
    second = PeerStage(world.context("peer"), WeightsSettings())
    started(second)
    assert second.url == url
    second.stop(deadline=Deadline.after(5))


@pytest.mark.parametrize("content", ["", "[]", '{"url": 1, "pid": 1}', '{"url": "http://a:99999", "pid": 1}'])
def test_a_peer_file_that_is_none_does_not_matter(world: World, content: str) -> None:
    folder = world.run.folder / "weights"
    folder.mkdir(parents=True)
    (folder / "peer.json").write_text(content)
    stage = PeerStage(world.context("peer"), WeightsSettings())
    started(stage)
    assert stage.url
    stage.stop(deadline=Deadline.after(5))


def test_the_limit_of_open_files_fits_the_streams(world: World) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2048:
        pytest.skip("the hard limit of open files is too low here")
    stage = PeerStage(world.context("peer"), WeightsSettings())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
        started(stage)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > MAX_STREAMS
    finally:
        stage.stop(deadline=Deadline.after(5))
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_uploads_checkpoints_as_a_command_permits_and_counts_what_leaves(world: World, tmp_path: Path) -> None:
    context = world.context("peer")
    target = tmp_path / "copies"
    uploads = UploadSettings(upload=f"file://{target}", upload_part_bytes=50_000)
    closed = TrafficSettings(rates={"checkpoints": 0.0})
    stage = PeerStage(context, WeightsSettings(), traffic=closed, uploads=uploads)
    started(stage)
    make_checkpoint(world.run.folder / "checkpoints", "1.10")
    deadline = Deadline.after(20.0)
    held_up = "traffic_held_up_s{traffic=checkpoints}"
    while context.metrics.snapshot().get(held_up, 0.0) == 0.0:
        deadline.check("the upload to stand back")
        stage.turn()
    marker = target / world.run.name / "1.10" / MARKER
    assert (world.run.folder / "uploads" / "1.10").exists()
    assert not marker.exists()
    command = Command(
        run=world.run.name,
        target="host",
        kind="traffic",
        epoch=1,
        seq=0,
        reason="there is room",
        issued_unix_ms=0,
        rates={"checkpoints": 1e9},
    )
    world.write((COMMANDS, command, None))
    while not marker.exists():
        deadline.check("the checkpoint to be uploaded")
        stage.turn()
    stage.stop(deadline=Deadline.after(10))
    counted = context.metrics.snapshot()
    assert counted["traffic_bytes{traffic=checkpoints}"] == TOTAL
    assert [each["rates"] for each in events_of(world.log, "traffic_permitted")] == ["checkpoints 1e+09"]
    assert len(events_of(world.log, "checkpoint_uploaded")) == 1


def _fetch_chunk(url: str, chunk: ChunkRef, *, token: str, tls: ssl.SSLContext | None) -> bytes:
    request = urllib.request.Request(
        f"{url}/v1/chunks/{chunk.digest}", headers={"Authorization": bearer(token, url=url)}
    )
    with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
        data: bytes = answer.read()
    return data


def test_redis_away_is_told_and_does_not_matter(world: World) -> None:
    redis = RedisClient("redis://127.0.0.1:9", timeout_s=0.2)
    stage = PeerStage(world.context("peer"), WeightsSettings(), redis=redis)
    started(stage)
    stage.turn()
    assert len(events_of(world.log, "redis_unavailable")) == 1
    stage.stop(deadline=Deadline.after(5))


def test_a_server_that_stopped_ends_the_stage(world: World) -> None:
    stage = PeerStage(world.context("peer"), WeightsSettings())
    started(stage)
    assert stage._server is not None
    stage._server.stop()
    with pytest.raises(WeightsError, match="has stopped"):
        stage.turn()
    stage.stop(deadline=Deadline.after(5))


def test_a_port_that_is_taken_is_named(world: World) -> None:
    first = PeerStage(world.context("peer"), WeightsSettings())
    started(first)
    port = int(first.url.rsplit(":", 1)[1])
    second = PeerStage(world.context("peer"), WeightsSettings(port=port))
    with pytest.raises(WeightsError, match=str(port)):
        started(second)
    second.stop(deadline=Deadline.after(5))
    first.stop(deadline=Deadline.after(5))
