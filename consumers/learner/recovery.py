"""From a checkpoint to a learner that can go on, and back.

Role: restores model, optimizer and generator, and says where in the log and in history the learner stands.
Data in: the checkpoint folder, where checkpoints are uploaded to, and the `weights` topic. Data out: `Recovered`;
`snapshot_of` is the way back.
Invariants: without a checkpoint everything starts at zero, unless checkpoints are uploaded and the ledger has steps:
then they must be somewhere. What was uploaded is asked for when nothing whole is on the disk. Positions of samples or
rewards that were recreated since are not used, their records are read from the earliest one instead, and a notice says
so.
Failure: `CheckpointError` when there are checkpoints but none is whole, or they belong to another model or to other
prompts: numbers would then mean other groups, and the closed set would hide them for ever. `UploadError` when those
that were uploaded cannot be read now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from consumers.learner import checkpoint
from consumers.learner.intake import prompts_are_gone
from consumers.learner.lora import trained_state
from consumers.learner.topic_ids import known_topic_ids
from consumers.learner.trainer import Trainer
from pipeline.history import ClosedSet, Lineages
from pipeline.stage import StageContext
from pipeline.uploads.restoring import bring_newest_back
from pipeline.uploads.target import open_target, safe_url
from schemas.errors import CheckpointError
from schemas.records import Manifest, Version
from topics.catalog import PROMPTS, WEIGHTS
from topics.clock import Deadline
from topics.log import ReaderSettings, TopicPartition

READ_LIMIT_S = 60.0
GENERATOR = "generator"


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Where checkpoints were uploaded to."""

    url: str
    num_trained: int  # steps that the ledger has in the surviving history


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Where a learner starts."""

    lineage: int  # of the checkpoint; 0: there was none
    step: int
    closed: ClosedSet
    positions: Mapping[TopicPartition, int]
    num_cloning_steps: int
    first_anchor: str
    listed: list[Manifest]  # versions on the `weights` topic that have no tombstone
    path: Path | None = None  # of the checkpoint


def surviving(lineages: Lineages) -> checkpoint.Survives:
    """Whether a version is part of the ledger's present history; one of a lineage it does not know is not ruled out."""

    def survives(version: Version) -> bool:
        return not lineages.is_known(version.lineage) or lineages.survives(version.lineage, version.step)

    return survives


def recover(
    context: StageContext,
    *,
    trainer: Trainer,
    folder: Path,
    lineages: Lineages,
    elsewhere: Elsewhere | None = None,
) -> Recovered:
    """Restore `trainer` from the newest whole checkpoint of the present history, if there is one.

    Args:
        elsewhere: where to look when none is in `folder`.

    Raises:
        CheckpointError: none is whole, or it belongs to another model or to other prompts.
        UploadError: what was uploaded cannot be read now, or is damaged.
    """
    listed = listed_manifests(context)
    restored = _newest(context, folder=folder, survives=surviving(lineages), elsewhere=elsewhere)
    if restored is None:
        return Recovered(
            lineage=0, step=0, closed=ClosedSet(), positions={}, num_cloning_steps=0, first_anchor="", listed=listed
        )
    for why in restored.skipped:
        context.events.notice("checkpoint_skipped", details={"why": why})
    put_back(trainer, restored.snapshot)
    state = restored.snapshot.state
    context.events.notice("restored", details={"path": str(restored.path)}, lineage=state.lineage, step=state.step)
    return Recovered(
        lineage=state.lineage,
        step=state.step,
        closed=ClosedSet.from_json(state.closed),
        positions=_positions(context, state),
        num_cloning_steps=state.num_cloning_steps,
        first_anchor=state.first_anchor,
        listed=listed,
        path=restored.path,
    )


def snapshot_of(trainer: Trainer, *, state: checkpoint.LearnerState) -> checkpoint.Snapshot:
    """The checkpoint content of `trainer` now."""
    own, _ = trained_state(trainer.model)
    optimizer = checkpoint.optimizer_tensors(trainer.optimizer)
    return checkpoint.Snapshot(
        state=state, model=own, optimizer={**optimizer, GENERATOR: trainer.generator.get_state()}
    )


def listed_manifests(context: StageContext) -> list[Manifest]:
    """Manifests on the `weights` topic without a tombstone, in version order."""
    reader = context.log.reader(ReaderSettings(topics=(WEIGHTS,)), hooks=context.hooks())
    found: dict[bytes, Manifest] = {}
    try:
        deadline = Deadline.after(READ_LIMIT_S, clock=context.clock)
        ends = reader.end_positions()
        while any(reader.positions().get(part, 0) < end for part, end in ends.items()):
            deadline.check("the weights topic to be read to its end")
            for envelope in reader.poll(500, deadline=Deadline.after(0.5, clock=context.clock)):
                key = envelope.key if envelope.key is not None else b""
                if isinstance(envelope.record, Manifest):
                    found[key] = envelope.record
                else:
                    found.pop(key, None)
    finally:
        reader.close()
    return sorted(found.values(), key=lambda manifest: manifest.version)


def put_back(trainer: Trainer, snapshot: checkpoint.Snapshot) -> None:
    """Give a trainer the state that `snapshot_of` took.

    Raises:
        CheckpointError: it belongs to another model.
    """
    own, _ = trained_state(trainer.model)
    saved = snapshot.model
    if own.keys() != saved.keys() or any(own[name].shape != saved[name].shape for name in own):
        differing = sorted(own.keys() ^ saved.keys()) or [n for n in own if own[n].shape != saved[n].shape]
        raise CheckpointError(
            f"the checkpoint belongs to another model: {', '.join(differing[:3])} differ",
            hint="set model.path and [learner.lora] to what this run began with, or start a run of another name",
        )
    if snapshot.state.base_digest not in ("", trainer.base_digest):
        raise CheckpointError(
            f"the checkpoint's adapters belong to base {snapshot.state.base_digest}, the one that is loaded is "
            f"{trainer.base_digest}",
            hint="set model.path to the model this run began with, as it was then",
        )
    for name, tensor in own.items():
        tensor.data.copy_(saved[name])
    optimizer = dict(snapshot.optimizer)
    checkpoint.restore_generator(trainer.generator, optimizer.pop(GENERATOR, None))
    checkpoint.restore_optimizer(trainer.optimizer, optimizer)


def _newest(
    context: StageContext, *, folder: Path, survives: checkpoint.Survives, elsewhere: Elsewhere | None
) -> checkpoint.Restored | None:
    """The newest on the disk; else the newest that was uploaded, brought back to the disk.

    Raises:
        CheckpointError, UploadError: see `recover`.
    """
    try:
        found, why = checkpoint.newest_valid(folder, survives=survives), ""
    except CheckpointError as error:
        if elsewhere is None:
            raise
        found, why = None, error.message
    if found is not None or elsewhere is None:
        return found
    url = safe_url(elsewhere.url)
    brought = bring_newest_back(
        open_target(elsewhere.url),
        run=context.run.name,
        folder=folder,
        survives=survives,
        tell=lambda text: context.events.notice("checkpoint_skipped", details={"why": text}),
        read=lambda place: checkpoint.Restored(snapshot=checkpoint.load(place), path=place),
    )
    if brought is not None:
        context.events.notice("checkpoint_brought_back", details={"url": url, "path": str(brought.path)})
        return brought
    if why or elsewhere.num_trained > 0:
        raise CheckpointError(
            f"{why or f'no checkpoint is in {folder}'}, and none of run {context.run.name} is at {url}; the ledger has "
            f"{elsewhere.num_trained} trained steps, which starting anew would train again",
            hint="bring a checkpoint back to either place; to train from the beginning all the same, move the folder "
            "away and unset learner.checkpoint.upload for the start",
        )
    return None


def _positions(context: StageContext, state: checkpoint.LearnerState) -> dict[TopicPartition, int]:
    ids = known_topic_ids(context, {name.rpartition("/")[0] for name in state.positions})
    positions: dict[TopicPartition, int] = {}
    recreated: set[str] = set()
    for name, offset in state.positions.items():
        topic, _, partition = name.rpartition("/")
        if ids.get(topic) != state.topic_ids.get(topic):
            recreated.add(topic)
        else:
            positions[topic, int(partition)] = offset
    if PROMPTS.name in recreated:
        raise prompts_are_gone(context, what=f"the checkpoint of step {state.step}")
    for topic in sorted(recreated):
        lost = "what the old topic held beyond the positions of the checkpoint; nobody can say how much"
        details = {"topic": topic, "now": ids.get(topic, "absent"), "lost": lost}
        context.events.notice("topic_recreated", details=details)
    return positions
