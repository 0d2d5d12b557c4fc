"""The complete check of a model: every engine, alone and padded, eager and sdpa attention, all dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import nn

from gradstats.config.options import CHECKED_TYPES
from gradstats.gradients.attention import attention_of, same_class
from gradstats.gradients.checks.forward_pass import refuse_unfit_forward
from gradstats.gradients.checks.self_check import TOLERANCES, with_dtype
from gradstats.gradients.engines.registry import ENGINES, Engine, loop_engine
from gradstats.gradients.objective import make_chunk
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError, select_parameters
from gradstats.policy.memory import is_out_of_memory
from gradstats.policy.model import DTYPES, dtype_name, uncompiled, vocabulary_size
from gradstats.policy.policy import Policy, as_policy
from gradstats.rollouts.table import Rollouts

_LENGTHS = (1, 24, 48)
_PROMPT_LENGTH = 8
Row = dict[str, str | float]


_OK, _FAILS, _UNSUPPORTED, _NOT_RUN, _FOR_INFORMATION = "ok", "fails", "not supported", "not run", "for information"


@uncompiled()
def check_engines(
    policy: Policy | nn.Module,
    rollouts: Rollouts | None = None,
    *,
    dtypes: Sequence[str] = CHECKED_TYPES,
    params: str | None = None,
    rng: int | np.random.Generator | None = 0,
) -> pd.DataFrame:
    """Compare the squared gradient norms of a few sequences between engines, batch shapes, attentions and dtypes.

    In bfloat16 and float16 the tolerance is 0.1 or the deviation of the loop in that dtype from the loop in the first
    dtype, whichever is larger: deviations up to that size are due to rounding.
    """
    for name in dtypes:
        if name not in DTYPES:
            raise ValueError(f"dtypes holds {name!r}: choose from {', '.join(DTYPES)}")
    policy = as_policy(policy)
    if rollouts is None:
        rollouts = _random_rollouts(policy, np.random.default_rng(rng))
    rows: list[Row] = []
    widest: np.ndarray | None = None
    for name in dtypes:
        casting = True
        try:
            cast = with_dtype(policy, DTYPES[name])
            casting = False
            checked, loop = _check_dtype(cast, rollouts, params, widest)
        except Exception as error:
            # A device may lack a dtype (a TypeError when casting) or an operation in it; other errors are faults.
            lacking = isinstance(error, NotImplementedError) or (casting and isinstance(error, TypeError))
            if not (is_out_of_memory(error) or lacking):
                raise
            rows.append(_row(name, "all", "all", _NOT_RUN, note=str(error).splitlines()[0]))
            continue
        rows += checked
        if widest is not None:
            rows.append(_row(name, f"against {dtypes[0]}", "loop", _FOR_INFORMATION, deviation(loop, widest)))
        widest = loop if widest is None else widest
    frame = pd.DataFrame(rows)
    frame.attrs["passed"] = _FAILS not in set(frame["verdict"]) and set(frame["verdict"]) != {_NOT_RUN}
    return frame


def _sq_norms_of(
    engine: Engine, policy: Policy, rollouts: Rollouts, rows: list[int], selection: ParameterSelection
) -> np.ndarray:
    """Return ‖S‖² of the given rows by an engine, all that may be padded together in one chunk."""
    found: dict[int, float] = {}
    for together in same_class(policy.model, rollouts, rows):
        chunk = make_chunk(rollouts, together, policy.device, policy.dtype)
        found |= dict(
            zip(together, engine(policy, chunk, selection, None).sq_norms_by_parameter[0].sum(axis=1), strict=True)
        )
    return np.array([found[row] for row in rows])


def deviation(values: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest relative deviation; 0 for a pair of zero norms, NaN where a value is NaN."""
    scale = np.where(reference == 0, 1.0, reference)
    return float(np.abs((values - reference) / scale).max())


def _check_dtype(
    policy: Policy, rollouts: Rollouts, params: str | None, widest: np.ndarray | None
) -> tuple[list[Row], np.ndarray]:
    """Make every comparison within one dtype; also return the loop's squared norms."""
    selection = select_parameters(policy.model, params)
    every = list(range(len(rollouts)))
    refuse_unfit_forward(policy, rollouts)
    dtype = dtype_name(policy.dtype)
    loop = _sq_norms_of(loop_engine, policy, rollouts, every, selection)
    tolerance = TOLERANCES[policy.dtype]
    if widest is not None and policy.dtype.itemsize < 4:
        # Two computations with rounding differ from each other by about as much as each differs from the exact value.
        tolerance = max(tolerance, deviation(loop, widest))
    rows = []
    for name, engine in ENGINES.items():
        if engine is loop_engine:
            continue
        try:
            alone = np.concatenate([_sq_norms_of(engine, policy, rollouts, [row], selection) for row in every])
            padded = _sq_norms_of(engine, policy, rollouts, every, selection)
        except UnsupportedModuleError as error:
            rows.append(_row(dtype, "against loop", name, _UNSUPPORTED, note=str(error)))
            continue
        rows.append(_judged(dtype, "against loop", name, deviation(alone, loop), tolerance))
        rows.append(_judged(dtype, "alone against padded", name, deviation(padded, alone), tolerance))
    measured = partial(_sq_norms_of, loop_engine, policy, rollouts, every, selection)
    rows.append(_attention(policy, measured, tolerance))
    return rows, loop


def _attention(policy: Policy, measured: Callable[[], np.ndarray], tolerance: float) -> Row:
    """Compare eager attention with sdpa, where both compute the same function in the model's dtype."""
    dtype, check = dtype_name(policy.dtype), "eager against sdpa"
    model = policy.model
    if policy.dtype == torch.float64:
        return _row(dtype, check, "loop", _NOT_RUN, note="eager attention takes its softmax in float32")
    if not getattr(model, "_supports_sdpa", False):
        return _row(dtype, check, "loop", _NOT_RUN, note="the model has no sdpa attention")
    if getattr(model.config, "attn_logit_softcapping", None) is not None:
        return _row(dtype, check, "loop", _NOT_RUN, note="sdpa attention omits this model's cap on attention logits")
    kept = attention_of(model)
    sq_norms = []
    try:
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            sq_norms.append(measured())
    finally:
        model.set_attn_implementation(kept)
    return _judged(dtype, check, "loop", deviation(sq_norms[0], sq_norms[1]), tolerance)


def _judged(dtype: str, check: str, engine: str, deviation: float, tolerance: float) -> Row:
    return _row(dtype, check, engine, _OK if deviation <= tolerance else _FAILS, deviation, tolerance)


def _row(
    dtype: str,
    check: str,
    engine: str,
    verdict: str,
    deviation: float = float("nan"),
    tolerance: float = float("nan"),
    note: str = "",
) -> Row:
    return {
        "dtype": dtype,
        "check": check,
        "engine": engine,
        "deviation": deviation,
        "tolerance": tolerance,
        "verdict": verdict,
        "note": note,
    }


def _random_rollouts(policy: Policy, rng: np.random.Generator) -> Rollouts:
    vocabulary = vocabulary_size(policy.model)
    n = len(_LENGTHS)
    prompts = [rng.integers(0, vocabulary, size=_PROMPT_LENGTH).tolist() for _ in range(n)]
    completions = [rng.integers(0, vocabulary, size=length).tolist() for length in _LENGTHS]
    return Rollouts.from_sequences(prompts, completions, np.zeros(n), ["random"] * n)
