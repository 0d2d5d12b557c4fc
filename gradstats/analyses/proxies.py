"""Which proxies of a completion follow its squared gradient, block by block?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from gradstats.analyses.declaration import Analysis, level_of
from gradstats.analyses.numbers import format_estimate
from gradstats.analyses.results import Result, Row, column, estimate
from gradstats.analyses.tokens import rank_correlation
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.measurement.measurement import Measurement, forward_proxies
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Statistic
from gradstats.stats.protocols import prompt_numbers
from gradstats.stats.token_profiles import factor
from gradstats.system.lazy_imports import pd

#: The row of the whole gradient.
ALL = "all"
_RANKS = (-1.0, 1.0)


@dataclass(frozen=True)
class CompletionProxyRow(Row):
    """One proxy of the completions' squared gradients with respect to one block."""

    block: str = column("block of parameters, or all", short=True)
    proxy: str = column("proxy of a completion's squared gradient", short=True)
    rank_within: Estimate = estimate(
        "rank correlation of a prompt's completions, a mean over prompts", "rank within", short=True, limits=_RANKS
    )
    rank_between: Estimate = estimate(
        "rank correlation of prompts' means", "rank between prompts", short=True, limits=_RANKS
    )
    factor: Estimate = estimate(
        "typical error of a completion after one common scaling, weighted by its squared gradient; 1 for a perfect "
        "proxy",
        "off by factor",
        short=True,
    )


@dataclass(frozen=True, repr=False)
class ProxiesByBlock(Result):
    """Proxies of completions against their squared gradients, by block; see :func:`proxies_by_block`.

    Attributes:
        rows: all parameters, then each block; a row for each proxy.
        n_prompts: prompts, the independent units.
        n: completions.
    """

    question: ClassVar[str] = "proxies"

    row: ClassVar = CompletionProxyRow
    stated: ClassVar = ("n_prompts", "n")

    rows: tuple[CompletionProxyRow, ...]
    n_prompts: int
    n: int

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State which proxy is nearest to the whole squared gradient."""
        known = [row for row in self.rows if row.block == ALL and np.isfinite(row.factor.value)]
        if not known:
            return f"No proxy varies among the {self.n} completions."
        best = min(known, key=lambda row: row.factor.value)
        off = format_estimate(*best.factor.with_interval(confidence_level))
        return f"Of the proxies {best.proxy} is nearest to the squared gradient of a completion: off by a factor {off}."


def proxies_by_block(measured: Measurement) -> ProxiesByBlock:
    r"""Compare proxies of completions with their squared gradients with respect to each block of parameters.

    The proxies are those of the measurement (:attr:`gradstats.Measurement.proxies`) and ``length``. ``rank_within`` is
    Spearman's correlation among a prompt's completions, averaged over prompts with 3 or more; ``rank_between`` that of
    prompts' means; ``factor`` is :math:`\exp(\sum_i e_i|\log(e_i/(c q_i))|/\sum_i e_i)` of squared gradients e and
    proxies q, with the c at which their totals agree. Intervals are over prompts.

    Args:
        measured: the measurement; blocks are those that it was measured with.
    """
    prompts = prompt_numbers(measured.rollouts.prompt_id)
    statistics = measured.logprobs, measured.entropy, measured.sum_pi_squared
    # Measurements of earlier releases keep none, but what follows from their tokens.
    proxies = forward_proxies(*statistics, measured.rollouts.masks) | dict(measured.proxies)
    proxies["length"] = measured.lengths.astype(np.float64)
    norms = measured.sq_norms_by_block
    blocks = {ALL: measured.sq_norms} | ({name: norms[name].to_numpy() for name in norms} if norms.shape[1] > 1 else {})
    rows = [
        CompletionProxyRow(block, name, *_compared(energy, values, prompts))
        for block, energy in blocks.items()
        for name, values in proxies.items()
    ]
    return ProxiesByBlock(tuple(rows), int(prompts.max()) + 1, len(measured))


def _compared(
    energy: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"], prompts: Int[np.ndarray, " n"]
) -> tuple[Estimate, Estimate, Estimate]:
    """Return rank correlations within and between prompts, and the typical factor."""
    sizes = np.bincount(prompts)
    numbers, ends = np.arange(len(sizes)), np.cumsum(sizes)[:-1]
    order = np.argsort(prompts, kind="stable")
    energies, proxies = np.split(energy[order], ends), np.split(values[order], ends)
    between = _rank_between(np.bincount(prompts, energy) / sizes, np.bincount(prompts, values) / sizes)
    known = (values > 0).any() and (energy > 0).any()
    off = factor(energies, proxies, numbers) if known else NOT_ESTIMATED
    return rank_correlation(energies, proxies, numbers), between, off


def _rank_between(x: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"]) -> Estimate:
    """Return Spearman's correlation, jackknifed; NaN of fewer than 4, and where one of the two is constant."""
    if len(x) < 4:
        return NOT_ESTIMATED
    replicates = np.array([_spearman(np.delete(x, one), np.delete(y, one)) for one in range(len(x))])
    return Statistic(_spearman(x, y), replicates).estimate()


def _spearman(x: Float[np.ndarray, " m"], y: Float[np.ndarray, " m"]) -> float:
    from scipy.stats import rankdata  # half a second, which commands that need no ranks do not wait

    if not (np.ptp(x) > 0 and np.ptp(y) > 0):
        return np.nan
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def _caption(frame: pd.DataFrame) -> str:
    return f"Proxies of completions against their squared gradients by block, {level_of(frame)}intervals over prompts."


ANALYSIS = Analysis(
    name="proxies",
    ask=proxies_by_block,
    options=(),
    columns=CompletionProxyRow.columns(),
    row_name=lambda row: f"{row['block']}, {row['proxy']}",
    row_heading="block, proxy",
    caption=_caption,
)
