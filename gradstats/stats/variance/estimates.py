"""The quantities of a comparison, each with its interval, from statistics of a gradient over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradstats.stats.intervals import (
    EXACT,
    FiellerRatio,
    StudentisedEstimate,
    fieller_ratio,
    largest_deviation,
    skewed_mean,
    studentised_ratio,
)
from gradstats.stats.jackknife import NOT_ESTIMATED, UNKNOWN, Estimate, Estimated, Interval, Statistic, mean_statistic
from gradstats.stats.measured import effective_sample_size
from gradstats.system.late import Float, np, special


@dataclass(frozen=True)
class Beside:
    """Another gradient h that an estimator's gradient g is compared with."""

    trace_cov: Statistic  # tr Cov(h)
    signal: Statistic  # ‖E h‖², unbiased
    cross: Statistic  # ⟨E g, E h⟩, unbiased


@dataclass(frozen=True)
class GradientStatistics:
    """U-statistics over prompts of one estimator's gradient g, beside reference and target where these have weights."""

    trace_cov: Statistic  # of one group's gradient
    second_moment: Statistic  # E‖g‖²
    signal: Statistic  # ‖E g‖², unbiased, may be negative
    kept: Float[np.ndarray, " prompts"]  # share of each prompt's groups with any non-zero weight
    prompts_per_batch: int  # B of the mean squared error
    reference: Beside | None = None  # in the denominator of ratios
    target: Beside | None = None  # what bias and cosine are judged against
    reference_on_target: Statistic | None = None  # ⟨E r, G⟩
    known_coefficient: float | None = None  # of E g relative to E r, where both are known multiples of ∇J
    within: Statistic | None = None  # between groups of one prompt; None where no prompt has two
    known_scale: float | None = None  # of E g relative to G, where it is known exactly


def trace_cov(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`\mathrm{tr\,Cov}(g) = E‖g‖² - ‖E g‖²` of one group's gradient, over prompts and completions.

    With one group a prompt it is :math:`(\sum_m‖g_m‖² - ‖\sum_m g_m‖²/M)/(M-1)`; with several, the sum of
    ``within_prompt`` and ``between_prompt`` (:class:`gradstats.stats.variance.moments.PromptMoments`). In the
    square of the gradient's unit. The mean over M prompts has the variance ``trace_cov``/M.

    The interval is a delete-one-prompt jackknife on the log scale, with quantiles for heavy tails of the squared
    gradients of prompts (:mod:`gradstats.stats.intervals`).
    """
    return skewed_mean(gradient.trace_cov, gradient.second_moment.pseudo_values)


def signal_sq(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`‖E g‖²` without bias: the mean of :math:`⟨g_m, g_{m'}⟩` over pairs of different prompts.

    May be negative and is never truncated. In the square of the gradient's unit. The interval is a delete-one-prompt
    jackknife on the raw scale: a bootstrap over prompts would duplicate them and shift it by ``trace_cov``/M.
    """
    return gradient.signal.estimate()


@dataclass(frozen=True)
class NoiseToSignal:
    """The estimate as a quotient of variance and signal."""

    quotient: FiellerRatio  # tr Cov over ‖E g‖²

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``: a ray without a value where the signal is not resolved."""
        low, high = self.quotient.within(confidence_level, 0.0, np.inf)
        return self.quotient.value if np.isfinite(high) else np.nan, low, high


def noise_to_signal(gradient: GradientStatistics) -> NoiseToSignal:
    r"""Return :math:`\mathrm{tr\,Cov}(g)/‖E g‖²`, in units of groups: the simple noise scale.

    It is the number of groups that must be averaged for the noise of their mean to equal the signal. It does not depend
    on the unit of the gradient. McCandlish et al., *An Empirical Model of Large-Batch Training*, 1812.06162.

    The interval is the Fieller set of the quotient where the signal is at least 0
    (:class:`gradstats.stats.intervals.FiellerRatio`, variances from a delete-one-prompt jackknife). Where the signal is
    not resolved it is a ray with an infinite upper end, and no value is given. Where the estimated signal is negative
    beyond its error no noise to signal is compatible with the data, and everything is NaN.
    """
    return NoiseToSignal(fieller_ratio(gradient.trace_cov, gradient.signal))


def ratio(gradient: GradientStatistics) -> Estimate:
    r"""Return :math:`\mathrm{tr\,Cov}(g)/\mathrm{tr\,Cov}(r)`, with r the gradient of the reference.

    It falls with the scale of the estimator: one that shrinks its gradient by c has c² times the variance.

    Both variances come from the same prompts, so that the interval is paired: a studentised bootstrap over prompts on
    the log scale (:mod:`gradstats.stats.intervals`). NaN where the reference gives no completion any weight.
    """
    if gradient.reference is None:
        return NOT_ESTIMATED
    return studentised_ratio(gradient.trace_cov, gradient.reference.trace_cov)


def ratio_simultaneous(ratios: Sequence[Estimate], confidence_level: float) -> list[tuple[float, float]]:
    r"""Give each ``ratio`` an interval such that all of them hold together at the stated level.

    With :math:`t_e` the studentised deviation of the logarithm of ratio e, the interval of every ratio uses the upper
    quantile of :math:`\max_e t_e` and the lower one of :math:`\min_e t_e`, from the same resamples of the prompts
    (max-t; Romano and Wolf 2005). It contains the interval of the ratio alone. Ratios that are known exactly take no
    part; the interval of one that is not estimated is NaN.
    """
    draws = [one.draws for one in ratios if isinstance(one, StudentisedEstimate) and one.stderr > EXACT]
    quantile = largest_deviation(draws, confidence_level)
    return [
        one.within(quantile, confidence_level) if isinstance(one, StudentisedEstimate) else (np.nan, np.nan)
        for one in ratios
    ]


@dataclass(frozen=True)
class OfKnownScale:
    """A relative noise whose coefficient is known exactly."""

    ratio: Estimate  # tr Cov over the reference's
    coefficient: float  # of E g relative to E r

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``; NaN for an expected gradient of 0."""
        return self._scaled(*self.ratio.with_interval(confidence_level))

    def within(self, quantile: float, confidence_level: float) -> Interval:
        """Return the same for a quantile of the studentised deviation, or for Student's where that is larger."""
        if not isinstance(self.ratio, StudentisedEstimate):
            return UNKNOWN
        return self._scaled(self.ratio.value, *self.ratio.within(quantile, confidence_level))

    def _scaled(self, value: float, low: float, high: float) -> Interval:
        if self.coefficient == 0.0:
            return UNKNOWN
        factor = self.coefficient**-2
        return value * factor, low * factor, high * factor


@dataclass(frozen=True)
class OfEstimatedScale:
    """A relative noise whose coefficient is estimated from the same prompts."""

    root: FiellerRatio  # √(tr Cov(g)/tr Cov(r)) over the coefficient, of either sign

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``: a ray without a value where the coefficient is not resolved."""
        return self.within(0.0, confidence_level)

    def within(self, quantile: float, confidence_level: float) -> Interval:
        """Return the same for a quantile of the studentised deviation, or for Student's where that is larger."""
        pieces = self.root.solution(confidence_level, quantile)
        if not pieces:
            return UNKNOWN
        low = min(0.0 if first <= 0.0 <= last else min(first**2, last**2) for first, last in pieces)
        high = max(max(first**2, last**2) for first, last in pieces)
        return self.root.value**2 if np.isfinite(high) else np.nan, low, high


def matched_ratio(gradient: GradientStatistics) -> Estimated:
    r"""Return :math:`\frac{\mathrm{tr\,Cov}(g)/c²}{\mathrm{tr\,Cov}(r)/c_r²}` with :math:`c = ⟨E g, G⟩/‖G‖²` and
    :math:`c_r = ⟨E r, G⟩/‖G‖²`, r the reference and G the expectation of the target.

    Estimator and reference are scaled so that their expected gradients project with coefficient 1 on the target's:
    neither scale nor unit enters. Where both expectations are exact multiples of the true gradient (an own-sample mean
    keeps (N−1)/N of it, for completions drawn from the scored policy) these numbers are used, and the interval is that
    of ``ratio``. Otherwise :math:`c_r/c = ⟨E r, G⟩/⟨E g, G⟩` is estimated, and the interval is the Fieller set of
    :math:`\sqrt{\mathrm{tr\,Cov}(g)/\mathrm{tr\,Cov}(r)}\;⟨E r, G⟩ / ⟨E g, G⟩`, squared: a ray with an infinite upper
    end, without a value, where the projection of E g on G is not resolved.
    """
    if gradient.reference is None:
        return NOT_ESTIMATED
    if gradient.known_coefficient is not None:
        return OfKnownScale(ratio(gradient), gradient.known_coefficient)
    if gradient.target is None or gradient.reference_on_target is None:
        return NOT_ESTIMATED
    root = (gradient.trace_cov / gradient.reference.trace_cov).root()
    return OfEstimatedScale(fieller_ratio(root * gradient.reference_on_target, gradient.target.cross))


def matched_trace_cov(gradient: GradientStatistics) -> Statistic | None:
    """Return tr Cov at matched signal, up to a factor that all estimators share; None where the signal is not known.

    It ranks estimators, of which ``matched_ratio`` gives each beside the reference alone.
    """
    if gradient.known_coefficient is not None:
        known = gradient.known_coefficient
        return None if known == 0.0 else gradient.trace_cov.scaled(known**-2)
    if gradient.target is None or gradient.reference_on_target is None:
        return None
    coefficient = gradient.target.cross / gradient.reference_on_target
    return gradient.trace_cov / (coefficient * coefficient)


def matched_ratio_simultaneous(matched: Sequence[Estimated], confidence_level: float) -> list[tuple[float, float]]:
    r"""Return an interval for each ``matched_ratio``, such that all of them hold together at the stated level.

    As in :func:`ratio_simultaneous`: where the scale is known it is that of ``ratio``, times the scale. Where it is
    estimated, the Fieller set with the quantile of the largest deviation in place of Student's, where the deviation of
    that row is the one of :math:`N - \hat ψD`, studentised. Rows that are known exactly take no part; what is not
    estimated is NaN.
    """
    draws = []
    for one in matched:
        if isinstance(one, OfKnownScale):
            ratio = one.ratio
            if isinstance(ratio, StudentisedEstimate) and ratio.stderr > EXACT and one.coefficient != 0.0:
                draws.append(ratio.draws)
        elif isinstance(one, OfEstimatedScale) and one.root.is_known and not one.root.is_exact:
            draws.append(one.root.draws)
    quantile = largest_deviation(draws, confidence_level)
    return [
        one.within(quantile, confidence_level)[1:] if isinstance(one, OfKnownScale | OfEstimatedScale) else UNKNOWN[1:]
        for one in matched
    ]


@dataclass(frozen=True)
class BoundedQuotient:
    """A cosine or a share: a quotient that cannot lie outside [lowest, 1]."""

    quotient: FiellerRatio
    lowest: float
    unknown: Interval = UNKNOWN  # where the statistics are not known

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, the ends inside; no value where the denominator is not resolved."""
        if not self.quotient.is_known:
            return self.unknown
        if not self.quotient.is_bounded(confidence_level):
            return np.nan, *self.quotient.within(confidence_level, self.lowest, 1.0)
        return self.quotient.value, *self.inside(self.quotient.solution(confidence_level)[0])

    def inside(self, ends: tuple[float, float]) -> tuple[float, float]:
        """Put what lies beyond the possible values, by rounding or by its error, at the end that it is nearest to."""
        low, high = np.clip(ends, self.lowest, 1.0)
        return float(low), float(high)


def cosine(gradient: GradientStatistics) -> Estimated:
    r""":math:`⟨E g, G⟩/(‖E g‖\,‖G‖)`, with G the expectation of the target: 1 for an estimator biased in scale alone.

    Cross-fitted: each prompt's gradient is multiplied by the target's of all *other* prompts, so that no completion is
    paired with itself. The product of the norms is less the jackknife's estimate of its bias: roots of unbiased squares
    are too small on average, and the cosine would be too large (of dealt batches the estimate is less the part that a
    finite number of deals adds to it). The estimate may exceed 1 by its error. The interval is
    the Fieller set of the quotient, cut to [−1, 1]; where the product of the norms is not resolved no value is given,
    and where one of them may be 0 the interval is all of [−1, 1].
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    own, target = gradient.signal, gradient.target.signal
    norms = own.root() * target.root()
    # √((1 + a)(1 + b)) = 1 + (a + b)/2 − (a − b)²/8 + …, a and b the relative errors of the two squares.
    relative = own.in_units_of_itself() - target.in_units_of_itself()
    norms = norms.without_bias(-norms.value * relative.surplus_over_deals / 8)
    return BoundedQuotient(fieller_ratio(gradient.target.cross, norms), -1.0, unknown=(np.nan, -1.0, 1.0))


def bias_share(gradient: GradientStatistics) -> Estimated:
    r""":math:`\frac{‖E d‖²}{‖E d‖² + \mathrm{tr\,Cov}(g)/B}`, d = g − h with h the target's gradient, in a batch of B.

    :math:`‖E d‖²` is estimated without bias from pairs of different prompts, so that it may be negative, and the share
    with it. The interval is the Fieller set of the quotient, cut to [0, 1].
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    bias_sq = gradient.signal - gradient.target.cross.scaled(2.0) + gradient.target.signal
    error = bias_sq + gradient.trace_cov.scaled(1.0 / gradient.prompts_per_batch)
    return BoundedQuotient(fieller_ratio(bias_sq, error), 0.0)


def matched_bias_share(gradient: GradientStatistics) -> Estimated:
    r"""Return :math:`\frac{‖E g/c - G‖²}{‖E g/c - G‖² + \mathrm{tr\,Cov}(g)/(c²B)}` with :math:`c = ⟨E g, G⟩/‖G‖²`.

    The estimator g is scaled so that its expected gradient projects with coefficient 1 on G, that of the target: what
    is left of the bias is its direction, in a batch of B prompts. A scale alone, such as the 1/L of Dr. GRPO, has none.
    With U-statistics for the inner products it is

    .. math:: \frac{A}{A + \mathrm{tr\,Cov}(g)\,‖G‖²/B}, \qquad A = ‖E g‖²‖G‖² - ⟨E g, G⟩²,

    with A less the jackknife's estimate of its bias, since the square of an estimated product is too large by its
    variance; it may be negative, and the share with it. Where c is known exactly it is used:
    :math:`‖E g‖² - 2c⟨E g, G⟩ + c²‖G‖²` is then the squared bias beside tr Cov(g)/B. The interval is the Fieller set of
    the quotient, cut to [0, 1]; no value is given where the denominator is not resolved.
    """
    if gradient.target is None:
        return NOT_ESTIMATED
    cross, target_signal = gradient.target.cross, gradient.target.signal
    known = gradient.known_scale
    if known is not None:
        turned = gradient.signal - cross.scaled(2.0 * known) + target_signal.scaled(known**2)
        noise = gradient.trace_cov
    else:
        # The error of ⟨E g, G⟩ enters A by minus its square; that of ‖G‖² has no deals.
        turned = (gradient.signal * target_signal - cross * cross).without_bias(-cross.surplus_over_deals)
        noise = gradient.trace_cov * target_signal
    unit = gradient.second_moment.value * (1.0 if known is not None else target_signal.value)
    if max(abs(turned.value), float(np.abs(turned.replicates).max())) <= EXACT * abs(unit):
        turned = turned.scaled(0.0)  # a multiple of the target: what is left is rounding
    error = turned + noise.scaled(1.0 / gradient.prompts_per_batch)
    return BoundedQuotient(fieller_ratio(turned, error), 0.0)


def fieller_simultaneous(estimates: Sequence[Estimated], confidence_level: float) -> list[tuple[float, float]]:
    """Return an interval for each cosine or share of bias, such that all hold together at the stated level.

    Each is the Fieller set of the quotient with the quantile of the largest studentised deviation over all rows in
    place of Student's (max-t, as in :func:`ratio_simultaneous`), cut to what is possible. Rows that are known exactly
    take no part; the interval of one that is not estimated is NaN.
    """
    quotients = [one.quotient for one in estimates if isinstance(one, BoundedQuotient)]
    draws = [one.draws for one in quotients if one.is_known and not one.is_exact]
    quantile = largest_deviation(draws, confidence_level)
    ends: list[tuple[float, float]] = []
    for one in estimates:
        if not isinstance(one, BoundedQuotient):
            ends.append((np.nan, np.nan))
            continue
        pieces = one.quotient.solution(confidence_level, quantile) or [(-np.inf, np.inf)]
        ends.append(one.inside((pieces[0][0], pieces[-1][1])))
    return ends


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
        z_sq = special.ndtri(0.5 + confidence_level / 2.0) ** 2
        centre = (p + z_sq / (2.0 * n)) / (1.0 + z_sq / n)
        margin = np.sqrt(z_sq * (p * (1.0 - p) / n + z_sq / (4.0 * n**2))) / (1.0 + z_sq / n)
        return p, float(max(centre - margin, 0.0)), float(min(centre + margin, 1.0))


def kept_share(kept: Float[np.ndarray, " prompts"]) -> KeptShare:
    """Estimate the mean over prompts of the share of their groups with any non-zero weight.

    A group has none where its rewards are all equal and the baseline subtracts their mean, or where a filter drops it.
    """
    return KeptShare(mean_statistic(kept).estimate())


def within_prompt(gradient: GradientStatistics) -> Estimate:
    r"""Average :math:`\frac{1}{K-1}\sum_k‖g_{mk} - \bar g_m‖²`, over the K groups of a prompt, over prompts.

    It falls as groups grow. In the square of the gradient's unit. The interval is that of ``trace_cov``; NaN where
    every prompt has a single group.
    """
    return NOT_ESTIMATED if gradient.within is None else skewed_mean(gradient.within, gradient.within.pseudo_values)


def between_prompt(gradient: GradientStatistics) -> Estimate:
    """Return ``trace_cov`` less ``within_prompt``: the variance of the prompts' own expected gradients.

    Without bias, so that it may be negative. It does not shrink with the group size. In the square of the gradient's
    unit. The interval is a delete-one-prompt jackknife on the raw scale; NaN where every prompt has a single group.
    """
    return NOT_ESTIMATED if gradient.within is None else (gradient.trace_cov - gradient.within).estimate()


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
