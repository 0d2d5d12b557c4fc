"""Sources of a run's variance: tables by group size and by completion length."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gradstats import estimators
from gradstats.estimators.estimator import SEQUENCE_SUM, unit_of
from gradstats.stats import allocate, compare, equivalent_group_sizes, variance_by_success
from gradstats.stats.variance.available import reasons_against
from gradstats.stats.variance.length_bins import variances_by_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradstats.config.experiment import VarianceSection
    from gradstats.estimators.estimator import Weighting
    from gradstats.measurement.measurement import Measurement


#: Tables in addition to the variance comparison.
BREAKDOWNS = ("group_sizes", "equivalent_group_size", "allocation", "length_bins", "success_bins")


def variance_breakdowns(
    measured: Measurement, section: VarianceSection, doing: Callable[[str], None] = lambda name: None
) -> dict[str, pd.DataFrame]:
    """Return tables in addition to the variance comparison, by name; tables that the data do not allow are left out.

    Args:
        measured: the completions.
        section: names estimators, reference, target, level and seed.
        doing: is called with the name of each of :data:`BREAKDOWNS` before it is made.

    Returns:
        ``group_sizes``: the estimators that stay within their group at 2, 4, 8, … completions per group, with their
        variance within and between prompts where a prompt has two groups; ``equivalent_group_size``: of each whose
        expectation is a known multiple of the gradient, or whose scale is estimated, the group size at which RLOO has
        the same noise; ``allocation``: their noise over prompts and completions at the number of tokens of the run;
        ``length_bins``: noise, signal and bias of what completions of some lengths contribute to the reference, then
        to each of the other group-level estimators; ``success_bins``: what prompts of some success rates make up, of
        the reference and the first estimator of each other unit, where prompts have four completions.
    """
    most = int(np.unique(measured.rollouts.prompt_id, return_counts=True)[1].min())
    sizes = [2**power for power in range(1, most.bit_length()) if 2**power <= most]
    makers = {
        "group_sizes": lambda: _group_sizes(measured, section, sizes),
        "equivalent_group_size": lambda: _equivalent(measured, section, max(sizes, default=0) // 2),
        "allocation": lambda: _allocation(measured, section, sizes),
        "length_bins": lambda: length_bins(measured, section)[0],
        "success_bins": lambda: _success(measured, section, most),
    }
    frames = {}
    for name in BREAKDOWNS:
        doing(name)
        with warnings.catch_warnings():  # the comparison itself has warned of what is not resolved
            warnings.simplefilter("ignore", UserWarning)
            try:
                frame = makers[name]()
            except ValueError:  # too few completions for groups, or too few prompts: no such table
                continue
        if len(frame):
            frames[name] = frame
    return frames


def length_bins(
    measured: Measurement, section: VarianceSection, n_bins: int = 4, group_size: int | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the table by completion length of the reference and of each estimator, and the notes on it.

    Args:
        measured: the completions.
        section: names estimators, reference, target, level and seed; what is batch-level or not measured is left out.
        n_bins: bins of about equally many completions.
        group_size: completions of a group; all of a prompt by default.

    Raises:
        ValueError: as :func:`gradstats.variance_by_length`; where none of the estimators can be split.
    """
    chosen: list[Weighting] = [
        estimators.get(label) for label in dict.fromkeys([section.reference, *section.estimators])
    ]
    reasons = [
        f"{one.label} is a batch-level estimator, which is not split by length" if one.across_groups else reason
        for one, reason in zip(chosen, reasons_against(measured, chosen, section.target), strict=True)
    ]
    allowed, left_out = _allowed(chosen, reasons)
    found = variances_by_length(
        measured, allowed, n_bins=n_bins, group_size=group_size, rng=section.seed, target=section.target
    )
    frame = pd.concat([one.to_frame(section.confidence_level) for one in found], ignore_index=True)
    frame.attrs["confidence_level"] = section.confidence_level
    return frame, list(dict.fromkeys([*left_out, *(note for one in found for note in one.comparison.notes)]))


def block_variances(measured: Measurement, section: VarianceSection) -> tuple[pd.DataFrame, list[str]]:
    """Return the variance table block by block of the parameters, and the notes on it.

    Args:
        measured: the completions, with sketches by block.
        section: as for :func:`gradstats.compare`; estimators that are not measured are left out.

    Raises:
        ValueError: as :func:`gradstats.compare`; where none of the estimators can be compared.
    """
    chosen: list[Weighting] = [estimators.get(label) for label in section.estimators]
    allowed, left_out = _allowed(chosen, reasons_against(measured, chosen, section.target))
    found = compare(measured, **section.arguments(estimators=allowed), blocks=True)
    return found.to_frame(section.confidence_level), [*left_out, *found.notes]


def _allowed(chosen: list[Weighting], reasons: list[str | None]) -> tuple[list[Weighting], list[str]]:
    """Return the estimators that nothing speaks against, and what speaks against the others.

    Raises:
        ValueError: where there are none.
    """
    left_out = list(dict.fromkeys(reason for reason in reasons if reason is not None))
    allowed = [one for one, reason in zip(chosen, reasons, strict=True) if reason is None]
    if not allowed:
        raise ValueError("; ".join(left_out))
    return allowed, left_out


def _group_sizes(measured: Measurement, section: VarianceSection, sizes: list[int]) -> pd.DataFrame:
    chosen = _within_groups(measured, section)
    comparison = compare(measured, **section.arguments(estimators=chosen, group_size=sizes))
    frame = comparison.to_frame(section.confidence_level)
    if comparison.n_groups > sum(split.n_prompts for split in comparison.splits):
        components = comparison.variance_components(section.confidence_level)
        columns = [column for column in components if column not in frame]
        frame[columns] = components[columns]
    return frame


def _equivalent(measured: Measurement, section: VarianceSection, size: int) -> pd.DataFrame:
    if size < 3:
        return pd.DataFrame()
    chosen = _within_groups(measured, section)
    # The shrinkage of an own-sample baseline would count as lower variance.
    known = [one for one in chosen if one.expected_scale(size) or unit_of(one) != SEQUENCE_SUM]
    answers = equivalent_group_sizes(measured, known, size, target=section.target, unresolved="nan")
    return pd.concat([answer.to_frame(section.confidence_level) for answer in answers], ignore_index=True)


def _allocation(measured: Measurement, section: VarianceSection, sizes: list[int]) -> pd.DataFrame:
    """Return the noise at the number of tokens of the run itself, for groups up to four times the largest here."""
    if not sizes:
        return pd.DataFrame()
    found = allocate(
        measured,
        _within_groups(measured, section),
        tokens=float(np.sum(measured.rollouts.lengths)),
        group_sizes=[*sizes, 2 * sizes[-1], 4 * sizes[-1]],
        rng=section.seed,
        target=section.target,
    )
    return found.to_frame(section.confidence_level)


def _success(measured: Measurement, section: VarianceSection, completions: int) -> pd.DataFrame:
    """Return the bins by success rate of the reference and of the first estimator of each other unit."""
    if completions < 4:  # half of them form a group, and one completion has no baseline
        return pd.DataFrame()
    reference = estimators.get(section.reference)
    by_unit: dict[str, Weighting] = {unit_of(reference): reference}
    for one in _within_groups(measured, section):
        by_unit.setdefault(unit_of(one), one)
    found = variance_by_success(measured, list(by_unit.values()), rng=section.seed, target=section.target)
    return found.to_frame(section.confidence_level)


def _within_groups(measured: Measurement, section: VarianceSection) -> list[Weighting]:
    """Return the estimators that stay within their group and that the measurement allows, token-level ones included."""
    chosen = [estimators.get(label) for label in section.estimators]
    reasons = reasons_against(measured, chosen, section.target)
    pairs = zip(chosen, reasons, strict=True)
    return [one for one, reason in pairs if reason is None and not one.across_groups]
