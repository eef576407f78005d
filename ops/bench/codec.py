"""`rlweave bench codec`: a sample to bytes and back, ours against what else one would write.

Each contender carries the whole record. Ours and orjson begin with numpy arrays, as an engine has them; Avro arrays and
json begin with Python lists. Decoding ends with arrays for ours and with lists for the others, which favours them: a
learner needs arrays.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.resources import files

import numpy as np
import orjson

from ops.bench import result
from ops.bench.material import Arrays, make_arrays, make_sample, make_text
from schemas import _fastavro, registry
from schemas.codec import decode, encode
from schemas.packed import unpack_f32, unpack_i32, unpack_u8
from schemas.records import Sample

NUM_TOKENS = 1024
_OURS = "codec"
_ARRAY_FIELDS = {"prompt_tokens": "int", "completion_tokens": "int", "logprobs": "float", "loss_mask": "int"}
_EMPTY_FIELDS = {"turns": "int", "step_rewards": "float", "turn_ms": "int"}  # of a sample without an environment


@dataclass(frozen=True, kw_only=True)
class _Contender:
    key: str
    title: str
    encode: Callable[[], bytes]
    decode: Callable[[bytes], object]


@dataclass(frozen=True, kw_only=True)
class _Measured:
    contender: _Contender
    encode_per_s: float
    decode_per_s: float
    num_bytes: int


def bench_codec(*, quick: bool) -> result.BenchResult:
    """Measure all contenders, interleaved, on one thread."""
    noise = result.Noise()
    num_repeats, repeat_s = (3, 0.02) if quick else (7, 0.25)
    measured = _measure(_contenders(), num_repeats=num_repeats, repeat_s=repeat_s)
    ours = measured[0]
    values: dict[str, result.Number] = {"codec_tokens_per_sample": NUM_TOKENS}
    for each in measured:
        key = each.contender.key
        values |= {f"{key}_encode_per_s": each.encode_per_s, f"{key}_decode_per_s": each.decode_per_s}
        values |= {f"{key}_bytes": each.num_bytes}
    for each in measured[1:]:
        key = each.contender.key
        values[f"encode_over_{key}"] = ours.encode_per_s / each.encode_per_s
        values[f"decode_over_{key}"] = ours.decode_per_s / each.decode_per_s
        values[f"bytes_share_of_{key}"] = ours.num_bytes / each.num_bytes
    return result.BenchResult(
        name="codec",
        table=_table(measured),
        values=values,
        notes=("Whole records, text included; per processor second of one thread; ratios are ours over theirs.",),
        noise=noise.values(num_repeats=num_repeats),
    )


def _measure(contenders: list[_Contender], *, num_repeats: int, repeat_s: float) -> list[_Measured]:
    frames = [each.encode() for each in contenders]
    works: list[Callable[[], object]] = [each.encode for each in contenders]
    works += [partial(each.decode, frame) for each, frame in zip(contenders, frames, strict=True)]
    rates = result.per_second(works, num_repeats=num_repeats, repeat_s=repeat_s)
    encodes, decodes = rates[: len(contenders)], rates[len(contenders) :]
    return [
        _Measured(contender=contender, encode_per_s=encode_per_s, decode_per_s=decode_per_s, num_bytes=len(frame))
        for contender, encode_per_s, decode_per_s, frame in zip(contenders, encodes, decodes, frames, strict=True)
    ]


def _contenders() -> list[_Contender]:
    rng = np.random.default_rng(0)
    arrays, text = make_arrays(rng, num_tokens=NUM_TOKENS), make_text(rng, num_tokens=NUM_TOKENS)
    sample = make_sample(arrays, run="bench", group=7, member=3, text=text)
    rest = {name: value for name, value in asdict(sample).items() if name not in _ARRAY_FIELDS}
    rest |= {name: [] for name in _EMPTY_FIELDS}
    in_arrays: dict[str, object] = {**rest, **{name: getattr(arrays, name) for name in _ARRAY_FIELDS}}
    in_lists: dict[str, object] = {**rest, **{name: getattr(arrays, name).tolist() for name in _ARRAY_FIELDS}}
    schema = _array_schema()
    body = {field.name: in_lists[field.name] for field in fields(Sample)}
    body["version_runs"] = list(rest["version_runs"])
    return [
        _Contender(
            key=_OURS,
            title="rlweave: Avro, packed bytes",
            encode=lambda: encode(make_sample(arrays, run="bench", group=7, member=3, text=text)),
            decode=_decode_ours,
        ),
        _Contender(
            key="avro_arrays",
            title="Avro arrays (fastavro)",
            encode=lambda: _fastavro.write(schema, {**body}, prefix=b""),
            decode=lambda data: _fastavro.read(data, 0, writer=schema),
        ),
        _Contender(
            key="orjson",
            title="orjson with numpy",
            encode=lambda: orjson.dumps({**in_arrays}, option=orjson.OPT_SERIALIZE_NUMPY),
            decode=orjson.loads,
        ),
        _Contender(
            key="json",
            title="json",
            encode=lambda: json.dumps({**in_lists}).encode(),
            decode=json.loads,
        ),
    ]


def _decode_ours(data: bytes) -> Arrays:
    sample = decode(data, Sample)
    return Arrays(
        prompt_tokens=unpack_i32(sample.prompt_tokens),
        completion_tokens=unpack_i32(sample.completion_tokens),
        logprobs=unpack_f32(sample.logprobs if sample.logprobs is not None else b""),
        loss_mask=unpack_u8(sample.loss_mask),
    )


def _array_schema() -> _fastavro.Schema:
    """The shipped sample schema with one number per item where ours has packed bytes."""
    number = registry.shipped().current_of(Sample.__name__).number
    file = files("schemas") / "avro" / registry.directory_of(Sample.__name__) / f"v{number}.avsc"
    text = json.loads(file.read_text(encoding="utf-8"))
    for field in text["fields"]:
        items = {**_ARRAY_FIELDS, **_EMPTY_FIELDS}.get(field["name"])
        if items is not None:
            array = {"type": "array", "items": items}
            field["type"] = ["null", array] if isinstance(field["type"], list) else array
            field.pop("default", None)
    return _fastavro.parse(json.dumps(text))


def _table(measured: list[_Measured]) -> result.Table:
    ours = measured[0]
    rows = tuple(
        (
            each.contender.title,
            result.rate(each.encode_per_s),
            result.rate(each.decode_per_s),
            f"{each.num_bytes:,}",
            result.ratio((ours.encode_per_s, each.encode_per_s)),
            result.ratio((ours.decode_per_s, each.decode_per_s)),
            result.ratio((ours.num_bytes, each.num_bytes)),
        )
        for each in measured
    )
    return result.Table(
        title=f"One sample of {NUM_TOKENS:,} tokens, whole record",
        headers=("format", "encode/s", "decode/s", "bytes", "ours/encode", "ours/decode", "ours/bytes"),
        rows=rows,
    )
