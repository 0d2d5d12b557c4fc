"""The quality of forward-only proxies of token energies, and the cost of using them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch
from gradstats.estimators.baselines.token_baseline import otb
from gradstats.estimators.estimator import Level
from gradstats.measurement.token_scores import TokenScores
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, mean_statistic
from gradstats.stats.measured import MeasuredTokens
from gradstats.stats.printed import Printed, records
from gradstats.stats.token_profiles import (
    FRACTIONS,
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
from gradstats.stats.variance.comparison import compare
from gradstats.system.late import pd


@dataclass(frozen=True)
class _OtbOf:
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
    measured: MeasuredTokens,
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
            [_OtbOf(name)],
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


#: The estimated quantities of a proxy and their headings, in the order of the table.
PROXY_QUANTITIES = {
    "rank_correlation": "rank correlation",
    "log_slope": "log-log slope",
    "factor": "off by factor",
    "cumulative_error": "error of W_t",
    "otb_ratio": "tr Cov of OTB, ratio",
}


@dataclass(frozen=True)
class ProxyRow:
    """The quality of one proxy p_t of the token energies e_t = ‖s_t‖².

    Attributes:
        log_slope: of log e on log p over all tokens with p > 0; 1 where energies are proportional to the proxy.
        factor: typical error of a token after one common scaling: the mean of |log e/(c p)|, weighted by energy and
            exponentiated; 1 for a perfect proxy.
    """

    proxy: str
    rank_correlation: Estimate
    log_slope: Estimate
    factor: Estimate
    cumulative_error: Estimate
    otb_ratio: Estimate
    along: tuple[Estimate, ...]


@dataclass(frozen=True, repr=False)
class ProxyQuality(Printed):
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

    def confidence_interval(
        self, confidence_level: float = CONFIDENCE_LEVEL, quantity: str = "rank_correlation"
    ) -> tuple[Float[np.ndarray, " proxies"], Float[np.ndarray, " proxies"]]:
        """Return the interval of one quantity for every proxy, ``(low, high)``.

        Raises:
            ValueError: for an unknown quantity.
        """
        if quantity not in PROXY_QUANTITIES:
            raise ValueError(f"quantity={quantity!r} is not estimated: choose from {', '.join(PROXY_QUANTITIES)}")
        frame = self.to_frame(confidence_level)
        return frame[f"{quantity}_low"].to_numpy(), frame[f"{quantity}_high"].to_numpy()

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per proxy: each quantity with ``_low`` and ``_high``, then the cumulative error along completions."""
        rows = []
        for row in self.rows:
            record: dict[str, object] = {"proxy": row.proxy}
            named = {name: getattr(row, name) for name in PROXY_QUANTITIES}
            named |= {
                f"cumulative_error_at_{fraction:g}": each for fraction, each in zip(FRACTIONS, row.along, strict=True)
            }
            for name, estimate in named.items():
                low, high = estimate.confidence_interval(confidence_level)
                record |= {name: estimate.value, f"{name}_low": low, f"{name}_high": high}
            rows.append(record)
        frame = pd.DataFrame(rows)
        frame.attrs |= {
            "confidence_level": confidence_level,
            "n_prompts": self.n_prompts,
            "n_tokens": self.n_tokens,
            "n_probes": self.n_probes,
            "share_exact": self.share_exact,
            "notes": list(self.notes),
        }
        return frame

    def summary(self, confidence_level: float = CONFIDENCE_LEVEL) -> dict[str, object]:
        """Return everything as nested numbers: the frame's ``.attrs``, its rows, and each profile's rows."""
        frame = self.to_frame(confidence_level)
        profiles = {
            "correlation": self.correlation,
            "concentration": self.concentration,
            "local_slope": self.local_slope,
        }
        return {
            **{str(key): value for key, value in frame.attrs.items()},
            "proxies": records(frame),
            **{name: records(profile.to_frame(confidence_level)) for name, profile in profiles.items()},
        }


def proxy_quality(
    measured: MeasuredTokens, *, group_size: int | None = None, rng: int | np.random.Generator | None = 0
) -> ProxyQuality:
    r"""Compare forward-only proxies of :math:`‖s_t‖²` with measured token energies; intervals are clustered by prompt.

    The proxies are ``logit``, :math:`w_t = 1 - 2π(y_t) + \sum_v π(v)²` (the squared norm of the gradient with respect
    to the logits, 2602.07078); ``last_layer``, :math:`w_t‖h_t‖²` (with respect to the output embedding); ``entropy``;
    and ``surprisal``, :math:`-\log π(y_t)`. The noise of the probes in light tokens' energies lowers rank correlations
    and raises ``factor`` a little: at K probes each such energy is off by :math:`\sqrt{2/K}`.

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
                tuple(each.estimate() for each in along),
            )
        )
    if all(np.isnan(row.otb_ratio.value) for row in rows):
        notes.append(
            "the cost of a proxy to the optimal token baseline is NaN: it needs at least two completions per prompt, "
            "sketches, and rewards that differ within prompts"
        )
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


def _proxies(measured: MeasuredTokens) -> dict[str, list[np.ndarray]]:
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
    measured: MeasuredTokens, tokens: list[TokenScores], proxies: dict[str, list[np.ndarray]]
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
