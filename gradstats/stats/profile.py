r"""One table that says what a policy's gradients are like, to set beside another policy's."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from gradstats.estimators import optimal_constant
from gradstats.stats.length_scaling import LengthScalingFit, fit_length_scaling
from gradstats.stats.variance import VarianceComparison, compare

CHOICE = 0.5  # nats of entropy above which a token counts as a choice
HEAVIEST = 16
LONG = 150  # tokens from which on the heaviest ones' share is taken
ESTIMATORS = ("reinforce", "length_weighted(alpha=0.8, loo=True)", "norm_weighted(loo=True)")


@dataclass(frozen=True)
class PolicyProfile:
    r"""What `profile_policy` found; `.to_frame()` is the table.

    \(S_i\) is the score of completion i, \(T_i\) its counted tokens, \(R_i\) its reward, \(H_t\) the entropy of the
    distribution that a token was drawn from and \(w_t = 1 - 2π(y_t) + \sum_y π(y)^2\) the squared norm of its score
    with respect to the logits.

    Attributes:
        n_prompts: prompts.
        n_sequences: completions n.
        n_long: completions of 150 tokens or more.
        median_length: of T.
        mean_reward: of R.
        mean_entropy: mean of H over tokens, in nats.
        share_above_half_nat: share of tokens with H > 0.5.
        tokens_with_choice: mean number of tokens with H > 0.5 in a completion.
        log_residual_sd: \(\sqrt{\sum_i r_i^2/(n-2)}\), r the residuals of log‖S‖² about the pooled line.
        effective_share: \((\sum_i‖S_i‖^2)^2/(n\sum_i‖S_i‖^4)\), 1 where all squared norms are equal.
        top16_share: share of the 16 largest \(w_t\) in their sum, mean over completions of 150 tokens or more; NaN
            where there are none.
        wrong_over_right: mean ‖S‖² of wrong answers (R ≤ 0.5) over that of right ones; NaN where all are alike.
        optimal_constant_ratio: \(b^*/\bar R\) with \(b^* = \sum R_i‖S_i‖^2/\sum‖S_i‖^2\), the constant baseline of
            least variance; NaN where no reward was earned.
        pooled: the line \(\log‖S‖^2 = c + 2α\log T\) through all completions.
        within: the same within prompts.
        comparison: tr Cov of `ESTIMATORS` over that of RLOO.
    """

    n_prompts: int
    n_sequences: int
    n_long: int
    median_length: float
    mean_reward: float
    mean_entropy: float
    share_above_half_nat: float
    tokens_with_choice: float
    log_residual_sd: float
    effective_share: float
    top16_share: float
    wrong_over_right: float
    optimal_constant_ratio: float
    pooled: LengthScalingFit = field(repr=False)
    within: LengthScalingFit = field(repr=False)
    comparison: VarianceComparison = field(repr=False)

    @property
    def alpha_pooled(self) -> float:
        """α of the line through all completions."""
        return self.pooled.alpha

    @property
    def alpha_within(self) -> float:
        """α of the line within prompts."""
        return self.within.alpha

    @property
    def variance_ratios(self) -> dict[str, float]:
        """Estimator → tr Cov over RLOO's."""
        return {row.label: row.ratio.value for row in self.comparison.rows}

    def to_frame(self, confidence_level: float = 0.95) -> pd.DataFrame:
        """One row a quantity: ``quantity, value, low, high``; the ends are NaN where there is no interval.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        plain = (
            "n_prompts",
            "n_sequences",
            "n_long",
            "median_length",
            "mean_reward",
            "mean_entropy",
            "share_above_half_nat",
            "tokens_with_choice",
            "log_residual_sd",
            "effective_share",
            "top16_share",
            "wrong_over_right",
            "optimal_constant_ratio",
        )
        rows = [(name, float(getattr(self, name)), np.nan, np.nan) for name in plain]
        for name, fit in (("alpha_pooled", self.pooled), ("alpha_within", self.within)):
            rows.append((name, fit.alpha, *fit.confidence_interval(confidence_level)))
        table = self.comparison.to_frame(confidence_level)
        columns = ["estimator", "ratio", "ratio_low", "ratio_high"]
        rows += [(f"ratio of {label}", *values) for label, *values in table[columns].itertuples(index=False)]
        frame = pd.DataFrame(rows, columns=["quantity", "value", "low", "high"])
        frame.attrs["confidence_level"] = confidence_level
        return frame


def profile_policy(measured: Any) -> PolicyProfile:
    r"""Computes the quantities by which policies are compared: entropy, spread of ‖S‖², α, and variance ratios.

    Args:
        measured: a measurement with sketches, drawn on-policy; several completions a prompt.

    Returns:
        A `PolicyProfile`. Quantities that the completions cannot give are NaN, with a warning.

    Raises:
        ValueError: for fewer than 3 distinct lengths, 2 prompts, or a measurement without sketches.
    """
    masks = measured.rollouts.masks
    entropy = [values[mask] for values, mask in zip(measured.entropy, masks, strict=True)]
    choices = [values > CHOICE for values in entropy]
    shares = [
        heaviest_share(1.0 - 2.0 * np.exp(logprob[mask]) + sum_sq[mask])
        for logprob, sum_sq, mask in zip(measured.logprobs, measured.sum_pi_squared, masks, strict=True)
        if mask.sum() >= LONG
    ]
    if not shares:
        warnings.warn(
            f"no completion has {LONG} tokens or more, so top16_share is NaN: raise max_new_tokens or measure more",
            UserWarning,
            stacklevel=2,
        )
    pooled = fit_length_scaling(measured)
    residuals = np.log(pooled.sq_norms) - pooled.intercept - pooled.slope * np.log(pooled.lengths)
    rewards, sq_norms = measured.rollouts.rewards, measured.sq_norms
    right = rewards > 0.5
    if right.all() or not right.any():
        warnings.warn(
            f"all answers are {'right' if right.all() else 'wrong'}, so wrong_over_right is NaN: measure more prompts",
            UserWarning,
            stacklevel=2,
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        optimal_ratio = float(np.divide(optimal_constant(rewards, sq_norms), rewards.mean()))
    return PolicyProfile(
        n_prompts=pooled.n_prompts,
        n_sequences=pooled.n,
        n_long=len(shares),
        median_length=float(np.median(measured.lengths)),
        mean_reward=float(rewards.mean()),
        mean_entropy=float(np.concatenate(entropy).mean()),
        share_above_half_nat=float(np.concatenate(choices).mean()),
        tokens_with_choice=float(np.mean([chosen.sum() for chosen in choices])),
        log_residual_sd=float(np.sqrt(residuals @ residuals / (pooled.n - 2))),
        effective_share=float(sq_norms.sum() ** 2 / (len(sq_norms) * (sq_norms @ sq_norms))),
        top16_share=float(np.mean(shares)) if shares else float("nan"),
        wrong_over_right=_mean(sq_norms[~right]) / _mean(sq_norms[right]),
        optimal_constant_ratio=optimal_ratio,
        pooled=pooled,
        within=fit_length_scaling(measured, method="within_prompt"),
        comparison=compare(measured, ESTIMATORS),
    )


def heaviest_share(weights: Float[np.ndarray, " t"], count: int = HEAVIEST) -> float:
    """The share of the largest ``count`` weights in the sum of all."""
    return float(np.sort(weights)[-count:].sum() / weights.sum())


def _mean(values: Float[np.ndarray, " k"]) -> float:
    return float(values.mean()) if len(values) else float("nan")
