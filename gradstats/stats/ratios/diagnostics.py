"""Ratios of the scored to the sampling policy: their spread, overall and by length, and the effect of clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.batch import MeasuredCompletions
from gradstats.estimators.ratios import log_ratios
from gradstats.stats.printed import Printed
from gradstats.stats.ratios.clipping import ClippedShare, clipped_share, clipping_recipes
from gradstats.stats.ratios.spread import RatioSpread, ratio_spread

RATIOS = ("token", "product", "geometric_mean")


@dataclass(frozen=True, repr=False)
class RatioDiagnostics(Printed):
    r"""The ratios :math:`ρ = π/π_{old}` of completions; ``.to_frame()`` and ``.clipping_frame()`` are the tables.

    Attributes:
        spreads: the spread of each kind of ratio over all completions.
        by_length: the same within bins of completions of similar length, shortest first, kind by kind.
        clipped: what each recipe's clip reaches.
        notes: what a reader of the tables has to know, one sentence each.
    """

    spreads: tuple[RatioSpread, ...]
    by_length: tuple[RatioSpread, ...]
    clipped: tuple[ClippedShare, ...]
    notes: tuple[str, ...] = ()

    @property
    def product(self) -> RatioSpread:
        r"""The spread of the ratio of whole completions, :math:`\prod_t ρ_t`."""
        return self.spreads[RATIOS.index("product")]

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the effective number of completions under the ratio of whole completions."""
        return self.product.effective_size_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame with one row for each kind of ratio, over all completions and then by length.

        Columns: ``ratio, length_low, length_high, by_length, n, n_prompts``, and each with its ``_low`` and ``_high``
        ``mean, variance, chi_squared, effective_sample_size``.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        rows = [one.record(confidence_level) | {"by_length": False} for one in self.spreads]
        rows += [one.record(confidence_level) | {"by_length": True} for one in self.by_length]
        frame = pd.DataFrame(rows)
        frame.insert(3, "by_length", frame.pop("by_length"))
        frame.attrs |= {"confidence_level": confidence_level, "notes": list(self.notes)}
        return frame

    def clipping_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row for each recipe: ``recipe, removed_of`` and, each with its ``_low`` and ``_high``, three shares.

        ``clipped_tokens`` and ``clipped_completions`` count what the clip reaches, and ``removed_share`` is the share
        of squared gradient norm (``removed_of``) whose weight it sets to 0.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = pd.DataFrame([one.record(confidence_level) for one in self.clipped])
        frame.attrs |= {"confidence_level": confidence_level, "notes": list(self.notes)}
        return frame


def ratio_diagnostics(
    measured_or_batch: Batch | MeasuredCompletions,
    estimators: Sequence[str | Recipe] | None = None,
    n_bins: int = 4,
) -> RatioDiagnostics:
    r"""Describe the importance ratios of completions that another policy drew, and what recipes clip of them.

    With :math:`ρ_t = π(y_t)/π_{old}(y_t)` three ratios are described: that of a token; that of a whole completion,
    :math:`\prod_t ρ_t`, which makes an off-policy gradient unbiased; and GSPO's geometric mean :math:`(\prod_t
    ρ_t)^{1/T}`. Of each: mean, variance, :math:`χ² = E[(ρ-1)²]` and the effective sample size
    :math:`(\sumρ)²/\sumρ²`, over all completions and in bins of similar length, with delete-one-prompt jackknife
    intervals. The logarithm of the product has a variance that grows with length.

    Args:
        measured_or_batch: a measurement whose rollouts hold the sampler's log-probabilities, or a
            :class:`gradstats.estimators.Batch` with ``logprobs`` and ``old_logprobs``.
        estimators: recipes, by name or as objects; by default all named ones that clip.
        n_bins: number of bins of length, with about the same number of completions each.

    Returns:
        A :class:`RatioDiagnostics`.

    Raises:
        ValueError: without the log-probabilities of sampler and scorer at every counted token, or for fewer than one
            bin.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> scored = rng.normal(-1.0, 0.2, size=(200, 10))
        >>> batch = gs.estimators.Batch(
        ...     rng.integers(0, 2, 200), np.full(200, 10), np.repeat(np.arange(50), 4),
        ...     logprobs=scored, old_logprobs=scored - rng.normal(0.0, 0.1, size=(200, 10)),
        ... )
        >>> frame = gs.ratio_diagnostics(batch, n_bins=1).to_frame().query("not by_length")
        >>> frame[["ratio", "n", "chi_squared"]].round(3).to_numpy().tolist()
        [['token', 2000, 0.01], ['product', 200, 0.119], ['geometric_mean', 200, 0.001]]
    """
    if n_bins < 1:
        raise ValueError(f"n_bins={n_bins} must be at least 1")
    batch = measured_or_batch if isinstance(measured_or_batch, Batch) else Batch.from_measurement(measured_or_batch)
    if batch.old_logprobs is None or batch.logprobs is None:
        raise ValueError(
            "ratios need the log-probabilities of sampler and scorer at every counted token: sample with an engine "
            "that records them, such as transformers or vllm, and measure"
        )
    overall = np.zeros(len(batch.lengths), dtype=np.int64)
    spreads = _spreads(batch, overall)
    clipped, notes = _clipped(batch, estimators)
    logs = log_ratios(batch).sum(axis=1)
    overflowing = int(np.sum(2.0 * logs > np.log(np.finfo(np.float64).max)))
    if overflowing:
        worst = int(np.argmax(logs))
        notes.insert(
            0,
            f"the squared ratio overflows in {overflowing} of the completions (π/π_old of completion {worst} is "
            f"e^{logs[worst]:.0f}), so that mean, variance and χ² are not finite: score a policy closer to the "
            "one that sampled",
        )
    return RatioDiagnostics(tuple(spreads), tuple(_spreads(batch, _length_bins(batch, n_bins))), clipped, tuple(notes))


def _spreads(batch: Batch, bins: np.ndarray) -> list[RatioSpread]:
    """Return the spread of each kind of ratio in each bin of completions."""
    log_ratio = log_ratios(batch)
    product = log_ratio.sum(axis=1)
    owner = np.nonzero(batch.mask)[0]
    of_completion = np.arange(len(product))
    values = {
        "token": (log_ratio[batch.mask], owner),
        "product": (product, of_completion),
        "geometric_mean": (product / batch.lengths, of_completion),
    }
    spreads = []
    for ratio in RATIOS:
        logs, rows = values[ratio]
        for one in np.unique(bins):
            here = bins[rows] == one
            inside = rows[here]
            spreads.append(ratio_spread(ratio, logs[here], batch.group_index[inside], batch.lengths[inside]))
    return spreads


def _length_bins(batch: Batch, n_bins: int) -> np.ndarray:
    """Return the bin of each completion; equal lengths share one, so that there may be fewer bins."""
    edges = np.unique(np.quantile(batch.lengths, np.linspace(0, 1, n_bins + 1)[1:-1]))
    return np.searchsorted(edges, batch.lengths, side="left")


def _clipped(batch: Batch, estimators: Sequence[str | Recipe] | None) -> tuple[tuple[ClippedShare, ...], list[str]]:
    """Find what each recipe clips, with sentences on recipes that could not be evaluated."""
    shares, notes, unknown = [], [], []
    for one in clipping_recipes() if estimators is None else estimators:
        label = one if isinstance(one, str) else one.label
        try:
            share = clipped_share(recipes.get(one), batch, label)
        except (TypeError, ValueError) as error:
            if estimators is not None:
                raise
            notes.append(f"{label} is left out: {error}")
            continue
        shares.append(share)
        if share.removed_of == "unknown":
            unknown.append(label)
    if unknown:
        notes.append(
            f"how much of the gradient the clips of {', '.join(unknown)} remove is not known: token energies are "
            "needed, measure with token_probes=…"
        )
    return tuple(shares), notes
