"""The cost of a run: an upper bound of its time and disk space and its estimated memory, from a short trial."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from gradstats.config.experiment import Experiment
from gradstats.config.options import adam_section
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.needs import possible_weightings
from gradstats.gradients.attention import most_positions, same_class
from gradstats.gradients.engines.layers import supported_layers
from gradstats.gradients.engines.registry import ENGINES
from gradstats.gradients.memory import SELF_CHECK, activation_size, cache_bytes, peak_memory, tokens_that_fit
from gradstats.gradients.objective import (
    default_memory_gib,
    gradients_that_fit,
    make_chunk,
    plan_chunks,
)
from gradstats.gradients.parameters import (
    ParameterSelection,
    UnsupportedModuleError,
    n_block_sketches,
    select_parameters,
)
from gradstats.gradients.recompute import RecomputeRule
from gradstats.gradients.session import token_statistics
from gradstats.gradients.sketches import CountSketch
from gradstats.gradients.tokens.scores import TokenSettings, measure_tokens
from gradstats.measurement.disk_size import GIB, bytes_of_sequences
from gradstats.policy.memory import memory_of_others_gib, planned_memory_gib, total_memory_gib
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts
from gradstats.runs.sampling_step import sampling_plan
from gradstats.runs.validate import check_names
from gradstats.sampling import SamplerSettings
from gradstats.sampling.plan import SamplingPlan
from gradstats.sampling.revisions import resolve_revisions
from gradstats.sampling.transformers_sampler import generate
from gradstats.system.user_code import code_beside
from gradstats.values.fitted import hidden_states

_TRIAL_TOKENS = 16
# How many of the random directions and of the exact tokens are timed.
_TIMED_PROBES, _TIMED_EXACT = 8, 2


@dataclass(frozen=True)
class CostEstimate:
    """Upper bounds and an estimate of memory, as if every completion ran to the cap of new tokens."""

    n_prompts: int
    n_sequences: int  # completions
    n_tokens: int  # to sample
    n_batches: int  # of sampling, each written as one shard
    n_parameters: int  # that are differentiated
    sampling_seconds: float  # extrapolated from a few tokens of one batch
    measuring_seconds: float  # extrapolated from one chunk of short sequences
    # the peak while completions are measured, estimated: libraries, weights, activations, logits, gradients and
    # sketches; or while they are sampled, where the key–value cache is larger
    memory_gib: float
    disk_gib: float  # rollouts, sketches, token statistics and token scores
    n_weightings: int = 0  # further token weightings that the estimators need, which time and disk include
    n_if_off_policy: int = 0  # those that would come on top if ratios turned out to vary
    fitting_seconds: float = 0.0  # forward passes for the hidden states of a value head; 0 without one
    prefix_seconds: float = 0.0  # completions of prefixes, for each step of a completion; 0 where none are drawn
    loading_seconds: float = 0.0  # until policy and prompts were loaded
    # the longest sequence, prompt included, that fits the device's memory and the model's positions
    fitting_tokens: int | None = None
    # of the prompts, how many are measured where these are not all, and the seconds of scoring the others, which
    # measuring_seconds include, and those that measuring them would take
    n_measured: int | None = None
    scoring_seconds: float = 0.0
    saved_seconds: float = 0.0
    devices: str = ""  # which of the GPUs that there are the run uses, where that is a question

    def with_workers(self, n_workers: int) -> tuple[float, float]:
        """Return the seconds of sampling and of measuring by several workers, each of which loads the policy for both.

        A shard is done by one worker: the slowest has the share that remains when shards are dealt out whole.
        """
        rounds = math.ceil(self.n_batches / n_workers) / self.n_batches
        sampling, measuring = (rounds * seconds for seconds in (self.sampling_seconds, self.measuring_seconds))
        return self.loading_seconds + sampling, self.loading_seconds + measuring


def estimate_cost(experiment: Experiment, *, progress: bool = True) -> CostEstimate:
    """Load the policy and the prompts, time a short trial of each step, and extrapolate."""
    with code_beside(experiment.folder):
        check_names(experiment)
        start = time.perf_counter()
        plan = sampling_plan(experiment, resolve_revisions(experiment), progress)
        loading_seconds = time.perf_counter() - start
    policy = plan.policy
    cap = plan.settings.max_new_tokens
    trial = SamplerSettings(min(_TRIAL_TOKENS, cap), temperature=plan.settings.temperature)
    rows = max(plan.rows, key=len)
    start = time.perf_counter()
    generate(policy, [plan.prompt_tokens[index] for index, _ in rows], trial, 0)
    per_step = (time.perf_counter() - start) / trial.max_new_tokens
    selection = select_parameters(policy.model, experiment.measurement.params, experiment.measurement.blocks)
    if adam_section(experiment.measurement.metric) is not None:  # what P holds changes neither time nor memory
        ones = {
            name: torch.ones_like(one, dtype=torch.promote_types(one.dtype, torch.float32), requires_grad=False)
            for name, one in selection.parameters.items()
        }
        selection = replace(selection, preconditioner=ones)
    longest = _longest_rollouts(plan, cap)
    engine = _engine_name(experiment.measurement, policy, selection)
    possible = possible_weightings(experiment)
    measured = len(possible.of_any_ratios if experiment.is_off_policy else possible.of_equal_ratios)
    section = experiment.measurement
    rule = RecomputeRule.of(policy, section.recompute, section.memory_gib, engine)
    chunks = plan_chunks(
        longest,
        policy,
        selection,
        section.token_budget or rule.token_budget,
        section.memory_gib,
        gradients_held=(1 + measured) * int(engine == "vmap"),
    )
    per_token = _seconds_per_token(experiment, engine, policy, selection, longest, chunks, measured)
    tokens = plan.n_completions * cap
    n_measured = experiment.measurement.n_prompts
    share = 1.0 if n_measured is None else min(n_measured / len(plan.problems), 1.0)
    measuring, n_gradients = per_token * tokens, math.ceil(share * plan.n_completions)
    scoring = 0.0 if share == 1.0 else _seconds_of_pass(policy, longest, _scored) * (1.0 - share)
    n_blocks = n_block_sketches(policy, experiment.measurement)
    sketched = experiment.measurement.sketch_dim  # numbers of a sequence that the engine adds to
    if sketched is not None:
        sketched *= max(1, n_blocks)
    memory, fitting = _memory_gib(experiment, plan, sketched, engine, selection, max(map(len, chunks)), rule)
    if experiment.reference_policy:  # its weights are held as well
        memory += sum(one.numel() * one.element_size() for one in policy.model.parameters()) / GIB
    continuations = experiment.values.monte_carlo * plan.n_completions / experiment.values.batch_size
    disk = bytes_of_sequences(cap, n_gradients, experiment.measurement, n_blocks, measured)
    return CostEstimate(
        len(plan.problems),
        plan.n_completions,
        tokens,
        plan.n_batches,
        selection.n_parameters,
        per_step * cap * plan.n_batches,
        share * measuring + scoring,
        memory,
        disk / GIB,
        measured,
        len(possible.of_any_ratios) - measured,
        _seconds_of_pass(policy, longest, partial(hidden_states, progress=False)) if experiment.values.fitted else 0.0,
        per_step * cap * math.ceil(continuations),
        loading_seconds,
        fitting,
        n_measured,
        scoring,
        max((1.0 - share) * measuring - scoring, 0.0),
        "; ".join(filter(None, [_devices(experiment), _left_by_others(policy.device)])),
    )


def _left_by_others(device: torch.device) -> str:
    """Say how much of a GPU is planned with, where other processes use it; nothing elsewhere."""
    planned, total, others = planned_memory_gib(device), total_memory_gib(device), memory_of_others_gib(device)
    held = f"other processes hold {others:.0f} of the {total:.0f} GiB of the GPU: planned with {planned:.0f} GiB"
    return held if planned != total else ""


def _devices(experiment: Experiment) -> str:
    """Say which of the GPUs that there are a run uses; nothing where one process has one GPU or none."""
    execution, n_gpus = experiment.execution, torch.cuda.device_count()
    settled = execution.with_gpus(experiment.policy.device, n_gpus)
    if not execution.several:
        remedy = f"--workers {n_gpus} gives each a worker"
        left_idle = n_gpus > 1 and settled.gpus_per_worker == 1
        return f"uses one of the {n_gpus} GPUs of this machine: {remedy}" if left_idle else ""
    what = "workers of ray" if execution.executor == "ray" else "workers"
    if execution.address is not None and execution.gpus_per_worker is None:
        return f"{what}: {execution.workers}, with a GPU for each rank if the cluster has GPUs"
    there = f"; this machine has {n_gpus} GPU" if n_gpus and execution.address is None else ""
    return f"{what}: {execution.workers}, {settled.given_to_each()}{there}"


def _seconds_of_pass(policy: Policy, longest: Rollouts, forward: Callable[[Policy, Rollouts], object]) -> float:
    """Extrapolate the time of a forward pass over all completions from a few sequences that are cut short."""
    trial = _cut_short(policy, longest, range(min(4, len(longest))))
    start = time.perf_counter()
    forward(policy, trial)
    return (time.perf_counter() - start) / int(trial.lengths.sum()) * int(longest.lengths.sum())


def _scored(policy: Policy, rollouts: Rollouts) -> object:
    return token_statistics(policy, make_chunk(rollouts, range(len(rollouts)), policy.device, policy.dtype))


def _cut_short(policy: Policy, longest: Rollouts, rows: Sequence[int] | np.ndarray) -> Rollouts:
    """Return some completions cut short, without those that then no longer have the rotary factors of the others."""
    frame = longest.frame.iloc[rows]
    tokens = [one[: 8 * _TRIAL_TOKENS] for one in frame["completion_tokens"]]
    trial = Rollouts(frame.assign(completion_tokens=tokens).reset_index(drop=True))
    return trial.select(same_class(policy.model, trial, range(len(trial)))[0])


def _memory_gib(
    experiment: Experiment,
    plan: SamplingPlan,
    sketch_dim: int | None,
    engine: str,
    selection: ParameterSelection,
    n_sequences: int,
    rule: RecomputeRule,
) -> tuple[float, int]:
    """Return the larger of the peaks of sampling and of measuring, and the longest sequence that can be measured.

    Measured are chunks of ``n_sequences`` of the greatest length, which is refused where not even one of them fits.
    """
    policy, section = plan.policy, experiment.measurement
    prompt, cap = max(map(len, plan.prompt_tokens)), plan.settings.max_new_tokens
    activations = activation_size(policy)
    again = rule(n_sequences, prompt + cap)
    peaks = [
        peak_memory(policy, name, selection, n_sequences, prompt + cap, sketch_dim, activations, again)
        for name in (engine, SELF_CHECK)
    ]
    available = total_memory_gib(policy.device)
    can_run_again = section.recompute != "off" and not rule.why_not
    fitting = tokens_that_fit(policy, engine, selection, sketch_dim, activations, can_run_again, available)
    if prompt + cap > fitting:
        raise ValueError(
            f"max_new_tokens is {cap}, and measuring a completion of that length after the {prompt} tokens of the "
            f"longest prompt would take about {max(peak.total for peak in peaks):.0f} GiB of the {available:.0f} GiB "
            f"that there are: about {fitting} tokens fit together; lower max_new_tokens, measure fewer parameters "
            "(params), or take a machine with more memory"
        )
    cache = max(map(len, plan.rows)) * (prompt + cap) * cache_bytes(policy)
    sampling = peaks[0].libraries + peaks[0].weights + cache / GIB
    positions = most_positions(policy)
    return max(sampling, *(peak.total for peak in peaks)), fitting if positions is None else min(fitting, positions)


def _longest_rollouts(plan: SamplingPlan, cap: int) -> Rollouts:
    """Stand-ins for the completions, each of the greatest length."""
    rows = [row for batch in plan.rows for row in batch]
    return Rollouts.from_sequences(
        [plan.prompt_tokens[index] for index, _ in rows],
        [[0] * cap] * len(rows),
        np.zeros(len(rows)),
        [plan.problems[index].prompt_id for index, _ in rows],
        sample_ids=[number for _, number in rows],
    )


def _engine_name(section: MeasurementSection, policy: Policy, selection: ParameterSelection) -> str:
    """Return the engine that ``auto`` will choose, as far as that is known without the self-check."""
    if section.engine != "auto":
        return section.engine
    try:
        supported_layers(policy.model, selection)
    except UnsupportedModuleError:
        return "vmap" if gradients_that_fit(policy, selection, section.memory_gib) > 1 else "loop"
    return "ghost"


def _seconds_per_token(
    experiment: Experiment,
    engine: str,
    policy: Policy,
    selection: ParameterSelection,
    longest: Rollouts,
    chunks: list[np.ndarray],
    n_weightings: int,
) -> float:
    """Time the engine on one chunk of as many sequences as in the run, cut short, with a few token scores."""
    trial = _cut_short(policy, longest, chunks[-1])
    length = int(trial.lengths[0])
    weightings = [[np.ones(length)] * len(trial)] * n_weightings
    chunk = make_chunk(trial, range(len(trial)), policy.device, policy.dtype, weightings)
    section = experiment.measurement
    sketch = None if section.sketch_dim is None else CountSketch(section.sketch_dim, by_block=section.block_sketches)
    run = ENGINES[engine]
    memory = default_memory_gib(policy.device) if section.memory_gib is None else section.memory_gib
    heavy = math.ceil(section.token_exact * length) if 0 < section.token_exact < 1 else int(section.token_exact)

    def seconds(n_probes: int, n_exact: int) -> float:
        start = time.perf_counter()
        if n_probes or n_exact:
            settings = TokenSettings(n_probes, n_exact, section.token_seed)
            measure_tokens(policy, chunk, selection, sketch, run, settings, memory)
        else:
            run(policy, chunk, selection, sketch)
        return time.perf_counter() - start

    without_tokens = total = seconds(0, 0)
    if section.token_probes:
        seconds(1, 0)  # the first forward derivative of a process takes longer
        one = seconds(1, 0)
        total += (
            one - without_tokens + (seconds(_TIMED_PROBES, 0) - one) / (_TIMED_PROBES - 1) * (section.token_probes - 1)
        )
    if heavy:
        total += (seconds(0, _TIMED_EXACT) - without_tokens) / _TIMED_EXACT * heavy
    return max(total, without_tokens) / (length * len(trial))
