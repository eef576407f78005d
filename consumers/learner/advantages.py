"""Group-relative advantages.

Role: turns the rewards of one group into what the loss weighs tokens with. Pure numpy in float64.
Invariants: computed by group only, so arrival order and the company of other groups change nothing (promise 8); a
group of one, or one whose rewards are all equal, gives zeros, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from consumers.learner.batch import Batch


def grpo_advantages(
    rewards: Sequence[float], *, scale_by_std: bool = True, eps: float = 1e-6
) -> npt.NDArray[np.float64]:
    """Advantages of one group, shape [members], float64: (r - mean) / (std + eps) of the group.

    Follows GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1), with the population standard deviation;
    `scale_by_std=False` leaves out the division, as Dr. GRPO does (arXiv 2503.20783).

    Raises:
        ValueError: a reward is not finite.
    """
    values: npt.NDArray[np.float64] = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"rewards of a group must be finite, seen {values.tolist()}")
    centred: npt.NDArray[np.float64] = values - values.mean()
    if not scale_by_std:
        return centred
    std = values.std()
    return np.zeros_like(centred) if std == 0 else centred / (std + eps)


def batch_advantages(batch: Batch, *, scale_by_std: bool) -> npt.NDArray[np.float64]:
    """Advantages of all members of a batch, in the batch's own order, shape [members], float64."""
    if not batch.groups:  # a rank without a share
        return np.zeros(0)
    return np.concatenate(
        [grpo_advantages([m.reward for m in group.members], scale_by_std=scale_by_std) for group in batch.groups]
    )
