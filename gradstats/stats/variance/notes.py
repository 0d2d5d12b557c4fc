"""What a reader of a variance table needs to know: one sentence each, with its remedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.estimators.estimator import Weighting
from gradstats.stats.variance.pooled_completions import PooledCompletions
from gradstats.stats.variance.quantities import JUDGED
from gradstats.stats.variance.row import EstimatorVariance
from gradstats.stats.variance.signal_sq import prompts_to_resolve


def warnings_about(
    pool: PooledCompletions, rows: Sequence[EstimatorVariance], estimators: Sequence[Weighting]
) -> list[str]:
    """What is NaN in the table, and why."""
    notes = []
    silent = [row.label for row in rows if row.kept_share.value == 0.0]
    if silent:
        notes.append(f"{_why_silent(pool)}, so {_listed(silent)} give no completion any weight and the row is NaN")
    undefined = [row.label for row in rows if row.kept_share.value > 0 and np.isnan(row.trace_cov.value)]
    if undefined:
        notes.append(
            f"some weights of {_listed(undefined)} are NaN, so the row is NaN: leave out groups of one "
            "completion, or choose singleton='zero'"
        )
    if pool.groups.n_prompts < 3:
        notes.append(
            "2 prompts are too few for a jackknife, so every interval is NaN: measure at least 3, better 30, prompts"
        )
        return notes
    across = [estimator.label for estimator in estimators if estimator.across_groups]
    if across and pool.groups.n_prompts // pool.batch_prompts < 3:
        notes.append(
            f"{pool.groups.n_prompts} prompts hold only 2 disjoint batches of {pool.batch_prompts}, so the "
            f"intervals of {_listed(across)} are NaN: lower prompts_per_batch or measure more prompts"
        )
    unresolved = [
        row
        for row in rows
        if np.isfinite(row.signal_sq.stderr) and not row.resolved(CONFIDENCE_LEVEL) and row.trace_cov.value > 0
    ]
    if unresolved:
        notes.append(_about_signal(unresolved, pool.groups.n_prompts))
    return notes


def remarks_about(
    pool: PooledCompletions, rows: Sequence[EstimatorVariance], estimators: Sequence[Weighting]
) -> list[str]:
    """How the table was made, where that is not the plain case."""
    notes = []
    groups = pool.groups
    sizes = groups.sizes
    if groups.n_leftover:
        notes.append(f"{groups.n_leftover} completions did not fill a group of {sizes[0]} and were left out")
    if sizes.min() != sizes.max():
        notes.append(f"groups hold between {sizes.min()} and {sizes.max()} completions: all of each prompt's were used")
    exact = [f"{row.label} ({row.known_coefficient:.4g})" for row in rows if row.known_coefficient not in (None, 1.0)]
    if exact:
        notes.append(f"{JUDGED.name} uses the exactly known scale of E[ĝ] for {_listed(exact)}")
    across = [estimator.label for estimator in estimators if estimator.across_groups]
    if across:
        are = "is a batch-level estimator" if len(across) == 1 else "are batch-level estimators"
        notes.append(
            f"{_listed(across)} {are}: measured in batches of {pool.batch_prompts} prompts, "
            f"dealt {pool.n_resamples} times without replacement"
        )
    probed = pool.scores.probed
    if probed is not None:
        notes.append(
            f"token scores come from {probed.n_probes} random probes and {len(probed.owner)} tokens measured one by "
            "one; the probes' error is part of every interval"
        )
    if pool.scores.sketched and pool.sketch_error is not None:
        exactly = "exact squares" if pool.scores.surplus_sq is not None else "sketched squares"
        notes.append(
            f"inner products come from a sketch of dimension {pool.sketch_error.dim} with {exactly}; "
            "its error is part of every interval"
        )
    return notes


def _about_signal(unresolved: Sequence[EstimatorVariance], n_prompts: int) -> str:
    bounds = [prompts_to_resolve(row.signal_sq, n_prompts, CONFIDENCE_LEVEL) for row in unresolved]
    needed = max((bound for bound in bounds if np.isfinite(bound)), default=np.nan)
    more = (
        f"at least about {_two_digits(needed)} prompts would be needed (now {n_prompts})"
        if np.isfinite(needed)
        else f"many more prompts than {n_prompts} would be needed"
    )
    return (
        f"‖E ĝ‖² is not resolved for {_listed([row.label for row in unresolved])} (the {CONFIDENCE_LEVEL:.0%} interval "
        "reaches down to 0), so noise_to_signal is given by its lower end alone, and cosine and "
        f"{JUDGED.name} are NaN unless the scale of E[ĝ] is known exactly: {more}"
    )


def _why_silent(pool: PooledCompletions) -> str:
    rewards = pool.batch.rewards
    if pool.groups.sizes.max() == 1:
        return "groups hold a single completion (choose group_size of at least 2)"
    if np.ptp(rewards) == 0:
        return f"every reward equals {rewards[0]:g} (choose problems that are solved sometimes, not always)"
    return "rewards are equal within every group (choose problems that are solved sometimes, or larger groups)"


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _two_digits(number: float) -> str:
    digits = max(int(np.floor(np.log10(number))) - 1, 0)
    return f"{int(np.ceil(number / 10**digits) * 10**digits):,}"
