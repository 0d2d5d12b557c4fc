"""How far is the scored policy from the sampling one?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Int

from gradstats.analyses.declaration import Analysis, AnalysisFigure, Column, FurtherTable
from gradstats.analyses.numbers import format_estimate, format_number, percent
from gradstats.analyses.results import Result, Row, column, estimate
from gradstats.config.options import CONFIDENCE_LEVEL, MEASURE_PROBES, read_label
from gradstats.estimators import Batch, Recipe, recipes
from gradstats.estimators.batch import MeasuredCompletions
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED, log_ratios
from gradstats.estimators.recipes.components import Component, parameter_names
from gradstats.estimators.recipes.named import RECIPES
from gradstats.plots.length_scaling import plot_length_bins
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Statistic, mean_statistic
from gradstats.stats.ratios import RatioSpread, ratio_spread
from gradstats.stats.variance.shares import bin_of
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment
    from gradstats.measurement.measurement import Measurement

#: Parameters of ratios that clip, and the values with which they never do.
_OPENED = {"eps_low": math.inf, "eps_high": math.inf, "dual_clip": None, "truncate": None}


@dataclass(frozen=True)
class ClippedShare(Row):
    """The effect of one recipe's clip on these completions.

    Attributes:
        recipe: its label.
        removed_of: ``"sq_norms"``, Σ‖S‖² of completions, where the clip is of whole completions; ``"token_energy"``,
            Σ‖s_t‖², where it is of tokens and their energies are known; otherwise ``"unknown"``, and the share is NaN.
        clipped_tokens: share of counted tokens whose weight the clip changes. Tokens without an advantage have weight 0
            anyway and are not clipped.
        clipped_completions: share of completions with such a token.
        removed_share: share of ``removed_of`` whose weight the clip sets to 0.
    """

    recipe: str = column("recipe that clips")
    removed_of: str = column("what the removed share is a share of")
    clipped_tokens: Estimate = estimate("tokens clipped", "tokens clipped")
    clipped_completions: Estimate = estimate("completions clipped", "completions clipped")
    removed_share: Estimate = estimate("squared norm removed", "squared norm removed")

    def record(self, confidence_level: float) -> dict[str, Any]:
        """Return the row of a frame, each share with its ``_low`` and ``_high``, which lie between 0 and 1."""
        row = super().record(confidence_level)
        return row | {
            name: float(np.clip(end, 0.0, 1.0)) for name, end in row.items() if name.endswith(("_low", "_high"))
        }


def clipping_recipes() -> list[str]:
    """Return the names of the recipes whose ratio is clipped."""
    ratios = {name: row["ratio"] for name, row in RECIPES.items() if "ratio" in row}
    return [name for name, label in ratios.items() if _clips(label)]


def _clips(label: str) -> bool:
    base, given = read_label(label)
    widths = _OPENED.keys() & set(parameter_names("ratio", base))
    # Without widths of its own the product of ratios is neither clipped nor truncated.
    return bool(widths & given.keys() if base == "sequence_product" else widths)


def without_clip(recipe: Recipe) -> Recipe:
    """Return the same recipe with every clip so wide that no ratio reaches it."""
    ratio = recipe.ratio
    opened = {name: value for name, value in _OPENED.items() if name in ratio.parameters}
    if ratio.name == "sequence_product":  # either it clips or it truncates: None is neither
        opened = dict.fromkeys(opened)
    return replace(recipe, ratio=Component(ratio.definition, {**ratio.parameters, **opened}), written=None)


def clipped_share(recipe: Recipe, batch: Batch, label: str | None = None) -> ClippedShare:
    """Compare a recipe's weights with those it has when no ratio is clipped, token by token.

    Intervals are by delete-one-prompt jackknife; a share is a ratio of sums over prompts.
    """
    clipped, opened = recipe.token_weights(batch), without_clip(recipe).token_weights(batch)
    reached = batch.mask & (clipped != opened)
    removed = reached & (clipped == 0)
    prompts = batch.group_index
    energy, removed_of = None, "unknown"
    if recipe.ratio.definition.level == "sequence" and batch.sq_norms is not None:
        energy, removed_of = batch.sq_norms, "sq_norms"
        gone = np.where(removed.any(axis=1), energy, 0.0)
    elif batch.token_energy is not None:
        energy, removed_of = batch.token_energy.sum(axis=1), "token_energy"
        gone = np.where(removed, batch.token_energy, 0.0).sum(axis=1)
    return ClippedShare(
        recipe=label or recipe.label,
        removed_of=removed_of,
        clipped_tokens=_share(reached.sum(axis=1), batch.lengths, prompts),
        clipped_completions=_share(reached.any(axis=1), np.ones(len(prompts)), prompts),
        removed_share=NOT_ESTIMATED if energy is None else _share(gone, energy, prompts),
    )


def _share(part: np.ndarray, whole: np.ndarray, prompts: Int[np.ndarray, " n"]) -> Estimate:
    parts, wholes = (np.bincount(prompts, weights=values) for values in (part, whole))
    if len(wholes) == 1:
        return Statistic(float(parts[0] / wholes[0]), np.full(1, np.nan)).estimate()
    return (mean_statistic(parts) / mean_statistic(wholes)).estimate()


_RATIOS = ("token", "product", "geometric_mean")


@dataclass(frozen=True, repr=False)
class RatioDiagnostics(Result):
    r"""The ratios :math:`ρ = π/π_{old}` of completions; ``.to_frame()`` and ``.clipping_frame()`` are the tables.

    Attributes:
        spreads: the spread of each kind of ratio over all completions.
        by_length: the same within bins of completions of similar length, shortest first, kind by kind.
        clipped: what each recipe's clip reaches.
        notes: what a reader of the tables has to know, one sentence each.
        largest: the largest absolute difference of a token's log-probability; NaN where it was not computed.
    """

    question: ClassVar[str] = "ratios"

    spreads: tuple[RatioSpread, ...]
    by_length: tuple[RatioSpread, ...]
    clipped: tuple[ClippedShare, ...]
    notes: tuple[str, ...] = ()
    largest: float = math.nan

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State whether there is anything to correct, and what the completions are worth."""
        difference = f"largest difference of a token's log-probability {format_number(self.largest, 1)}"
        if self.is_settled:
            return f"Sampler and scorer agree ({difference}): nothing to correct."
        size = self.product.effective_sample_size.value
        worth = format_estimate(size, *self.confidence_interval(confidence_level))
        return (
            f"Sampler and scorer differ ({difference}): weighted by their ratios, {self.product.n:,} completions are "
            f"worth {worth}."
        )

    @property
    def is_settled(self) -> bool:
        """Whether the sentence says all: sampler and scorer agree, and the table has rows of 1 and 0."""
        return self.product.chi_squared.value <= NEGLIGIBLE_CHI_SQUARED

    @property
    def product(self) -> RatioSpread:
        r"""The spread of the ratio of whole completions, :math:`\prod_t ρ_t`."""
        return self.spreads[_RATIOS.index("product")]

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL, quantity: str = "") -> tuple[Any, Any]:
        """Return the interval of a quantity in every row; by default that of the effective number of completions."""
        if quantity:
            return super().confidence_interval(confidence_level, quantity)
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


#: Why ratios are not known.
_NO_LOGPROBS = (
    "ratios need the log-probabilities of sampler and scorer at every counted token: sample with an engine that "
    "records them, such as transformers or vllm, and measure"
)


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
        raise ValueError(_NO_LOGPROBS)
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
    by_length = tuple(_spreads(batch, bin_of(batch.lengths, n_bins)))
    largest = float(np.abs(log_ratios(batch)[batch.mask]).max(initial=0.0))
    return RatioDiagnostics(tuple(spreads), by_length, clipped, tuple(notes), largest)


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
    for ratio in _RATIOS:
        logs, rows = values[ratio]
        for one in np.unique(bins):
            here = bins[rows] == one
            inside = rows[here]
            spreads.append(ratio_spread(ratio, logs[here], batch.group_index[inside], batch.lengths[inside]))
    return spreads


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
            f"needed, {MEASURE_PROBES}"
        )
    return tuple(shares), notes


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any] | None:
    """Ask of completions whose sampler recorded log-probabilities."""
    return None if measured.old_logprobs is None else {}


#: Squared deviations of ratios below this are those of float32.
_ROUNDING = 1e-9


def _without_rounding(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with bounds in place of the spread that log-probabilities of one policy have from rounding."""
    shown = frame.copy()
    equal = frame["chi_squared_high"] < _ROUNDING  # sampler and scorer are one policy
    shown.loc[equal, "mean"] = frame.loc[equal, "mean"].round(4)
    shown.loc[equal, ["mean_low", "mean_high"]] = np.nan
    for name in ("variance", "chi_squared"):
        below = frame[f"{name}_high"] < _ROUNDING
        shown.loc[below, [name, f"{name}_low"]] = np.nan
        shown.loc[below, f"{name}_high"] = _ROUNDING
    return shown


def _effective_shares(ratios: pd.DataFrame) -> pd.DataFrame | None:
    """Return the effective share of ratios by length, of completions that another policy drew."""
    bins = ratios.query("by_length").rename(columns={"ratio": "estimator"})
    # Differences from rounding (a server, bfloat16) are not drawn: the policies count as one.
    whole = ratios.query("not by_length and ratio == 'product'")
    if bins.empty or not float(whole["chi_squared"].iloc[0]) > NEGLIGIBLE_CHI_SQUARED:
        return None
    size = "effective_sample_size"
    return bins.assign(**{f"effective_share{end}": bins[size + end] / bins["n"] for end in ("", "_low", "_high")})


def _draw_effective_shares(frame: pd.DataFrame) -> object:
    """Draw the effective share of each kind of ratio by length, of the table or of what is drawn of it."""
    shares = frame if "effective_share" in frame else _effective_shares(frame)
    if shares is None:
        raise ValueError("the two policies count as one: every ratio is 1 up to rounding, and nothing is to be drawn")
    return plot_length_bins(shares, value="effective_share")


def _caption(frame: pd.DataFrame) -> str:
    return (
        f"Importance ratios of the scored to the sampling policy, with {percent(frame.attrs['confidence_level'])} "
        "intervals over prompts; χ² is the mean of (ρ − 1)²."
    )


_KINDS = {"token": "token", "product": "completion", "geometric_mean": "geometric mean"}


def _row_name(row: dict[str, Any]) -> str:
    what = f"{row['length_low']:g}–{row['length_high']:g} tokens" if row["by_length"] else "all"
    return f"{_KINDS[str(row['ratio'])]}, {what} (n = {row['n']:,})"


def _caption_of_clips(frame: pd.DataFrame) -> str:
    caption = (
        f"Effect of each recipe's clip, with {percent(frame.attrs['confidence_level'])} intervals over prompts. The "
        "squared norm is that of completions for clips of completions, and of tokens for clips of tokens."
    )
    if "unknown" in set(frame["removed_of"]):
        caption += (
            " Dashes: energies of tokens were not measured (token_probes), which this share of their clips needs."
        )
    return caption


CLIPPING = FurtherTable(
    name="ratio_clipping",
    frame=RatioDiagnostics.clipping_frame,
    columns=ClippedShare.columns(),
    row_heading="recipe",
    row_name=lambda row: str(row["recipe"]),
    caption=_caption_of_clips,
)

_SPREAD = "stats/ratios.py"


ANALYSIS = Analysis(
    name="ratios",
    ask=ratio_diagnostics,
    unavailable_because=lambda measured: _NO_LOGPROBS if measured.old_logprobs is None else "",
    options=("n_bins",),
    columns=(
        Column("ratio", "kind of importance ratio: of tokens, of completions, geometric mean", file=_SPREAD),
        Column("length", "range of lengths", estimated=True, file=_SPREAD),
        Column("n", "ratios", file=_SPREAD),
        Column("n_prompts", "prompts", file=_SPREAD),
        Column("mean", "mean", "mean", estimated=True, file=_SPREAD),
        Column("variance", "variance", "variance", estimated=True, file=_SPREAD),
        Column("chi_squared", "χ²", "χ²", estimated=True, file=_SPREAD),
        Column("by_length", "whether of completions of these lengths only"),
        Column(
            "effective_sample_size",
            "effective sample size",
            "effective sample size",
            estimated=True,
            file="stats/protocols.py",
        ),
    ),
    row_heading="ratio",
    row_name=_row_name,
    caption=_caption,
    display_frame=_without_rounding,
    further=(CLIPPING,),
    in_run=_in_run,
    figures=(
        AnalysisFigure(
            "ratios",
            "Effective share of importance-weighted tokens and completions by length; 1 where the two policies are "
            "equal.",
            _draw_effective_shares,
            rows=_effective_shares,
            columns=(
                Column("effective_share", "effective sample size over n", estimated=True),
                Column("estimator", "kind of ratio, in a figure"),
            ),
        ),
    ),
)
