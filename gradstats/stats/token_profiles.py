"""Profiles along completions: energies, surprise and correlations by position, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
from jaxtyping import Float, Int

from gradstats.config.options import CONFIDENCE_LEVEL, MEASURE_PROBES
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.token_scores import TokenScores
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Statistic, mean_statistic
from gradstats.stats.protocols import MeasuredEntropies, MeasuredRollouts
from gradstats.stats.variance.sketch_error import probed_statistic
from gradstats.system.lazy_imports import pd


def prompt_mean(
    values: Float[np.ndarray, " n"], prompts: Int[np.ndarray, " n"], along: Float[np.ndarray, "n k"] | None = None
) -> Statistic:
    r"""Return :math:`\frac1M\sum_m\frac1{n_m}\sum_{i∈m}x_i` with its replicates.

    Args:
        values: (n,) x of each completion.
        prompts: (n,) its prompt m, numbered from 0.
        along: (n, K) the same quantity along each of K probes; None where no probe enters.
    """
    sizes = np.bincount(prompts)
    per_probe = None
    if along is not None:
        per_probe = np.zeros((len(sizes), along.shape[1]))
        np.add.at(per_probe, prompts, along / sizes[prompts][:, None])
    return probed_statistic(np.bincount(prompts, weights=values) / sizes, per_probe)


_FEWEST_PROMPTS = 3


def summed_energy(measured: MeasuredRollouts) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n k"] | None]:
    r"""Return (n,) :math:`\sum_t‖s_t‖²` of each completion, and along each probe the energy of its light tokens."""
    measured = cast(Measurement, measured)
    tokens = measured.token_scores() if hasattr(measured, "token_scores") else None
    if tokens is None:
        return np.array([float(np.sum(energy)) for energy in measured.token_energy or []]), None
    totals = np.array([scores.energy().sum() for scores in tokens])
    return totals, np.stack([_cumulative_by_probe(scores)[-1] for scores in tokens]) if tokens[0].n_probes else None


def has_token_energies(measured: MeasuredRollouts) -> bool:
    """Return whether the energy of every token is known, exactly or from probes."""
    if not hasattr(measured, "token_scores"):
        return getattr(measured, "token_energy", None) is not None
    tokens = cast(Measurement, measured).token_scores()
    return tokens is not None and (tokens[0].n_probes > 0 or not any(scores.light.any() for scores in tokens))


#: Why scores of tokens are not known.
NO_PROBES = f"the measurement has no probes of token scores: {MEASURE_PROBES}"


def tokens_of(measured: Measurement) -> tuple[list[TokenScores], Int[np.ndarray, " n"]]:
    """Return the token scores of every completion, and the number of its prompt."""
    tokens = None if measured.token_projections is None else measured.token_scores()
    if tokens is None:
        raise ValueError(NO_PROBES)
    return tokens, _prompts_of(measured)


def _prompts_of(measured: MeasuredRollouts) -> Int[np.ndarray, " n"]:
    """Return the prompt of each completion, numbered from 0."""
    prompts = np.unique(np.asarray(measured.rollouts.prompt_id), return_inverse=True)[1]
    n_prompts = int(prompts.max()) + 1
    if n_prompts < _FEWEST_PROMPTS:
        raise ValueError(f"intervals need at least {_FEWEST_PROMPTS} prompts, got {n_prompts}: measure more")
    return prompts


def _over_prompts(
    values: Float[np.ndarray, " n"],
    prompts: Int[np.ndarray, " n"],
    alive: np.ndarray,
    along: Float[np.ndarray, "n k"] | None = None,
) -> Statistic:
    """Return the sum over the completions of a prompt that count, averaged over the prompts that have any.

    Args:
        values: (n,) of each completion.
        prompts: (n,) its prompt, numbered from 0.
        alive: (n,) whether it counts.
        along: (n, K) the values along each of K probes; None where no probe enters.
    """
    index = np.unique(prompts[alive], return_inverse=True)[1]
    totals = np.bincount(index, values[alive])
    if along is None:
        return probed_statistic(totals)
    per_probe = np.zeros((len(totals), along.shape[1]))
    np.add.at(per_probe, index, along[alive])
    return probed_statistic(totals, per_probe)


def _masked_projections(scores: TokenScores) -> Float[np.ndarray, "t k"]:
    """Return the projections of token scores on the probes, 0 at tokens that do not count."""
    assert scores.projections is not None
    return np.where(scores.mask[:, None], scores.projections, 0.0).astype(np.float64)


def _cumulative_by_probe(scores: TokenScores) -> Float[np.ndarray, "t k"]:
    """Return the squares of light tokens' projections, summed along the counted tokens."""
    squares = np.where(scores.light[:, None], _masked_projections(scores) ** 2, 0.0)
    return np.cumsum(squares, axis=0)[scores.mask]


def _heavy_products(scores: TokenScores) -> Float[np.ndarray, "h h"]:
    """Inner products of different heavy tokens by their sketches, less those along the probes; 0 on the diagonal."""
    if scores.heavy_sketches is None or not len(scores.heavy_positions):
        return np.zeros((0, 0))
    wide = scores.heavy_sketches.astype(np.float64)
    along = _masked_projections(scores)[scores.heavy_positions]
    excess = wide @ wide.T - along @ along.T / scores.n_probes
    np.fill_diagonal(excess, 0.0)
    return excess


def surprise(excess: Sequence[Float[np.ndarray, " _"]], prompts: Int[np.ndarray, " n"]) -> Estimate:
    r"""Estimate the mean over prompts of :math:`\sum_t(-\log π(y_t) - H_t)`, in nats per completion.

    It is 0 where every token was drawn from the scored distribution, since each term then has mean zero given the
    tokens before, and negative where the sampler prefers likely tokens.

    Args:
        excess: for each completion, :math:`-\log π(y_t) - H_t` of its counted tokens; see :func:`excess_of`.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    return prompt_mean(np.array([float(np.sum(tokens)) for tokens in excess]), prompts).estimate()


def excess_of(measured: MeasuredEntropies) -> list[np.ndarray]:
    """Return, for each completion, −log π − H of its counted tokens, in nats."""
    return [
        -(np.asarray(logprob, dtype=np.float64)[mask] + np.asarray(entropy, dtype=np.float64)[mask])
        for logprob, entropy, mask in zip(measured.logprobs, measured.entropy, measured.rollouts.masks, strict=True)
    ]


def factor(energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]) -> Estimate:
    r"""Estimate by what factor the proxy of a token is typically off.

    :math:`\exp(\sum_t e_t|\log(e_t/(c p_t))|/\sum_t e_t)`, where tokens count by their energy e, and c is
    the one scale at which the totals of e and c p agree. 1 for a perfect proxy.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    scale = common_scale(energies, values)
    sums = np.zeros((2, int(prompts.max()) + 1))
    for prompt, energy, value in zip(prompts, energies, values, strict=True):
        kept = (energy > 0) & (value > 0)
        log_error = np.abs(np.log(energy[kept] / (scale * value[kept])))
        sums[:, prompt] += [energy[kept] @ log_error, energy[kept].sum()]
    log_factor = (mean_statistic(sums[0]) / mean_statistic(sums[1])).estimate()
    return Estimate(float(np.exp(log_factor.value)), log_factor.stderr, "log", log_factor.degrees)


def common_scale(energies: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> float:
    r"""Return :math:`\sum e/\sum p` over all tokens, the scale at which both totals agree; NaN if all p are 0."""
    total = sum(float(value.sum()) for value in values)
    return sum(float(energy.sum()) for energy in energies) / total if total > 0 else np.nan


@dataclass(frozen=True, repr=False)
class TokenProfile:
    """Estimates of one quantity, bin by bin, each with an interval clustered by prompt.

    Attributes:
        quantity: what is estimated.
        axis: what the bins divide: ``"position"`` (from 1), ``"distance"`` or ``"tokens"``.
        first: (bins,) first value of the axis in each bin.
        last: (bins,) last value of it.
        estimates: one per bin.
        n_prompts: (bins,) prompts that each rests on.
    """

    quantity: str
    axis: str
    first: Int[np.ndarray, " bins"]
    last: Int[np.ndarray, " bins"]
    estimates: tuple[Estimate, ...]
    n_prompts: Int[np.ndarray, " bins"]

    def __repr__(self) -> str:
        """Return the frame as text."""
        return self.to_frame().to_string(index=False)

    @property
    def values(self) -> Float[np.ndarray, " bins"]:
        """The estimates."""
        return np.array([estimate.value for estimate in self.estimates])

    def confidence_interval(
        self, confidence_level: float = CONFIDENCE_LEVEL
    ) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, " bins"]]:
        """Return ``(low, high)`` of every bin."""
        ends = np.array([estimate.confidence_interval(confidence_level) for estimate in self.estimates])
        return ends[:, 0], ends[:, 1]

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per bin: ``AXIS_first, AXIS_last``, the quantity with ``_low`` and ``_high``, ``n_prompts``."""
        low, high = self.confidence_interval(confidence_level)
        columns = {
            f"{self.axis}_first": self.first,
            f"{self.axis}_last": self.last,
            self.quantity: self.values,
            f"{self.quantity}_low": low,
            f"{self.quantity}_high": high,
            "n_prompts": self.n_prompts,
        }
        frame = pd.DataFrame(columns)
        frame.attrs["confidence_level"] = confidence_level
        return frame


def doubling_bins(longest: int) -> tuple[Int[np.ndarray, " bins"], Int[np.ndarray, " bins"]]:
    """Return the first and last value of bins 1, 2, 3–4, 5–8, …, the last of which ends at ``longest``."""
    last = np.unique(np.minimum(2 ** np.arange(int(np.ceil(np.log2(max(longest, 1)))) + 1), longest))
    return np.concatenate([[1], last[:-1] + 1]), last


_COUNTS = (1, 2, 4, 8, 16, 32)


def concentration(measured: Measurement, counts: Sequence[int] = _COUNTS) -> TokenProfile:
    r"""Return the share of a completion's token energy in its m heaviest tokens, averaged over completions.

    It is :math:`\sum_{t \in \mathrm{top}\,m} e_t/\sum_t e_t` with :math:`e_t = ‖s_t‖²`. Tokens are ranked by energies
    along one half of the probes and summed with those along the other (heavy tokens are known exactly), and both ways
    are averaged, so that noise in the ranking does not bias the share upward.

    Args:
        measured: a measurement with ``token_projections``.
        counts: numbers m.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    shares = np.zeros((len(tokens), len(counts)))
    for row, scores in enumerate(tokens):
        projections = _masked_projections(scores)
        halves = [
            replace(scores, projections=projections[:, half]).energy()
            for half in (slice(0, None, 2), slice(1, None, 2))
        ]
        if scores.n_probes == 1:
            halves[1] = halves[0]
        for ranking, energy in (halves, halves[::-1]):
            held = np.cumsum(energy[np.argsort(-ranking)])
            shares[row] += [0.5 * held[min(count, len(held)) - 1] / held[-1] for count in counts]
    sizes = np.bincount(prompts)
    means = [mean_statistic(np.bincount(prompts, held) / sizes) for held in shares.T]
    at = np.asarray(counts, dtype=np.int64)
    return TokenProfile(
        "share", "tokens", at, at, tuple(each.estimate() for each in means), np.full(len(at), len(set(prompts)))
    )


def token_correlation(measured: Measurement, *, max_distance: int | None = None) -> TokenProfile:
    r"""Return the correlation of token scores against the distance between the tokens.

    .. math:: ρ(d) = \frac{E\sum_t ⟨s_t, s_{t+d}⟩}{E\sum_t \frac12(‖s_t‖² + ‖s_{t+d}‖²)}

    a quotient of sums, so that tokens count by their energy; on-policy it is 0 at every distance. Inner products of
    two heavy tokens come from their sketches, others from the probes.

    Args:
        measured: a measurement with ``token_projections``.
        max_distance: greatest distance; the longest completion's by default.

    Returns:
        A profile over distances 1, 2, 3–4, 5–8, ….

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    from scipy.signal import correlate  # slow to import

    tokens, prompts = tokens_of(measured)
    longest = max(len(scores.mask) for scores in tokens) - 1
    first, last = doubling_bins(max(1, longest if max_distance is None else min(max_distance, longest)))
    n_probes = tokens[0].n_probes
    sums = np.zeros((len(tokens), len(first)))
    energies, along = np.zeros_like(sums), np.zeros((len(tokens), len(first), n_probes))
    for row, scores in enumerate(tokens):
        energy, counted = scores.energy(), scores.mask.astype(np.float64)
        products = _lagged(_masked_projections(scores))
        exact = _heavy_excess(scores)
        paired = 0.5 * correlate(energy, counted, method="fft")
        middle = len(energy) - 1
        energy_at = paired[middle:] + paired[middle::-1]
        for place in range(len(first)):
            span = slice(first[place], last[place] + 1)
            along[row, place] = products[span].sum(axis=0)
            energies[row, place] = energy_at[span].sum()
            sums[row, place] = along[row, place].mean() + exact[span].sum()
    estimates, counts = [], []
    for place in range(len(first)):
        alive = np.array([len(scores.mask) > first[place] for scores in tokens])
        product = _over_prompts(sums[:, place], prompts, alive, along[:, place])
        estimates.append((product / _over_prompts(energies[:, place], prompts, alive)).estimate())
        counts.append(len(product.replicates))
    return TokenProfile("correlation", "distance", first, last, tuple(estimates), np.array(counts))


def _lagged(values: Float[np.ndarray, "t k"]) -> Float[np.ndarray, "t k"]:
    """Return Σ_t values_t values_{t+d} at every distance d."""
    length = len(values)
    spectrum = np.fft.rfft(values, 2 * length, axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * length, axis=0)[:length]


def _heavy_excess(scores: TokenScores) -> Float[np.ndarray, " t"]:
    """At every distance, the correction of the probes' sum of inner products by the sketches of heavy tokens."""
    products = _heavy_products(scores)
    first, second = np.triu_indices(len(products), 1)
    distances = scores.heavy_positions[second] - scores.heavy_positions[first]
    return np.bincount(distances, products[first, second], len(scores.mask)).astype(np.float64)


#: Of a completion's tokens: a quarter, half, three quarters and the end.
FRACTIONS = (0.25, 0.5, 0.75, 1.0)


def cumulative_errors(
    energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]
) -> list[Statistic]:
    r"""Estimate the mean of :math:`|c\sum_{u≤t}p_u - W_t|/W_t` over completions, at each of :data:`FRACTIONS`.

    :math:`W_t = \sum_{u≤t}e_u`, and c is the one scale at which the totals over all completions agree. The printed
    ``cumulative_error`` is the mean over the four places.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    scale = common_scale(energies, values)
    errors = np.zeros((len(FRACTIONS), len(energies)))
    for row, (energy, value) in enumerate(zip(energies, values, strict=True)):
        at = np.ceil(np.array(FRACTIONS) * len(energy)).astype(int) - 1
        truth, proxy = np.cumsum(energy)[at], np.cumsum(value)[at]
        errors[:, row] = np.abs(scale * proxy - truth) / truth
    sizes = np.bincount(prompts)
    return [mean_statistic(np.bincount(prompts, at_place) / sizes) for at_place in errors]


def local_slope(measured: Measurement) -> TokenProfile:
    r"""Half the slope of :math:`\log E[W_t]` against :math:`\log t` along completions: :math:`α_\mathrm{energy}` from
    position to position.

    Between positions a and b it is :math:`\frac12\log(E W_b/E W_a)/\log(b/a)` over the completions that reach b, so
    that both ends are of the same completions: :math:`\frac12` where tokens have the same energy everywhere, more where
    later tokens have more.

    Args:
        measured: a measurement with ``token_projections``.

    Returns:
        A profile over positions 1–2, 2–4, 4–8, …; its bins share their ends.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    last = doubling_bins(int(np.max(measured.lengths)))[1]
    sums = [(scores.cumulative_energy()[scores.mask], _cumulative_by_probe(scores)) for scores in tokens]
    kept, estimates, counts = [], [], []
    for start, stop in pairwise(last):
        alive = np.array([len(total) >= stop for total, _ in sums])
        if len(set(prompts[alive])) < _FEWEST_PROMPTS:
            break
        ends = []
        for at in (start, stop):
            values = np.array([total[at - 1] if here else 0.0 for (total, _), here in zip(sums, alive, strict=True)])
            probes = np.stack(
                [each[at - 1] if here else np.zeros(each.shape[1]) for (_, each), here in zip(sums, alive, strict=True)]
            )
            ends.append(_over_prompts(values, prompts, alive, probes))
        ratio = ends[1] / ends[0]
        of_log = ratio.estimate("log")
        width = 2.0 * np.log(stop / start)
        kept.append((start, stop))
        estimates.append(Estimate(np.log(ratio.value) / width, of_log.stderr / width, "raw", of_log.degrees))
        counts.append(len(ratio.replicates))
    bounds = np.array(kept, dtype=np.int64).reshape(-1, 2)
    return TokenProfile(
        "local_slope", "position", bounds[:, 0], bounds[:, 1], tuple(estimates), np.array(counts, dtype=np.int64)
    )


def log_slope(energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]) -> Estimate:
    r"""Estimate β of :math:`\log e_t = c + β\log p_t` by least squares over all tokens with e, p > 0.

    1 where energies are proportional to the proxy, NaN where the proxy does not vary; jackknifed by prompt as a whole.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    sums = np.zeros((5, int(prompts.max()) + 1))
    for prompt, energy, value in zip(prompts, energies, values, strict=True):
        kept = (energy > 0) & (value > 0)
        x, y = np.log(value[kept]), np.log(energy[kept])
        sums[:, prompt] += [len(x), x.sum(), y.sum(), x @ x, x @ y]
    # The slope of least squares from sums, (n Σxy − Σx Σy)/(n Σx² − (Σx)²), jackknifed as a whole.
    count, x, y, xx, xy = (mean_statistic(row) for row in sums)
    spread = xx * count - x * x
    if not spread.value > 0:
        return NOT_ESTIMATED
    return ((xy * count - x * y) / spread).estimate()
