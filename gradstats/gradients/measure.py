"""Measure the gradients of rollouts: norms and sketches of each sequence, or mean squares over batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gradstats.config.options import TOKEN_BUDGET, of_type
from gradstats.config.sections import MeasurementSection
from gradstats.config.validation import takes
from gradstats.gradients.engines.registry import chunk_gradient
from gradstats.gradients.metric import AdamMetric
from gradstats.gradients.objective import make_chunk, plan_chunks
from gradstats.gradients.parameters import ParameterSelection, whole_parameters
from gradstats.gradients.recompute import RecomputeRule
from gradstats.gradients.session import MeasuringSession
from gradstats.gradients.tokens.scores import TokenWeights, named_weightings
from gradstats.measurement.measurement import Measurement, read_measurement
from gradstats.policy.checkpoint import refuse_other_policy
from gradstats.policy.memory import in_parts_that_fit
from gradstats.policy.model import uncompiled
from gradstats.policy.policy import Policy, as_policy, suitable_threads
from gradstats.rollouts.table import Rollouts
from gradstats.system.files import digest
from gradstats.system.progress import ProgressReport, progress_bar
from gradstats.system.shards import Shards

_MISMATCH = "load the policy that drew them, or pass --allow-policy-mismatch (in Python allow_policy_mismatch=True)"
#: Most sequences, and most tokens of several, that are written as one shard, where a call keeps its shards.
SHARD_SIZE, SHARD_TOKENS = 64, 2**14


@takes(MeasurementSection)
def measure(
    policy: object,
    rollouts: Rollouts,
    *,
    metric: str | AdamMetric | None = None,
    token_weights: TokenWeights | None = None,
    reference_policy: object = None,
    keep_in: str | os.PathLike[str] | None = None,
    allow_policy_mismatch: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Measurement:
    r"""Measure the gradient :math:`S_i = \sum_t \nabla_\theta \log\pi(y_{i,t})` of every rollout.

    The measurement begins with a self-check on the shortest, the median and the longest sequence, in which the engine
    is compared with one backward pass per sequence: squared norms by parameter, sketches and token quantities. The
    check is repeated on a random later chunk. An error is raised where they differ by more than the model's dtype
    allows.

    Args:
        policy: a :class:`gradstats.Policy`, or a transformers model (scored at temperature 1).
        rollouts: the sequences; tokens with a False ``completion_mask`` have weight 0.
        engine: how gradients are computed: "ghost" (one ordinary backward pass for a whole chunk, for the layers it
            knows), "vmap" (``torch.func``, any architecture that it traces), "loop" (one backward pass per sequence),
            or "auto": the first of these that knows the model and passes the self-check. A warning and the metadata
            state why an earlier one was passed over.
        blocks: how squared norms are split: "layer", "kind" or "parameter", or a mapping from regular expressions to
            names; see :func:`gradstats.gradients.select_parameters`.
        metric: the norm that is measured: euclidean by default, or adam, with which squared norms, sketches, weighted
            gradients and token scores are those of :math:`P \circ S`, :math:`P = 1/(\sqrt{\hat v} + \varepsilon)`:
            "adam", or "adam(eps=1e-8, power=0.5, step=1000, beta2=0.999)", with ``second_moments``; or an
            :class:`gradstats.AdamMetric`. P is one more copy of the parameters.
        second_moments: second moments of metric adam: a trainer's optimizer.pt, a safetensors file of parameter name →
            second moments, embedded, or estimate, which runs and the command line know; see
            :meth:`gradstats.AdamMetric.read`, and :func:`gradstats.estimate_second_moments`.
        block_sketches: also keep the sketch of each block, from which variances are compared block by block: by
            ``gs.compare(…, blocks=True)``.
        token_weights: further weightings to measure, :math:`\sum_t w_{i,t} \nabla\log\pi(y_{i,t})`: name → for each
            rollout, one weight per completion token; or one such list, named "weighted". They share the forward pass
            and come back as ``measured.weighted[name]``.
        reference_policy: a policy (or model, scored at the policy's temperature) whose log-probabilities of the same
            tokens are recorded as ``measured.ref_logprobs``.
        token_probes: random directions that every token's score is projected on, by forward differentiation with eager
            attention; 0 for none. They give ``measured.token_projections`` and what follows from them; token energies
            from K directions have a relative standard error of about :math:`\sqrt{2/K}`.
        token_exact: tokens of each sequence measured exactly, the heaviest by the forward-only proxy: their number, or
            the share of the proxy that they hold. The proxy is :math:`w_t = 1 - 2\pi(y_t) + \sum\pi^2`; each such token
            takes one backward pass.
        recompute: run the layers again in the backward pass instead of holding their activations: "on", "off", or
            "auto", where the activations would take more than ``memory_gib``, or than a quarter of the machine's
            memory.
        keep_in: a folder in which measured sequences are kept, shard by shard. The same call resumes an interrupted one
            from them; the folder is not removed afterwards.
        allow_policy_mismatch: measure rollouts that were drawn with other weights, another adapter or another
            tokenizer.
        progress: show a progress bar.
        **settings: as :class:`gradstats.config.sections.MeasurementSection` declares them.

    Returns:
        The measurement. Sequences whose gradient is not finite are left out, warned about, and listed in its metadata.
        When memory runs out, the token budget is halved with a warning, and measuring continues.

    Raises:
        SelfCheckError: when the self-check fails.
        TypeError: for a metric that is neither a label nor an :class:`gradstats.AdamMetric`.
        PolicyMismatchError: when another policy drew the rollouts, as far as both have digests (a ValueError).
        UnsupportedModuleError: when the chosen engine does not know a module, which is named; or with recompute="on",
            one that cannot be run twice.
        ValueError: for an unknown engine, a pattern that matches no parameter, dropout that is on, token settings out
            of range, token ids outside the model's vocabulary, weights of a wrong length, a reference of another
            vocabulary, or when no gradient is finite.

    Example:
        >>> import gradstats as gs
        >>> policy, problems = gs.load_policy("embedded"), gs.load_prompts("embedded", n=2, rng=0)
        >>> rollouts = gs.sample(policy, problems, group_size=2, max_new_tokens=16, rng=0, progress=False)
        >>> measured = gs.measure(policy, rollouts, sketch_dim=256, progress=False)
        >>> measured.metadata["engine"], measured.sq_norms.shape, measured.sketches.shape
        ('ghost', (4,), (4, 256))
    """
    if not (metric is None or isinstance(metric, str | AdamMetric)):
        given_as = metric.__name__ if isinstance(metric, type) else of_type(metric)
        raise TypeError(
            f"metric is {given_as}: give the label of one, such as 'adam', or a gradstats.AdamMetric(second_moments)"
        )
    policy = as_policy(policy)
    if not allow_policy_mismatch:
        refuse_other_policy(rollouts.metadata.get("policy"), policy.digests, "the rollouts", _MISMATCH)
    given = metric if isinstance(metric, AdamMetric) else None
    section = MeasurementSection.of_arguments(settings, metric=metric if given is None else None)
    session = MeasuringSession.open(policy, rollouts, section, reference_policy=reference_policy, metric=given)
    with progress_bar("measuring", len(rollouts), shown=progress) as report:
        if keep_in is None:
            return session.measure(rollouts, report.chunk, token_weights=token_weights)
        return measure_in_shards(session, rollouts, report, named_weightings(token_weights, rollouts), keep_in)


def measure_in_shards(
    session: MeasuringSession,
    rollouts: Rollouts,
    report: ProgressReport,
    weightings: dict[str, list[np.ndarray]],
    keep_in: str | os.PathLike[str],
) -> Measurement:
    """Measure a few sequences at a time, each shard written to disk as soon as it is finished."""
    columns = [name for name in ("prompt_tokens", "completion_tokens", "completion_mask") if name in rollouts.frame]
    tokens = [rollouts.frame[column].map(list).tolist() for column in columns]
    listed = {name: [row.tolist() for row in rows] for name, rows in weightings.items()}
    # The self-checks report floating-point deviations, which may differ from one call to the next.
    checks = ("self_check", "token_self_check", "execution")
    settings = {name: value for name, value in session.metadata.items() if name not in checks}
    settings |= {"rollouts": digest([tokens, rollouts.rewards.tolist()]), "weights": digest(listed)}
    settings["shard_tokens"] = SHARD_TOKENS
    rows = rows_of_shards(rollouts)

    def measure_shard(number: int) -> Measurement:
        weights = {name: [values[row] for row in rows[number]] for name, values in weightings.items()}
        return session.measure(rollouts.select(rows[number]), report.chunk, token_weights=weights or None)

    with Shards.resume(keep_in, settings, "", read_measurement, Measurement.save, stamped=True) as shards:
        finished = shards.finished(len(rows))
        missing = [int(row) for number, some in enumerate(rows) if number not in finished for row in some]
        if missing:
            session.schedule_recheck(rollouts.select(missing))
        report.advance(sum(len(rows[number]) for number in finished))
        shards.make_missing(len(rows), measure_shard)
        return Measurement.concatenate(shards.read_all(len(rows)))


def rows_of_shards(rollouts: Rollouts) -> list[Int[np.ndarray, " some"]]:
    """Return the sequences of each shard: so few that an interruption loses minutes, however long they are."""
    starts, held = [0], 0
    for row, length in enumerate(rollouts.times.tolist()):
        if row - starts[-1] == SHARD_SIZE or (held and held + length > SHARD_TOKENS):
            starts.append(row)
            held = 0
        held += length
    return np.split(np.arange(len(rollouts)), starts[1:])


@uncompiled()
def mean_square_gradients(
    policy: Policy,
    rollouts: Rollouts,
    selection: ParameterSelection,
    weights: Sequence[Float[np.ndarray, " _"]],
    batches: Sequence[Int[np.ndarray, " _"]],
    *,
    token_budget: int = TOKEN_BUDGET,
    memory_gib: float | None = None,
    finished: Callable[[int, int], None] = lambda n_sequences, n_tokens: None,
) -> dict[str, Tensor]:
    r"""Return :math:`\frac1J \sum_j g_j^2` of each parameter, :math:`g_j = \sum_{i \in j} \sum_t w_{i,t} s_{i,t}`.

    It takes :func:`chunk_gradient` of each chunk, and the memory of three more gradients.
    """
    held = whole_parameters(policy.model, selection)
    recompute = RecomputeRule(policy, memory_gib=memory_gib)
    total = {name: _zeros(tensor) for name, tensor in held.items()}
    for number, rows in enumerate(batches):
        gradient = {name: _zeros(tensor) for name, tensor in held.items()}
        for of_chunk in plan_chunks(rollouts, policy, selection, token_budget, memory_gib, 0, rows=np.asarray(rows)):

            def add(some: np.ndarray, gradient: dict[str, Tensor] = gradient) -> None:
                chunk = make_chunk(rollouts, some, policy.device, policy.dtype, [weights])
                chunk = replace(chunk, weights=chunk.weights[1:], recompute=recompute(*chunk.input_ids.shape))
                with suitable_threads(policy):
                    parts = chunk_gradient(policy, chunk, selection)
                for name, part in parts.items():
                    gradient[name] += part
                finished(len(some), chunk.n_tokens)

            for _ in in_parts_that_fit(of_chunk, add, policy.device, "sequences", "a smaller token_budget"):
                pass
        for name, values in gradient.items():
            if not bool(torch.isfinite(values).all()):
                raise ValueError(
                    f"the gradient of {name} in batch {number} of the estimate of second moments is not finite: leave "
                    'the completions that cause it out, or take dtype="float32"'
                )
            total[name] += values.square() / len(batches)
    return total


def _zeros(tensor: Tensor) -> Tensor:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)
