"""The root of every error rlweave raises on purpose.

An error is named after the boundary that was crossed. Its message says what was seen, what was allowed and what
follows; its hint says what to do. The command line prints both and never a traceback for one of these.
"""

from __future__ import annotations


class RlweaveError(Exception):
    """Base of all errors a user can meet.

    Args:
        message: what was seen, the limit or the valid choices, and the consequence.
        hint: what to do about it; empty when there is nothing to add.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SettingsError(RlweaveError):
    """A setting is missing, of the wrong type, out of range, or in conflict with another one."""


class CodecError(RlweaveError):
    """Bytes do not follow the wire format, or a record does not fit its schema."""


class RecordInvalid(RlweaveError):
    """A record decodes, but its content breaks an invariant of its type (lengths that differ, non-finite numbers).

    `reason` is the drop reason the ledger shows.
    """

    def __init__(self, message: str, *, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class LogError(RlweaveError):
    """The broker, or a client of it, failed. The library's own error is chained as the cause."""


class LogUnavailable(LogError):
    """No broker answered within the deadline."""


class AccessDenied(LogError):
    """The broker does not let us in, or not do this: credentials, a certificate or an access rule are wrong."""


class DeliveryError(LogError):
    """A record was not written, or it is unknown whether it was."""


class RecordTooLarge(LogError):
    """An encoded record exceeds its topic's limit; it was refused before it was sent."""


class Fenced(LogError):
    """A newer process of the same role has taken over; this one must stop and write nothing more."""


class TopicMismatch(LogError):
    """A topic exists with other properties than the catalog asks for."""


class OffsetsLost(LogError):
    """A wanted offset is no longer retained and the reader was told to stop on that."""


class DeadlineExceeded(RlweaveError):
    """A wait reached its limit; the message names what it waited for."""


class PluginError(RlweaveError):
    """A plug-in cannot be found or does not have the expected form."""


class LeaseHeld(RlweaveError):
    """Another process holds the lease of this run and role; the message names the holder."""


class WeightsError(RlweaveError):
    """A manifest, chunk or checkpoint does not have the content its digest names, or is absent."""


class ChunkMismatch(WeightsError):
    """Bytes offered as a chunk do not have that chunk's digest."""


class FetchCancelled(WeightsError):
    """A fetch was given up on purpose, as a newer version supersedes it. What it verified stays in the store."""


class RedisUnavailable(RlweaveError):
    """Redis did not answer, or refused. It is never the only copy of anything: the caller goes on without it."""


class RedisRefused(RedisUnavailable):
    """Redis answers and does not let us in, or not do this: password, user or certificate are wrong."""


class EngineError(RlweaveError):
    """An inference engine cannot serve: the model directory, a request, or a swap is at fault."""


class ModelUnusable(EngineError):
    """A model cannot be used here: its directory is none, lacks something, or there is no such device or dtype."""


class NoProgress(RlweaveError):
    """An upstream stage stayed silent beyond the limit; the message names it."""


class TrainingError(RlweaveError):
    """A training step cannot be applied."""


class RankLost(RlweaveError):
    """A rank of the learner is missing, so the others cannot go on; the message names it."""


class RanksDiverged(RlweaveError):
    """Ranks of the learner that must hold the same weights do not."""


class CheckpointError(RlweaveError):
    """No checkpoint, or one that is not whole."""


class UploadError(RlweaveError):
    """A checkpoint could not be copied to or from `learner.checkpoint.upload`; later it may go through."""


class NotRepeatable(RlweaveError):
    """What a run left does not let its training be repeated: records are missing, or it was trained otherwise."""


class LearnerFileError(RlweaveError):
    """A file the learner must keep cannot be written."""
