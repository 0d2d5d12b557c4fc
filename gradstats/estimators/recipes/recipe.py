r"""A Recipe: advantage, scale, ratio, aggregation, KL and filter composed into weights of token scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float

from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM, Estimator, Level
from gradstats.estimators.recipes import aggregation as _aggregation  # noqa: F401  # registers the parts of that kind
from gradstats.estimators.recipes import filter as _filter  # noqa: F401
from gradstats.estimators.recipes import kl as _kl  # noqa: F401
from gradstats.estimators.recipes import ratio as _ratio  # noqa: F401
from gradstats.estimators.recipes import scale as _scale  # noqa: F401
from gradstats.estimators.recipes.components import Part, get_part
from gradstats.estimators.registry import get


@dataclass(frozen=True, init=False)
class Recipe:
    r"""A whole policy-gradient estimator: ĝ = mean over groups of Σ_{i in group} Σ_t w_{i,t} s_{i,t}.

    Each part is given by name, by label ("token_clip(eps_high=0.28)") or as an object. Like an
    :class:`Estimator` it has ``name``, ``label``, ``level``, ``needs``, ``across_groups``, ``expected_scale``
    and ``weights``.

    Off-policy weights take ρ = exp(logprobs − old_logprobs). A batch without ``old_logprobs`` is taken as
    drawn by the scored policy itself, ρ = 1.

    Attributes:
        advantage: an estimator: rewards → advantages.
        scale: what divides them: "none", "group_std", "batch_std", "group_mean".
        ratio: "none", "token_clip", "sequence_clip", "clipped_weight", "log_ratio_penalty".
        aggregation: "sequence_sum", "sequence_mean", "token_mean", "constant".
        kl: "none", "in_reward", "in_loss".
        filter: "none", "dynamic_sampling".
        name: what to call it.

    Raises:
        KeyError: for an unknown part.
        TypeError: for unknown or missing parameters of a part.
    """

    advantage: Estimator
    scale: Part
    ratio: Part
    aggregation: Part
    kl: Part
    filter: Part
    name: str

    def __init__(
        self,
        advantage: Estimator | str,
        scale: Part | str = "none",
        ratio: Part | str = "none",
        aggregation: Part | str = "sequence_sum",
        kl: Part | str = "none",
        filter: Part | str = "none",
        name: str = "recipe",
    ) -> None:
        object.__setattr__(self, "advantage", get(advantage))
        object.__setattr__(self, "scale", get_part("scale", scale))
        object.__setattr__(self, "ratio", get_part("ratio", ratio))
        object.__setattr__(self, "aggregation", get_part("aggregation", aggregation))
        object.__setattr__(self, "kl", get_part("kl", kl))
        object.__setattr__(self, "filter", get_part("filter", filter))
        object.__setattr__(self, "name", name)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything but the advantage."""
        return self.scale, self.ratio, self.aggregation, self.kl, self.filter

    @property
    def parameters(self) -> dict[str, Any]:
        """The labels of all parts, by kind."""
        return {"advantage": self.advantage.label} | {part.definition.kind: part.label for part in self.parts}

    @property
    def label(self) -> str:
        """The name with the parts that do something, as in "dapo[group_mean · group_std · …]"."""
        told = [self.advantage.label, *(part.label for part in self.parts if part.name != "none")]
        return f"{self.name}[{' · '.join(told)}]"

    @property
    def level(self) -> Level:
        """``"token"`` when weights can differ between the tokens of a completion.

        On a batch without ``old_logprobs`` ratios are 1, and :meth:`weights` may be (N,) all the same.
        """
        levels = (self.advantage.level, *(part.definition.level for part in self.parts))
        return "token" if "token" in levels else "sequence"

    @property
    def across_groups(self) -> bool:
        """Whether the weights of a group depend on other groups of the batch."""
        return self.advantage.across_groups or any(part.across_groups for part in self.parts)

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that have to be there; ``old_logprobs`` is used where present."""
        return tuple(dict.fromkeys((*self.advantage.needs, *self.kl.definition.needs)))

    @property
    def unit(self) -> str:
        """What the gradient is measured in: the aggregation, and what the advantages are divided by."""
        plain, *divisors = self.advantage.unit.split(" / ")
        if plain == SEQUENCE_SUM:
            plain = self.aggregation.unit
        elif self.aggregation.unit != SEQUENCE_SUM:
            plain = f"{plain} · {self.aggregation.unit}"
        return " / ".join([plain, *divisors, *([] if self.scale.name == "none" else [self.scale.unit])])

    def expected_scale(self, group_size: int) -> float | None:
        """That of the advantage when nothing else is done to it (and sums are plain), else None."""
        plain = self.aggregation.name == "sequence_sum" and all(
            part.name == "none" for part in (self.scale, self.ratio, self.kl, self.filter)
        )
        return self.advantage.expected_scale(group_size) if plain else None

    def kept_groups(self, batch: Batch) -> Bool[np.ndarray, "groups"]:
        """The groups the filter lets through, in the order of ``batch.group_labels``.

        The rest have weight 0 in :meth:`weights`. A trainer draws other prompts in their place: to measure
        that, leave them out of the batch, and report the kept share.
        """
        return self.filter(batch)

    def token_weights(self, batch: Batch) -> Float[np.ndarray, "n t"]:
        """w_{i,t}: the weight of every token score in the gradient of its group, 0 where masked out.

        Raises:
            ValueError: when the batch lacks a field.
        """
        needs = self.needs
        if batch.old_logprobs is not None and self.ratio.name != "none":
            needs = (*needs, "logprobs")
        batch.require(dict.fromkeys(needs), self.label)
        rewarded, loss_weights = self.kl(batch)
        advantages = self.scale(self.advantage.advantages(rewarded), rewarded)
        if advantages.ndim == 1:
            advantages = np.where(batch.mask, advantages[:, None], 0.0)
        weights = self.ratio(advantages, self._log_ratio(batch), batch) + loss_weights
        weights = weights * (self.aggregation(batch) * self.kept_groups(batch)[batch.group_index])[:, None]
        return np.where(batch.mask, weights, 0.0)

    def weights(self, batch: Batch) -> Float[np.ndarray, "n"] | Float[np.ndarray, "n t"]:
        """The weights as (N,) where every token of a completion has the same, else :meth:`token_weights`.

        That they are the same is known from the parts: a sequence-level advantage and KL, and ratios of
        sequence level or (without ``old_logprobs``) of 1.
        """
        weights = self.token_weights(batch)
        ratio_level = "sequence" if batch.old_logprobs is None else self.ratio.definition.level
        if "token" in (self.advantage.level, self.kl.definition.level, ratio_level):
            return weights
        return weights[np.arange(len(weights)), batch.mask.argmax(axis=1)]

    def _log_ratio(self, batch: Batch) -> Float[np.ndarray, "n t"]:
        if batch.old_logprobs is None or batch.logprobs is None:
            return np.zeros(batch.mask.shape)
        return batch.logprobs - batch.old_logprobs

    def __hash__(self) -> int:
        return hash(self.label)

    def __repr__(self) -> str:
        return cast("str", self.label)
