"""Checkpoints are whole or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from consumers.learner import checkpoint
from consumers.learner.checkpoint import (
    LearnerState,
    Snapshot,
    load,
    newest_valid,
    optimizer_tensors,
    prune,
    restore_optimizer,
    save,
    save_again,
    versions,
)
from consumers.learner.recovery import surviving
from pipeline.history import ClosedSet, Lineages
from schemas.errors import CheckpointError
from schemas.records import Version
from tests.unit.consumers.learner.material import lineages
from topics.clock import Deadline


def every(_: Version) -> bool:
    return True


def snapshot(step: int, *, lineage: int = 1) -> Snapshot:
    state = LearnerState(
        lineage=lineage,
        step=step,
        positions={"samples/0": 100 + step},
        topic_ids={"samples": "abc"},
        closed=ClosedSet(range(step)).to_json(),
        num_cloning_steps=3,
        threads=1,
        first_anchor="d" * 64,
    )
    weights = torch.full((4, 3), float(step))
    return Snapshot(state=state, model={"w": weights}, optimizer={"generator": torch.Generator().get_state()})


def newest(folder: Path) -> Snapshot:
    restored = newest_valid(folder, survives=every)
    assert restored is not None
    return restored.snapshot


def test_what_is_saved_is_restored(tmp_path: Path) -> None:
    saved = snapshot(7)
    save(tmp_path, saved)
    found = newest(tmp_path)
    assert found.state == saved.state
    assert torch.equal(found.model["w"], saved.model["w"])
    assert torch.equal(found.optimizer["generator"], saved.optimizer["generator"])


def test_a_lineage_keeps_the_tensors_it_began_with_without_writing_them_again(tmp_path: Path) -> None:
    first = save(tmp_path, snapshot(7))
    state = replace(snapshot(7).state, lineage=2, ranks=2)
    second = save_again(tmp_path, state, like=first)
    assert (second / "model.safetensors").stat().st_ino == (first / "model.safetensors").stat().st_ino
    found = newest(tmp_path)
    assert (found.state, torch.equal(found.model["w"], snapshot(7).model["w"])) == (state, True)
    prune(tmp_path, keep=1, survives=every)
    assert newest(tmp_path).state == state, "the first one is gone"
    (second / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"3\.7 was not written"):
        save_again(tmp_path, replace(state, lineage=3), like=second)
    assert [path.name for path in tmp_path.iterdir()] == ["2.7"], "nothing half-written remains"


def test_none_is_told_apart_from_broken(tmp_path: Path) -> None:
    assert newest_valid(tmp_path / "absent", survives=every) is None
    path = save(tmp_path, snapshot(1))
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        newest_valid(tmp_path, survives=every)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty_manifest"])
def test_a_damaged_newest_one_is_passed_over_and_named(tmp_path: Path, damage: str) -> None:
    """Case 43."""
    save(tmp_path, snapshot(1))
    path = save(tmp_path, snapshot(2))
    weights = path / "model.safetensors"
    content = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(content[:-5])
    elif damage == "flip":
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "remove":
        weights.unlink()
    else:
        (path / "manifest.json").write_bytes(b"")
    restored = newest_valid(tmp_path, survives=every)
    assert restored is not None
    assert restored.snapshot.state.step == 1
    assert len(restored.skipped) == 1
    assert "1.2" in restored.skipped[0]


def test_one_under_the_name_of_another_version_is_not_restored(tmp_path: Path) -> None:
    """Its positions and closed groups would be those of another step than history is branched from."""
    save(tmp_path, snapshot(7))
    save(tmp_path, snapshot(3)).rename(tmp_path / "1.9")
    restored = newest_valid(tmp_path, survives=every)
    assert restored is not None
    assert restored.snapshot.state.step == 7
    assert "1.9 is of version 1.3, not of its name" in restored.skipped[0]


def test_one_of_another_format_names_both_formats(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot(7))
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match="is of format 2, this release reads format 1"):
        newest_valid(tmp_path, survives=every)


def test_a_higher_lineage_wins_over_a_higher_step(tmp_path: Path) -> None:
    save(tmp_path, snapshot(9, lineage=1))
    save(tmp_path, snapshot(4, lineage=2))
    assert (newest(tmp_path).state.lineage, newest(tmp_path).state.step) == (2, 4)


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, snapshot(step))
    prune(tmp_path, keep=2, survives=every)
    assert [version.step for version in versions(tmp_path)] == [5, 4]


def test_what_a_replaced_learner_wrote_too_late_is_neither_restored_nor_kept(tmp_path: Path) -> None:
    """Lineage 2 began at step 5 of lineage 1; then 1.10 appears."""
    survives = surviving(lineages((1, 0, 0), (2, 1, 5)))
    save(tmp_path, snapshot(5))
    save(tmp_path, snapshot(10))
    restored = newest_valid(tmp_path, survives=survives)
    assert restored is not None
    assert restored.snapshot.state.step == 5
    assert ["1.10" in why for why in restored.skipped] == [True]
    prune(tmp_path, keep=1, survives=survives)
    assert [version.step for version in versions(tmp_path)] == [5]


def test_only_void_ones_are_none_at_all(tmp_path: Path) -> None:
    save(tmp_path, snapshot(0))
    assert newest_valid(tmp_path, survives=surviving(lineages((1, 0, 0), (2, 0, 0)))) is None


def test_a_lineage_the_ledger_does_not_know_is_not_ruled_out(tmp_path: Path) -> None:
    save(tmp_path, snapshot(4))
    assert newest_valid(tmp_path, survives=surviving(Lineages())) is not None


def test_a_full_disk_leaves_the_earlier_ones_and_no_remains(tmp_path: Path) -> None:
    """Case 43."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    try:
        save(folder, snapshot(1))
        large = replace(snapshot(2), model={"w": torch.zeros(64_000)})
        with pytest.raises(CheckpointError, match=r"1\.2"):
            save(folder, large)
        assert newest(folder).state.step == 1
        assert [path.name for path in folder.iterdir()] == ["1.1"]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_remains_of_a_killed_save_are_removed_and_not_restored(tmp_path: Path) -> None:
    save(tmp_path, snapshot(1))
    remains = tmp_path / ".tmp-1.2-123"
    remains.mkdir()
    (remains / "model.safetensors").write_bytes(b"half")
    assert newest(tmp_path).state.step == 1
    assert not remains.exists()


def test_optimizer_state_survives_exactly() -> None:
    first = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(first.parameters(), lr=0.1)
    first(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    second = torch.nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    other = torch.optim.AdamW(second.parameters(), lr=0.1)
    restore_optimizer(other, optimizer_tensors(optimizer))
    for model, rule in ((first, optimizer), (second, other)):
        rule.zero_grad()
        model(torch.full((1, 3), 2.0)).sum().backward()
        rule.step()
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_optimizer_state_of_another_model_is_refused() -> None:
    optimizer = torch.optim.AdamW(torch.nn.Linear(3, 2).parameters())
    with pytest.raises(CheckpointError, match="shape"):
        restore_optimizer(optimizer, {"exp_avg.0": torch.zeros(5, 5)})
    with pytest.raises(CheckpointError, match="does not belong"):
        restore_optimizer(optimizer, {"exp_avg.9": torch.zeros(2, 3)})


def test_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """Case 43."""
    save(tmp_path, snapshot(1))
    random = Random(5)
    for _ in range(20):
        before = newest(tmp_path).state.step
        child = os.fork()
        if child == 0:
            for step in range(before + 1, before + 1000):
                save(tmp_path, snapshot(step))
            os._exit(0)
        time.sleep(random.uniform(0.0, 0.03))  # the moment itself is what varies; nothing waits for a state
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = newest(tmp_path)
        assert found.state.step >= before
        assert found.model["w"][0, 0].item() == found.state.step
        assert ClosedSet.from_json(found.state.closed) == ClosedSet(range(found.state.step))


def test_a_restore_while_another_save_runs_is_whole_and_of_a_step_that_was_done(tmp_path: Path) -> None:
    """Case 43: a second process saves and prunes all the time; what is read is one step, all of it."""
    save(tmp_path, snapshot(1))
    child = os.fork()
    if child == 0:
        for step in range(2, 100_000):
            save(tmp_path, snapshot(step))
            prune(tmp_path, keep=3, survives=every)
        os._exit(0)
    seen: list[int] = []
    try:
        deadline = Deadline.after(20)
        while len(set(seen)) < 20:
            deadline.check(f"20 different steps, seen {sorted(set(seen))}")
            step = versions(tmp_path)[0].step
            try:
                found = load(tmp_path / f"1.{step}")
            except CheckpointError:
                assert versions(tmp_path)[0].step >= step + 3, "torn, and not pruned meanwhile"
                continue
            seen.append(found.state.step)
            assert found.model["w"][0, 0].item() == found.state.step
            assert ClosedSet.from_json(found.state.closed) == ClosedSet(range(found.state.step))
            assert found.state.positions == {"samples/0": 100 + found.state.step}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen == sorted(seen)
    assert newest(tmp_path).state.step >= seen[-1]


def test_tensors_removed_while_they_are_mapped_are_a_checkpoint_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process prunes meanwhile: torch, not the file system, says so."""
    save(tmp_path, snapshot(1))

    def removed(path: Path) -> dict[str, torch.Tensor]:
        path.unlink()
        torch.UntypedStorage.from_file(str(path), False, 8)  # as safetensors maps a file that it has opened
        return {}

    monkeypatch.setattr(checkpoint, "load_file", removed)
    with pytest.raises(CheckpointError, match=r"1\.1 cannot be read: unable to open file"):
        load(tmp_path / "1.1")
