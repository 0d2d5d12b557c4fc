"""The check before every measuring run: an engine against one backward pass per sequence, alone and padded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.checks.casting import with_dtype
from gradstats.gradients.engines.loop import loop_engine
from gradstats.gradients.engines.registry import Engine
from gradstats.gradients.objective import make_chunk
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts

#: Largest relative deviation of ‖S‖² that is accepted, by the model's dtype.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


class SelfCheckError(RuntimeError):
    """An engine disagrees with the plain backward pass by more than the dtype allows."""


@dataclass(frozen=True)
class SelfCheck:
    """Relative deviations of ‖S‖² on two sequences.

    Attributes:
        engine_against_loop: the engine on each sequence alone, against the loop.
        alone_against_padded: the engine on both together (the shorter one padded), against each alone.
        tolerance: the largest deviation that was accepted.
        deviation_from_float32: for a model in bfloat16 or float16, the loop against the loop in float32 (the error of
            the dtype, without a tolerance); None otherwise.
    """

    engine_against_loop: float
    alone_against_padded: float
    tolerance: float
    deviation_from_float32: float | None = None


def self_check(
    policy: Policy, rollouts: Rollouts, engine: Engine, name: str, selection: ParameterSelection
) -> SelfCheck:
    """Measure two sequences in three ways and compare.

    The sequences are the shortest and the one of median length, which tests padding at a small cost.

    Args:
        policy: the policy.
        rollouts: the sequences.
        engine: the engine to check.
        name: its name, for messages.
        selection: the parameters that are differentiated.

    Returns:
        The deviations.

    Raises:
        SelfCheckError: when a deviation exceeds the dtype's tolerance.
        ValueError: when the model's output for the same input varies (dropout is on).
    """
    rows = two_rows(rollouts)
    refuse_random_model(policy, rollouts.select(rows[:1]), selection)
    loop = np.concatenate([sq_norms_of(loop_engine, policy, rollouts, [row], selection) for row in rows])
    alone = np.concatenate([sq_norms_of(engine, policy, rollouts, [row], selection) for row in rows])
    padded = sq_norms_of(engine, policy, rollouts, rows, selection)
    from_float32 = None
    if policy.dtype.itemsize < 4:
        from_float32 = deviation(loop, _float32_sq_norms(policy, rollouts, rows, selection))
    tolerance = TOLERANCES[policy.dtype]
    check = SelfCheck(deviation(alone, loop), deviation(padded, alone), tolerance, from_float32)
    worst = max(check.engine_against_loop, check.alone_against_padded)
    if not worst <= check.tolerance:
        raise SelfCheckError(
            f'the engine "{name}" fails its self-check on {policy.name} in {policy.dtype}: squared norms deviate by '
            f"{check.engine_against_loop:.2e} from one backward pass per sequence and by "
            f"{check.alone_against_padded:.2e} between a sequence alone and padded, where {check.tolerance:.0e} is "
            'allowed: use engine="loop", or dtype="float32"'
        )
    return check


def two_rows(rollouts: Rollouts) -> list[int]:
    """Rows of the shortest sequence and of the one of median length (the same row twice when there is one)."""
    frame = rollouts.frame
    times = frame["prompt_tokens"].map(len).to_numpy() + frame["completion_tokens"].map(len).to_numpy()
    order = np.argsort(times, kind="stable")
    return [int(order[0]), int(order[len(order) // 2])]


def sq_norms_of(
    engine: Engine, policy: Policy, rollouts: Rollouts, rows: list[int], selection: ParameterSelection
) -> np.ndarray:
    """‖S‖² of the given rows by an engine, all in one chunk."""
    chunk = make_chunk(rollouts, rows, policy.device, policy.dtype)
    return engine(policy, chunk, selection, None).sq_norms_by_block[0].sum(axis=1)


def deviation(values: np.ndarray, reference: np.ndarray) -> float:
    """Largest relative deviation; 0 for a pair of zero norms, NaN where a value is NaN."""
    scale = np.where(reference == 0, 1.0, reference)
    return float(np.abs((values - reference) / scale).max())


def _float32_sq_norms(policy: Policy, rollouts: Rollouts, rows: list[int], selection: ParameterSelection) -> np.ndarray:
    wide = with_dtype(policy, torch.float32)
    parameters = dict(wide.model.named_parameters())
    chosen = replace(selection, parameters={name: parameters[name] for name in selection.parameters})
    return np.concatenate([sq_norms_of(loop_engine, wide, rollouts, [row], chosen) for row in rows])


def refuse_random_model(policy: Policy, rollouts: Rollouts, selection: ParameterSelection) -> None:
    """Score the first sequence twice.

    Raises:
        ValueError: when the two results differ.
    """
    chunk = make_chunk(rollouts, [0], policy.device, policy.dtype)
    first, second = (loop_engine(policy, chunk, selection, None).statistics.logprobs for _ in range(2))
    if not torch.equal(first, second) and (first - second).abs().max() > 1e-4:
        raise ValueError(
            f"{policy.name} gives different outputs for the same input (dropout is on): call model.eval() before "
            "measuring"
        )
