"""The weights of a running model: check a new state as a whole, then copy it in place.

Role: the swap of the torch engine.
Data in: a state by name, numpy or torch; data out: none, the model's own memory changes.
Invariants: `check` changes nothing; `copy` takes only what `check` returned.
Failure: `EngineError` from `check`; torch's `RuntimeError` from `copy`, after which the weights may be a mix.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.engines.base import StateTensor
from pipeline.engines.checks import check_state
from pipeline.engines.model_dir import named_state
from schemas.errors import EngineError


class LiveWeights:
    """A model's tensors under their canonical names, with its ties resolved."""

    def __init__(self, model: nn.Module) -> None:
        self._own, self._ties = named_state(model)

    def check(self, state: Mapping[str, StateTensor]) -> dict[str, Tensor]:
        """Compare a state with the model.

        Returns:
            the own tensors of the state, ready to be copied.

        Raises:
            EngineError: names, shapes or dtypes differ, or a tied name has other values than its owner.
        """
        check_state(self._own, state, ties=self._ties)
        tensors = {name: as_tensor(name, state[name]) for name in self._own}
        for alias, owner in self._ties.items():
            if alias in state and state[alias] is not state[owner]:
                self._check_tie(alias, as_tensor(alias, state[alias]), owned=tensors[owner])
        return tensors

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the model's tensors.

        Raises:
            RuntimeError: the copy failed; what was copied before stays.
        """
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._own[name].copy_(tensor)
        if any(own.is_cuda for own in self._own.values()):
            torch.cuda.synchronize()  # a failed copy must show here, not under the new version's stamp

    def _check_tie(self, alias: str, given: Tensor, *, owned: Tensor) -> None:
        if given.dtype != owned.dtype or not torch.equal(given.to(owned.device), owned):
            owner = self._ties[alias]
            raise EngineError(
                f"{alias} is tied to {owner} in this model and the state gives them different values; nothing was "
                "copied, the old version is still served",
                hint=f"leave {alias} out, or untie the model",
            )


def as_tensor(name: str, value: StateTensor) -> Tensor:
    """A state's value as a torch tensor, over the same memory where that can be written.

    Raises:
        EngineError: it is neither a torch tensor nor a numpy array of a dtype that torch has.
    """
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise EngineError(f"{name} is a {type(value).__name__}; allowed are numpy arrays and torch tensors")
    try:
        # A read-only view of received bytes is copied: torch has no read-only tensors.
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    except (TypeError, ValueError) as error:
        raise EngineError(f"{name} cannot be read as a tensor: {error}", hint="pass it as a torch tensor") from error
