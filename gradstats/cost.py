"""What a run will cost: an upper bound of its time, memory and disk, from a small probe on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradstats.experiment import Experiment
from gradstats.gradients.blocks import select_parameters
from gradstats.gradients.chunking import plan_chunks
from gradstats.gradients.measure import ENGINES
from gradstats.gradients.objective import make_chunk
from gradstats.gradients.sketches import CountSketch
from gradstats.loading import sampling_plan
from gradstats.revisions import resolve_revisions
from gradstats.rollouts import Rollouts
from gradstats.sampling import SamplerSettings, SamplingPlan
from gradstats.sampling.transformers_sampler import generate

_GIB = 1024**3
_PROBE_TOKENS = 16


@dataclass(frozen=True)
class CostEstimate:
    """Upper bounds, as if every completion ran to the cap of new tokens.

    Attributes:
        n_prompts: number of prompts.
        n_sequences: number of completions.
        n_tokens: tokens to be sampled.
        n_batches: sampling batches, each written as one shard.
        n_parameters: differentiated parameters.
        sampling_seconds: extrapolated from a few tokens of one batch.
        measuring_seconds: extrapolated from one chunk of short sequences.
        memory_gib: parameters, per-sequence gradients of a chunk and its logits.
        disk_gib: rollouts, sketches and token statistics.
    """

    n_prompts: int
    n_sequences: int
    n_tokens: int
    n_batches: int
    n_parameters: int
    sampling_seconds: float
    measuring_seconds: float
    memory_gib: float
    disk_gib: float


def estimate_cost(experiment: Experiment) -> CostEstimate:
    """Load the policy and the prompts, time a probe of each step, and extrapolate.

    Raises:
        ValueError, OSError, ImportError: as the run itself would, for wrong settings or missing weights.
    """
    plan = sampling_plan(experiment, resolve_revisions(experiment))
    policy = plan.policy
    cap = plan.settings.max_new_tokens
    probe = SamplerSettings(min(_PROBE_TOKENS, cap), plan.settings.temperature)
    rows = plan.rows[-1]
    start = time.perf_counter()
    generate(policy, [plan.prompt_tokens[index] for index, _ in rows], probe, 0)
    per_step = (time.perf_counter() - start) / probe.max_new_tokens
    selection = select_parameters(policy.model, experiment.measurement.params, experiment.measurement.blocks)
    longest = _longest_rollouts(plan, cap)
    chunks = plan_chunks(
        longest, policy, selection, experiment.measurement.token_budget, experiment.measurement.memory_gib
    )
    measuring = _seconds_per_token(experiment, policy, selection, longest, chunks) * cap * len(longest)
    tokens = plan.n_completions * cap
    item = policy.dtype.itemsize
    largest = max(len(chunk) for chunk in chunks)
    vocabulary = policy.model.get_output_embeddings().weight.shape[0]
    memory = item * (2 * selection.n_parameters * (1 + largest) + 6 * largest * cap * vocabulary)
    disk = plan.n_completions * 4 * (experiment.measurement.sketch_dim or 0) + tokens * (4 + 4 + 4 * 8)
    return CostEstimate(
        len(plan.problems),
        plan.n_completions,
        tokens,
        plan.n_batches,
        selection.n_parameters,
        per_step * cap * plan.n_batches,
        measuring,
        memory / _GIB,
        disk / _GIB,
    )


def _longest_rollouts(plan: SamplingPlan, cap: int) -> Rollouts:
    """Stand-ins for the completions: each as long as the cap lets it be."""
    rows = [row for batch in plan.rows for row in batch]
    return Rollouts.from_sequences(
        [plan.prompt_tokens[index] for index, _ in rows],
        [[0] * cap] * len(rows),
        np.zeros(len(rows)),
        [plan.problems[index].prompt_id for index, _ in rows],
        sample_ids=[number for _, number in rows],
    )


def _seconds_per_token(experiment: Experiment, policy: Any, selection: Any, longest: Rollouts, chunks: Any) -> float:
    """Time the engine on one chunk of as many sequences as the run's, cut short."""
    length = min(8 * _PROBE_TOKENS, experiment.sampling.max_new_tokens)
    frame = longest.frame.iloc[chunks[-1]]
    frame = frame.assign(completion_tokens=[[0] * length] * len(frame)).reset_index(drop=True)
    chunk = make_chunk(Rollouts(frame), np.arange(len(frame)), policy.device, policy.dtype)
    name = experiment.measurement.engine
    sketch_dim = experiment.measurement.sketch_dim
    sketch = None if sketch_dim is None else CountSketch(sketch_dim)
    start = time.perf_counter()
    ENGINES["vmap" if name == "auto" else name](policy, chunk, selection, sketch)
    return (time.perf_counter() - start) / (length * len(frame))
