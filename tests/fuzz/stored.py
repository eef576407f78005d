"""Decoders of what lies on disk or in Redis: checkpoints, peer files, tokens, peer entries, leases, service states."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import orjson
import torch
from blake3 import blake3
from safetensors.torch import save

from consumers.learner import checkpoint, facts
from consumers.learner.checkpoint import LearnerState, Snapshot
from consumers.learner.settings import CloningSettings, LearnerSettings
from ops.services.state import ServiceState, StateFile
from pipeline import redis_client
from pipeline.history import ClosedSet
from pipeline.lease import Lease
from pipeline.settings import ModelSettings, WeightsSettings
from pipeline.sources import SourceSettings
from pipeline.uploads.layout import Marker, Part, UploadedFile, decode_marker, encode_marker
from pipeline.weights import chunks, directory, manifest, model_files, peer_file, tokens
from pipeline.weights.chunks import ChunkStore
from pipeline.weights.directory import PeerDirectory
from schemas.errors import CheckpointError, LeaseHeld, RedisUnavailable, RlweaveError
from tests.fuzz.decoder import Decode, Decoder, Violated
from tests.fuzz.mutate import (
    INTS,
    TEXTS,
    mutate_bytes,
    mutate_items,
    mutate_json,
    mutate_text,
    pack_items,
    unpack_items,
)

_FILES = ("manifest.json", "state.json", "model.safetensors", "optimizer.safetensors")
_DIGEST = "ab" * 32


def _snapshot() -> Snapshot:
    state = LearnerState(
        lineage=2,
        step=7,
        positions={"prompts/0": 3, "samples/0": 107},
        topic_ids={"prompts": "p", "samples": "s"},
        closed={"watermark": 4, "above": [6, 9]},
        num_cloning_steps=3,
        threads=1,
        first_anchor=_DIGEST,
    )
    model = {"w": torch.ones(2, 3), "v": torch.ones(4, dtype=torch.bfloat16), "x": torch.tensor(3)}
    optimizer = {"exp_avg.0": torch.ones(2, 3), "step.0": torch.tensor(7.0)}
    return Snapshot(state=state, model=model, optimizer={**optimizer, "generator": torch.Generator().get_state()})


def _checkpoint(folder: Path) -> Decode:
    """A checkpoint in which files were exchanged (number: which one) and digests made to fit, as a thief would."""
    whole = folder / "2.7"
    save_whole(whole)
    original = {name: (whole / name).read_bytes() for name in _FILES}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, 3))])

    def run(data: bytes) -> object:
        changed = {_FILES[number % len(_FILES)]: value for number, value in unpack_items(data)}
        for name in _FILES[1:]:
            (whole / name).write_bytes(changed.get(name, original[name]))
        (whole / _FILES[0]).write_bytes(changed[_FILES[0]] if _FILES[0] in changed else _manifest_of(whole))
        try:
            found = checkpoint.load(whole)
        except CheckpointError:  # its text quotes safetensors, which does not always say the same
            return "refused"
        closed = ClosedSet.from_json(found.state.closed)
        optimizer.state.clear()
        saved = dict(found.optimizer)
        checkpoint.restore_generator(torch.Generator(), saved.pop("generator", None))
        checkpoint.restore_optimizer(optimizer, saved)
        shapes = sorted((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in saved.items())
        return repr(found.state), len(closed), shapes, sorted(found.model)

    return run


def save_whole(path: Path) -> None:
    """A checkpoint as the learner writes it."""
    checkpoint.save(path.parent, _snapshot()).rename(path)


def _manifest_of(path: Path) -> bytes:
    files = {}
    for name in _FILES[1:]:
        content = (path / name).read_bytes()
        files[name] = {"num_bytes": len(content), "blake3": blake3(content).hexdigest()}
    return orjson.dumps({"format": checkpoint.FORMAT, "files": files})


class FakeRedis(redis_client.RedisClient):
    """Answers with what the input says."""

    def __init__(self) -> None:
        super().__init__("redis://127.0.0.1:1/0")
        self.value = ""

    def members(self, key: str) -> list[str]:
        return ["one", "two"]

    def get_many(self, keys: Sequence[str]) -> list[str | None]:
        if not self.value:
            raise RedisUnavailable("it went away")
        return [self.value, None][: len(keys)]

    def remove_from_set(self, key: str, members: object) -> None:
        """Nothing is kept."""

    def script(self, lua: str, *, keys: Sequence[str], args: Sequence[str]) -> list[str]:
        if not self.value:
            raise RedisUnavailable("it went away")
        return self.value.split(" ")


def _peer_file(path: Path, value: bytes) -> object:
    (path / peer_file.PEER_FILE).write_bytes(value)
    return peer_file.read_peer_file(path)


def _token(path: Path, value: bytes) -> object:
    (path / "peer-token").unlink(missing_ok=True)
    if not value:
        return len(tokens.load_or_create_token(path / "peer-token"))
    (path / "peer-token").write_bytes(value)
    found = tokens.load_or_create_token(path / "peer-token")
    if not tokens.is_authorized(f"Bearer {found}", token=found, url="http://127.0.0.1:1"):
        raise Violated("a token does not fit itself")
    return found, tokens.is_authorized(value.decode("utf-8", "surrogateescape"), token=found, url="http://127.0.0.1:1")


def _pins(path: Path, value: bytes) -> object:
    store = ChunkStore(path / "store", max_bytes=2**20)
    store.pin("learner", {_DIGEST})
    (store.root / "pins" / "learner").write_bytes(value)
    return {owner: sorted(digests) for owner, digests in store.pins().items()}


def _entry(redis: FakeRedis, value: bytes) -> object:
    redis.value = value.decode("utf-8", "replace")
    return PeerDirectory(redis, run="demo").peers()


def _lease(redis: FakeRedis, value: bytes) -> object:
    redis.value = value.decode("utf-8", "replace")
    held = Lease(redis, key="rlweave:demo:lease:learner", owner="a", ttl_s=1.0)
    said: list[object] = []
    for call in (held.acquire, held.renew, held.release):
        try:
            said.append(call())
        except LeaseHeld as error:
            said.append(error.message)
    return said


def _index(path: Path, value: bytes) -> object:
    (path / "model.safetensors.index.json").write_bytes(value)
    return model_files._paths(path)


def _services(path: Path, value: bytes) -> object:
    (path / "services.json").write_bytes(value)
    state = StateFile(path)
    return state.read("kafka"), state.read("redis")


def _entries(folder: Path) -> Decode:
    """Small files and Redis values; an item's number says of which kind it is."""
    redis = FakeRedis()
    readers: tuple[Decode, ...] = (
        *(partial(read, folder) for read in (_peer_file, _token, _pins)),
        *(partial(read, redis) for read in (_entry, _lease)),
        *(partial(read, folder) for read in (_services, _index)),
    )

    def run(data: bytes) -> object:
        said: list[object] = []
        for number, value in unpack_items(data):
            try:
                said.append(readers[number % len(readers)](value))
            except RlweaveError as error:
                said.append(f"{error.message} | {error.hint}")
        return said

    return run


def _mutate_checkpoint(data: bytes, draw: Random) -> bytes:
    """Change JSON as JSON, and of a safetensors file the header as JSON, its length kept right most of the time."""
    return mutate_items(data, draw, item=_mutate_file)


def _mutate_file(data: bytes, draw: Random) -> bytes:
    if data[:1] == b"{":
        return mutate_json(data, draw)
    if len(data) < 8 or draw.random() < 0.3:
        return mutate_bytes(data, draw)
    num_bytes = int.from_bytes(data[:8], "little")
    header, rest = mutate_json(data[8 : 8 + num_bytes], draw), data[8 + num_bytes :]
    length = len(header) if draw.random() < 0.9 else draw.choice(INTS) % 2**64
    return struct.pack("<Q", length) + header + rest


def _mutate_entry(data: bytes, draw: Random) -> bytes:
    if draw.random() < 0.05:
        return draw.choice(TEXTS).encode("utf-8", "surrogatepass")
    return mutate_json(data, draw) if data[:1] in b"{[" else mutate_text(data, draw)


def _checkpoint_files() -> list[bytes]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "2.7")
        save_whole(path)
        whole = [(number, (path / name).read_bytes()) for number, name in enumerate(_FILES)]
    return [pack_items([item]) for item in (*whole, *_nearly_whole(*(content for _, content in whole[:2])))]


def _nearly_whole(manifest_json: bytes, state_json: bytes) -> list[tuple[int, bytes]]:
    """Files with one fault each, which mutation alone seldom makes."""
    state = [{"positions": {"prompts": 3}}, {"closed": {"watermark": 4}}, {"closed": {"watermark": 4, "above": [-6]}}]
    entries = [{"num_bytes": 1}, {"blake3": _DIGEST}]
    listed = orjson.loads(manifest_json)
    generator = torch.Generator().get_state()
    optimizers = [
        {"exp_avg.0": torch.ones(2, 3)},
        {"exp_avg.9": torch.ones(2, 3), "generator": generator},
        {"exp_avg.0": torch.ones(3, 2), "generator": generator},
        {"generator": torch.ones(3)},
    ]
    return [
        *((1, orjson.dumps(orjson.loads(state_json) | change)) for change in state),
        (0, orjson.dumps(listed | {"format": 0})),
        *(
            (0, orjson.dumps(listed | {"files": listed["files"] | {_FILES[1]: listed["files"][_FILES[1]] | entry}}))
            for entry in entries
        ),
        *((3, save(tensors)) for tensors in optimizers),
    ]


def _small_files() -> list[bytes]:
    pid = {"pid": 4711, "started": "boot/1"}
    texts = [
        json.dumps({"url": "http://127.0.0.1:8000", "pid": 4711}),
        "s3cr3t-s3cr3t-s3cr3t",
        f"{_DIGEST}\n\n{'cd' * 32}\n",
        json.dumps({"url": "http://10.0.0.1:8000", "domain": "rack-1"}),
        "yours a 3 1000",
        json.dumps({"kafka": {"ports": [9092, 9093], "process": pid, "external": None}}),
        "other b 2 900",
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "../x"}}),
    ]
    kinds = (0, 1, 2, 3, 4, 5, 4, 6)
    items = [(kind, text.encode()) for kind, text in zip(kinds, texts, strict=True)]
    return [pack_items(items), *(pack_items([item]) for item in items)]


def _facts(_: Path) -> Decode:
    """The settings of a lineage, as the ledger has them."""
    return lambda data: facts.arithmetic_in({facts.SETTINGS: data.decode(errors="replace")})


def _kept_settings() -> list[bytes]:
    source = SourceSettings(files=(Path("demonstrations.jsonl"),))
    settings = LearnerSettings(cloning=CloningSettings(num_steps=3, source=source))
    model = ModelSettings(path=Path("model"))
    return [
        facts.Arithmetic.of(each, model=model, weights=weights, seed=7).model_dump_json().encode()
        for each, weights in (
            (LearnerSettings(), WeightsSettings()),
            (settings, WeightsSettings(wire_dtype="bfloat16")),
        )
    ]


def _upload(_: Path) -> Decode:
    """The marker of an uploaded checkpoint, which whoever may write at the target can replace."""

    def run(data: bytes) -> object:
        marker = decode_marker(data)
        if any("/" in name for name in (*(file.name for file in marker.files), *marker.part_sizes)):
            raise Violated("a marker names something elsewhere")
        return encode_marker(marker)

    return run


def _markers() -> list[bytes]:
    part = Part(digest=_DIGEST, num_bytes=5)
    files = tuple(UploadedFile(name=name, num_bytes=10, parts=(part, part)) for name in _FILES)
    whole = Marker(format=1, files=files)
    faults = (
        replace(whole, format=2),
        replace(whole, files=files[:2]),
        replace(whole, files=(replace(files[0], num_bytes=9), *files[1:])),
    )
    return [encode_marker(marker) for marker in (whole, *faults)]


STORED = (
    Decoder(
        name="upload",
        seeds=_markers,
        start=_upload,
        mutate=mutate_json,
        covers=(decode_marker, encode_marker),
    ),
    Decoder(
        name="facts",
        seeds=_kept_settings,
        start=_facts,
        mutate=mutate_json,
        covers=(facts.arithmetic_in, facts._not_understood),
    ),
    Decoder(
        name="checkpoint",
        seeds=_checkpoint_files,
        start=_checkpoint,
        mutate=_mutate_checkpoint,
        covers=(
            *(checkpoint.load, checkpoint._read_state, checkpoint._check_manifest, checkpoint._digest),
            *(checkpoint.restore_optimizer, checkpoint.restore_generator, ClosedSet.from_json),
        ),
    ),
    Decoder(
        name="entries",
        seeds=_small_files,
        start=_entries,
        mutate=partial(mutate_items, item=_mutate_entry),
        covers=(
            *(peer_file.read_peer_file, tokens.load_or_create_token, tokens.is_authorized, chunks._read_pins),
            *(ChunkStore.pins, model_files._paths, directory._peer_of, PeerDirectory.peers, manifest.check_peer_url),
            *(Lease.acquire, Lease.renew, Lease.release, Lease._take),
            *(StateFile.read, StateFile._read_all, StateFile._damaged, ServiceState.from_json),
        ),
    ),
)
