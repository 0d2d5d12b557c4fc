r"""State values for PPO's baseline without a trained critic: a ridge value head on the policy's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import nn

from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.policy.memory import in_parts_that_fit
from gradstats.policy.model import CausalModel
from gradstats.policy.policy import Policy, as_policy
from gradstats.rollouts.table import Rollouts
from gradstats.stats.jackknife import Estimate, mean_statistic
from gradstats.system.progress import progress_bar


@dataclass(frozen=True)
class FittedValues:
    r"""Cross-fitted state values, for ``gs.compare(measured, ["gae"], values=fitted.values)``.

    Attributes:
        values: for each completion, :math:`V(s_t)`, the value of the state before each of its tokens, from a head that
            was fitted to other prompts.
        explained_variance: out of fold, over counted tokens: :math:`1 - \sum(G_t - V_t)^2 / \sum(G_t - \bar G)^2`; 0 is
            as good as a constant, below 0 worse.
        penalties: the ridge penalty chosen in each fold.
        n_folds: folds of prompts.
    """

    values: list[np.ndarray]
    explained_variance: Estimate
    penalties: tuple[float, ...]
    n_folds: int

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the explained variance, by delete-one-prompt jackknife."""
        return self.explained_variance.confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame of one row: explained variance with its interval, folds, the median penalty."""
        low, high = self.confidence_interval(confidence_level)
        row = {
            "explained_variance": self.explained_variance.value,
            "explained_variance_low": low,
            "explained_variance_high": high,
            "n_folds": self.n_folds,
            "penalty": float(np.median(self.penalties)),
        }
        return pd.DataFrame([row])


_PENALTIES = tuple(10.0 ** np.arange(-2, 7))


def fit_values(
    policy_or_model: Policy | torch.nn.Module,
    rollouts: Rollouts,
    *,
    n_folds: int = 5,
    tokens_per_completion: int = 64,
    penalties: Sequence[float] = _PENALTIES,
    token_budget: int = 8192,
    progress: bool = True,
) -> FittedValues:
    """Fit a ridge value head on the policy's last hidden states, cross-fitted by prompt.

    Args:
        policy_or_model: the policy whose hidden states are the features, usually the one that is measured.
        rollouts: the completions.
        n_folds: folds of prompts; the values of a fold come from a head fitted to the others.
        tokens_per_completion: the fit uses at most so many tokens of each completion, evenly spaced; values are given
            at all tokens.
        penalties: ridge penalties, of which one is chosen by cross-validation over prompts inside each fold.
        token_budget: most tokens that go through the model at once, padding included.
        progress: show a progress bar.

    Raises:
        ValueError: for fewer prompts than folds, or fewer than 2 folds.

    Example:
        >>> import gradstats as gs
        >>> rollouts = gs.Rollouts.from_sequences(
        ...     [[5]] * 6, [[7, 8, 9], [9, 8]] * 3, rewards=[1.0, 0.0] * 3, prompt_ids=list("abcdef")
        ... )
        >>> fitted = gs.values.fit_values(gs.load_policy("embedded"), rollouts, n_folds=2, progress=False)
        >>> [len(values) for values in fitted.values], fitted.n_folds
        ([3, 2, 3, 2, 3, 2], 2)
    """
    states = hidden_states(policy_or_model, rollouts, token_budget=token_budget, progress=progress)
    return fit_values_to(
        states, rollouts, n_folds=n_folds, tokens_per_completion=tokens_per_completion, penalties=penalties
    )


def hidden_states(
    policy_or_model: Policy | torch.nn.Module, rollouts: Rollouts, *, token_budget: int = 8192, progress: bool = True
) -> list[Float[np.ndarray, "_ hidden"]]:
    """For each completion, (T_i, hidden size) last hidden states at the position *before* each token, in float32."""
    from gradstats.gradients.attention import forget_lengths, length_classes, own_precision
    from gradstats.gradients.objective import make_chunk

    policy: Policy = as_policy(policy_or_model)
    adapted = getattr(policy.model, "get_base_model", None)
    model = policy.model if adapted is None else cast("CausalModel", adapted())
    states: list[np.ndarray] = [np.empty(0)] * len(rollouts)
    classes = length_classes([model], rollouts.times)
    bar = progress_bar("hidden states", len(rollouts), shown=progress)
    with torch.no_grad(), own_precision(policy), bar as report:

        def keep(rows: np.ndarray) -> None:
            chunk = make_chunk(rollouts, rows, policy.device, policy.dtype)
            forget_lengths(model)
            hidden = cast("nn.Module", model.base_model)(chunk.input_ids, use_cache=False).last_hidden_state
            before = hidden[:, -chunk.kept - 1 : -1].float().cpu().numpy()
            for place, row in enumerate(rows):
                start = chunk.starts[place]
                states[row] = before[place, start : start + chunk.lengths[place]].copy()
            report.chunk(len(rows), chunk.n_tokens)

        for together in _chunks(rollouts, classes, token_budget):
            for _ in in_parts_that_fit(together, keep, policy.device, "sequences", "a smaller token_budget"):
                pass
    return states


def _chunks(rollouts: Rollouts, classes: Sequence[tuple[int, ...]], token_budget: int) -> Iterator[np.ndarray]:
    """Yield rows of similar length, so that little is padding, and of one class of rotary factors."""
    sizes = rollouts.times
    start = 0
    order = np.argsort(sizes, kind="stable")
    for stop in range(1, len(order) + 1):
        longer = stop < len(order) and sizes[order[stop]] * (stop + 1 - start) > token_budget
        if stop == len(order) or longer or classes[order[stop]] != classes[order[start]]:
            yield order[start:stop]
            start = stop


def fit_values_to(
    features: Sequence[Float[np.ndarray, "_ features"]],
    rollouts: Rollouts,
    *,
    n_folds: int = 5,
    tokens_per_completion: int = 64,
    penalties: Sequence[float] = _PENALTIES,
) -> FittedValues:
    """Fit a ridge value head on given features, one row for the state before each token, as :func:`fit_values` does."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    masks = rollouts.masks
    if [len(rows) for rows in features] != [len(mask) for mask in masks]:
        raise ValueError("features do not have one row per completion token: give the state before every token")
    prompts = np.unique(rollouts.prompt_id, return_inverse=True)[1]
    n_prompts = int(prompts.max()) + 1
    if n_folds < 2 or n_prompts < n_folds + 1:
        raise ValueError(
            f"n_folds={n_folds} needs at least {max(n_folds, 2) + 1} prompts and two folds, got {n_prompts} prompts: "
            "choose fewer folds or sample more prompts"
        )
    returns = _returns(rollouts)
    places = [_spread(np.flatnonzero(mask), tokens_per_completion) for mask in masks]
    values: list[np.ndarray] = [np.zeros(len(mask)) for mask in masks]
    chosen = []
    for fitted, held_out in GroupKFold(n_folds).split(prompts, groups=prompts):
        x = np.concatenate([features[row][places[row]] for row in fitted])
        y = np.concatenate([returns[row][places[row]] for row in fitted])
        groups = np.repeat(prompts[fitted], [len(places[row]) for row in fitted])
        # Tokens of one completion share their return: choosing the penalty by rows would leak it.
        inner = GroupKFold(min(3, len(set(groups))))
        search = GridSearchCV(
            make_pipeline(StandardScaler(), Ridge()),
            {"ridge__alpha": list(penalties)},
            cv=inner,
            scoring="neg_mean_squared_error",
        )
        search.fit(x, y, groups=groups)
        chosen.append(float(search.best_params_["ridge__alpha"]))
        for row in held_out:
            values[row] = np.where(masks[row], search.predict(features[row]), 0.0)
    explained = _explained_variance(values, returns, masks, prompts)
    return FittedValues(values, explained, tuple(chosen), n_folds)


def _returns(rollouts: Rollouts) -> list[np.ndarray]:
    r"""Compute the return :math:`G_t = \sum_{u\ge t} r_u`; the completion's reward without token rewards."""
    if "token_rewards" not in rollouts.frame:
        return [np.full(len(mask), reward) for mask, reward in zip(rollouts.masks, rollouts.rewards, strict=True)]
    return [
        np.cumsum(np.where(mask, rewards, 0.0)[::-1])[::-1]
        for mask, rewards in zip(rollouts.masks, rollouts.tokens("token_rewards"), strict=True)
    ]


def _spread(positions: np.ndarray, most: int) -> np.ndarray:
    """At most so many positions, evenly spaced."""
    if len(positions) <= most:
        return positions
    return positions[np.linspace(0, len(positions) - 1, most).round().astype(int)]


def _explained_variance(
    values: list[np.ndarray], returns: list[np.ndarray], masks: list[np.ndarray], prompts: np.ndarray
) -> Estimate:
    sums = np.zeros((4, int(prompts.max()) + 1))
    for prompt, value, target, mask in zip(prompts, values, returns, masks, strict=True):
        goal = target[mask]
        sums[:, prompt] += [np.sum((goal - value[mask]) ** 2), len(goal), goal.sum(), goal @ goal]
    error, count, total, squares = (mean_statistic(row) for row in sums)
    spread = squares - total * total / count
    left = (error / spread).estimate()
    return Estimate(1.0 - left.value, left.stderr, "raw", left.degrees)
