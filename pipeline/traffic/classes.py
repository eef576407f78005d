"""The classes of what leaves a host, most urgent first.

Role: the words that settings, commands, senders and metrics share.
Invariants: the order of `TrafficClass` is the order of precedence; background classes are those that wait.
Failure: `SettingsError` naming the classes there are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, get_args

from schemas.errors import SettingsError


class TrafficClass(StrEnum):
    """See the module."""

    WEIGHTS = "weights"  # engines wait for them
    GRADIENTS = "gradients"  # ranks wait for them; not sent by us, others stay out of their way
    SAMPLES = "samples"  # the learner waits for them; sent by the Kafka client, which is not held up
    EVALUATION = "evaluation"
    CHECKPOINTS = "checkpoints"


BACKGROUND = (TrafficClass.EVALUATION, TrafficClass.CHECKPOINTS)  # in the order of precedence
GRADIENT_SYNC = "gradient_sync"  # what the learner is in while its ranks sum gradients
Phase = Literal[  # of the learner, and the one above
    "cloning",
    "waiting_for_peer",
    "reading",
    "waiting_for_data",
    "forward_backward",
    "staging_weights",
    "publishing",
    "checkpointing",
    "gradient_sync",
]
PHASES: tuple[str, ...] = ("", *get_args(Phase))  # a number of the phase file is a place in here; empty: unknown


def traffic_class(name: str) -> TrafficClass:
    """A class by its name.

    Raises:
        SettingsError: there is none.
    """
    try:
        return TrafficClass(name)
    except ValueError:
        raise SettingsError(
            f"there is no traffic class {name[:40]!r}", hint=f"classes are {', '.join(TrafficClass)}"
        ) from None
