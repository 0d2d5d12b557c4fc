r"""The noise of estimators by a proxy of squared gradients, and calibrated by a measurement of some of the prompts.

A forward pass gives, for each completion, numbers that grow with its squared gradient: :math:`\sum_t(1 - 2π_t + \sum_v
π_v²)`, the squared gradient with respect to the logits (*logit*), :math:`\sum_t -\log π_t` (*surprisal*), the sum of
entropies, or :math:`T^{2α}` (*length*). With weights w an estimator's noise is by proxy :math:`\sum_i w_i² q_i` of a
group: norms alone, without the products of different completions. It sees the output layer; others may rank estimators
differently. Where some of the prompts are measured, the proxy need not be right: it is a control variate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy
from jaxtyping import Float, Int

from gradstats import estimators as families
from gradstats.config.options import CONFIDENCE_LEVEL, Target
from gradstats.estimators import Batch
from gradstats.estimators.batch import how_to_get
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting
from gradstats.estimators.ratios import TOKENS_AT_ONCE, as_sequence_level
from gradstats.stats.intervals import (
    EXACT,
    FEWEST_CARRIERS,
    lognormal_quantile,
    lognormal_tail,
    longer_side,
    prompts_that_carry,
    skewed_mean,
    studentised_lognormal,
    studentised_means,
    studentised_quantile,
    studentised_ratio,
)
from gradstats.stats.jackknife import (
    NOT_ESTIMATED,
    Estimate,
    Estimated,
    Interval,
    Statistic,
    influential_prompts,
    mean_statistic,
)
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.inputs import pooled, prepared_inputs, refuse_batch_level
from gradstats.stats.variance.moments import shuffled_prompts, split_into_groups
from gradstats.stats.variance.pools import Weighted
from gradstats.stats.variance.quantities import fewest_carriers
from gradstats.stats.variance.sketch_error import rotated_once

#: The proxy that needs lengths alone, and the exponent α of its T^{2α} where none is known.
LENGTH, ALPHA = "length", 0.5
#: With fewer measured prompts nothing is learned from them.
FEWEST_PROMPTS = 20
#: Below this factor of prompts a proxy is not used: what it seems to save may be chance.
_LEAST_FACTOR = 1.1
_FOLDS = 10
#: Sums of so many sets of prompts stand for those of more.
_MOST_UNITS = 200


@dataclass(frozen=True)
class Scored:
    """Completions of all prompts with what a forward pass, or a trainer's log, gives of each.

    Attributes:
        prompts: (n,) the name of the prompt.
        rewards: (n,) R.
        lengths: (n,) counted tokens.
        proxies: name → (n,) sums over the counted tokens, such as ``logit``, ``surprisal`` and ``entropy``.
        groups: (n,) labels of completions that were drawn together; a prompt is one group by default.
        alpha: exponent of the proxy by length, T^{2α}.
    """

    prompts: npt.ArrayLike
    rewards: npt.ArrayLike
    lengths: npt.ArrayLike
    proxies: Mapping[str, npt.ArrayLike] = field(default_factory=dict)
    groups: npt.ArrayLike | None = None
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        shape = np.shape(self.prompts)
        arrays = {"rewards": self.rewards, "lengths": self.lengths, "groups": self.groups}
        for name, values in (arrays | {f"proxies[{one!r}]": values for one, values in self.proxies.items()}).items():
            if values is not None and np.shape(values) != shape:
                raise ValueError(f"{name} has shape {np.shape(values)}, but prompts has shape {shape}: one of each row")

    def known(self) -> dict[str, Float[np.ndarray, " n"]]:
        """Return the proxies that are known of every completion, that by length included."""
        found = {name: np.asarray(values, dtype=np.float64) for name, values in self.proxies.items()}
        found[LENGTH] = np.asarray(self.lengths, dtype=np.float64) ** (2.0 * self.alpha)
        return {name: q for name, q in found.items() if np.isfinite(q).all() and q.min() >= 0 and q.max() > 0}


@dataclass(frozen=True)
class ProxyNoise:
    r"""The mean over a prompt's groups of :math:`\sum_i w_i² q_i`, for each prompt, estimator and proxy."""

    prompts: np.ndarray  # (P,) names, in order
    names: tuple[str, ...]  # of the proxies
    noise: Float[np.ndarray, "p e q"]
    n_groups: int
    n_leftover: int  # completions that filled no group

    def ratio(self, estimator: int, reference: int, proxy: str) -> Estimate:
        """Return the noise of an estimator over that of the reference, by one proxy."""
        of_proxy = self.noise[:, :, self.names.index(proxy)]
        mine, other = (mean_statistic(_in_few_units(of_proxy[:, one])) for one in (estimator, reference))
        return studentised_ratio(mine, other)


def proxy_noise(scored: Scored, estimators: Sequence[str | Weighting], group_size: int | None = None) -> ProxyNoise:
    r"""Return the noise of estimators by every proxy that is known, :math:`\sum_i w_i² q_i` of a group, by prompt.

    Args:
        scored: completions of all prompts.
        estimators: labels, or estimators, whose weights are constant along a completion.
        group_size: completions of a group: those that were drawn together are split, in their order, into disjoint
            groups. All of them by default.

    Raises:
        ValueError: for estimators that rewards, lengths and groups do not weight, and where no group is full.

    Example:
        >>> from gradstats.stats.variance.calibrated import Scored, proxy_noise
        >>> scored = Scored(["a", "a", "b", "b"], [1, 0, 1, 1], [4, 6, 5, 9])
        >>> proxy_noise(scored, ["rloo"]).noise[:, 0, 0].tolist()
        [2.5, 0.0]
    """
    chosen = get_all(estimators)
    if refused := unweightable(chosen):
        label, why = next(iter(refused.items()))
        raise ValueError(f"{label} {why}")
    proxies = scored.known()
    labels, prompts = np.unique(np.asarray(scored.prompts).astype(str), return_inverse=True)
    pairs = prompts
    if scored.groups is not None:
        own = np.unique(np.asarray(scored.groups).astype(str), return_inverse=True)[1]
        pairs = np.unique(np.column_stack([prompts, own]), axis=0, return_inverse=True)[1].reshape(-1)
    if group_size is not None and not 1 <= group_size <= np.bincount(pairs).max():
        raise ValueError(
            f"group_size={group_size} must lie between 1 and {np.bincount(pairs).max()}, the most completions that "
            "were drawn together"
        )
    groups = split_into_groups(pairs, np.arange(len(pairs)), group_size)
    rewards, lengths = (np.asarray(one)[groups.rows] for one in (scored.rewards, scored.lengths))
    q = np.stack([values[groups.rows] for values in proxies.values()], axis=1)
    first = np.r_[0, np.cumsum(groups.sizes)]
    of_groups = np.zeros((groups.n_groups, len(chosen), len(proxies)))
    for begin, end in _blocks(lengths, first):
        rows = slice(first[begin], first[end])
        batch = Batch(rewards[rows], lengths[rows], groups.group[rows])
        for at, one in enumerate(chosen):
            squares = as_sequence_level(one, batch).weights(batch) ** 2
            of_groups[begin:end, at] = np.add.reduceat(squares[:, None] * q[rows], first[begin:end] - first[begin])
    prompt = prompts[groups.rows[first[:-1]]]
    kept, at = np.unique(prompt, return_inverse=True)
    sums = np.zeros((len(kept), *of_groups.shape[1:]))
    np.add.at(sums, at, of_groups)
    noise = sums / np.bincount(at)[:, None, None]
    return ProxyNoise(labels[kept], tuple(proxies), noise, groups.n_groups, groups.n_leftover)


def _blocks(lengths: Int[np.ndarray, " n"], first: Int[np.ndarray, " groups+1"]) -> Iterator[tuple[int, int]]:
    """Yield ranges of groups whose completions fit into memory, padded to the longest."""
    most = max(TOKENS_AT_ONCE // max(int(lengths.max()), 1), 1)
    begin, n_groups = 0, len(first) - 1
    while begin < n_groups:
        end = max(int(np.searchsorted(first, first[begin] + most, side="right")) - 1, begin + 1)
        yield begin, end
        begin = end


def unweightable(estimators: Sequence[str | Weighting]) -> dict[str, str]:
    """Return the estimators that rewards, lengths and groups alone do not weight, and why."""
    batch = Batch([1.0, 0.0, 1.0, 0.0, 0.0], [2, 3, 4, 1, 2], [0, 0, 0, 1, 1])
    found = {}
    for one in get_all(estimators):
        if one.across_groups:
            found[one.label] = "is a batch-level estimator, whose groups are not independent: leave it out"
        elif missing := [need for need in one.needs if not batch.has(need)]:
            found[one.label] = f"needs {missing[0]}, which is not known of every completion: {how_to_get(missing[0])}"
        elif as_sequence_level(one, batch).level == "token":
            found[one.label] = "weights the tokens of a completion differently: leave it out"
    return found


def _in_few_units(values: Float[np.ndarray, " p"]) -> Float[np.ndarray, " units"]:
    """Return values of at most so many units with the same mean: sums over prompts at equal distances."""
    n = min(len(values), _MOST_UNITS)
    return np.bincount(np.arange(len(values)) % n, values) * (n / len(values))


@dataclass(frozen=True)
class Calibrated:
    r"""A positive quantity of the measurement, or where the proxy helps the same with the proxy as control variate.

    Attributes:
        measured: of the measurement alone.
        factor: how many times the measured prompts it is worth: squared standard error without over with; 1 where the
            proxy does not help.
        coefficient: λ, the mean of those of the folds; 0 where the proxy does not help.
    """

    measured: Estimate
    factor: float = 1.0
    coefficient: float = 0.0
    _parts: _Parts | None = field(default=None, repr=False)

    @property
    def helps(self) -> bool:
        """Whether the proxy shortens the interval."""
        return self._parts is not None

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``."""
        return (self.measured if self._parts is None else self._parts).with_interval(confidence_level)


@dataclass(frozen=True)
class _Parts:
    """A calibrated logarithm, whose error is the sum of two independent ones: of measured prompts, and of the others.

    The margins of the two are added in squares (G. Y. Zou and A. Donner, *Construction of Confidence Limits about
    Effect Measures*, 2008).
    """

    value: float  # of the logarithm
    coefficient: float
    influence: Float[np.ndarray, " m"]  # of measured prompts on it
    others: Float[np.ndarray, " units"]  # of sets of the others, zero on average
    shared: float  # variance of sketch, probes and deals, which all prompts share
    without: float  # squared standard error of the logarithm as measured
    # Of a mean: the values whose mean is the quantity, and the proxies of the others; None of a ratio.
    values: Float[np.ndarray, " m"] | None = None
    proxies: Float[np.ndarray, " units"] | None = None

    @property
    def factor(self) -> float:
        """The squared standard error without the control variate over that with it."""
        variance = _of_mean(self.influence) + _of_mean(self.others) + self.shared
        return self.without / variance if variance > 0 else math.inf

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)`` of the quantity."""
        deviations = np.sqrt([_of_mean(self.influence) + self.shared, _of_mean(self.others)])
        quantiles = np.array([self._quantiles(confidence_level), self._quantiles_of_others(confidence_level)])
        below, above = np.sqrt(((quantiles * deviations[:, None]) ** 2).sum(axis=0))
        means = [one for one in (self.values, self.proxies) if one is not None]
        carried = all(prompts_that_carry(one) >= FEWEST_CARRIERS for one in means)
        with np.errstate(over="ignore"):
            high = float(np.exp(self.value + above)) if carried else math.inf
            return float(np.exp(self.value)), float(np.exp(self.value - below)), high

    def _quantiles(self, level: float) -> tuple[float, float]:
        """Return how many standard errors of the measured prompts the ends lie below and above."""
        if self.values is None:
            both = _symmetric(self.influence, level)
            return both, both
        student = float(scipy.special.stdtrit(len(self.influence) - 1.0, 0.5 + level / 2.0))
        tail = lognormal_quantile(self.influence, level)  # as of a proxy that is right but for the largest gradients
        below, above = (tail, 0.0) if longer_side(self.influence) < 0 else (0.0, tail)
        return max(student, below), max(student, above, _of_tail(self.values, level))

    def _quantiles_of_others(self, level: float) -> tuple[float, float]:
        if not self.others.any():
            return 0.0, 0.0
        if self.proxies is None:
            both = _symmetric(self.others, level)
            return both, both
        student = float(scipy.special.stdtrit(len(self.others) - 1.0, 0.5 + level / 2.0))
        ends = student, max(student, _of_tail(self.proxies, level))
        return ends if self.coefficient > 0 else (ends[1], ends[0])


def _centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean()


def _of_mean(influence: np.ndarray) -> float:
    """Return the squared standard error of a mean."""
    return float(np.var(influence, ddof=1) / len(influence)) if len(influence) > 1 else 0.0


def _symmetric(influence: Float[np.ndarray, " m"], level: float) -> float:
    draws, n_influential = studentised_means(influence[:, None])[:, 0], float(influential_prompts(influence))
    return studentised_quantile(draws, n_influential, len(influence) - 1.0, level)


def _of_tail(values: Float[np.ndarray, " m"], level: float) -> float:
    """Return by how many standard errors the logarithm of a mean of such values may be too low."""
    spread, share = lognormal_tail(values)
    draws = studentised_lognormal(len(values), spread, share) if np.isfinite(spread) else np.zeros(0)
    return -float(np.quantile(draws, (1.0 - level) / 2.0)) if len(draws) else 0.0


@dataclass(frozen=True)
class CalibratedRow:
    """One estimator, as measured and calibrated."""

    label: str
    trace_cov: Calibrated
    ratio: Calibrated  # of its tr Cov to the reference's, paired


@dataclass(frozen=True)
class Calibration:
    """Estimators by a measurement of some prompts and a proxy of all; see :func:`calibrate`.

    Attributes:
        rows: one per estimator, in the order asked for.
        proxy: which was chosen by cross-validation; "" where none helps.
        reference: of the ratios.
        n_measured: measured prompts.
        n_matched: those of them that are among the scored ones.
        by_proxy: the noise of all scored prompts by every proxy, that of the reference last.
    """

    rows: tuple[CalibratedRow, ...]
    proxy: str
    reference: str
    n_measured: int
    n_matched: int
    by_proxy: ProxyNoise

    @property
    def n_prompts(self) -> int:
        """Scored prompts."""
        return len(self.by_proxy.prompts)

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State what the proxy adds to the measurement."""
        of = f"{self.n_measured:,} measured prompts of {self.n_prompts:,}"
        if self.n_matched < FEWEST_PROMPTS:
            return (
                f"Intervals are those of the {self.n_measured:,} measured prompts: {self.n_matched} of them are among "
                f"the {self.n_prompts:,}, and a proxy is calibrated from {FEWEST_PROMPTS}."
            )
        if self.n_matched == self.n_prompts:
            return f"Every one of the {self.n_prompts:,} prompts is measured: no proxy is needed."
        helped = [row for row in self.rows if row.ratio.helps or row.trace_cov.helps]
        if not helped:
            return f"No proxy shortens what {of} show: values and intervals are those of the measurement."
        factors = [one.factor for row in self.rows for one in (row.trace_cov, row.ratio) if one.helps]
        ends = "–".join(dict.fromkeys(f"{one:.1f}" for one in (min(factors), max(factors))))
        rest = [row.label for row in self.rows if row not in helped]
        alone = f"; it does not help {', '.join(rest)}, whose intervals are those of the measurement" if rest else ""
        return f"With the proxy {self.proxy}, {of} are worth {ends} times as many{alone}."


def calibrate(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    scored: Scored,
    *,
    scores: npt.ArrayLike | None = None,
    scores_are_sketches: bool | None = None,
    group_size: int | None = None,
    reference: str | Weighting = "rloo",
    target: Target = "auto",
    rng: int | np.random.Generator | None = 0,
) -> Calibration:
    r"""Estimate tr Cov and its ratio to the reference's from a measurement of some prompts and a proxy of all.

    With θ the logarithm of what the M measured prompts show, and :math:`ζ_M, ζ_P` the same function of the proxy's
    noise on these and on all P prompts,

    .. math:: \hat θ = θ - \frac1M \sum_m λ_m (z_m - ζ_P),

    where :math:`z_m` are the pseudo-values of :math:`ζ_M`: for equal λ it is :math:`θ - λ(ζ_M - ζ_P)`. It estimates the
    same as θ whatever the proxy, as long as measured prompts are a random sample of all; its variance is least for the
    slope of θ's pseudo-values on z, which prompts of the other folds give each fold (prediction-powered inference:
    Angelopoulos et al., 2301.09633, with the λ of PPI++, 2311.01453; cross-fitted as in Zrnic and Candès, 2309.16598).
    In logarithms a proxy that is right up to a factor has λ = 1, and takes all error of the measured prompts away. The
    ratio stays paired: θ and z are logarithms of ratios.

    The proxy is the one with the least variance over all rows. Where it is worth less than 1.1 times the prompts, or
    would widen the 95 % interval, value and interval are those of the measurement, as :func:`gradstats.compare` gives
    them at the same seed. Intervals have the quantiles for heavy tails that they have there, of the two independent
    parts of the error each.

    Args:
        measured_or_batch: a measurement, or a batch (then ``scores`` is needed), of some of the prompts.
        estimators: labels, or estimators, whose weights are constant along a completion.
        scored: completions of all prompts, the measured ones included, with their proxies. The proxy of a measured
            prompt is taken from here as well, so that a log of an older policy lowers the correlation and no more.
        scores: as in :func:`gradstats.compare`.
        scores_are_sketches: as there.
        group_size: completions of a group, in both.
        reference: estimator that ratios are taken to.
        target: as there.
        rng: as there.

    Returns:
        A :class:`Calibration`.

    Raises:
        ValueError: where no measured prompt is among the scored ones, and for estimators that cannot be weighted.

    Example:
        >>> import numpy as np
        >>> from gradstats.estimators import Batch
        >>> from gradstats.stats.variance.calibrated import Scored, calibrate
        >>> rng = np.random.default_rng(0)
        >>> prompts, lengths, rewards = np.arange(1200) // 4, rng.integers(9, 99, 1200), rng.integers(0, 2, 1200)
        >>> scores = rng.normal(size=(1200, 8)) * np.sqrt(lengths)[:, None]
        >>> some = prompts < 60
        >>> batch = Batch(rewards[some], lengths[some], prompts[some])
        >>> found = calibrate(batch, ["reinforce"], Scored(prompts, rewards, lengths), scores=scores[some])
        >>> found.proxy, round(found.rows[0].trace_cov.factor, 1)
        ('length', 1.8)
    """
    chosen, base = get_all(estimators), families.get(reference)
    refuse_batch_level([*chosen, base])
    by_proxy = proxy_noise(scored, [*chosen, base], group_size)
    generator = np.random.default_rng(rng)
    inputs, prepared, judged = prepared_inputs(measured_or_batch, [*chosen, base], scores, scores_are_sketches, target)
    prompts = shuffled_prompts(inputs.batch.group_index, generator)
    (stream,) = generator.spawn(1)
    groups = split_into_groups(prompts, inputs.order, group_size)
    with rotated_once():
        pool = pooled(inputs, groups, prepared, stream, judged)
        weighted = [pool.local(one) for one in prepared]
        # Equal weights are one estimator under two names, so that ratios are exactly 1, as in a comparison.
        weighted = [weighted[-1] if np.array_equal(one.weights, weighted[-1].weights) else one for one in weighted]
    at = {name: place for place, name in enumerate(by_proxy.prompts.tolist())}
    places = np.array([at.get(str(label), -1) for label in pool.prompt_labels.tolist()])
    if (places < 0).all():
        raise ValueError(
            f"none of the {len(places)} measured prompts ({pool.prompt_labels[0]}, …) is among the {len(at)} scored "
            f"ones ({by_proxy.prompts[0]}, …): name prompts alike in both"
        )
    quantities = [
        _quantities(one, weighted[-1], by_proxy.noise[:, [number, -1]]) for number, one in enumerate(weighted[:-1])
    ]
    n_matched = int((places >= 0).sum())
    proxies = range(len(by_proxy.names) if FEWEST_PROMPTS <= n_matched < len(at) else 0)
    controlled = [[[one.controlled(proxy, places) for one in row] for row in quantities] for proxy in proxies]
    gains = [sum(math.log(max(one.factor, 1.0)) for row in rows for one in row if one) for rows in controlled]
    best = int(np.argmax(gains)) if gains else 0
    parts = controlled[best] if controlled else [[None, None] for _ in chosen]
    rows = [
        CalibratedRow(one.label, *(quantity.calibrated(part) for quantity, part in zip(row, of_row, strict=True)))
        for one, row, of_row in zip(chosen, quantities, parts, strict=True)
    ]
    helps = any(row.trace_cov.helps or row.ratio.helps for row in rows)
    return Calibration(tuple(rows), by_proxy.names[best] if helps else "", base.label, len(places), n_matched, by_proxy)


@dataclass(frozen=True)
class _Quantity:
    """What is measured of one estimator, and what the proxies say of it at every prompt."""

    measured: Estimate
    logarithm: Statistic
    noise: Float[np.ndarray, "p q"]
    beside: Float[np.ndarray, "p q"] | None = None  # of the reference, for a ratio
    squares: Float[np.ndarray, " m"] | None = None  # E‖g‖² of each measured prompt, for a mean

    def controlled(self, proxy: int, places: Int[np.ndarray, " m"]) -> _Parts | None:
        """Return its logarithm with one proxy as control variate; None where one of the two has none.

        Args:
            proxy: its number.
            places: which of all prompts each measured one is; −1 for none.
        """
        theta, inside = self.logarithm, places >= 0
        variance, pseudo = theta.variance(), _centred(theta.pseudo_values)
        of_all = self._by_proxy(proxy, np.arange(len(self.noise)))
        of_measured = self._by_proxy(proxy, places[inside])
        known = (theta.replicates, of_all.replicates, of_measured.replicates, [variance])
        if not all(np.isfinite(one).all() for one in known) or variance <= EXACT**2:
            return None
        # z_m − ζ_P, 0 for prompts of which no proxy is known; and the influence of each prompt on ζ_P.
        control, on_all = np.zeros(len(places)), _centred(of_all.pseudo_values)
        control[inside] = _centred(of_measured.pseudo_values) + of_measured.value - of_all.value
        fold = np.arange(len(places)) % _FOLDS  # prompts are numbered at random
        slopes = np.array([_slope(control[fold != one], pseudo[fold != one]) for one in range(_FOLDS)])[fold]
        coefficient = float(np.sum(slopes[inside]) / len(places))
        influence = pseudo - slopes * control
        influence[inside] += coefficient * len(places) / len(on_all) * on_all[places[inside]]
        other = np.ones(len(on_all), dtype=bool)
        other[places[inside]] = False
        shared = max(variance - _of_mean(pseudo), 0.0)
        return _Parts(
            value=theta.value - float(np.mean(slopes * control)),
            coefficient=coefficient,
            influence=influence,
            others=_in_few_units(coefficient * other.sum() / len(on_all) * on_all[other]),
            shared=shared,
            values=None if self.squares is None else self.squares / self.squares.mean() + influence - pseudo,
            proxies=None if self.squares is None else _in_few_units(self.noise[other, proxy]),
            without=variance,
        )

    def calibrated(self, parts: _Parts | None) -> Calibrated:
        """Return the quantity with its control variate, or as measured where that is not better."""
        if parts is None or parts.factor < _LEAST_FACTOR or _width(parts) > _width(self.measured):
            return Calibrated(self.measured)
        return Calibrated(self.measured, parts.factor, parts.coefficient, parts)

    def _by_proxy(self, proxy: int, places: Int[np.ndarray, " some"]) -> Statistic:
        """Return the logarithm of the noise of some prompts, or of its ratio, by one proxy."""
        found = mean_statistic(self.noise[places, proxy]).logarithm()
        return found if self.beside is None else found - mean_statistic(self.beside[places, proxy]).logarithm()


def _quantities(one: Weighted, reference: Weighted, noise: Float[np.ndarray, "p both q"]) -> tuple[_Quantity, ...]:
    """Return tr Cov of an estimator and its ratio to the reference's."""
    if one.moments is None or reference.moments is None:
        unknown = Statistic(math.nan, np.full(2, math.nan))
        return (_Quantity(NOT_ESTIMATED, unknown, noise[:, 0]),) * 2
    trace_cov, of_reference = one.moments.trace_cov, reference.moments.trace_cov
    squares = one.moments.second_moment.pseudo_values
    return (
        _Quantity(
            skewed_mean(trace_cov, squares, one.moments.completions),
            trace_cov.logarithm(),
            noise[:, 0],
            squares=squares,
        ),
        _Quantity(
            studentised_ratio(trace_cov, of_reference, fewest_carriers(one.moments, reference.moments)),
            (trace_cov / of_reference).logarithm(),
            noise[:, 0],
            beside=noise[:, 1],
        ),
    )


def _slope(x: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"]) -> float:
    squares = float(np.sum(_centred(x) ** 2))
    return float(np.sum(_centred(x) * y)) / squares if squares > 0 else 0.0


def _width(one: Estimated) -> float:
    """Return the width of the 95 % interval of a positive quantity, in logarithms."""
    _, low, high = one.with_interval(CONFIDENCE_LEVEL)
    return math.log(high / low) if low > 0 else math.inf
