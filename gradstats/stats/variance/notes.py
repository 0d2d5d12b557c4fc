"""What a reader of a variance table needs to know: one sentence each, with its remedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.baselines.length_exponent import FITTED_ELSEWHERE
from gradstats.estimators.baselines.maximum_likelihood import of_both_signs
from gradstats.estimators.estimator import Weighting, unit_of
from gradstats.stats.variance.n_effective_prompts import FEW as FEW_PROMPTS
from gradstats.stats.variance.pooled_completions import PooledCompletions
from gradstats.stats.variance.quantities import JUDGED
from gradstats.stats.variance.row import EstimatorVariance

# An estimate that is significant below so many standard errors is more than 10 % too large on average: a true effect of
# 2.8 standard errors is significant with 80 % chance, and then exaggerated by 1.12.
BARELY = 3.0
#: What advantages are divided by, in the unit of an estimator.
BY_GROUP_MEAN = "group_mean"
#: Rows that a note names one by one; of more, as along a curve, it names the first and the last.
MOST_NAMED = 12


def warnings_about(
    pool: PooledCompletions, rows: Sequence[EstimatorVariance], estimators: Sequence[Weighting]
) -> list[str]:
    """State what is NaN in the table, or estimates nothing, and why."""
    notes = []
    silent = [row.label for row in rows if row.kept_share.value == 0.0]
    if silent:
        give, are = ("gives", "its row is NaN") if len(silent) == 1 else ("give", "their rows are NaN")
        notes.append(f"{why_silent(pool)}, so {_listed(silent)} {give} every completion weight 0 and {are}")
    divided = _about_group_means(pool, estimators)
    notes += divided
    undefined = [row.label for row in rows if row.kept_share.value > 0 and np.isnan(row.trace_cov.value)]
    undefined = [label for label in undefined if not any(label in labels for labels in divided.values())]
    if undefined:
        row_is = "its row is" if len(undefined) == 1 else "their rows are"
        notes.append(
            f"some weights of {_listed(undefined)} are NaN, so {row_is} NaN: leave out groups of one "
            "completion, or choose singleton='zero'"
        )
    if pool.groups.n_prompts < 3:
        notes.append(
            "2 prompts are too few for a jackknife, so every interval is NaN: measure at least 3, better 30, prompts"
        )
        return notes
    clipping = pool.max_grad_norm is not None
    across = [estimator.label for estimator in estimators if estimator.across_groups or clipping]
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


def remarks_about(pool: PooledCompletions, rows: Sequence[EstimatorVariance]) -> list[str]:
    """Return how the table was made, where that is not the plain case."""
    notes = []
    groups = pool.groups
    sizes = groups.sizes
    if groups.n_leftover:
        left_out = "1 completion" if groups.n_leftover == 1 else f"{groups.n_leftover} completions"
        was = "was" if groups.n_leftover == 1 else "were"
        notes.append(f"{left_out} did not fill a group of {sizes[0]} and {was} left out")
    if sizes.min() != sizes.max():
        notes.append(f"groups hold between {sizes.min()} and {sizes.max()} completions: all of each prompt's were used")
    exact = [f"{row.label} ({row.known_coefficient:.4g})" for row in rows if row.known_coefficient not in (None, 1.0)]
    if exact:
        notes.append(f"{JUDGED.name} uses the exactly known scale of E[ĝ] for {_listed(exact)}")
    if not pool.on_policy:
        notes.append(
            "scales of E[ĝ] are known for completions of the scored policy, judged against rloo; here they are not "
            f"used, and {JUDGED.name} rests on estimated ones, except between estimators whose weights are proportional"
        )
    if sizes.min() == 1 < sizes.max():
        notes.append(
            "some groups hold a single completion: bias and cosine are judged against rloo(singleton=reward), which "
            "keeps the gradient of these prompts"
        )
    if FITTED_ELSEWHERE in pool.batch.columns:
        exponents = pool.batch.columns[FITTED_ELSEWHERE]
        notes.append(
            f"alpha=within_prompt takes for each prompt the exponent of the other prompts, {exponents.min():.3g} to "
            f"{exponents.max():.3g}, and intervals take these as given"
        )
    barely = [
        row.label
        for row in rows
        if row.resolved(CONFIDENCE_LEVEL) and row.signal_sq.value < BARELY * row.signal_sq.stderr
    ]
    if barely:
        notes.append(
            f"‖E ĝ‖² is barely resolved for {_listed(barely)}: values that are shown only because an estimate happened "
            "to be large enough are exaggerated on average (too large a signal, too low a noise_to_signal); rely on "
            "the intervals"
        )
    notes += _about_deals(pool, [row for row in rows if row.n_deals is not None])
    notes += _about_clipping(pool, [row for row in rows if np.isfinite(row.clipped_share)])
    notes += _about_heavy_tails(pool, rows)
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


def _about_group_means(pool: PooledCompletions, estimators: Sequence[Weighting]) -> dict[str, list[str]]:
    """Return what negative rewards do to estimators that divide by the mean reward of a group → their labels."""
    found: dict[str, list[str]] = {}
    for estimator in estimators:
        if BY_GROUP_MEAN in unit_of(estimator).split(" / "):
            batch = _rewarded(estimator, pool.batch)
            if batch.rewards.min() < 0:
                found.setdefault(_about_negative_rewards(batch), []).append(estimator.label)
    return {
        f"the gradient of {_listed(labels)} is divided by the mean reward of a group, {text}: give rewards of at least "
        "0 (the source defines it for 0 and 1)": labels
        for text, labels in found.items()
    }


def _about_negative_rewards(batch: Batch) -> str:
    index, size, n_groups = batch.group_index, batch.group_sizes, batch.n_groups
    mean = np.bincount(index, weights=batch.rewards, minlength=n_groups) / size
    parts = [f"which is negative in {int((mean < 0).sum())} of {n_groups} groups and turns their gradient round"]
    mixed = of_both_signs(batch)
    if mixed.any():
        rows = np.flatnonzero((mixed & (mean != 0))[index])
        reached = np.max(np.abs(batch.rewards[rows] / mean[index[rows]] - 1.0), initial=0.0)
        parts.append(
            f"which may come near 0 in {int(mixed.sum())} with rewards of both signs (advantages reach {reached:.3g}; "
            f"with one sign {size.max() - 1} at most): of continuous rewards neither E ĝ nor tr Cov exists then, and "
            "the numbers and intervals of the row estimate nothing"
        )
    if (mean[mixed] == 0).any():
        parts.append(f"which is 0 in {int((mean[mixed] == 0).sum())} of these, so that the row is NaN")
    return ", ".join(parts)


def _rewarded(estimator: Weighting, batch: Batch) -> Batch:
    """Return the batch with the rewards that an estimator, or the recipe behind it, computes advantages from."""
    for behind in ("whole", "estimator", "recipe"):
        estimator = getattr(estimator, behind, estimator)
    return estimator.rewarded(batch) if isinstance(estimator, Recipe) else batch


def _about_deals(pool: PooledCompletions, rows: Sequence[EstimatorVariance]) -> list[str]:
    if not rows:
        return []
    if pool.max_grad_norm is None:
        are = "is a batch-level estimator" if len(rows) == 1 else "are batch-level estimators"
    else:
        are = "is clipped by batch" if len(rows) == 1 else "are clipped by batch"
    deals = sorted({row.n_deals for row in rows if row.n_deals is not None})
    times = f"{deals[0]}" if len(deals) == 1 else f"{deals[0]} to {deals[-1]}"
    left = max(row.share_of_deals for row in rows)
    return [
        f"{_listed([row.label for row in rows])} {are}: measured in batches of {pool.batch_prompts} prompts, dealt "
        f"{times} times without replacement (bias_share is of such a batch as well); more deals "
        f"would narrow the intervals by at most {_per_cent(left)}"
    ]


def _about_clipping(pool: PooledCompletions, rows: Sequence[EstimatorVariance]) -> list[str]:
    if not rows:
        return []
    shares = _listed([f"{row.clipped_share:.1%} ({row.label})" for row in rows])
    sketched = " (norms are those of sketches)" if pool.scores.sketched else ""
    return [
        f"gradients of batches of {pool.batch_prompts} prompts are clipped to the norm {pool.max_grad_norm:g}"
        f"{sketched}, which reaches {shares} of them: trace_cov, bias and cosine are those of the clipped gradients, "
        "ratios are to the reference without clipping"
    ]


def _about_heavy_tails(pool: PooledCompletions, rows: Sequence[EstimatorVariance]) -> list[str]:
    few = [row for row in rows if min(row.n_effective_prompts, row.n_effective_beside) < FEW_PROMPTS]
    if not few:
        return []
    worst = min(few, key=lambda row: min(row.n_effective_prompts, row.n_effective_beside))
    assert worst.most_influential is not None
    own = worst.n_effective_prompts <= worst.n_effective_beside
    they_are, rest = ("it is", "rests") if len(few) == 1 else ("they are", "rest")
    return [
        f"{_listed([row.label for row in few])}, or what {they_are} compared with, {rest} on few prompts (of "
        f"{worst.label if own else 'what ' + worst.label + ' is compared with'}, {pool.groups.n_prompts} prompts are "
        f"worth {min(worst.n_effective_prompts, worst.n_effective_beside):.0f}, and prompt "
        f"{pool.prompt_labels[worst.most_influential]} counts most): below about {FEW_PROMPTS} effective prompts "
        f"intervals may cover less than stated, those of cosine and of a {JUDGED.name} with an estimated scale first; "
        "see docs/statistics.md"
    ]


def _per_cent(share_of_variance: float) -> str:
    """By how much an interval narrows without a share of the squared standard error."""
    return f"{100.0 * (1.0 - np.sqrt(max(1.0 - share_of_variance, 0.0))):.1f} %"


def _about_signal(unresolved: Sequence[EstimatorVariance], n_prompts: int) -> str:
    return (
        f"‖E ĝ‖² is not resolved for {_listed([row.label for row in unresolved])} (the {CONFIDENCE_LEVEL:.0%} interval "
        f"reaches down to 0), so noise_to_signal is given by its lower end alone; cosine, and {JUDGED.name} unless the "
        "scale of E[ĝ] is known exactly, have a value only where what they divide by is resolved: "
        f"{_prompts_needed(unresolved, n_prompts)}"
    )


def _prompts_needed(unresolved: Sequence[EstimatorVariance], n_prompts: int) -> str:
    """Say how many prompts would resolve the most demanding row, as the plan of that row does."""
    plans = []
    for row in unresolved:
        parts, signal = row.signal_components, row.signal_sq
        if parts is not None:
            high = signal.confidence_interval(CONFIDENCE_LEVEL)[1]
            needed, at_least = (
                parts.prompts_to_resolve(of, signal.value, CONFIDENCE_LEVEL) for of in (signal.value, high)
            )
            plans.append((needed, at_least, row.label))
    if not plans or not np.isfinite(max(plans)[1]):
        return f"many more prompts than {n_prompts} would be needed"
    needed, at_least, label = max(plans)
    whose = f" of {label}" if len(unresolved) > 1 else ""
    if np.isfinite(needed):
        size = f"an estimated {needed:,} prompts [{at_least:,}, ∞]"
        return f"resolving that{whose} takes {size} similar to these {n_prompts}"
    return (
        f"the estimate{whose} is not positive, so that no number of prompts can be estimated; for the upper end of its "
        f"interval {at_least:,} similar to these {n_prompts} would be needed"
    )


def why_silent(pool: PooledCompletions) -> str:
    """State why no completion has any weight, with the remedy in brackets."""
    rewards = pool.batch.rewards
    if pool.groups.sizes.max() == 1 and rewards.any():
        return "groups hold a single completion (choose group_size of at least 2)"
    if np.ptp(rewards) == 0:
        return f"every reward equals {rewards[0]:g} (choose problems that are solved sometimes, not always)"
    differing = groups_that_differ(rewards, pool.batch.group_index)
    if differing:
        return (
            f"rewards differ within {differing} of {pool.groups.n_groups} groups, but nothing there meets the "
            "estimator's rule, such as a single best completion (measure more prompts, or choose another estimator)"
        )
    return "rewards are equal within every group (choose problems that are solved sometimes, or larger groups)"


def groups_that_differ(rewards: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"]) -> int:
    """Return the number of groups whose rewards are not all equal."""
    first = rewards[np.unique(group, return_index=True)[1]]
    return len(np.unique(group[rewards != first[group]]))


def _listed(labels: Sequence[str]) -> str:
    if len(labels) > MOST_NAMED:
        return f"{', '.join(labels[:2])}, … and {labels[-1]} ({len(labels)} rows)"
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
