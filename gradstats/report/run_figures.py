"""Which figures a run has, what each needs, and how it is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gradstats import plots
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED
from gradstats.plots.blocks import has_kinds
from gradstats.plots.theme import palette
from gradstats.report.saved_results import SavedResults
from gradstats.stats import LengthRewardCorrelation, length_reward_correlation
from gradstats.stats.variance.quantities import JUDGED, in_metric

#: Entry of the ``.attrs`` of a table: whether its rows are sorted by ``value``, or stand as ``listed``.
ORDER = "order"


@dataclass(frozen=True)
class RunFigure:
    """One figure of a run.

    Attributes:
        name: of its files.
        caption: in the report, one sentence.
        needs: run → the table behind the figure, which is written next to it; None where the run lacks its numbers.
        draw: draws that table, given the run, on a figure of its own.
    """

    name: str
    caption: str
    needs: Callable[[SavedResults], pd.DataFrame | None]
    draw: Callable[[SavedResults, pd.DataFrame], object]


def _by_value(table: pd.DataFrame) -> bool:
    return table.attrs.get(ORDER) != "listed"


def _fitted_points(run: SavedResults) -> pd.DataFrame | None:
    return None if run.fit is None else run.points


def _draw_length_scaling(run: SavedResults, points: pd.DataFrame) -> None:
    assert run.fit is not None
    plots.plot_length_scaling(run.fit, published=run.published)


def _resolved_variance(run: SavedResults) -> pd.DataFrame | None:
    if run.variance is None or not np.isfinite(run.variance[JUDGED.name].to_numpy(dtype=float)).any():
        return None
    return run.variance


def _group_sizes(run: SavedResults) -> pd.DataFrame | None:
    """Return the rows of several group sizes; those with within-prompt variance where it is known of several.

    Equal group sizes are about the within-prompt variance, which takes two groups of a prompt.
    """
    sizes = _with_reference(run, run.breakdowns.get("group_sizes"))
    if sizes is None or len(set(sizes["group_size"])) < 2:
        return None
    within = _with_components(sizes)
    return within if within is not None and len(set(within["group_size"])) > 1 else sizes


def _draw_group_sizes(run: SavedResults, table: pd.DataFrame) -> None:
    if _with_components(table) is not table:
        plots.plot_group_size(table, group_size_of_run=_drawn_group_size(run))
        return
    equivalence = run.breakdowns.get("equivalent_group_size")
    if equivalence is not None:  # RLOO, and estimators that equal it, are equivalent to their own group size
        equivalence = equivalence.query("abs(equivalent_group_size - group_size) > 1e-6")
    drawn = _drawn_group_size(run)
    plots.plot_group_size(table, value="within_prompt", equivalence=equivalence, group_size_of_run=drawn)


def _drawn_group_size(run: SavedResults) -> int | None:
    """Return completions per prompt where every prompt has as many."""
    if run.alpha is None or run.alpha["n"] % max(run.alpha["n_prompts"], 1):
        return None
    return run.alpha["n"] // run.alpha["n_prompts"]


def _largest_groups(run: SavedResults) -> pd.DataFrame | None:
    """Return the variance components at the largest group size where they are known."""
    sizes = _with_reference(run, run.breakdowns.get("group_sizes"))
    within = None if sizes is None else _with_components(sizes)
    return None if within is None else within.query("group_size == group_size.max()")


def _with_components(sizes: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows whose variance components are known, the same frame where all are; None where none is."""
    if "within_prompt" not in sizes:
        return None
    known = np.isfinite(sizes["within_prompt"].to_numpy(dtype=float))
    if not known.any():
        return None
    return sizes if known.all() else sizes.loc[known]


def _with_reference(run: SavedResults, frame: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return a breakdown with the reference of the comparison that it belongs to."""
    if frame is not None and run.variance is not None:
        frame = frame.copy()
        frame.attrs["reference"] = run.variance.attrs.get("reference")
    return frame


def _length_bins(run: SavedResults) -> pd.DataFrame | None:
    """Return the bins of the reference, the first of the estimators that are split."""
    bins = run.breakdowns.get("length_bins")
    if bins is None:
        return None
    bins = bins.loc[bins["estimator"] == bins["estimator"].iloc[0]]  # the reference comes first
    return bins if np.isfinite(bins["noise_to_signal_low"].to_numpy(dtype=float)).any() else None


def _shares(name: str, fewest_estimators: int) -> Callable[[SavedResults], pd.DataFrame | None]:
    """Return a breakdown whose shares of the expected gradient are resolved for some estimators."""

    def needs(run: SavedResults) -> pd.DataFrame | None:
        bins = run.breakdowns.get(name)
        if bins is None or "share_of_gradient" not in bins:  # an earlier version did not estimate them
            return None
        # Aggregation and scale decide the shares: one line for the reference and for each other unit.
        of_unit = bins.drop_duplicates("unit")["estimator"] if "unit" in bins else bins["estimator"]
        bins = bins.loc[bins["estimator"].isin(list(of_unit))]
        resolved = bins.loc[np.isfinite(bins["share_of_gradient"].to_numpy(dtype=float)), "estimator"]
        return bins if len(set(resolved)) >= fewest_estimators else None

    return needs


def _ratios_by_length(run: SavedResults) -> pd.DataFrame | None:
    """Draw the effective share of ratios by length, of completions that another policy drew."""
    ratios = run.breakdowns.get("ratios")
    if ratios is None:
        return None
    bins = ratios.query("by_length").rename(columns={"ratio": "estimator"})
    # Differences from rounding (a server, bfloat16) are not drawn: the policies count as one.
    whole = ratios.query("not by_length and ratio == 'product'")
    if bins.empty or not float(whole["chi_squared"].iloc[0]) > NEGLIGIBLE_CHI_SQUARED:
        return None
    size = "effective_sample_size"
    return bins.assign(**{f"effective_share{end}": bins[size + end] / bins["n"] for end in ("", "_low", "_high")})


def _kinds_of_parameter(run: SavedResults) -> pd.DataFrame | None:
    return run.by_block if run.by_block is not None and has_kinds(run.by_block) else None


def _points_of_several_rewards(run: SavedResults) -> pd.DataFrame | None:
    if run.points is None or "reward" not in run.points or len(set(run.points["reward"])) < 2:
        return None
    return run.points


def _points_with_energy(run: SavedResults) -> pd.DataFrame | None:
    return None if run.energy_fit is None or run.fit is None else run.points


def _draw_alpha_energy(run: SavedResults, points: pd.DataFrame) -> None:
    assert run.fit is not None
    assert run.energy_fit is not None
    first, second, *_ = palette()
    ax = plots.plot_length_scaling(run.fit, label=r"$\Vert S\Vert^2$", color=first)
    plots.plot_length_scaling(run.energy_fit, ax=ax, label=r"$\sum_t\Vert s_t\Vert^2$", color=second)
    ax.set_ylabel(in_metric(r"$\Vert S\Vert^2$ and token energy", {"metric": run.metric}))


def _token_profile(name: str) -> Callable[[SavedResults], pd.DataFrame | None]:
    return lambda run: None if run.tokens is None else run.tokens.profiles.get(name)


def _scaled_proxy(run: SavedResults) -> pd.DataFrame | None:
    """Scale the proxy of sampled tokens so that totals agree, since a proxy's unit means nothing."""
    if run.tokens is None:
        return None
    sample = run.tokens.sample.copy()
    sample["logit"] *= sample["energy"].sum() / sample["logit"].sum()
    ranks = dict(zip(run.tokens.proxies["proxy"], run.tokens.proxies["rank_correlation"], strict=True))
    sample.attrs |= {"proxy": "logit proxy, scaled", "truth": "token energy", "rank_correlation": float(ranks["logit"])}
    return sample


def _correlation(points: pd.DataFrame) -> LengthRewardCorrelation:
    with warnings.catch_warnings():  # too few informative prompts: the figure then gives no number
        warnings.simplefilter("ignore")
        return length_reward_correlation(lengths=points["length"], rewards=points["reward"], groups=points["prompt_id"])


#: Every figure of a run, in the order of the report.
FIGURES = (
    RunFigure(
        "variance",
        "Variance of each estimator relative to the reference, at matched signal. Wide bars: intervals of single rows; "
        "thin bars: intervals that hold together. Bold: the best set, which holds the lowest at this level. "
        "Half-filled markers: the baseline includes the completion itself. Dashed bars: no estimate; arrows: no end.",
        lambda run: run.variance,
        lambda run, table: plots.plot_variance(table, sort=_by_value(table)),
    ),
    RunFigure(
        "length_scaling",
        "Squared gradient norm of each completion against its length, with the fitted power law.",
        _fitted_points,
        _draw_length_scaling,
    ),
    RunFigure(
        "variance_bias",
        "Variance at matched signal, next to cosine and share of bias, with the lowest at the top.",
        _resolved_variance,
        lambda run, table: plots.plot_variance_panels(table, sort=_by_value(table)),
    ),
    RunFigure(
        "group_sizes",
        "Variance at an equal total of completions against the group size; dotted lines end at the group size of RLOO "
        "with the same variance; the dashed line is the group size of the run. Broken lines, half-filled markers: the "
        "baseline includes the completion itself.",
        _group_sizes,
        _draw_group_sizes,
    ),
    RunFigure(
        "allocation",
        "Noise at an equal number of tokens against completions per prompt (and prompts, for the tokens of the run), "
        "relative to RLOO at the largest measured size; open markers are extrapolated.",
        lambda run: run.breakdowns.get("allocation"),
        lambda run, table: plots.plot_allocation(table),
    ),
    RunFigure(
        "prompt_parts",
        "Variance within prompts, which decreases with the group size, and between prompts, which does not.",
        _largest_groups,
        lambda run, table: plots.plot_prompt_parts(table),
    ),
    RunFigure(
        "length_bins",
        "Noise to signal of the reference's gradient contributed by completions of each range of lengths.",
        _length_bins,
        lambda run, table: plots.plot_length_bins(table),
    ),
    RunFigure(
        "success_shares",
        "Share of the expected gradient that prompts of each range of success rates make up.",
        _shares("success_bins", 1),
        lambda run, table: plots.plot_shares(table),
    ),
    RunFigure(
        "length_shares",
        "Share of the expected gradient that completions of each range of lengths make up, by aggregation.",
        _shares("length_bins", 2),
        lambda run, table: plots.plot_shares(table),
    ),
    RunFigure(
        "ratios",
        "Effective share of importance-weighted tokens and completions by length; 1 where the two policies are equal.",
        _ratios_by_length,
        lambda run, table: plots.plot_length_bins(table, value="effective_share"),
    ),
    RunFigure(
        "alpha_by_block",
        "Length exponent of each block of parameters.",
        lambda run: run.by_block,
        lambda run, table: plots.plot_alpha_by_block(table),
    ),
    RunFigure(
        "blocks_share_of_sq_norm",
        "Share of the squared gradient norm by layer and kind of parameter.",
        _kinds_of_parameter,
        lambda run, table: plots.plot_block_heatmap(table, value="share_of_sq_norm"),
    ),
    RunFigure(
        "blocks_alpha",
        "Length exponent by layer and kind of parameter.",
        _kinds_of_parameter,
        lambda run, table: plots.plot_block_heatmap(table, value="alpha"),
    ),
    RunFigure(
        "length_reward",
        "Reward against length, both relative to the mean of the same prompt.",
        _points_of_several_rewards,
        lambda run, table: plots.plot_length_reward(table, correlation=_correlation(table)),
    ),
    RunFigure(
        "alpha_energy",
        "Squared gradient norm and summed token energy against length; the gap between them is correlation.",
        _points_with_energy,
        _draw_alpha_energy,
    ),
    RunFigure(
        "token_energy",
        "Energy of each token along completions of typical lengths, a panel for each.",
        lambda run: None if run.tokens is None else run.tokens.traces,
        lambda run, table: plots.plot_token_energy_panels(table),
    ),
    RunFigure(
        "concentration",
        "Share of a completion's token energy that its heaviest tokens hold.",
        _token_profile("concentration"),
        lambda run, table: plots.plot_concentration(table),
    ),
    RunFigure(
        "token_correlation",
        "Correlation of token scores against the distance between tokens; 0 on-policy.",
        _token_profile("correlation"),
        lambda run, table: plots.plot_token_correlation(table),
    ),
    RunFigure(
        "proxy",
        "Forward-only proxy of token energies against the energies measured.",
        _scaled_proxy,
        lambda run, table: plots.plot_proxy(table, proxy="logit", truth="energy"),
    ),
)
