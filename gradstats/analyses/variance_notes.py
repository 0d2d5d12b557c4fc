"""What a reader of a variance table needs to know: what was seen, what it means, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from gradstats.analyses.numbers import format_estimate, format_number, percent
from gradstats.analyses.results import LevelNote
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.baselines.scaled import of_both_signs
from gradstats.estimators.baselines.weighted import FITTED_ELSEWHERE
from gradstats.estimators.estimator import Weighting, Wrapped, unit_of
from gradstats.estimators.recipes.weightings import advantage_of_values
from gradstats.stats.intervals import FEWEST_CARRIERS, carriers_of
from gradstats.stats.jackknife import interval_columns
from gradstats.stats.on_policy import untruncated
from gradstats.stats.ratios import RatioSpread
from gradstats.stats.variance.inputs import FEWEST_EFFECTIVE_COMPLETIONS, TargetChoice
from gradstats.stats.variance.moments import PromptMoments
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.stats.variance.quantities import FEW_PROMPTS, JUDGED
from gradstats.stats.variance.row import EstimatorVariance

# What a target decides.
_AGAINST_TARGET = f"cosine, shares of bias and the {JUDGED.heading}"
# An estimate that is significant below so many standard errors is more than 10 % too large on average: a true effect of
# 2.8 standard errors is significant with 80 % chance, and then exaggerated by 1.12.
_BARELY = 3.0
# What advantages are divided by, in the unit of an estimator.
_BY_GROUP_MEAN = "group_mean"
# Rows that a note names one by one; of more, as along a curve, it names the first and the last.
_MOST_NAMED = 12
# Up to so many rows are named even where a note concerns every row of the table.
_FEW_ROWS = 3


def _named(chosen: Sequence[EstimatorVariance], rows: Sequence[EstimatorVariance]) -> str:
    """Name some rows of a table; where these are all of more than a few, state that instead."""
    if len(chosen) == len(rows) > _FEW_ROWS:
        return f"all {len(rows)} rows"
    return _listed([row.label for row in chosen])


def _listed(labels: Sequence[str]) -> str:
    if len(labels) > _MOST_NAMED:
        return f"{', '.join(labels[:2])}, … and {labels[-1]} ({len(labels)} rows)"
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _number(labels: Sequence[object], one: str, several: str) -> str:
    """Return the words for one row, or those for several."""
    return one if len(labels) == 1 else several


def warnings_about(
    pool: PooledCompletions, rows: Sequence[EstimatorVariance], estimators: Sequence[Weighting]
) -> Iterator[str]:
    """State what is NaN in the table, or estimates nothing, and why."""
    if silent := [row.label for row in rows if row.kept_share.value == 0.0]:
        give, are = ("gives", "its row is") if len(silent) == 1 else ("give", "their rows are")
        yield f"{why_silent(pool)}, so {_listed(silent)} {give} every completion weight 0 and {are} NaN"
    divided = _about_group_means(pool, estimators)
    yield from divided
    explained = list(chain.from_iterable(divided.values()))
    undefined = [row.label for row in rows if row.kept_share.value > 0 and np.isnan(row.trace_cov.value)]
    if undefined := [label for label in undefined if label not in explained]:
        yield (
            f"some weights of {_listed(undefined)} are NaN, so {_number(undefined, 'its row is', 'their rows are')} "
            "NaN: leave out groups of one completion, or choose singleton='zero'"
        )
    n_prompts = pool.groups.n_prompts
    if n_prompts < 3:
        yield "2 prompts are too few for intervals, which are therefore NaN: measure at least 3 prompts, better 30"
        return
    clipping = pool.max_grad_norm is not None
    across = [estimator.label for estimator in estimators if estimator.across_groups or clipping]
    if across and n_prompts // pool.batch_prompts < 3:
        yield (
            f"{n_prompts} prompts make only 2 disjoint batches of {pool.batch_prompts}, too few for intervals of "
            f"{_listed(across)}, which are NaN: lower prompts_per_batch or measure more prompts"
        )
    yield LevelNote.of(partial(_on_unresolved, rows, n_prompts))


def _on_unresolved(rows: Sequence[EstimatorVariance], n_prompts: int, level: float) -> str:
    known = [row for row in rows if np.isfinite(row.signal_sq.stderr) and row.trace_cov.value > 0]
    unresolved = [row for row in known if not row.resolved(level)]
    if not unresolved:
        return ""
    return (
        f"the signal ‖E ĝ‖² is not resolved for {_named(unresolved, rows)}: its {percent(level)} interval "
        f"reaches down to 0. Noise-to-signal, the cosine and a {JUDGED.heading} with an estimated scale are shown only "
        "where they are resolved themselves. "
        f"{_prompts_needed(unresolved, n_prompts, level)}"
    )


def _about_group_means(pool: PooledCompletions, estimators: Sequence[Weighting]) -> dict[str, list[str]]:
    """Return what negative rewards do to estimators that divide by the mean reward of a group → their labels."""
    found: dict[str, list[str]] = {}
    for estimator in estimators:
        if _BY_GROUP_MEAN in unit_of(estimator).split(" / "):
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
    parts = [
        f"which is negative in {int((mean < 0).sum())} of {n_groups} groups and reverses the sign of their gradient"
    ]
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
    own = _unwrapped(estimator)
    return own.rewarded(batch) if isinstance(own, Recipe) else batch


def _unwrapped(estimator: Weighting) -> Weighting:
    while isinstance(estimator, Wrapped):
        estimator = estimator.estimator
    return estimator


def _prompts_needed(unresolved: Sequence[EstimatorVariance], n_prompts: int, level: float) -> str:
    """Say how many prompts would resolve the most demanding row, as the plan of that row does."""
    plans = []
    for row in unresolved:
        parts, signal = row.signal_components, row.signal_sq
        if parts is not None:
            high = signal.confidence_interval(level)[1]
            needed, at_least = (parts.prompts_to_resolve(of, signal.value, level) for of in (signal.value, high))
            plans.append((needed, at_least, row.label))
    if not plans or not np.isfinite(max(plans)[1]):
        return f"To resolve it, measure many more prompts than {n_prompts}"
    needed, at_least, label = max(plans)
    whose = f" that of {label}" if len(unresolved) > 1 else " it"
    if np.isfinite(needed):
        return (
            f"Resolving{whose} takes an estimated {needed:,} prompts like these {n_prompts}, and at least {at_least:,}"
        )
    return (
        f"How many prompts would resolve{whose} cannot be estimated, since the estimate is not positive; if the signal "
        f"were at the upper end of its interval, {at_least:,} like these {n_prompts} would be needed"
    )


def remarks_about(
    pool: PooledCompletions, rows: Sequence[EstimatorVariance], estimators: Sequence[Weighting]
) -> Iterator[str]:
    """Return how the table was made, where that is not the plain case."""
    groups, sizes = pool.groups, pool.groups.sizes
    if left := groups.n_leftover:
        were = "1 completion did not fill" if left == 1 else f"{left} completions did not fill"
        yield f"{were} a group of {sizes[0]} and {'was' if left == 1 else 'were'} left out"
    if sizes.min() != sizes.max():
        yield f"groups hold between {sizes.min()} and {sizes.max()} completions: all of each prompt are used"
    known = [f"{row.label} ({row.known_coefficient:.4g})" for row in rows if row.known_coefficient not in (None, 1.0)]
    if known:
        yield (
            f"{_listed(known)} {_number(known, 'scales', 'scale')} the expected gradient by a factor that is known "
            f"exactly (in brackets), and the {JUDGED.heading} allows for it"
        )
    if not pool.on_policy:
        yield (
            "how much an estimator scales the expected gradient is known only for completions of the scored policy "
            f"judged against rloo; here the {JUDGED.heading} rests on estimates of it, except between estimators whose "
            "weights are proportional"
        )
    if sizes.min() == 1 < sizes.max():
        yield (
            "some groups hold a single completion: bias and cosine are judged against rloo(singleton=reward), which "
            "keeps the gradient of these prompts"
        )
    if FITTED_ELSEWHERE in pool.batch.columns:
        exponents = pool.batch.columns[FITTED_ELSEWHERE]
        yield (
            "alpha=within_prompt weights each prompt by the exponent fitted to the other prompts "
            f"({exponents.min():.3g} to {exponents.max():.3g}); intervals treat these exponents as known"
        )
    yield LevelNote.of(partial(_on_barely_resolved, rows))
    if dealt := [row for row in rows if row.n_deals is not None]:
        yield _about_deals(pool, dealt)
    if clipped := [f"{row.clipped_share:.1%} ({row.label})" for row in rows if np.isfinite(row.clipped_share)]:
        sketched = " (of its sketch)" if pool.scores.sketched else ""
        yield (
            f"the gradient of a batch of {pool.batch_prompts} prompts is clipped to the norm {pool.max_grad_norm:g}"
            f"{sketched}, which changes {_listed(clipped)} of the batches. tr Cov, bias and cosine are those of "
            "clipped gradients; ratios are to the reference without clipping"
        )
    if few := [row for row in rows if min(row.n_effective_prompts, row.n_effective_beside) < FEW_PROMPTS]:
        yield _about_heavy_tails(pool, few, rows)
    if few := [row for row in rows if carriers_of(row.trace_cov) < FEWEST_CARRIERS]:
        fewest = max(min(carriers_of(row.trace_cov) for row in few), 1.0)
        needed = float(f"{pool.groups.n_prompts * FEWEST_CARRIERS / fewest:.2g}")
        yield (
            f"tr Cov of {_named(few, rows)} is not bounded from above, nor are critical batch and a {JUDGED.heading} "
            "with an estimated scale, ratios have one end, and cosine and bias have no lower end: judged by the tail "
            f"of squared gradients, {pool.groups.n_prompts} prompts count as {fewest:.2g}, and {FEWEST_CARRIERS} are "
            f"needed, which about {needed:,.0f} prompts would be worth"
        )
    yield from _about_further_completions(pool.batch, estimators)
    if (probed := pool.scores.probed) is not None:
        yield (
            f"gradients of single tokens come from {probed.n_probes} random probes and {len(probed.owner)} tokens "
            "measured one by one; the probes' error is part of every interval"
        )
    if pool.scores.sketched and pool.sketch_error is not None:
        squares = "are exact" if pool.scores.surplus_sq is not None else "likewise"
        yield (
            f"inner products of gradients are estimated from sketches of dimension {pool.sketch_error.dim} (squared "
            f"norms {squares}); their error is part of every interval"
        )


def _about_deals(pool: PooledCompletions, rows: Sequence[EstimatorVariance]) -> str:
    """Say how often prompts were dealt into batches, and what error that leaves in what is printed."""
    if pool.max_grad_norm is None:
        are = _number(rows, "is a batch-level estimator", "are batch-level estimators")
    else:
        are = _number(rows, "is clipped by batch", "are clipped by batch")
    deals = sorted({row.n_deals for row in rows if row.n_deals is not None})
    times = f"{deals[0]}" if len(deals) == 1 else f"{deals[0]} to {deals[-1]}"
    left = max(row.share_of_deals for row in rows)
    # Numbers are printed to two digits of half the width of their interval.
    error, leaves = 100.0 * np.sqrt(left), " and leave an error which changes no printed digit"
    if error >= 1.0:
        leaves = f" and leave an error, up to {error:.0f} % of a standard error, which intervals contain and the last "
        leaves += "digits may show"
    leaves = leaves if np.isfinite(left) else ""
    return (
        f"{_listed([row.label for row in rows])} {are}, measured on batches of {pool.batch_prompts} "
        f"{'prompt' if pool.batch_prompts == 1 else 'prompts'}; all prompts were shuffled into new batches {times} "
        f"times. The same shuffles serve every question{leaves}. Shares of bias are those of one such batch"
    )


def _about_further_completions(batch: Batch, estimators: Sequence[Weighting]) -> Iterator[str]:
    """Say how many tokens the completions behind Monte-Carlo values take, of the same policy from the same states.

    A completion from a state is expected to be as long as what followed it; from a prompt, as those of the group.
    """
    for estimator in estimators:
        advantage = advantage_of_values(_unwrapped(estimator))
        if advantage is None or advantage.name != "vine" or batch.values is None:
            continue
        left = batch.lengths[:, None] - np.cumsum(batch.mask, axis=1) + 1
        inside = batch.mask & np.isfinite(batch.values) & (left < batch.lengths[:, None])
        of_prompts = np.bincount(batch.group_index, batch.lengths) / batch.group_sizes
        times = advantage.parameters["k"] * (left[inside].sum() + of_prompts.sum()) / batch.lengths.sum()
        yield (
            f"the completions behind the values of {estimator.label} are not counted: "
            f"{advantage.parameters['k']} from each state take about {times:.1f} times the tokens of those compared"
        )


def _about_heavy_tails(
    pool: PooledCompletions, few: Sequence[EstimatorVariance], rows: Sequence[EstimatorVariance]
) -> str:
    """Name the prompt that counts most, of the row whose noise the fewest prompts carry."""
    worst = min(few, key=lambda row: min(row.n_effective_prompts, row.n_effective_beside))
    assert worst.most_influential is not None
    own = worst.n_effective_prompts <= worst.n_effective_beside
    return (
        f"intervals of {_named(few, rows)} may be too narrow, above all those of the cosine and of a "
        f"{JUDGED.heading} with an estimated scale, since few prompts carry the noise: of "
        f"{worst.label if own else 'what ' + worst.label + ' is compared with'}, {pool.groups.n_prompts} prompts count "
        f"as {min(worst.n_effective_prompts, worst.n_effective_beside):.0f} effective prompts (prompt "
        f"{pool.prompt_labels[worst.most_influential]} counts most), and about {FEW_PROMPTS} are needed. Measure more "
        "prompts; see docs/statistics.md"
    )


def _on_barely_resolved(rows: Sequence[EstimatorVariance], level: float) -> str:
    resolved = [row for row in rows if row.resolved(level)]
    barely = [row.label for row in resolved if row.signal_sq.value < _BARELY * row.signal_sq.stderr]
    if not barely:
        return ""
    return (
        f"‖E ĝ‖² is barely resolved for {_listed(barely)}: such estimates are too large on average, and "
        "noise-to-signal is too small. Rely on the intervals"
    )


def notes_of_each(notes: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """Return the notes of several comparisons, each after the name of its own; common ones only once, at the end."""
    if len(names) == 1:
        return list(notes[0])
    common = [note for note in notes[0] if all(note in others for others in notes)]
    of_one = [
        note.after(f"{name}: ") if isinstance(note, LevelNote) else f"{name}: {note}"
        for name, remarks in zip(names, notes, strict=True)
        for note in remarks
        if note not in common
    ]
    return [*of_one, *common]


def why_not_judged(target: TargetChoice) -> str | None:
    """State why nothing can be judged against a target; None where it can."""
    if not target.unusable:
        return None
    start = f"{_AGAINST_TARGET} are NaN, since"
    if target.truncating:
        return (
            f"{start} the sampler cut off part of the distribution ({', '.join(target.truncating)}), whose share no "
            f"importance weight brings back: draw with {untruncated()}, or judge against the gradient of "
            "what was drawn (target='on_policy')"
        )
    if target.ratios is None:
        return (
            f"{start} the completions were drawn with {', '.join(target.differences)} and the sampler's "
            "log-probabilities are not known: sample with an engine that records them, or judge against the gradient "
            "of what was drawn (target='on_policy')"
        )
    if target.overflow is not None:
        row, logarithm = target.overflow
        return (
            f"{start} ratios of whole completions overflow (that of completion {row} is e^{logarithm:.0f}): score a "
            "policy closer to the one that sampled"
        )
    return (
        f"{start} the effective sample size is {target.ratios.effective_sample_size.value:.1f} of {target.ratios.n} "
        f"completions, and at least {FEWEST_EFFECTIVE_COMPLETIONS:g} are needed: score a policy closer to the sampler, "
        "or sample more"
    )


def target_attrs(target: TargetChoice, confidence_level: float) -> dict[str, object]:
    """Return what the ``.attrs`` of a frame state of a target."""
    return {
        "target": target.kind,
        **interval_columns({"effective_sample_size": target.effective_sample_size(confidence_level)}),
    }


def about_target(target: TargetChoice) -> LevelNote | None:
    """State how a target was chosen; None in the plain case, whatever the level."""
    return LevelNote.of(partial(_about_target, target)) or None


def _about_target(target: TargetChoice, level: float) -> str:
    ratios = target.ratios
    settings = [f"the sampler's settings differ ({', '.join(target.differences)})"] if target.differences else []
    if target.kind == "on_policy" and not target.agree:
        reasons = [*([] if ratios is None else [f"χ² of whole completions is {_short(ratios, level)}"]), *settings]
        return (
            f"bias and cosine are judged against rloo as asked for, although {' and '.join(reasons)}: rloo is then not "
            "the gradient of the scored policy, which target='importance' judges against"
        )
    if ratios is None:
        return ""
    if target.kind == "on_policy":
        return (
            "the samples count as on-policy: importance ratios move the gradient by at most "
            f"{format_number(float(np.sqrt(ratios.chi_squared.value)), 2)} of a completion's"
        )
    low, high = ratios.effective_size_interval(level)
    reasons = [*([f"χ² of whole completions is {_short(ratios, level)}"] if target.far else []), *settings]
    because = f", since {' and '.join(reasons)}" if reasons else ""
    return (
        f"{_AGAINST_TARGET} are judged against the importance-weighted gradient of the scored policy (rloo_is)"
        f"{because}; the effective sample size is {ratios.effective_sample_size.value:.0f} [{low:.0f}, {high:.0f}] of "
        f"{ratios.n} completions"
    )


def _short(ratios: RatioSpread, level: float) -> str:
    low, high = ratios.chi_squared.confidence_interval(level)
    return format_estimate(ratios.chi_squared.value, low, high)


def why_silent(pool: PooledCompletions) -> str:
    """State why no completion has any weight, with the remedy in brackets."""
    rewards = pool.batch.rewards
    if pool.groups.sizes.max() == 1 and rewards.any():
        return "groups hold a single completion (choose group_size of at least 2)"
    if np.ptp(rewards) == 0:
        return f"every reward equals {rewards[0]:g} (choose problems that are solved sometimes, not always)"
    group = pool.batch.group_index
    first = rewards[np.unique(group, return_index=True)[1]]
    differing = len(np.unique(group[rewards != first[group]]))
    if differing:
        return (
            f"rewards differ within {differing} of {pool.groups.n_groups} groups, but nothing there meets the "
            "estimator's rule, such as a single best completion (measure more prompts, or choose another estimator)"
        )
    return "rewards are equal within every group (choose problems that are solved sometimes, or larger groups)"


def moments_of(pool: PooledCompletions, estimator: Weighting) -> PromptMoments:
    """Return the moments of an estimator that gives some completion a weight."""
    moments = pool.local(estimator).moments
    if moments is None:
        size = pool.groups.sizes[0]
        raise ValueError(
            f"{estimator.label} gives no completion any weight in groups of {size}, since {why_silent(pool)}"
        )
    return moments
