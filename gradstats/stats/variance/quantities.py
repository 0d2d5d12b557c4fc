"""What is estimated of every estimator: each quantity with its definition, its interval, its column and its axis.

A quantity is one entry: a function of :class:`GradientStatistics` under a :class:`Quantity`. Frames, files, tables,
pages, figures and the index of columns follow from the entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import scipy
from jaxtyping import Float

from gradstats.config.options import EUCLIDEAN
from gradstats.stats.intervals import (
    EXACT,
    FEWEST_CARRIERS,
    FiellerRatio,
    StudentisedEstimate,
    fieller_ratio,
    largest_deviation,
    longer_side,
    prompts_that_carry,
    skewed_mean,
    studentised_ratio,
    tail_is_carried_by_few,
)
from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval, Statistic, mean_statistic
from gradstats.stats.protocols import effective_sample_size
from gradstats.stats.variance.alignment import CriticalBatch
from gradstats.stats.variance.moments import ComponentsOf, PromptMoments

#: The least and the greatest value that a quantity can have.
Limits = tuple[float, float]

NO_LIMITS: Limits = (-math.inf, math.inf)
#: The values that variances and shares can have.
NOT_NEGATIVE: Limits = (0.0, math.inf)
SHARE: Limits = (0.0, 1.0)

#: Tables for a paper, the HTML page, the terminal, and the figure of several panels.
Place = Literal["paper", "page", "terminal", "panels"]


@dataclass(frozen=True)
class GradientStatistics:
    """U-statistics over prompts of one estimator's gradient g, beside reference r and target where these have weights.

    G is the expected gradient of the target.
    """

    trace_cov: Statistic  # of one group's gradient
    second_moment: Statistic  # E‖g‖²
    signal: Statistic  # ‖E g‖², unbiased, may be negative
    kept: Float[np.ndarray, " prompts"]  # share of each prompt's groups with any non-zero weight
    prompts_per_batch: int  # B of the mean squared error
    reference: PromptMoments | None = None  # in the denominator of ratios
    target: PromptMoments | None = None  # what bias and cosine are judged against
    on_target: Statistic | None = None  # ⟨E g, G⟩, unbiased
    reference_on_target: Statistic | None = None  # ⟨E r, G⟩
    known_coefficient: float | None = None  # of E g relative to E r, where both are known multiples of ∇J
    within: Statistic | None = None  # between groups of one prompt; None where no prompt has two
    known_scale: float | None = None  # of E g relative to G, where it is known exactly
    signal_parts: ComponentsOf | None = None  # of the variance of ‖E g‖²; None at batch level
    is_multiple: bool = False  # of the target, by its weights
    completions: float = math.inf  # how many carry E‖g‖²; infinite at batch level


_Estimator = TypeVar("_Estimator", bound=Callable[[GradientStatistics], Estimated])


def _unknown(gradient: GradientStatistics) -> Estimated:
    return NOT_ESTIMATED


@dataclass(frozen=True)
class Quantity:
    """One column of a comparison with its ``_low`` and ``_high``; it decorates the function that estimates it.

    Name and definition are those of the function. In headings and labels ``{reference}`` stands for the label of the
    reference estimator, and ``{target}`` for what bias and cosine are judged against; :func:`filled_in` puts in both.
    """

    meaning: str  # in the index of columns
    heading: str  # in tables, on one line
    axis_label: str  # in a figure of its own
    panel_label: str  # under a panel a third as wide
    limits: Limits = NO_LIMITS  # the least and the greatest possible value; an unbiased estimate may lie beyond
    logarithmic: bool = False  # whether it is drawn on a log axis
    landmark: float | None = None  # a value to compare with, drawn as a dashed line
    has_unit: bool = False  # whether it carries the square of the gradient's unit, alone or relative to another's
    shown_in: tuple[Place, ...] = ()  # where it is a column or panel by default
    short: bool = False  # whether the first screen of the command shows it
    term: str = ""  # of the glossary, that defines it on the page; its meaning by default
    remark: str = ""  # in captions of tables with it, about entries of the frame's ``.attrs``
    together_heading: str = ""  # of the intervals that hold for all rows at once, where there are any
    together_in: tuple[Place, ...] = ()  # where these are a column of their own
    compared: bool = True  # whether it is a column of the comparison, and not one of the two components of tr Cov
    name: str = ""
    estimate: Callable[[GradientStatistics], Estimated] = _unknown

    def __call__(self, estimate: _Estimator) -> _Estimator:
        """Declare that a function estimates this, under its name."""
        name = estimate.__name__
        QUANTITIES[name] = replace(self, name=name, estimate=estimate)
        return estimate


#: Name → quantity, in the order of frames.
QUANTITIES: dict[str, Quantity] = {}
_OF_A_BATCH = (
    "The share of bias is that of a batch of {prompts_per_batch} prompts, or of a batch-level estimator's own."
)


@Quantity(
    meaning="variance of one group's gradient",
    heading="tr Cov",
    axis_label="tr Cov of a group's gradient",
    panel_label="tr Cov",
    limits=NOT_NEGATIVE,
    logarithmic=True,
    has_unit=True,
    shown_in=("paper", "page", "terminal"),
    term="tr Cov",
)
def trace_cov(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`\mathrm{tr\,Cov}(g) = E‖g‖² - ‖E g‖²` of one group's gradient, over prompts and completions.

    With one group a prompt it is :math:`(\sum_m‖g_m‖² - ‖\sum_m g_m‖²/M)/(M-1)`; with several, the sum of
    ``within_prompt`` and ``between_prompt`` (:class:`gradstats.stats.variance.moments.PromptMoments`). In the
    square of the gradient's unit. The mean over M prompts has the variance ``trace_cov``/M.

    The interval is a delete-one-prompt jackknife on the log scale, with quantiles for heavy tails of the squared
    gradients of prompts (:mod:`gradstats.stats.intervals`).
    """
    return skewed_mean(gradient.trace_cov, gradient.second_moment.pseudo_values, gradient.completions)


@Quantity(
    meaning="squared norm of the expected gradient",
    heading="‖E ĝ‖²",
    axis_label="squared norm of the expected gradient",
    panel_label="signal",
    limits=NOT_NEGATIVE,
    landmark=0.0,
    has_unit=True,
    term="signal, ‖E ĝ‖²",
)
def signal_sq(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`‖E g‖²` without bias: the mean of :math:`⟨g_m, g_{m'}⟩` over pairs of different prompts.

    May be negative and is never truncated. In the square of the gradient's unit. The interval is a delete-one-prompt
    jackknife on the raw scale: a bootstrap over prompts would duplicate them and shift it by ``trace_cov``/M.
    """
    return gradient.signal.estimate()


@Quantity(
    meaning="prompts of a batch in which noise equals signal",
    heading="critical batch",
    axis_label="critical batch (prompts)",
    panel_label="critical\nbatch",
    limits=NOT_NEGATIVE,
    logarithmic=True,
    term="critical batch, noise-to-signal",
)
def noise_to_signal(gradient: GradientStatistics) -> Estimated:
    r"""Return the critical batch :math:`B^* = \mathrm{tr\,Cov}(g)/D`, :math:`D = ⟨E g, G⟩²/‖G‖²`, in units of groups.

    It is the number of groups that must be averaged for the noise of their mean to equal the signal: the noise at the
    scale of the target over ‖G‖², the squared norm of the target's expected gradient. It does not depend on the unit
    of the gradient. McCandlish et al., *An Empirical Model of Large-Batch Training*, 1812.06162.

    Where the scale c of an estimator that is unbiased up to it is known, D = c²‖G‖², with the ‖G‖² of the target, which
    is resolved best. Otherwise D is less the jackknife's estimate of its bias; where ‖G‖² may be 0, D is only known to
    be at most ‖E g‖². The interval is that of :class:`gradstats.stats.variance.alignment.CriticalBatch`: a ray with an
    infinite upper end, without a value, where the signal is not resolved.
    """
    if gradient.target is None or gradient.on_target is None:
        return NOT_ESTIMATED
    signal, known, noise = gradient.target.signal, gradient.known_scale, trace_cov(gradient)
    parts = gradient.target.components.found
    quadratic, skewness = (0.0, 0.0) if parts is None else (parts.quadratic, parts.skewness)
    if known is not None:
        quotient = fieller_ratio(gradient.trace_cov, signal.scaled(known**2))
        return CriticalBatch(quotient, known**4 * quadratic, noise, skewness)
    if min(signal.value, float(signal.replicates.min())) > 0.0:
        along = (gradient.on_target * gradient.on_target / signal).without_bias()
        quotient = fieller_ratio(gradient.trace_cov, along)
        return CriticalBatch(quotient, (along.value / signal.value) ** 2 * quadratic, noise, skewness)
    own = None if gradient.signal_parts is None else gradient.signal_parts.found
    bound = fieller_ratio(gradient.trace_cov, gradient.signal)
    return CriticalBatch(bound, 0.0 if own is None else own.quadratic, noise, only_low=True)


@Quantity(
    meaning="variance relative to the reference's",
    heading="ratio to {reference}",
    axis_label="variance relative to {reference}",
    panel_label="ratio to\n{reference}",
    limits=NOT_NEGATIVE,
    logarithmic=True,
    landmark=1.0,
    has_unit=True,
    shown_in=("paper", "page", "terminal"),
    term="ratio",
    together_heading="ratios of all rows",
    together_in=("page", "terminal"),
)
def ratio(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`\mathrm{tr\,Cov}(g)/\mathrm{tr\,Cov}(r)`, with r the gradient of the reference.

    It falls with the scale of the estimator: one that shrinks its gradient by c has c² times the variance.

    Both variances come from the same prompts, so that the interval is paired: a studentised bootstrap over prompts on
    the log scale (:mod:`gradstats.stats.intervals`). Where fewer than 15 prompts carry either variance it has one end,
    that on the side with the shorter tail. NaN where the reference gives no completion any weight.
    """
    if gradient.reference is None:
        return NOT_ESTIMATED
    carriers = fewest_carriers(gradient, gradient.reference)
    return studentised_ratio(gradient.trace_cov, gradient.reference.trace_cov, carriers)


@dataclass(frozen=True)
class ScaledRatio:
    """A relative noise whose coefficient is known exactly."""

    ratio: Estimate  # tr Cov over the reference's
    coefficient: float  # of E g relative to E r

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``; NaN for an expected gradient of 0."""
        return self._scaled(*self.ratio.with_interval(confidence_level))

    @property
    def deviations(self) -> Float[np.ndarray, " resamples"] | None:
        """Those of the ratio."""
        if not isinstance(self.ratio, StudentisedEstimate) or self.coefficient == 0.0:
            return None
        return self.ratio.deviations

    def within(self, quantile: float, confidence_level: float) -> tuple[float, float]:
        """Return the ends for a quantile of the studentised deviation, or for Student's where that is larger."""
        if not isinstance(self.ratio, StudentisedEstimate):
            return UNKNOWN[1:]
        return self._scaled(self.ratio.value, *self.ratio.within(quantile, confidence_level))[1:]

    def _scaled(self, value: float, low: float, high: float) -> Interval:
        if self.coefficient == 0.0:
            return UNKNOWN
        factor = self.coefficient**-2
        return value * factor, low * factor, high * factor


@dataclass(frozen=True)
class OfEstimatedScale:
    """A relative noise whose coefficient is estimated from the same prompts."""

    root: FiellerRatio  # √(tr Cov(g)/tr Cov(r)) over the coefficient, of either sign
    carriers: float = math.inf  # prompts that carry the two variances

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``: a ray, without a value where the coefficient is not resolved.

        Nor is there one where few prompts leave no end to the interval: it would stand for every value.
        """
        low, high = self.within(0.0, confidence_level)
        known = self.root.is_bounded(confidence_level) and (low, high) != (0.0, math.inf)
        return self.root.value**2 if known else np.nan, low, high

    @property
    def deviations(self) -> Float[np.ndarray, " resamples"] | None:
        r"""Those of :math:`N - \hat ψD`; None where the relative noise is known exactly, or not at all."""
        return self.root.deviations

    def within(self, quantile: float, confidence_level: float) -> tuple[float, float]:
        """Return the ends for a quantile of the studentised deviation, or for its own where that is larger."""
        pieces = self.root.of_few_prompts(confidence_level, quantile).solution(confidence_level, quantile)
        if not pieces:
            return UNKNOWN[1:]
        low = min(0.0 if first <= 0.0 <= last else min(first**2, last**2) for first, last in pieces)
        if self.carriers < FEWEST_CARRIERS and not self.root.is_exact:
            return low, math.inf
        return low, max(max(first**2, last**2) for first, last in pieces)


@Quantity(
    meaning="samples needed for equal noise at equal signal, relative to the reference",
    heading="relative noise",
    axis_label="samples needed for equal noise,\nrelative to {reference}",
    panel_label="relative\nnoise\n({reference} = 1)",
    limits=NOT_NEGATIVE,
    logarithmic=True,
    landmark=1.0,
    shown_in=("paper", "page", "terminal", "panels"),
    short=True,
    term="relative noise, matched ratio",
    together_heading="relative noise of all rows",
    together_in=("paper", "page", "terminal"),
)
def matched_ratio(gradient: GradientStatistics) -> Estimated:
    r"""Return :math:`\frac{\mathrm{tr\,Cov}(g)/c²}{\mathrm{tr\,Cov}(r)/c_r²}` with :math:`c = ⟨E g, G⟩/‖G‖²` and
    :math:`c_r = ⟨E r, G⟩/‖G‖²`, r the reference and G the expectation of the target.

    Estimator and reference are scaled so that their expected gradients project with coefficient 1 on the target's:
    neither scale nor unit enters. Where both expectations are exact multiples of the true gradient (an own-sample mean
    keeps (N−1)/N of it, for completions drawn from the scored policy) these numbers are used, and the interval is that
    of ``ratio``. Otherwise :math:`c_r/c = ⟨E r, G⟩/⟨E g, G⟩` is estimated, and the interval is the Fieller set of
    :math:`\sqrt{\mathrm{tr\,Cov}(g)/\mathrm{tr\,Cov}(r)}\;⟨E r, G⟩ / ⟨E g, G⟩`, squared, with the quantile of ``ratio``
    for its contrast: a ray with an infinite upper end where fewer than 15 prompts carry either variance, and without a
    value where the projection of E g on G is not resolved.
    """
    if gradient.reference is None:
        return NOT_ESTIMATED
    if gradient.known_coefficient is not None:
        return ScaledRatio(ratio(gradient), gradient.known_coefficient)
    if gradient.on_target is None or gradient.reference_on_target is None:
        return NOT_ESTIMATED
    root = (gradient.trace_cov / gradient.reference.trace_cov).root()
    quotient = fieller_ratio(root * gradient.reference_on_target, gradient.on_target)
    return OfEstimatedScale(quotient, fewest_carriers(gradient, gradient.reference))


def matched_trace_cov(gradient: GradientStatistics) -> Statistic | None:
    """Return tr Cov at matched signal, up to a factor that all estimators share; None where the signal is not known.

    It ranks estimators, of which ``matched_ratio`` gives each beside the reference alone.
    """
    if gradient.known_coefficient is not None:
        known = gradient.known_coefficient
        return None if known == 0.0 else gradient.trace_cov.scaled(known**-2)
    if gradient.on_target is None or gradient.reference_on_target is None:
        return None
    coefficient = gradient.on_target / gradient.reference_on_target
    return gradient.trace_cov / (coefficient * coefficient)


@dataclass(frozen=True)
class BoundedQuotient:
    """A cosine or a share: a quotient that cannot lie outside [lowest, 1].

    Where few prompts carry the variances, it has no lower end: it is only known to be at most the upper one. A share of
    bias has no upper end where few prompts carry the upper tail of its own influences.
    """

    quotient: FiellerRatio
    lowest: float
    carriers: float = math.inf  # prompts that carry the variances of estimator and target
    unknown: Interval = UNKNOWN  # where the statistics are not known

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, the ends inside; no value where the denominator is not resolved."""
        if not self.quotient.is_known:
            return self.unknown
        if not self.quotient.is_bounded(confidence_level):
            return np.nan, *self.quotient.within(confidence_level, self.lowest, 1.0)
        return self.quotient.value, *self.within(0.0, confidence_level)

    @property
    def deviations(self) -> Float[np.ndarray, " resamples"] | None:
        """Those of the quotient."""
        return self.quotient.deviations

    def within(self, quantile: float, confidence_level: float) -> tuple[float, float]:
        """Return the ends for a quantile of the studentised deviation, or for its own where that is larger.

        What lies beyond the possible values, by rounding or by its error, is put at the end that it is nearest to.
        """
        exact = self.quotient.is_exact
        set_of = self.quotient.of_long_tails(confidence_level).solution
        pieces = [(self.quotient.value,) * 2] if exact else set_of(confidence_level, quantile) or [(-np.inf, np.inf)]
        low, high = map(float, np.clip((pieces[0][0], pieces[-1][1]), self.lowest, 1.0))
        if exact or not self.quotient.is_known:
            return low, high
        influence = self.quotient.influence
        if self.lowest == 0.0 and longer_side(influence) > 0 and tail_is_carried_by_few(influence):
            high = 1.0
        return self.lowest if self.carriers < FEWEST_CARRIERS else low, high


def fewest_carriers(*those: GradientStatistics | PromptMoments) -> float:
    """Return how many prompts carry the variance of each of several gradients, at least."""
    return min(prompts_that_carry(one.second_moment.pseudo_values, one.completions) for one in those)


def simultaneous(estimates: Sequence[Estimated], confidence_level: float) -> list[tuple[float, float]]:
    r"""Give the same quantity of each row an interval such that all of them hold together at the stated level.

    With :math:`t_e` the studentised deviation of row e, the interval of every row uses the upper quantile of
    :math:`\max_e t_e` and the lower one of :math:`\min_e t_e`, from the same resamples of the prompts, in place of its
    own (max-t; Romano and Wolf 2005): of the logarithm for a ratio, of :math:`N - \hat ψD` for a Fieller set. It
    contains the interval of the row alone. Rows that are known exactly take no part; the interval of one that is not
    estimated is NaN.
    """
    joint = (StudentisedEstimate, ScaledRatio, OfEstimatedScale, BoundedQuotient)
    deviations = [one.deviations for one in estimates if isinstance(one, joint)]
    quantile = largest_deviation([one for one in deviations if one is not None], confidence_level)
    return [one.within(quantile, confidence_level) if isinstance(one, joint) else UNKNOWN[1:] for one in estimates]


def _is_multiple_of_target(gradient: GradientStatistics) -> bool:
    """Whether g is a multiple of the target's gradient, so that ‖E g‖²‖G‖² − ⟨E g, G⟩² is nothing but rounding."""
    if gradient.target is None or gradient.on_target is None:
        return False
    if gradient.is_multiple:
        return True
    target, cross = gradient.target.signal, gradient.on_target
    turned = gradient.signal * target - cross * cross
    # ‖G‖² may be 0 by chance, with all prompts or without one of them.
    return _is_rounding(turned, gradient.second_moment.value * _largest(target))


def _is_rounding(difference: Statistic, scale: float) -> bool:
    """Whether a difference of numbers of that size is 0 but for rounding, with all prompts and without one of them."""
    return bool(_largest(difference) <= EXACT * abs(scale))


def _largest(statistic: Statistic) -> float:
    return max(abs(statistic.value), float(np.abs(statistic.replicates).max()))


@Quantity(
    meaning="cosine between the expected gradient and that of the target",
    heading="cosine",
    axis_label="cosine to the {target} gradient",
    panel_label="cosine\n({target})",
    limits=(-1.0, 1.0),
    shown_in=("paper", "page", "terminal", "panels"),
    term="cosine",
)
def cosine(gradient: GradientStatistics) -> Estimated:
    r""":math:`⟨E g, G⟩/(‖E g‖\,‖G‖)`, with G the expectation of the target: 1 for an estimator biased in scale alone.

    Cross-fitted: each prompt's gradient is multiplied by the target's of all *other* prompts, so that no completion is
    paired with itself. The product of the norms is less the jackknife's estimate of its bias: roots of unbiased squares
    are too small on average, and the cosine would be too large (of dealt batches the estimate is less the part that a
    finite number of deals adds to it). The estimate may exceed 1 by its error. The interval is
    the Fieller set of the quotient, for influences with a long tail, cut to [−1, 1]; where the product of the norms is
    not resolved no value is given, where one of them may be 0 the interval is all of [−1, 1], and where fewer than 15
    prompts carry either variance it has no lower end. Of a multiple of the target it is 1, exactly.
    """
    if gradient.target is None or gradient.on_target is None:
        return NOT_ESTIMATED
    own, target = gradient.signal, gradient.target.signal
    if _is_multiple_of_target(gradient):
        sign = math.copysign(1.0, gradient.on_target.value * target.value)  # of E g along G; both may be negative
        return BoundedQuotient(FiellerRatio(sign, 1.0, 0.0, 0.0, 0.0, len(own.replicates) - 1.0), -1.0)
    norms = own.root() * target.root()
    # √((1 + a)(1 + b)) = 1 + (a + b)/2 − (a − b)²/8 + …, a and b the relative errors of the two squares.
    relative = own.in_units_of_itself() - target.in_units_of_itself()
    norms = norms.without_bias(-norms.value * relative.surplus_over_deals / 8)
    carriers = fewest_carriers(gradient, gradient.target)
    return BoundedQuotient(fieller_ratio(gradient.on_target, norms), -1.0, carriers, unknown=(np.nan, -1.0, 1.0))


@Quantity(
    meaning="share of a batch's mean squared error that is bias",
    heading="share of bias",
    axis_label="share of bias in the mean squared error,\nagainst the {target} gradient",
    panel_label="share\nof bias",
    limits=SHARE,
    term="bias, matched bias",
    remark=_OF_A_BATCH,
)
def bias_share(gradient: GradientStatistics) -> Estimated:
    r""":math:`\frac{‖E d‖²}{‖E d‖² + \mathrm{tr\,Cov}(g)/B}`, d = g − h with h the target's gradient, in a batch of B.

    :math:`‖E d‖²` is estimated without bias from pairs of different prompts, so that it may be negative, and the share
    with it. The interval is that of the cosine, cut to [0, 1], without an upper end where fewer than 15 prompts carry
    the upper tail of its influences.
    """
    if gradient.target is None or gradient.on_target is None:
        return NOT_ESTIMATED
    bias_sq = gradient.signal - gradient.on_target.scaled(2.0) + gradient.target.signal
    if _is_rounding(bias_sq, gradient.second_moment.value):
        bias_sq = bias_sq.scaled(0.0)
    error = bias_sq + gradient.trace_cov.scaled(1.0 / gradient.prompts_per_batch)
    return BoundedQuotient(fieller_ratio(bias_sq, error), 0.0, fewest_carriers(gradient, gradient.target))


@Quantity(
    meaning="the same with the estimator scaled onto the target",
    heading="bias",
    axis_label="share of bias in the mean squared error,\nat matched scale, against the {target} gradient",
    panel_label="bias",
    limits=SHARE,
    shown_in=("paper", "page", "terminal", "panels"),
    short=True,
    term="bias, matched bias",
    remark=_OF_A_BATCH,
)
def matched_bias_share(gradient: GradientStatistics) -> Estimated:
    r"""Return :math:`\frac{‖E g/c - G‖²}{‖E g/c - G‖² + \mathrm{tr\,Cov}(g)/(c²B)}` with :math:`c = ⟨E g, G⟩/‖G‖²`.

    The estimator g is scaled so that its expected gradient projects with coefficient 1 on G, that of the target: what
    is left of the bias is its direction, in a batch of B prompts. A scale alone, such as the 1/L of Dr. GRPO, has none.
    With U-statistics for the inner products it is

    .. math:: \frac{A}{A + \mathrm{tr\,Cov}(g)\,‖G‖²/B}, \qquad A = ‖E g‖²‖G‖² - ⟨E g, G⟩²,

    with A less the jackknife's estimate of its bias, since the square of an estimated product is too large by its
    variance; it may be negative, and the share with it. Where c is known exactly it is used:
    :math:`‖E g‖² - 2c⟨E g, G⟩ + c²‖G‖²` is then the squared bias beside tr Cov(g)/B. The interval is that of
    ``bias_share``; no value is given where the denominator is not resolved.
    """
    if gradient.target is None or gradient.on_target is None:
        return NOT_ESTIMATED
    cross, target_signal = gradient.on_target, gradient.target.signal
    known = gradient.known_scale
    if known is not None:
        turned = gradient.signal - cross.scaled(2.0 * known) + target_signal.scaled(known**2)
        noise = gradient.trace_cov
    else:
        # The error of ⟨E g, G⟩ enters A by minus its square; that of ‖G‖² has no deals.
        turned = (gradient.signal * target_signal - cross * cross).without_bias(-cross.surplus_over_deals)
        noise = gradient.trace_cov * target_signal
    if _is_multiple_of_target(gradient):
        turned = turned.scaled(0.0)  # what is left is rounding
    error = turned + noise.scaled(1.0 / gradient.prompts_per_batch)
    return BoundedQuotient(fieller_ratio(turned, error), 0.0, fewest_carriers(gradient, gradient.target))


@dataclass(frozen=True)
class KeptShare:
    """A share with Wilson's interval."""

    share: Estimate  # the mean over prompts with its standard error

    @property
    def value(self) -> float:
        """The share itself."""
        return self.share.value

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, for the sample size that the clustered standard error is worth."""
        p, n = self.share.value, self.share.degrees + 1.0
        if np.isnan(p):
            return UNKNOWN
        if self.share.stderr > 0:
            n = p * (1.0 - p) / self.share.stderr**2
        z_sq = scipy.special.ndtri(0.5 + confidence_level / 2.0) ** 2
        centre = (p + z_sq / (2.0 * n)) / (1.0 + z_sq / n)
        margin = np.sqrt(z_sq * (p * (1.0 - p) / n + z_sq / (4.0 * n**2))) / (1.0 + z_sq / n)
        return p, float(max(centre - margin, 0.0)), float(min(centre + margin, 1.0))


def share_kept(kept: Float[np.ndarray, " prompts"]) -> KeptShare:
    """Estimate the mean over prompts of the share of their groups that are kept."""
    return KeptShare(mean_statistic(kept).estimate())


@Quantity(
    meaning="share of groups with any non-zero weight",
    heading="groups kept",
    axis_label="share of groups with a gradient",
    panel_label="groups\nkept",
    limits=SHARE,
    shown_in=("paper", "page"),
    term="kept share",
)
def kept_share(gradient: GradientStatistics) -> KeptShare:
    """Estimate the mean over prompts of the share of their groups with any non-zero weight.

    A group has none where its rewards are all equal and the baseline subtracts their mean, or where a filter drops it.
    """
    return share_kept(gradient.kept)


@Quantity(
    meaning="variance between groups of one prompt",
    heading="within-prompt variance",
    axis_label="within-prompt variance",
    panel_label="within\nprompts",
    limits=NOT_NEGATIVE,
    logarithmic=True,
    has_unit=True,
    compared=False,
)
def within_prompt(gradient: GradientStatistics) -> Estimate:
    r"""Average :math:`\frac{1}{K-1}\sum_k‖g_{mk} - \bar g_m‖²`, over the K groups of a prompt, over prompts.

    It falls as groups grow. In the square of the gradient's unit. The interval is that of ``trace_cov``; NaN where
    every prompt has a single group.
    """
    within = gradient.within
    return NOT_ESTIMATED if within is None else skewed_mean(within, within.pseudo_values, gradient.completions)


@Quantity(
    meaning="variance of the prompts' expected gradients",
    heading="between-prompt variance",
    axis_label="between-prompt variance",
    panel_label="between\nprompts",
    limits=NOT_NEGATIVE,
    landmark=0.0,
    has_unit=True,
    compared=False,
)
def between_prompt(gradient: GradientStatistics) -> Estimate:
    """Return ``trace_cov`` less ``within_prompt``: the variance of the prompts' own expected gradients.

    Without bias, so that it may be negative. It does not shrink with the group size: where it is small, it is
    completions that count, whatever their prompts (openreview uK4kMpNx0W), but for the cost of small groups' baselines.
    In the square of the gradient's unit. The interval is a delete-one-prompt jackknife on the raw scale; NaN where
    every prompt has a single group.
    """
    return NOT_ESTIMATED if gradient.within is None else (gradient.trace_cov - gradient.within).estimate()


#: What `gradstats.compare` estimates of every estimator, in the order of its frame.
COMPARED = tuple(one for one in QUANTITIES.values() if one.compared)
#: The two components of ``trace_cov``, where prompts have several groups.
VARIANCE_COMPONENTS = tuple(one for one in QUANTITIES.values() if not one.compared)
#: The label of an axis that both components share.
COMPONENT_LABEL = "component of tr Cov"

# A shrunken estimator has a low ratio without being better, and a ratio between two units is meaningless: only the
# relative noise decides which estimator is lowest, and figures show it by default.
JUDGED = QUANTITIES["matched_ratio"]


def limits_of(name: str) -> Limits:
    """Return the least and the greatest value that a column can have, as its quantity declares them."""
    return QUANTITIES[name].limits if name in QUANTITIES else NO_LIMITS


def digits_for(margin: float) -> int:
    """Return the decimals that show two significant digits of a margin; negative for tens, hundreds and so on."""
    return 1 - math.floor(math.log10(margin)) if margin > 0 else 0


def shown_below(low: float, high: float, bound: float = 1.0) -> bool:
    """Return whether an interval of positive numbers lies below a bound, by the digits with which it is written.

    >>> shown_below(0.10, 0.9985), shown_below(math.nan, 0.9), shown_below(1 - 3e-12, 1 - 1e-12)
    (False, True, False)
    """
    if not high < bound:
        return False
    # A missing low end counts as 0. Six decimals at most: what differs by less is the same number but for rounding.
    return bool(round(high, min(digits_for((high - max(0.0, low)) / 2.0), 6)) < bound)


def shown_in(place: Place) -> tuple[str, ...]:
    """Return the names of the quantities that a kind of table or figure shows by default, in order."""
    return tuple(quantity.name for quantity in QUANTITIES.values() if place in quantity.shown_in)


#: What a target is called in labels and headings.
TARGETS = {"on_policy": "on-policy", "importance": "importance-weighted"}


def filled_in(text: str, attrs: Mapping[Hashable, object], reference: str | None = None) -> str:
    """Put the names of reference and target into a heading or label."""
    name = attrs.get("reference", "the reference") if reference is None else reference
    return text.format(reference=name, target=TARGETS[str(attrs.get("target", "on_policy"))])


def axis_label(quantity: Quantity, attrs: Mapping[Hashable, object], reference: str | None = None) -> str:
    """Return the label of a quantity's axis, with the metric where it is not Euclidean."""
    return in_metric(filled_in(quantity.axis_label, attrs, reference), attrs)


def in_metric(label: str, attrs: Mapping[Hashable, object]) -> str:
    """Return the label of an axis with the metric that a frame's ``attrs`` record, where it is not Euclidean."""
    return label if attrs.get("metric", EUCLIDEAN) == EUCLIDEAN else f"{label}\n(Adam's metric)"


#: Below this effective number of prompts, simulated intervals undercover; see docs/statistics.md.
FEW_PROMPTS = 50


def n_effective_prompts(gradient: GradientStatistics) -> float:
    r"""Return :math:`(\sum_m q_m)²/\sum_m q_m²` with :math:`q_m = ‖g_m‖²`, averaged over the groups of prompt m.

    M prompts of equal squared gradients are worth M; where a few carry nearly all of the variance it is their number,
    and intervals that rest on the central limit theorem over prompts are too narrow.
    """
    return effective_sample_size(gradient.second_moment.pseudo_values)


def n_effective_beside(gradient: GradientStatistics) -> float:
    """Return the same of the reference or the target, whichever is worth fewer; infinite without either."""
    beside = [other.trace_cov.pseudo_values for other in (gradient.reference, gradient.target) if other is not None]
    return min((effective_sample_size(values) for values in beside), default=np.inf)


def most_influential_prompt(gradient: GradientStatistics) -> int:
    """Return the number of the prompt without which ``trace_cov`` changes most."""
    return int(np.argmax(np.abs(gradient.trace_cov.replicates - gradient.trace_cov.value)))
