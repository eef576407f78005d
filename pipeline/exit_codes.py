"""Exit codes of every rlweave process, and which error leads to which."""

from __future__ import annotations

from enum import IntEnum

from schemas.errors import (
    AccessDenied,
    CheckpointError,
    Fenced,
    LeaseHeld,
    LogUnavailable,
    ModelUnusable,
    NoProgress,
    PluginError,
    RanksDiverged,
    RedisRefused,
    RlweaveError,
    SettingsError,
)


class ExitCode(IntEnum):
    """What a process says when it ends."""

    OK = 0  # finished, or stopped in order
    ERROR = 1  # a named error that none of the codes below describes
    USAGE = 2  # settings, arguments, plug-ins, models or checkpoints are wrong: a restart does not help
    REFUSED = 3  # another process holds this run
    UNAVAILABLE = 4  # Kafka or Redis does not answer
    FENCED = 5  # a newer process of the same role took over
    NO_PROGRESS = 6  # an upstream stage stayed silent beyond the limit
    UNACCOUNTED = 7  # an audit did not balance
    DENIED = 8  # Kafka or Redis does not let us in: credentials, a certificate or an access rule are wrong
    DIVERGED = 9  # learner ranks did not hold the same weights, or a repetition did not come out as its record
    INTERNAL = 70  # a bug: the log has the traceback


RESTART_IS_FUTILE = frozenset(
    {
        ExitCode.USAGE,
        ExitCode.REFUSED,
        ExitCode.FENCED,
        ExitCode.NO_PROGRESS,
        ExitCode.DENIED,
        ExitCode.DIVERGED,
    }
)

_CODES: tuple[tuple[type[RlweaveError], ExitCode], ...] = (
    (SettingsError, ExitCode.USAGE),
    (PluginError, ExitCode.USAGE),
    (CheckpointError, ExitCode.USAGE),
    (ModelUnusable, ExitCode.USAGE),
    (LeaseHeld, ExitCode.REFUSED),
    (AccessDenied, ExitCode.DENIED),
    (RedisRefused, ExitCode.DENIED),
    (LogUnavailable, ExitCode.UNAVAILABLE),
    (Fenced, ExitCode.FENCED),
    (NoProgress, ExitCode.NO_PROGRESS),
    (RanksDiverged, ExitCode.DIVERGED),
)


def exit_code_for(error: RlweaveError) -> ExitCode:
    """The exit code of a process that ends with `error`."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.ERROR)
