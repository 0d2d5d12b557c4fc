"""Which tokens carry the gradient?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy
from jaxtyping import Int

from gradstats.analyses.declaration import Analysis, AnalysisFigure, Column, FurtherTable, level_of
from gradstats.analyses.numbers import format_estimate
from gradstats.analyses.results import Result, Row, column, estimate
from gradstats.analyses.variance import compare
from gradstats.answers.answer import DIGITS
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch
from gradstats.estimators.baselines.token_baseline import otb
from gradstats.estimators.estimator import Level
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.token_scores import TokenScores
from gradstats.plots.tokens import plot_concentration, plot_proxy, plot_token_correlation, plot_token_energy_panels
from gradstats.rollouts.schema import ADAPTER_RESIDUAL
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, mean_statistic
from gradstats.stats.token_profiles import (
    NO_PROBES,
    TokenProfile,
    concentration,
    cumulative_errors,
    factor,
    local_slope,
    log_slope,
    summed_energy,
    token_correlation,
    tokens_of,
)
from gradstats.stats.variance.quantities import limits_of
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment


@dataclass(frozen=True)
class _OtbWithProxy:
    """The leave-one-out optimal token baseline with a proxy of energies, passed as the batch's ``values``."""

    name: str
    level: Level = "token"
    needs: tuple[str, ...] = ("values",)
    across_groups: bool = False

    @property
    def label(self) -> str:
        return f"otb(energy={self.name}, loo=True)"

    def expected_scale(self, group_size: int) -> float | None:
        return 1.0

    def weights(self, batch: Batch) -> np.ndarray:
        return otb(energy="exact", loo=True).weights(batch.with_fields(token_energy=batch.values))


def otb_ratio(
    measured: Measurement,
    name: str,
    values: list[np.ndarray],
    batch: Batch,
    group_size: int | None,
    rng: int | np.random.Generator | None,
) -> Estimate:
    r"""Estimate :math:`\mathrm{tr\,Cov}(ĝ_p)/\mathrm{tr\,Cov}(ĝ_e)` of leave-one-out optimal token baselines.

    One takes the proxy p for token energies, the other the energies e themselves. NaN without sketches, or two
    completions of a prompt.
    """
    # Without two completions of a prompt there is no baseline, and without varied rewards no gradient.
    if measured.sketches is None or batch.group_sizes.max() < 2:
        return NOT_ESTIMATED
    with warnings.catch_warnings():  # they are about the signal, which is not used here
        warnings.simplefilter("ignore", UserWarning)
        comparison = compare(
            measured,
            [_OtbWithProxy(name)],
            group_size=group_size,
            reference="otb(energy=exact, loo=True)",
            rng=rng,
            values=list(values),
        )
    return comparison.rows[0].ratio


def rank_correlation(
    energies: Sequence[np.ndarray], values: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]
) -> Estimate:
    r"""Estimate Spearman's correlation of proxy and energy within completions, averaged over prompts.

    :math:`\mathrm{Corr}(\mathrm{rank}\,e_t, \mathrm{rank}\,p_t)` over the tokens of a completion, then the mean over a
    prompt's completions and over prompts. Completions of fewer than 3 tokens, or in which one of the two is constant,
    have none; NaN where fewer than 3 prompts have one.

    Args:
        energies: for each completion, e of its counted tokens.
        values: the same of the proxy p.
        prompts: (n,) prompt of each completion, numbered from 0.
    """
    from scipy.stats import rankdata  # half a second, which commands that need no ranks do not wait

    correlations = np.full(len(energies), np.nan)
    for row, (energy, value) in enumerate(zip(energies, values, strict=True)):
        if len(energy) > 2 and np.ptp(value) > 0 and np.ptp(energy) > 0:
            correlations[row] = np.corrcoef(rankdata(energy), rankdata(value))[0, 1]
    known = np.isfinite(correlations)
    index = np.unique(prompts[known], return_inverse=True)[1]
    if index.size == 0 or index.max() < 2:
        return NOT_ESTIMATED
    return mean_statistic(np.bincount(index, correlations[known]) / np.bincount(index)).estimate()


@dataclass(frozen=True)
class ProxyRow(Row):
    """The quality of one proxy p_t of the token energies e_t = ‖s_t‖².

    Attributes:
        log_slope: of log e on log p over all tokens with p > 0; 1 where energies are proportional to the proxy.
        factor: typical error of a token after one common scaling: the mean of |log e/(c p)|, weighted by energy and
            exponentiated; 1 for a perfect proxy.
        cumulative_error: mean over four places of a completion, see
            :func:`gradstats.stats.token_profiles.cumulative_errors`.
    """

    proxy: str = column("forward-only proxy of token energies", short=True)
    rank_correlation: Estimate = estimate("rank correlation", "rank correlation", short=True)
    log_slope: Estimate = estimate("log-log slope", "log-log slope")
    factor: Estimate = estimate("off by factor", "off by factor", short=True)
    cumulative_error: Estimate = estimate("error of W_t", "error of W_t")
    otb_ratio: Estimate = estimate("tr Cov of OTB, ratio", "tr Cov of OTB, ratio")


_PROFILES = ("correlation", "concentration", "local_slope")
# Quantiles of length at which completions are kept as traces, and how many tokens the sample holds at most.
_TRACES_AT, _MOST_TOKENS = (0.25, 0.5, 0.9), 3000


@dataclass(frozen=True, repr=False)
class ProxyQuality(Result):
    r"""Forward-only proxies :math:`p_t` of token energies, compared with measured energies :math:`e_t = ‖s_t‖²`.

    Attributes:
        rows: one per proxy.
        n_prompts: prompts, the independent units.
        n_tokens: tokens compared.
        n_probes: K behind the energies of light tokens.
        share_exact: share of the summed energy that was measured exactly.
        tokens: one row per token: ``prompt_id``, ``sample_id``, ``position``, ``energy``, ``energy_stderr``, ``exact``,
            and each proxy.
        correlation: profile of :func:`gradstats.stats.token_correlation`.
        concentration: profile of :func:`gradstats.stats.concentration`.
        local_slope: profile of :func:`gradstats.stats.local_slope`.
        notes: what to know when reading the table, one sentence each.
    """

    question: ClassVar[str] = "tokens"

    row: ClassVar = ProxyRow
    stated: ClassVar = ("n_prompts", "n_tokens", "n_probes", "share_exact")

    rows: tuple[ProxyRow, ...]
    n_prompts: int
    n_tokens: int
    n_probes: int
    share_exact: float
    tokens: pd.DataFrame
    correlation: TokenProfile
    concentration: TokenProfile
    local_slope: TokenProfile
    notes: tuple[str, ...]

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per proxy: each quantity with ``_low`` and ``_high``."""
        return _in_short(super().to_frame(confidence_level))

    def plot(self, **options: Any) -> Any:
        """Draw the share of a completion's energy that its heaviest tokens hold; returns the axes."""
        return plot_concentration(self.concentration, **options)

    def profiles_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return the bins of all profiles, a row each."""
        long = []
        for name in _PROFILES:
            profile: TokenProfile = getattr(self, name)
            table = profile.to_frame(confidence_level)
            table.columns = ["first", "last", "value", "low", "high", "n_prompts"]
            long.append(table.assign(profile=name, axis=profile.axis, quantity=profile.quantity))
        return _in_short(pd.concat(long, ignore_index=True), confidence_level=confidence_level)

    def traces_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return the tokens of completions of typical lengths, with the intervals of their energies."""
        traces = sorted((rows for _, rows in self.tokens.groupby(["prompt_id", "sample_id"], sort=False)), key=len)
        quantile = scipy.special.ndtri(0.5 + confidence_level / 2.0)
        drawn = []
        for place in sorted({round(share * (len(traces) - 1)) for share in _TRACES_AT}):
            rows = traces[place]
            # An energy is a mean of squares: symmetric about its logarithm, and never below 0.
            energy, error = rows["energy"].to_numpy(), rows["energy_stderr"].to_numpy()
            width = np.exp(quantile * np.divide(error, energy, out=np.zeros(len(rows)), where=energy > 0))
            ends = {"energy_low": energy / width, "energy_high": energy * width}
            drawn.append(rows.assign(sequence=f"{len(rows)} tokens", **ends))
        return _in_short(pd.concat(drawn, ignore_index=True), confidence_level=confidence_level)

    def sample_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return tokens of all completions, drawn at random where there are many."""
        found = self.tokens
        if len(found) > _MOST_TOKENS:
            found = found.sample(_MOST_TOKENS, random_state=0).sort_index()
        drawn = next(row for row in self.rows if row.proxy == _DRAWN)
        return _in_short(found, rank_correlation=drawn.rank_correlation.value)

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State what the heaviest token holds, and the proxy that orders tokens best."""
        heaviest = format_estimate(
            *self.concentration.estimates[0].with_interval(confidence_level), limits=limits_of("share")
        )
        known = [row for row in self.rows if np.isfinite(row.rank_correlation.value)]
        first = f"The heaviest token of a completion holds a share {heaviest} of its energy"
        measured = f"{self.share_exact:.0%} of the energy was measured exactly, the rest from {self.n_probes} probes"
        if not known:
            return f"{first}; no proxy varies enough within completions to be judged; {measured}."
        best = max(known, key=lambda row: row.rank_correlation.value)
        correlation = format_estimate(
            *best.rank_correlation.with_interval(confidence_level), limits=limits_of("rank_correlation")
        )
        proxy = f"of the proxies {best.proxy} orders tokens best, with the rank correlation {correlation}"
        return f"{first}; {proxy}; {measured}."


def _in_short(frame: pd.DataFrame, **about: object) -> pd.DataFrame:
    """Return a table, which may have a row for each token, that keeps seven digits in files."""
    frame = frame.copy()
    frame.attrs |= {DIGITS: 7, **about}
    return frame


def proxy_quality(
    measured: Measurement, *, group_size: int | None = None, rng: int | np.random.Generator | None = 0
) -> ProxyQuality:
    r"""Compare forward-only proxies of :math:`‖s_t‖²` with measured token energies; intervals are clustered by prompt.

    The proxies are ``logit``, :math:`w_t = 1 - 2π(y_t) + \sum_v π(v)²` (the squared norm of the gradient with respect
    to the logits, 2602.07078); ``last_layer``, :math:`w_t‖h_t‖²` (with respect to the output embedding); ``entropy``;
    and ``surprisal``, :math:`-\log π(y_t)`. The noise of the probes in light tokens' energies lowers rank correlations
    a little and raises ``factor``: at K probes each such energy is off by :math:`\sqrt{2/K}`, and a perfect proxy of
    light tokens alone has the factor 1.22 at 32 probes and 1.48 at 8.

    Args:
        measured: a measurement with ``token_projections``.
        group_size: completions per group, for the cost to the optimal token baseline.
        rng: for that comparison.

    Raises:
        ValueError: without token probes, or for fewer than 3 prompts.
    """
    tokens, prompts = tokens_of(measured)
    batch = Batch.from_measurement(measured)
    energies = [scores.energy()[scores.mask] for scores in tokens]
    proxies = _proxies(measured)
    rows, notes = [], []
    for name, padded in proxies.items():
        values = [row[mask] for row, mask in zip(padded, measured.rollouts.masks, strict=True)]
        along = cumulative_errors(energies, values, prompts)
        rows.append(
            ProxyRow(
                name,
                rank_correlation(energies, values, prompts),
                log_slope(energies, values, prompts),
                factor(energies, values, prompts),
                (along[0] + along[1] + along[2] + along[3]).scaled(0.25).estimate(),
                otb_ratio(measured, name, padded, batch, group_size, rng),
            )
        )
    if all(np.isnan(row.otb_ratio.value) for row in rows):
        notes.append(
            "the cost of a proxy to the optimal token baseline is NaN: it needs at least two completions per prompt, "
            "sketches, and rewards that differ within prompts"
        )
    notes += _of_adapter(measured, prompts)
    exact = sum(float(scores.heavy_sq_norms[scores.mask[scores.heavy_positions]].sum()) for scores in tokens)
    return ProxyQuality(
        rows=tuple(rows),
        n_prompts=len(set(prompts)),
        n_tokens=sum(map(len, energies)),
        n_probes=tokens[0].n_probes,
        share_exact=exact / float(summed_energy(measured)[0].sum()),
        tokens=_token_table(measured, tokens, proxies),
        correlation=token_correlation(measured),
        concentration=concentration(measured),
        local_slope=local_slope(measured),
        notes=tuple(notes),
    )


def _of_adapter(measured: Measurement, prompts: Int[np.ndarray, " n"]) -> Iterator[str]:
    r"""State how concentrated the adapter's residuals are, the weights of ``arca``, where they were measured.

    Of the n weights of a completion: Gini :math:`\sum_{jk}|w_j - w_k|/(2n\sum w)`, and effective tokens
    :math:`(\sum w)^2/\sum w^2`, as a share of n.
    """
    if ADAPTER_RESIDUAL not in measured.rollouts.frame:
        return
    found = []
    for row, mask in zip(measured.rollouts.frame[ADAPTER_RESIDUAL], measured.rollouts.masks, strict=True):
        weights = np.sort(np.asarray(row, dtype=np.float64)[mask])
        n, total = len(weights), weights.sum()
        gini = (2 * np.arange(1, n + 1) - n - 1) @ weights / (n * total) if total else 0.0
        found.append((gini, total**2 / (n * (weights @ weights)) if total else 1.0))
    sizes = np.bincount(prompts)
    means = (mean_statistic(np.bincount(prompts, values) / sizes).estimate() for values in np.array(found).T)
    gini, effective = (format_estimate(*mean.with_interval(CONFIDENCE_LEVEL)) for mean in means)
    yield (
        f"within completions the adapter's residuals have a Gini index of {gini}; effective tokens are {effective} of "
        "all"
    )


def _proxies(measured: Measurement) -> dict[str, list[np.ndarray]]:
    """Return each proxy, one array per completion, by position in the completion."""
    logit = [
        np.maximum(1 - 2 * np.exp(np.asarray(logprobs)) + squares, 0.0)  # negative by rounding only
        for logprobs, squares in zip(measured.logprobs, measured.sum_pi_squared, strict=True)
    ]
    return {
        "logit": logit,
        "last_layer": [weight * hidden for weight, hidden in zip(logit, measured.hidden_sq_norms, strict=True)],
        "entropy": [np.maximum(entropy, 0.0) for entropy in measured.entropy],
        "surprisal": [np.maximum(-np.asarray(logprobs), 0.0) for logprobs in measured.logprobs],
    }


def _token_table(
    measured: Measurement, tokens: list[TokenScores], proxies: dict[str, list[np.ndarray]]
) -> pd.DataFrame:
    rollouts = measured.rollouts
    frames = []
    for row, scores in enumerate(tokens):
        frame = pd.DataFrame(
            {
                "prompt_id": rollouts.prompt_id[row],
                "sample_id": rollouts.sample_id[row],
                "position": np.arange(len(scores.mask)),
                "energy": scores.energy(),
                "energy_stderr": scores.energy_stderr(),
                "exact": ~scores.light,
                **{name: values[row] for name, values in proxies.items()},
            }
        )
        frames.append(frame[scores.mask])
    return pd.concat(frames, ignore_index=True)


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any] | None:
    section = experiment.variance
    known = measured.token_projections is not None
    return {"group_size": section.first_group_size, "rng": section.seed} if known else None


def _caption(frame: pd.DataFrame) -> str:
    return f"Forward-only proxies of token energies against measured ones, {level_of(frame)}intervals."


def _profile(name: str) -> Callable[[pd.DataFrame], pd.DataFrame | None]:
    """Return what takes a profile, with the columns of its own, from the bins of all."""

    def bins(long: pd.DataFrame) -> pd.DataFrame | None:
        rows = long.loc[long["profile"] == name]
        if rows.empty:
            return None
        axis, quantity = rows["axis"].iloc[0], rows["quantity"].iloc[0]
        names = {"first": f"{axis}_first", "last": f"{axis}_last", "value": quantity}
        names |= {end: f"{quantity}_{end}" for end in ("low", "high")}
        return rows.rename(columns=names)[[*names.values(), "n_prompts"]].reset_index(drop=True)

    return bins


def _scaled(sample: pd.DataFrame) -> pd.DataFrame:
    """Scale the proxy of sampled tokens so that totals agree, since a proxy's unit means nothing."""
    scaled = sample.copy()
    scaled[_DRAWN] *= scaled["energy"].sum() / scaled[_DRAWN].sum()
    scaled.attrs |= {"proxy": f"{_DRAWN} proxy, scaled", "truth": "token energy"}
    return scaled


#: The proxy that a figure draws against the energies, and the tables that a run keeps.
_DRAWN = "logit"
_BINS, _TRACES, _SAMPLE = "token_profiles", "token_traces", "token_sample"
_TABLE, _ENERGY = "rollouts/schema.py", "measurement/token_scores.py"
_TOKEN = (
    Column("prompt_id", "prompt of a completion", file=_TABLE),
    Column("sample_id", "its number among those of the prompt", file=_TABLE),
    Column("energy", "squared norm of a token's score", file=_ENERGY),
    Column("energy_stderr", "standard error of the energy", file=_ENERGY),
    Column("exact", "whether it is exact", file=_ENERGY),
    Column("position", "token of the completion, from 0"),
    Column("logit", "proxy: squared norm of the gradient with respect to the logits"),
    Column("last_layer", "proxy: the same with respect to the output embedding"),
    Column("entropy", "proxy: entropy of the next token, nats"),
    Column("surprisal", "proxy: −log π of the token, nats"),
)

ANALYSIS = Analysis(
    name="tokens",
    ask=proxy_quality,
    unavailable_because=lambda measured: NO_PROBES if measured.token_projections is None else "",
    options=("group_size", "rng"),
    columns=ProxyRow.columns(),
    row_heading="proxy",
    caption=_caption,
    in_run=_in_run,
    further=(
        FurtherTable(
            name=_BINS,
            frame=ProxyQuality.profiles_frame,
            columns=(
                Column("first", "first value of the axis in a bin"),
                Column("last", "last value of it"),
                Column("value", "the estimate", "value"),
                Column("low", "lower end of its interval"),
                Column("high", "upper end"),
                Column("n_prompts", "prompts"),
                Column(
                    "profile",
                    "correlation of token scores by the distance between tokens, concentration of a completion's "
                    "energy in its heaviest tokens, or local_slope, the exponent of summed energy by position",
                ),
                Column("axis", "distance, position or number of tokens"),
                Column("quantity", "what is estimated: correlation, share or local_slope"),
            ),
            row_name=lambda row: f"{row['profile']}, {row['axis']} {row['first']:g}–{row['last']:g}",
            row_heading="profile",
            caption=lambda frame: f"Profiles along completions, {level_of(frame)}intervals over prompts.",
        ),
        FurtherTable(
            _TRACES,
            ProxyQuality.traces_frame,
            (*_TOKEN, Column("sequence", "completion, named by its length")),
        ),
        FurtherTable(_SAMPLE, ProxyQuality.sample_frame, _TOKEN),
    ),
    figures=(
        AnalysisFigure(
            "token_energy",
            "Energy of each token along completions of typical lengths, a panel for each.",
            plot_token_energy_panels,
            table=_TRACES,
        ),
        AnalysisFigure(
            "concentration",
            "Share of a completion's token energy that its heaviest tokens hold.",
            plot_concentration,
            table=_BINS,
            rows=_profile("concentration"),
        ),
        AnalysisFigure(
            "token_correlation",
            "Correlation of token scores against the distance between tokens; 0 on-policy.",
            plot_token_correlation,
            table=_BINS,
            rows=_profile("correlation"),
        ),
        AnalysisFigure(
            "proxy",
            "Forward-only proxy of token energies against the energies measured.",
            lambda frame: plot_proxy(frame, proxy=_DRAWN, truth="energy"),
            table=_SAMPLE,
            rows=_scaled,
        ),
    ),
)
