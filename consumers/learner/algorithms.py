"""The algorithms by name: which advantage, loss, normaliser and importance weights each of them is made of.

| `learner.algorithm` | advantage | loss | normaliser | importance | from |
| --- | --- | --- | --- | --- | --- |
| `grpo` | grpo | clipped | token | token | arXiv 2402.03300; by token as in DAPO, arXiv 2503.14476 |
| `dr_grpo` | centred | clipped | constant | token | arXiv 2503.20783 |
| `rloo` | rloo | reinforce | sequence_sum | sequence | arXiv 2402.14740 |
| `decoupled_ppo` | grpo | clipped | token | full | arXiv 2110.00641 |
| `tis_token` | grpo | reinforce | token | token | arXiv 1802.01561 |
| `tis_sequence` | grpo | reinforce | token | sequence | the same, per sequence |
| `gspo` | grpo | gspo | sequence | none | arXiv 2507.18071 |
| `dpo` | best_worst | dpo | pair | none | arXiv 2305.18290 |
| `sft` | best | sft | token | none | RAFT, arXiv 2304.06767 |
| `step_grpo` | step | clipped | token | token | arXiv 2402.03300, section 4.1.3 |

Role: from settings to functions; each part can be set on its own, advantage and loss also to a plug-in.
Data in: `[learner]`. Data out: a `Recipe`.
Invariants: plug-ins are named by settings only; what a topic says never leads to code.
Failure: `PluginError`, `SettingsError` for parts that do not fit together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from blake3 import blake3
from torch import Tensor

from consumers.learner import advantages, losses
from consumers.learner.advantages import AdvantageFunction
from consumers.learner.loss_settings import AlgorithmName, Importance, LossSettings
from consumers.learner.losses import LossFunction, TokenLoss, TokenTerms, reference_kl, row_weights
from pipeline.plugins import load_plugin
from schemas.errors import PluginError, SettingsError

ADVANTAGE_GROUP, LOSS_GROUP = "rlweave.advantages", "rlweave.losses"
_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an algorithm is made of, by name."""

    advantage: str
    loss: str
    normaliser: str
    importance: Importance


ALGORITHMS: dict[AlgorithmName, Parts] = {
    "grpo": Parts(advantage="grpo", loss="clipped", normaliser="token", importance="token"),
    "dr_grpo": Parts(advantage="centred", loss="clipped", normaliser="constant", importance="token"),
    "rloo": Parts(advantage="rloo", loss="reinforce", normaliser="sequence_sum", importance="sequence"),
    "decoupled_ppo": Parts(advantage="grpo", loss="clipped", normaliser="token", importance="full"),
    "tis_token": Parts(advantage="grpo", loss="reinforce", normaliser="token", importance="token"),
    "tis_sequence": Parts(advantage="grpo", loss="reinforce", normaliser="token", importance="sequence"),
    "gspo": Parts(advantage="grpo", loss="gspo", normaliser="sequence", importance="none"),
    "dpo": Parts(advantage="best_worst", loss="dpo", normaliser="pair", importance="none"),
    "sft": Parts(advantage="best", loss="sft", normaliser="token", importance="none"),
    "step_grpo": Parts(advantage="step", loss="clipped", normaliser="token", importance="token"),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An algorithm ready to be used."""

    advantage: AdvantageFunction
    loss: LossFunction
    normaliser: str
    settings: LossSettings  # with every part named
    has_pairs: bool  # advantages are +1 and -1, one of each per group
    skips_zeros: bool  # a sample whose advantages are all 0 needs no forward pass

    def objective(self, terms: TokenTerms, *, constants: Tensor) -> Objective:
        """The weighted sum of a micro-batch; over a whole minibatch these add up, and are divided by its count.

        Args:
            constants: [sequences], tokens that a sequence counts as; for the normaliser `constant`.

        Raises:
            ValueError: a plug-in's loss has another shape than its tokens.
        """
        found = self.loss(terms, self.settings)
        loss = found if isinstance(found, TokenLoss) else TokenLoss(values=found)
        if loss.values.shape != terms.mask.shape:
            raise ValueError(f"the loss gave shape {list(loss.values.shape)} for {len(terms.mask)} tokens")
        kl = reference_kl(terms)
        values = loss.values
        if kl is not None and self.settings.reference_kl > 0:
            values = values + self.settings.reference_kl * kl
        weights = row_weights(terms, normaliser=self.normaliser, constants=constants)
        return Objective(total=(values * weights).sum(), loss=loss, kl=kl)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a micro-batch contributes."""

    total: Tensor  # scalar, with gradient
    loss: TokenLoss
    kl: Tensor | None  # to the reference model, [tokens]; None: there is none


def recipe_of(algorithm: AlgorithmName, loss: LossSettings, *, advantage: str | None) -> Recipe:
    """The functions that settings name.

    Raises:
        PluginError: a name leads nowhere.
        SettingsError: parts do not fit together.
    """
    parts = _parts(algorithm, loss, advantage=advantage)
    has_pairs = parts.loss == "dpo"
    if has_pairs and (parts.advantage != "best_worst" or loss.minibatches != 1 or loss.normaliser is not None):
        raise SettingsError(
            f"the loss dpo has the advantage {parts.advantage!r}, minibatches = {loss.minibatches} and normaliser "
            f"{loss.normaliser!r}; it is defined on the best and the worst member of a group, taken together",
            hint="with dpo set advantage = 'best_worst', loss.minibatches = 1 and no normaliser",
        )
    return Recipe(
        advantage=_function(parts.advantage, advantages.BUILT_IN, group=ADVANTAGE_GROUP),
        loss=_function(parts.loss, losses.BUILT_IN, group=LOSS_GROUP),
        normaliser=parts.normaliser,
        settings=loss.model_copy(update={"importance": parts.importance}),
        has_pairs=has_pairs,
        skips_zeros=has_pairs or (parts.loss == "sft" and loss.reference_kl == 0),
    )


def is_built_in(name: str | None, *, loss: bool) -> bool:
    """Whether a name is one of ours, or none; everything else is a plug-in."""
    return name is None or name in (losses.BUILT_IN if loss else advantages.BUILT_IN)


def plugin_digest(*, advantage: str | None, loss: str | None) -> str:
    """Stands in the ledger for the names of plug-ins, which are not kept; empty: there are none."""
    named = [
        "" if is_built_in(advantage, loss=False) else str(advantage),
        "" if is_built_in(loss, loss=True) else str(loss),
    ]
    return blake3("\n".join(named).encode()).hexdigest() if any(named) else ""


def _parts(algorithm: AlgorithmName, loss: LossSettings, *, advantage: str | None) -> Parts:
    own = ALGORITHMS[algorithm]
    chosen = own.advantage if advantage is None else advantage
    if chosen == "grpo" and not loss.scale_by_std:
        chosen = "centred"
    function = own.loss if loss.function is None else loss.function
    normaliser = own.normaliser if loss.normaliser is None else loss.normaliser
    if function == "dpo" or normaliser == "pair":
        normaliser = "pair" if function == "dpo" else "token"
    return Parts(
        advantage=chosen,
        loss=function,
        normaliser=normaliser,
        importance=own.importance if loss.importance is None else loss.importance,
    )


def _function(name: str, built_in: dict[str, _Function], *, group: str) -> _Function:
    if name in built_in:
        return built_in[name]
    places = {each: f"{group}:{each}" for each in built_in}  # names only, for the message
    found = load_plugin(name, group=group, builtins=places)
    if not callable(found):
        raise PluginError(f"plug-in {name!r} in group {group} is a {type(found).__name__}, not a function")
    return cast("_Function", found)
