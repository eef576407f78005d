"""Curves for TensorBoard, read back byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

from ops.export_curves import export_curves
from ops.tensorboard import Scalar, crc32c, event_file
from tests.unit.ops.report.made_run import settings, two_lineages
from topics.memory import MemoryLog


def records(content: bytes) -> list[bytes]:
    """The records of a file, with their checksums looked at."""
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        assert unmasked(content[8:12]) == crc32c(content[:8])
        assert unmasked(content[12 + length : 16 + length]) == crc32c(data)
        found.append(data)
        content = content[16 + length :]
    return found


def unmasked(data: bytes) -> int:
    rotated = (int.from_bytes(data, "little") - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def test_the_checksum_is_that_of_the_rfc() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"\x00" * 32) == 0x8A9136AA


def test_a_file_is_framed_events_as_the_messages_say() -> None:
    version, event = records(event_file([Scalar(tag="train/loss", step=300, unix_ms=1500, value=0.5)]))
    assert version == b"\x09" + struct.pack("<d", 0.0) + b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x0atrain/loss" + b"\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    assert event == b"\x09" + struct.pack("<d", 1.5) + b"\x10\xac\x02" + b"\x2a" + bytes([len(summary)]) + summary


def test_a_run_has_its_steps_and_rewards_in_the_file(tmp_path: Path) -> None:
    log = MemoryLog(run="made", data_partitions=4)
    two_lineages(log)
    num = export_curves(log, settings("made", folder=tmp_path), into=tmp_path / "out", form="tensorboard")
    (file,) = (tmp_path / "out").iterdir()
    assert len(records(file.read_bytes())) == num + 1 > 1
    assert b"rollout/reward_by_birth_version" in file.read_bytes()
