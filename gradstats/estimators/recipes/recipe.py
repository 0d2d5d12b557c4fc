r"""A Recipe: an advantage and its components, from scale to mask, composed into weights of token scores."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float

from gradstats.config.options import written
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import SEQUENCE_SUM, Estimator, Level
from gradstats.estimators.ratios import in_blocks_of_groups, log_mismatch, log_ratios, log_staleness
from gradstats.estimators.recipes import losses as _losses  # noqa: F401  # registers its components and ratio's
from gradstats.estimators.recipes.components import DEFAULT_COMPONENTS, TOKENS, Component, Kind, get_component
from gradstats.estimators.registry import get_estimator

#: Prefix of a recipe's label.
PREFIX = "recipe:"
#: The name of a recipe composed from components without a name; under it a label states its advantage.
CUSTOM = "custom"

#: Suffixes of the names of a ratio component's weightings: for positive and for negative advantages, or for both.
SIGNS = ("[+]", "[-]", "[±]")
#: Separator between the name of a weighting and the mask under which it is measured.
BESIDE = " · "


@dataclass(frozen=True, init=False)
class Recipe:
    r"""A whole policy-gradient estimator: :math:`ĝ = \frac1M\sum_m\sum_{i \in m}\sum_t w_{i,t}s_{i,t}`.

    Each component is given by name, by label (``"token_clip(eps_high=0.28)"``) or as an object. Like an
    :class:`Estimator` it has ``name``, ``label``, ``level``, ``needs``, ``across_groups``, ``expected_scale``
    and ``weights``.

    Off-policy weights use :math:`ρ = π/π_\mathrm{old}`, from ``logprobs`` and ``old_logprobs``. A batch without
    ``old_logprobs`` is assumed to be drawn from the scored policy itself, ρ = 1. With a correction, ρ is taken apart:
    the ratio component gets the staleness :math:`π/π_\mathrm{prox}`, the correction the mismatch
    :math:`π_\mathrm{prox}/π_\mathrm{old}`, with ``proximal_logprobs`` of the trainer's policy as the step began, or
    else :math:`π_\mathrm{prox} = π`. A mask that rejects by ratios takes them apart where ``proximal_logprobs`` are
    known, and otherwise rejects by ρ.

    Attributes:
        advantage: the estimator that turns rewards into advantages.
        scale: what divides the advantages, as ``"group_std"``.
        ratio: what ratio and clip multiply them by, as ``"token_clip"``.
        correction: of a mismatch between trainer and sampler, as ``"truncate_tokens"``.
        aggregation: how the tokens of a group are averaged, as ``"sequence_mean"``.
        kl: the KL term, ``"in_reward"``, ``"in_loss"`` or ``"to_sampler"``.
        filter: which completions are left out, as ``"dynamic_sampling"``.
        reward: a term of the reward by length, ``"soft_overlong"``.
        mask: which tokens count, as ``"top_entropy"``.
        name: the recipe's name.
        written: the label it was found by; None for one composed of components.

    Raises:
        KeyError: for an unknown component.
        TypeError: for unknown or missing parameters of a component.
    """

    advantage: Estimator
    scale: Component
    ratio: Component
    correction: Component
    aggregation: Component
    kl: Component
    filter: Component
    reward: Component
    mask: Component
    name: str
    written: str | None = field(default=None, compare=False)

    def __init__(
        self,
        advantage: Estimator | str,
        scale: Component | str = DEFAULT_COMPONENTS["scale"],
        ratio: Component | str = DEFAULT_COMPONENTS["ratio"],
        aggregation: Component | str = DEFAULT_COMPONENTS["aggregation"],
        kl: Component | str = DEFAULT_COMPONENTS["kl"],
        filter: Component | str = DEFAULT_COMPONENTS["filter"],
        name: str = CUSTOM,
        written: str | None = None,
        reward: Component | str = DEFAULT_COMPONENTS["reward"],
        mask: Component | str = DEFAULT_COMPONENTS["mask"],
        correction: Component | str = DEFAULT_COMPONENTS["correction"],
    ) -> None:
        object.__setattr__(self, "advantage", get_estimator(advantage))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "written", written)
        chosen: dict[Kind, Component | str] = {
            "scale": scale, "ratio": ratio, "correction": correction, "aggregation": aggregation, "kl": kl,
            "filter": filter, "reward": reward, "mask": mask,
        }  # fmt: skip
        for kind, component in chosen.items():
            object.__setattr__(self, kind, get_component(kind, component))

    @property
    def components(self) -> tuple[Component, ...]:
        """Everything but the advantage."""
        return tuple(getattr(self, kind) for kind in DEFAULT_COMPONENTS)

    @property
    def of_advantages(self) -> dict[Kind, Component]:
        """The components beside the baseline that enter :meth:`advantages`, by kind."""
        used: dict[Kind, Component] = {"scale": self.scale, "reward": self.reward, "kl": self.kl}
        # A KL term that varies along a completion is one of the loss.
        return {kind: one for kind, one in used.items() if one.name != "none" and one.definition.level == "sequence"}

    @property
    def parameters(self) -> dict[str, str]:
        """The labels of all components, by kind."""
        return {"advantage": self.advantage.composition} | {
            entry.definition.kind: entry.label for entry in self.components
        }

    @property
    def label(self) -> str:
        """The label that it was found by, as ``"recipe:grpo"``, else one that names its components.

        >>> Recipe("rloo", ratio="token_clip(eps_high=0.28)").label
        'recipe:custom(advantage=rloo, ratio=token_clip(eps_high=0.28))'
        """
        if self.written is not None:
            return self.written
        stated = {
            kind: label
            for kind, label in self.parameters.items()
            if label != DEFAULT_COMPONENTS.get(kind)  # type: ignore[call-overload]
        }
        return f"{PREFIX}{self.name}({', '.join(f'{kind}={written(label)}' for kind, label in stated.items())})"

    @property
    def composition(self) -> str:
        """The components that have an effect, as in ``"group_mean · group_std · token_clip · sequence_mean"``."""
        return " · ".join(
            [self.advantage.composition, *(entry.label for entry in self.components if entry.name != "none")]
        )

    @property
    def level(self) -> Level:
        """``"token"`` when weights can differ between the tokens of a completion.

        On a batch without ``old_logprobs`` ratios are 1, and :meth:`weights` may still be (N,).
        """
        levels = (self.advantage.level, *(entry.definition.level for entry in self.components))
        return "token" if "token" in levels else "sequence"

    @property
    def across_groups(self) -> bool:
        """Whether the weights of a group depend on other groups of the batch."""
        return self.advantage.across_groups or any(entry.across_groups for entry in self.components)

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of the Batch that are required; ``old_logprobs`` is used where present."""
        needs = [need for entry in self.components for need in entry.definition.needs]
        return tuple(dict.fromkeys((*self.advantage.needs, *needs)))

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
        """Return the advantage's, where no other component changes it on-policy and sums are plain; None otherwise."""
        plain = (
            self.aggregation.name == SEQUENCE_SUM
            and self.ratio.label in ("none", "sequence_product")  # ρ = 1 on-policy
            and all(entry.name == "none" for entry in (self.scale, self.kl, self.filter, self.reward))
            and (self.mask.name == "none" or self.mask.definition.of_ratios)
        )
        return self.advantage.expected_scale(group_size) if plain else None

    def kept_groups(self, batch: Batch) -> Bool[np.ndarray, "groups"]:
        """Return which groups the filter keeps, in the order of ``batch.group_labels``.

        The others have weight 0 in :meth:`weights`. A trainer draws other prompts in their place: to measure
        that, leave them out of the batch and report the fraction that was kept.
        """
        return np.bincount(batch.group_index, weights=self.filter(batch), minlength=batch.n_groups) > 0

    def advantages(self, batch: Batch) -> Float[np.ndarray, "n"] | Float[np.ndarray, "n t"]:
        """Return the advantages after a KL term in the reward and the scale, before ratio and aggregation.

        Raises:
            ValueError: when the batch lacks a field.
        """
        batch.require(self.needs, self.label)
        return self._scaled(self.rewarded(batch), batch)

    def rewarded(self, batch: Batch) -> Batch:
        """Return the batch with the rewards that advantages are computed from: with a term by length, and KL."""
        return self.kl(self._with_added_reward(batch))[0]

    def _with_added_reward(self, batch: Batch) -> Batch:
        """Return the batch with what the reward component adds, on the last token where rewards are per token."""
        if self.reward.name == "none":
            return batch
        added = self.reward(batch)
        token_rewards = batch.token_rewards
        if token_rewards is not None:
            token_rewards = token_rewards.copy()
            last = batch.mask.shape[1] - 1 - batch.mask[:, ::-1].argmax(axis=1)
            token_rewards[np.arange(len(added)), last] += added
        return batch.with_fields(rewards=batch.rewards + added, token_rewards=token_rewards)

    def _scaled(self, rewarded: Batch, batch: Batch) -> np.ndarray:
        if not self.filter.definition.before_baseline:
            return self.scale(self.advantage.advantages(rewarded), rewarded)
        kept = np.flatnonzero(self.filter(batch))  # by the rewards without what the recipe adds
        rest = rewarded.select(kept)
        of_kept = self.scale(self.advantage.advantages(rest), rest)
        advantages = np.zeros((rewarded.rewards.size, *of_kept.shape[1:]))
        advantages[kept] = of_kept
        return advantages

    def token_weights(self, batch: Batch) -> Float[np.ndarray, "n t"]:
        """Return :math:`w_{i,t}`: the weight of every token score in the gradient of its group, 0 where masked out.

        Raises:
            ValueError: when the batch lacks a field.
        """
        batch.require(self.needs, self.label)
        rewarded, loss_weights = self.kl(self._with_added_reward(batch))
        advantages = self._scaled(rewarded, batch)
        if advantages.ndim == 1:
            advantages = np.where(batch.mask, advantages[:, None], 0.0)
        weights = self._by_ratio(advantages, batch) * self.factor(batch)[:, None]
        return np.where(self.mask(batch), weights + loss_weights * self.kl_factor(batch)[:, None], 0.0)

    def _by_ratio(self, advantages: Float[np.ndarray, "n t"], batch: Batch) -> Float[np.ndarray, "n t"]:
        """Return the advantages times ratio, clip and correction."""
        # A rejection is a correction where the two can be told apart.
        rejects = self.mask.definition.of_ratios and batch.proximal_logprobs is not None
        corrects = self.correction.name != "none"
        log_ratio = np.zeros(batch.mask.shape)
        if self.ratio.name != "none":
            log_ratio = (log_staleness if corrects or rejects else log_ratios)(batch, self.label)
        weighted = self.ratio(advantages, log_ratio, batch)
        return weighted * self.correction(log_mismatch(batch, self.label), batch) if corrects else weighted

    def factor(self, batch: Batch) -> Float[np.ndarray, "n"]:
        """Return what aggregation and filter multiply the weights of each completion's tokens by."""
        kept = self.filter(batch)
        rescale = self.filter.parameters.get("rescale")
        if rescale == TOKENS and not kept.all():
            counted = batch.mask & kept[:, None]
            batch = batch.with_fields(mask=counted, lengths=counted.sum(axis=1))
        counted = batch.mask
        if rescale is True:
            counted = counted & kept[:, None]
        if self.mask.parameters.get("rescale"):
            counted = counted & self.mask(batch)
        if np.array_equal(counted, batch.mask):
            return self.aggregation(batch) * kept
        rows = np.flatnonzero(counted.any(axis=1))
        factor = np.zeros(batch.rewards.size)
        if rows.size:
            rest = batch.select(rows).with_fields(mask=counted[rows], lengths=counted[rows].sum(axis=1))
            # Sums over the batch are divided by its original number of groups, whether or not anything of them is left.
            lost = batch.n_groups / rest.n_groups if self.aggregation.across_groups else 1.0
            factor[rows] = self.aggregation(rest) * lost
        return factor * kept

    def kl_factor(self, batch: Batch) -> Float[np.ndarray, "n"]:
        """Return what a KL term or entropy bonus of the loss is multiplied by: as the rest, or a mean over tokens."""
        if self.kl.parameters.get("over") != TOKENS:
            return self.factor(batch)
        kept = self.filter(batch)
        return kept * (batch.n_groups / max(int((self.mask(batch) & kept[:, None]).sum()), 1))

    def weights(self, batch: Batch) -> Float[np.ndarray, "n"] | Float[np.ndarray, "n t"]:
        """Return the weights as (N,) where every token of a completion has the same weight, else :meth:`token_weights`.

        Whether they are the same follows from the components: advantage and KL at sequence level, and ratios
        at sequence level or (without ``old_logprobs``) equal to 1.
        """
        levels = [self.advantage.level]
        if batch.old_logprobs is not None or self.ratio.definition.on_policy:
            levels += [self.ratio.definition.level, self.correction.definition.level]
        for component in (self.kl, self.mask):
            if batch.old_logprobs is not None or not component.definition.of_ratios:
                levels.append(component.definition.level)
        if "token" in levels:
            return self.token_weights(batch)
        # Whether a user-defined function stays within its group is unknown.
        if self.across_groups or not self.advantage.definition.checked:
            return self._of_completions(batch)
        return in_blocks_of_groups(self._of_completions, batch)

    def _of_completions(self, batch: Batch) -> Float[np.ndarray, "n"]:
        """Return the weight of the first counted token of each completion."""
        return self.token_weights(batch)[np.arange(batch.rewards.size), batch.mask.argmax(axis=1)]

    @property
    def pattern_names(self) -> tuple[str, ...]:
        """The names of :meth:`ratio_patterns`; two recipes with the same ratio and mask share them."""
        corrected = [] if self.correction.name == "none" else [self.correction.label]
        pattern = self.masked_name(BESIDE.join([self.ratio.label, *corrected]))
        return tuple(f"{pattern}{sign}" for sign in self._signs)

    @property
    def _signs(self) -> dict[str, float]:
        """The suffixes of the patterns and the advantages that they are of."""
        positive, negative, both = SIGNS
        return {positive: 1.0, negative: -1.0} if self.ratio.definition.signed else {both: 1.0}

    def masked_name(self, name: str) -> str:
        """Return the name of a weighting under this recipe's mask."""
        return name if self.mask.name == "none" else f"{name}{BESIDE}{self.mask.label}"

    def ratio_patterns(self, batch: Batch) -> dict[str, Float[np.ndarray, "n t"]]:
        """Return what ratio and correction multiply positive and negative advantages by, token by token; one pattern
        where that is the same.

        Raises:
            ValueError: when the batch lacks a field.
        """
        ones = np.where(batch.mask, 1.0, 0.0)
        kept = self.mask(batch)
        patterns = (np.where(kept, sign * self._by_ratio(sign * ones, batch), 0.0) for sign in self._signs.values())
        return dict(zip(self.pattern_names, patterns, strict=True))

    def __hash__(self) -> int:
        return hash((self.name, self.composition))

    def __repr__(self) -> str:
        return f"{self.label} [{self.composition}]"
