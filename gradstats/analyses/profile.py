"""What are completions and gradients of this policy like?"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from gradstats.analyses.declaration import Analysis, Column, missing_sketches
from gradstats.analyses.numbers import format_estimate, percent
from gradstats.analyses.results import Result
from gradstats.analyses.variance import VarianceComparison, compare
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.baselines.means import optimal_constant
from gradstats.measurement.measurement import Measurement
from gradstats.plots.marks import with_ends
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.protocols import effective_sample_size
from gradstats.stats.variance.quantities import JUDGED
from gradstats.system.lazy_imports import pd

# The names share_above_half_nat and top16_share, which saved tables hold, state the first two.
CHOICE = 0.5  # nats of entropy above which a token counts as a choice
HEAVIEST = 16
LONG = 150  # tokens from which on the heaviest ones' share is taken
_ESTIMATORS = ("reinforce", "length_weighted(alpha=0.8, loo=True)", "norm_weighted(loo=True)")

#: The quantities of a profile and their headings, in the order of the table.
PROFILE_QUANTITIES = {
    "n_prompts": "prompts",
    "n_sequences": "completions",
    "mean_reward": "mean reward",
    "median_length": "median length, tokens",
    "mean_entropy": "entropy per token, nats",
    "share_above_half_nat": f"share of tokens above {CHOICE:g} nats",
    "tokens_with_choice": f"tokens above {CHOICE:g} nats per completion",
    "log_residual_sd": "sd of log‖S‖² about the fit of α",
    "effective_share": "effective share of completions",
    "n_long": f"completions of {LONG}+ tokens",
    "top16_share": f"weight of the top {HEAVIEST} of {LONG}+ tokens",
    "wrong_over_right": "‖S‖², wrong over right answers",
    "optimal_constant_ratio": "best constant over mean reward",
    "alpha_pooled": "α, all completions",
    "alpha_within": "α, within prompts",
}


@dataclass(frozen=True, repr=False)
class PolicyProfile(Result):
    r"""The quantities by which policies are compared; ``.to_frame()`` is the table.

    Completion i has score :math:`S_i`, :math:`T_i` counted tokens and reward :math:`R_i`. A token is drawn from
    :math:`\pi_t`, whose entropy is :math:`H_t`; :math:`w_t = 1 - 2\pi_t(y_t) + \sum_y \pi_t(y)^2` is the squared norm
    of its score with respect to the logits (the logit proxy).

    Attributes:
        n_prompts: number of prompts.
        n_sequences: number of completions n.
        n_long: number of completions of 150 tokens or more.
        median_length: median of T.
        mean_reward: mean of R.
        mean_entropy: mean of H over tokens, in nats.
        share_above_half_nat: share of tokens with H > 0.5.
        tokens_with_choice: mean number of tokens with H > 0.5 per completion.
        log_residual_sd: :math:`\sqrt{\sum_i r_i^2/(n-2)}`, r the residuals of log‖S‖² about the pooled line.
        effective_share: :math:`(\sum_i\lVert S_i\rVert^2)^2/(n\sum_i\lVert S_i\rVert^4)`, 1 where all squared norms
            are equal.
        top16_share: share of the 16 largest :math:`w_t` in their sum, mean over completions of 150 tokens or more;
            NaN where there are none.
        wrong_over_right: mean ‖S‖² of wrong answers (R ≤ 0.5) over that of right ones; NaN without either.
        optimal_constant_ratio: :math:`b^*/\bar R` with
            :math:`b^* = \sum_i R_i\lVert S_i\rVert^2/\sum_i\lVert S_i\rVert^2`, the constant baseline of least
            variance; NaN where all rewards are 0.
        pooled: the line :math:`\log\lVert S\rVert^2 = c + 2\alpha\log T` through all completions.
        within: the same within prompts.
        comparison: three estimators beside RLOO, of which the table has the relative noise.
    """

    question: ClassVar[str] = "profile"

    printed_columns: ClassVar[tuple[str, ...]] = ("heading", "value")

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

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State in a line what completions are like, and how their gradients grow with length."""
        ends = self.pooled.confidence_interval(confidence_level)
        return (
            f"Reward {self.mean_reward:.2f}, median {self.median_length:,.0f} tokens, "
            f"α = {format_estimate(self.alpha_pooled, *ends)}."
        )

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per quantity: ``quantity, heading, value, low, high``; the ends are NaN where there is no interval.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        rows: list[tuple[str, str, float, float, float]] = []
        for name, heading in PROFILE_QUANTITIES.items():
            fit = {"alpha_pooled": self.pooled, "alpha_within": self.within}.get(name)
            ends = (np.nan, np.nan) if fit is None else fit.confidence_interval(confidence_level)
            rows.append((name, heading, float(getattr(self, name)), *ends))
        table = self.comparison.to_frame(confidence_level)
        for label, *interval in table[["estimator", *with_ends(JUDGED.name)]].itertuples(index=False):
            rows.append((f"{JUDGED.name} of {label}", f"{JUDGED.heading} of {label}", *interval))
        frame = pd.DataFrame(rows, columns=["quantity", "heading", "value", "low", "high"])
        frame.attrs["confidence_level"] = confidence_level
        return frame


def profile_policy(measured: Measurement, *, rng: int | np.random.Generator | None = 0) -> PolicyProfile:
    r"""Compute the quantities by which policies are compared: entropy, spread of ‖S‖², α, and variance ratios.

    :class:`PolicyProfile` defines each; S is :math:`\nabla\log π` of a whole completion.

    Args:
        measured: a measurement with sketches, drawn on-policy; several completions per prompt.
        rng: as in :func:`gradstats.compare`.

    Returns:
        A :class:`PolicyProfile`. Quantities that the completions cannot give are NaN, with a warning.

    Raises:
        ValueError: for fewer than 3 distinct lengths, 2 prompts, or a measurement without sketches.

    Example:
        >>> import warnings
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> lengths, sq_norms = [2, 4, 4, 8, 2, 16], np.array([1.0, 4.0, 2.0, 8.0, 2.0, 7.0])
        >>> rollouts = gs.Rollouts.from_sequences(
        ...     [[1]] * 6, [[2] * length for length in lengths], [1.0, 0.0, 1.0, 0.0, 1.0, 1.0], list("aabbcc")
        ... )
        >>> scores, nothing = np.diag(np.sqrt(sq_norms)), [np.zeros(length) for length in lengths]
        >>> measured = gs.Measurement(
        ...     rollouts, pd.DataFrame({"all": sq_norms}), scores, nothing, nothing, nothing, nothing
        ... )
        >>> with warnings.catch_warnings(action="ignore"):  # three prompts are too few for intervals
        ...     profile = gs.analyses.profile_policy(measured)
        >>> profile.median_length, round(profile.effective_share, 3)  # 24² / (6 · 138)
        (4.0, 0.696)
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
        effective_share=effective_sample_size(sq_norms) / len(sq_norms),
        top16_share=float(np.mean(shares)) if shares else float("nan"),
        wrong_over_right=_mean(sq_norms[~right]) / _mean(sq_norms[right]),
        optimal_constant_ratio=optimal_ratio,
        pooled=pooled,
        within=fit_length_scaling(measured, method="within_prompt"),
        comparison=compare(measured, _ESTIMATORS, rng=rng),
    )


def heaviest_share(weights: Float[np.ndarray, " t"], count: int = HEAVIEST) -> float:
    """Return the share of the largest ``count`` weights in the sum of all."""
    return float(np.sort(weights)[-count:].sum() / weights.sum())


def _mean(values: Float[np.ndarray, " k"]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _caption(frame: pd.DataFrame) -> str:
    return (
        f"Profiles of policies, with {percent(frame.attrs['confidence_level'])} intervals where there are any. S is "
        "the gradient of a completion's log-probability with respect to all measured parameters."
    )


ANALYSIS = Analysis(
    name="profile",
    ask=profile_policy,
    unavailable_because=missing_sketches,
    options=("rng",),
    columns=(
        Column("quantity", "name"),
        Column("heading", "in words"),
        Column("value", "the number", "value"),
        Column("low", "lower end of its interval"),
        Column("high", "upper end"),
        *(Column(name, meaning) for name, meaning in PROFILE_QUANTITIES.items()),
        Column(JUDGED.name, "relative noise of an estimator, rloo = 1", file="stats/variance/quantities.py"),
    ),
    row_name=lambda row: row["heading"],
    row_heading="quantity",
    caption=_caption,
)
