"""The effect of a recipe's clip: the share of tokens and completions affected, and of the gradient removed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gradstats.config.labels import read_label
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.recipes.components import Component, parameter_names
from gradstats.estimators.recipes.named import RECIPES
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Statistic, mean_statistic

#: Parameters of ratios that clip, and the values with which they never do.
_OPENED = {"eps_low": np.inf, "eps_high": np.inf, "dual_clip": None, "truncate": None}
_SHARES = ("clipped_tokens", "clipped_completions", "removed_share")


@dataclass(frozen=True)
class ClippedShare:
    """The effect of one recipe's clip on these completions.

    Attributes:
        label: the recipe.
        clipped_tokens: share of counted tokens whose weight the clip changes. Tokens without an advantage have weight 0
            anyway and are not clipped.
        clipped_completions: share of completions with such a token.
        removed_share: share of ``removed_of`` whose weight the clip sets to 0.
        removed_of: ``"sq_norms"``, Σ‖S‖² of completions, where the clip is of whole completions; ``"token_energy"``,
            Σ‖s_t‖², where it is of tokens and their energies are known; otherwise ``"unknown"``, and the share is NaN.
    """

    label: str
    clipped_tokens: Estimate
    clipped_completions: Estimate
    removed_share: Estimate
    removed_of: str

    def record(self, confidence_level: float) -> dict[str, object]:
        """Return the row of a frame, each share with its ``_low`` and ``_high``, which lie between 0 and 1."""
        row: dict[str, object] = {"recipe": self.label, "removed_of": self.removed_of}
        for name in _SHARES:
            share: Estimate = getattr(self, name)
            low, high = np.clip(share.confidence_interval(confidence_level), 0.0, 1.0)
            row |= {name: share.value, f"{name}_low": float(low), f"{name}_high": float(high)}
        return row


def clipping_recipes() -> list[str]:
    """Return the names of the recipes whose ratio is clipped."""
    ratios = {name: row["ratio"] for name, row in RECIPES.items() if "ratio" in row}
    return [name for name, label in ratios.items() if _clips(label)]


def _clips(label: str) -> bool:
    base, given = read_label(label)
    widths = _OPENED.keys() & set(parameter_names("ratio", base))
    # Without widths of its own the product of ratios is neither clipped nor truncated.
    return bool(widths & given.keys() if base == "sequence_product" else widths)


def without_clip(recipe: Recipe) -> Recipe:
    """Return the same recipe with every clip so wide that no ratio reaches it."""
    ratio = recipe.ratio
    opened = {name: value for name, value in _OPENED.items() if name in ratio.parameters}
    if ratio.name == "sequence_product":  # either it clips or it truncates: None is neither
        opened = dict.fromkeys(opened)
    return Recipe(
        recipe.advantage,
        scale=recipe.scale,
        ratio=Component(ratio.definition, {**ratio.parameters, **opened}),
        aggregation=recipe.aggregation,
        kl=recipe.kl,
        filter=recipe.filter,
        reward=recipe.reward,
        mask=recipe.mask,
        name=recipe.name,
    )


def clipped_share(recipe: Recipe, batch: Batch, label: str | None = None) -> ClippedShare:
    """Compare a recipe's weights with those it has when no ratio is clipped, token by token.

    Intervals are by delete-one-prompt jackknife; a share is a ratio of sums over prompts.

    Args:
        recipe: a recipe whose inputs the batch has.
        batch: the completions, with both log-probabilities.
        label: what the recipe is called; by default its own label.

    Raises:
        ValueError: when the batch lacks a field, or a ratio overflows.
    """
    clipped, opened = recipe.token_weights(batch), without_clip(recipe).token_weights(batch)
    reached = batch.mask & (clipped != opened)
    removed = reached & (clipped == 0)
    prompts = batch.group_index
    energy, removed_of = None, "unknown"
    if recipe.ratio.definition.level == "sequence" and batch.sq_norms is not None:
        energy, removed_of = batch.sq_norms, "sq_norms"
        gone = np.where(removed.any(axis=1), energy, 0.0)
    elif batch.token_energy is not None:
        energy, removed_of = batch.token_energy.sum(axis=1), "token_energy"
        gone = np.where(removed, batch.token_energy, 0.0).sum(axis=1)
    return ClippedShare(
        label=label or recipe.label,
        clipped_tokens=_share(reached.sum(axis=1), batch.lengths, prompts),
        clipped_completions=_share(reached.any(axis=1), np.ones(len(prompts)), prompts),
        removed_share=NOT_ESTIMATED if energy is None else _share(gone, energy, prompts),
        removed_of=removed_of,
    )


def _share(part: np.ndarray, whole: np.ndarray, prompts: Int[np.ndarray, " n"]) -> Estimate:
    parts, wholes = (_by_prompt(values, prompts) for values in (part, whole))
    if len(wholes) == 1:
        return Statistic(float(parts[0] / wholes[0]), np.full(1, np.nan)).estimate()
    return (mean_statistic(parts) / mean_statistic(wholes)).estimate()


def _by_prompt(values: np.ndarray, prompts: Int[np.ndarray, " n"]) -> Float[np.ndarray, " m"]:
    return np.bincount(prompts, weights=np.asarray(values, dtype=np.float64))
