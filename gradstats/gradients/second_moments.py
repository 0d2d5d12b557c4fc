"""Second moments of metric Adam, estimated from rollouts: mean squares of batch gradients under an estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from gradstats import estimators
from gradstats.config.options import adam_section, estimate_section, refuse_correction
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.estimator import Weighting
from gradstats.gradients.measure import mean_square_gradients
from gradstats.gradients.metric import (
    AdamMetric,
    prompt_digests,
    prompts_of_moments,
    read_metric,
    refuse_estimated_from,
)
from gradstats.gradients.session import MeasuringSession
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts
from gradstats.system.progress import progress_bar


def estimate_second_moments(
    policy: object,
    rollouts: Rollouts,
    estimator: str | Weighting = "rloo",
    *,
    prompts_per_batch: int = 16,
    params: str | None = None,
    metric: str = "adam",
    token_budget: int | None = None,
    memory_gib: float | None = None,
    progress: bool = True,
) -> AdamMetric:
    r"""Estimate Adam's second moments at a policy that is not being trained, as mean squares of batch gradients.

    :math:`\hat v = \frac1J\sum_j g_j^2` over J disjoint batches, :math:`g_j` the gradient of ``prompts_per_batch``
    prompts under an estimator: what the running mean of a trainer that draws such batches tends to where the policy
    does not change. It is the sum of the squared expected gradient and of its variance over the batch size, so that it
    depends on both, and on nothing that training did before. With J batches a coordinate has a relative standard
    error of about :math:`\sqrt{2/J}`, hence P of :math:`\sqrt{1/(2J)}`.

    Args:
        policy: as for :func:`gradstats.measure`.
        rollouts: completions of prompts that will not be measured; what is left after the last full batch is not used.
        estimator: whose gradients are squared; one that needs what is known without gradients.
        prompts_per_batch: prompts of a batch, in the order of their first completions.
        params: regular expression of the parameters; all trainable ones by default.
        metric: the label of the metric, as in "adam(eps=1e-8)".
        token_budget: as for :func:`gradstats.measure`.
        memory_gib: as for :func:`gradstats.measure`.
        progress: show a progress bar.

    Returns:
        The metric, which knows the prompts that it was estimated from.

    Raises:
        ValueError: for fewer prompts than a batch holds, an estimator that needs a measurement, a metric with a step,
            or a gradient that is not finite.

    Example:
        >>> import gradstats as gs
        >>> policy, problems = gs.load_policy("embedded"), gs.load_prompts("embedded", n=6, rng=0)
        >>> rollouts = gs.sample(policy, problems, group_size=2, max_new_tokens=16, rng=0, progress=False)
        >>> first = gs.estimate_second_moments(policy, rollouts.select(range(8)), prompts_per_batch=2, progress=False)
        >>> rest = rollouts.select(range(8, 12))
        >>> gs.measure(policy, rest, metric=first, sketch_dim=None, progress=False).metadata["metric"]["source"]
        'the mean square of 2 batch gradients of 2 prompts under rloo'
    """
    adam = adam_section(metric)
    if adam is None:
        raise ValueError(f"metric is {metric!r}, which has no second moments: give the label of Adam's, such as 'adam'")
    refuse_correction(adam)
    chosen = estimators.get(estimator)
    batches = _batches(rollouts, prompts_per_batch)
    section = MeasurementSection(
        params=params, sketch_dim=None, token_budget=token_budget, memory_gib=memory_gib, engine="loop"
    )
    session = MeasuringSession.open(policy, rollouts, section)
    weights = [np.zeros(len(tokens)) for tokens in rollouts.tokens("completion_tokens")]
    for rows in batches:
        some = rollouts.select(rows)
        for row, values in zip(rows, _weights(session, some, chosen), strict=True):
            weights[row] = values / prompts_per_batch
    with progress_bar("second moments", sum(map(len, batches)), shown=progress) as report:
        moments = mean_square_gradients(
            session.policy,
            rollouts,
            session.selection,
            weights,
            batches,
            token_budget=session.token_budget,
            memory_gib=memory_gib,
            finished=report.chunk,
        )
    options = {name: value for name, value in adam.model_dump().items() if value is not None}
    digests = prompt_digests(rollouts)
    return AdamMetric(
        moments,
        **options,
        source=f"the mean square of {len(batches)} batch gradients of {prompts_per_batch} prompts under {chosen.label}",
        prompts=frozenset(digests[row] for rows in batches for row in rows),
    )


def _batches(rollouts: Rollouts, prompts_per_batch: int) -> list[np.ndarray]:
    """Return the rows of disjoint batches of prompts, in the order of their first completions."""
    names = list(dict.fromkeys(rollouts.prompt_id))
    if prompts_per_batch < 1 or len(names) < prompts_per_batch:
        raise ValueError(
            f"prompts_per_batch is {prompts_per_batch}, and there are {len(names)} prompts to estimate second moments "
            "from: give at least as many prompts as a batch holds, better ten times as many"
        )
    place = {name: number // prompts_per_batch for number, name in enumerate(names)}
    batch = np.array([place[name] for name in rollouts.prompt_id])
    return [np.flatnonzero(batch == number) for number in range(len(names) // prompts_per_batch)]


def _weights(session: MeasuringSession, rollouts: Rollouts, estimator: Weighting) -> list[np.ndarray]:
    """Return the weight of each token of each completion in the sum of the gradients of the batch's groups."""
    weights = estimator.weights(session.scored_batch(rollouts))
    if not np.isfinite(weights).all():
        raise ValueError(
            f"some weights of {estimator.label} are not finite: estimate second moments under another estimator"
        )
    counts = [len(tokens) for tokens in rollouts.tokens("completion_tokens")]
    return [
        np.broadcast_to(row, count) if row.ndim == 0 else row[:count]
        for row, count in zip(weights, counts, strict=True)
    ]


def metric_and_rest(
    policy: Policy, rollouts: Rollouts, section: MeasurementSection, progress: bool
) -> tuple[AdamMetric | None, Rollouts]:
    """Return the metric that settings name, and the completions that remain to be measured in it."""
    if adam_section(section.metric) is None:
        return None, rollouts
    estimate = estimate_section(section.second_moments)
    if estimate is None:
        return read_metric(section.metric, section.second_moments, policy.model), rollouts
    aside = set_aside(rollouts, estimate.share)
    return estimated_metric(policy, rollouts.select(aside), section, progress), rollouts.select(~aside)


def with_moments_on_file(
    file: Path, load: Callable[[], Policy], tables: list[Rollouts], section: MeasurementSection, progress: bool
) -> tuple[list[Rollouts], MeasurementSection]:
    """Return the completions of each shard that are measured, and with which settings.

    Moments that settings ask to estimate are written to the file once, before anything is measured, and read from there
    afterwards: prompts that a run gains later are measured in the same metric. ``load`` returns the policy.

    Raises:
        ValueError: where moments on file were estimated from prompts of the run, or a shard would be empty.
    """
    assert section.second_moments is not None
    rollouts, estimate = Rollouts.concatenate(tables), estimate_section(section.second_moments)
    if estimate is None:
        # Before the first shard: the last one may hold the prompt.
        refuse_estimated_from(prompts_of_moments(section.second_moments), rollouts)
        return tables, section
    aside = rollouts.select(set_aside(rollouts, estimate.share))
    prompts = prompts_of_moments(file) if file.exists() else frozenset(prompt_digests(aside))
    kept = [np.flatnonzero([digest not in prompts for digest in prompt_digests(table)]) for table in tables]
    n_empty = sum(not len(rows) for rows in kept)
    if n_empty:
        raise ValueError(
            f"{n_empty} of the {len(tables)} shards of the run hold only prompts that are set aside to estimate "
            "second moments: raise sampling.batch_size to the completions of several prompts, or lower share"
        )
    if not file.exists():
        estimated_metric(load(), aside, section, progress).save(file)
    measured = [table.select(rows) for table, rows in zip(tables, kept, strict=True)]
    return measured, section.model_copy(update={"second_moments": str(file)})


def estimated_metric(policy: Policy, aside: Rollouts, section: MeasurementSection, progress: bool) -> AdamMetric:
    """Return the metric that is estimated from the completions that were set aside for it."""
    estimate = estimate_section(section.second_moments)
    assert estimate is not None
    assert section.metric is not None
    found = estimate_second_moments(
        policy,
        aside,
        **estimate.arguments(),
        params=section.params,
        metric=section.metric,
        token_budget=section.token_budget,
        memory_gib=section.memory_gib,
        progress=progress,
    )
    # What is left over after the last full batch was set aside as well.
    return replace(found, prompts=frozenset(prompt_digests(aside)))


def set_aside(rollouts: Rollouts, share: float) -> Bool[np.ndarray, " completions"]:
    """Return which completions belong to the prompts that are set aside for an estimate, spread over all prompts."""
    names = list(dict.fromkeys(rollouts.prompt_id))
    chosen = {name for number, name in enumerate(names) if int((number + 1) * share) > int(number * share)}
    return np.array([name in chosen for name in rollouts.prompt_id])
