"""A weight state as files that model loaders read.

Role: what an export and an engine that loads from a folder have in common.
Data in: a model directory, tensors by name. Data out: its other files beside new weights in safetensors format
(https://github.com/huggingface/safetensors#format).
Invariants: tied tensors are left out, as by `save_pretrained`; no tensor library is needed here; the bytes are the
canonical stream (see `pipeline.weights.state`) behind a header.
Failure: `OSError` of the file system.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import orjson

from pipeline.weights.arrays import Array, pieces, wire_dtype_of
from pipeline.weights.dtypes import tensor_num_bytes

WEIGHTS_FILE = "model.safetensors"
_WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
_CONFIG_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_ALIGN_BYTES = 8


def copy_model_files(model: Path, target: Path) -> None:
    """Copy what is not weights into a directory that is made for it."""
    target.mkdir(parents=True)
    for path in sorted(model.iterdir()):
        if path.is_file() and not path.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copyfile(path, target / path.name)


def say_dtype(config: Path, dtypes: Collection[str]) -> None:
    """Have a configuration name the dtype in which the weights are, when they have one.

    Args:
        dtypes: of the tensors, by their safetensors names.
    """
    floats = set(dtypes) & _CONFIG_DTYPES.keys()
    if len(floats) != 1:
        return
    values = orjson.loads(config.read_bytes())
    if isinstance(values, dict):
        name = _CONFIG_DTYPES[floats.pop()]
        values |= {key: name for key in ("dtype", "torch_dtype") if key in values}
        config.write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def safetensors_header(entries: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The head of a file, its length and padding included.

    Args:
        entries: dtype name and shape of each tensor, in the order of their bytes.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in entries.items():
        end = at + tensor_num_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, end)}
        at = end
    packed = orjson.dumps(header)
    packed += b" " * (-len(packed) % _ALIGN_BYTES)
    return len(packed).to_bytes(8, "little") + packed


def safetensors_content(state: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """A whole file, in pieces.

    Args:
        state: torch tensors or numpy arrays by name, tied names left out.

    Raises:
        WeightsError: a dtype that safetensors does not have.
    """
    own = dict(sorted(state.items()))
    dtypes = {name: wire_dtype_of(tensor, wire_dtype=None) for name, tensor in own.items()}
    yield safetensors_header({name: (dtypes[name], tuple(tensor.shape)) for name, tensor in own.items()})
    for name, tensor in own.items():
        yield from pieces(tensor, dtype=dtypes[name])
