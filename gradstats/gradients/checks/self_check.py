"""The check before every measuring run: an engine against ordinary backward passes, by parameter and by quantity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.checks import deviations
from gradstats.gradients.checks.casting import with_dtype
from gradstats.gradients.checks.deviations import TOLERANCES, Deviation
from gradstats.gradients.checks.plain_pass import PlainPass, plain_pass, plain_tokens
from gradstats.gradients.engines.reduction import ChunkResult
from gradstats.gradients.engines.registry import Engine
from gradstats.gradients.objective import TokenStatistics, make_chunk
from gradstats.gradients.precision import refusing_lower_precision
from gradstats.gradients.rotary import same_class
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import is_sharded
from gradstats.policy.threads import suitable_threads
from gradstats.rollouts.table import Rollouts


class SelfCheckError(RuntimeError):
    """An engine disagrees with the plain backward pass by more than the dtype allows."""


@dataclass(frozen=True)
class SelfCheck:
    """Largest relative deviations of an engine from one backward pass per sequence, on a few sequences.

    Attributes:
        squared_norms: of ‖S‖².
        parameters: of the part of ‖S‖² that is one parameter's.
        sketches: of the sketches; None where there are none.
        token_quantities: of the recorded quantities of tokens.
        tolerance: the largest deviation of ‖S‖² and of token quantities that was accepted.
        tolerance_of_parts: the same for one parameter, and half of it for sketches.
        deviation_from_float32: for a model in bfloat16 or float16, of ‖S‖² from that in float32 (the error of the
            dtype, without a tolerance); None otherwise, and for a sharded model, which cannot be copied.
    """

    squared_norms: float
    parameters: float
    sketches: float | None
    token_quantities: float
    tolerance: float
    tolerance_of_parts: float
    deviation_from_float32: float | None = None


@dataclass(frozen=True)
class CheckedSequences:
    """Plain passes over the shortest, the median and the longest sequence, which serve the checks of every engine.

    Attributes:
        padded: the shortest sequence and the one of median length, which go through the engine together.
        alone: the longest one, alone.
    """

    policy: Policy
    rollouts: Rollouts
    selection: ParameterSelection
    sketch: CountSketch | None
    padded: list[PlainPass]
    alone: list[PlainPass]
    deviation_from_float32: float | None

    @classmethod
    def make(
        cls, policy: Policy, rollouts: Rollouts, selection: ParameterSelection, sketch: CountSketch | None
    ) -> CheckedSequences:
        """Make the plain passes, and check the forward pass and that the sketches keep inner products.

        Raises:
            ValueError: when the model's output for the same input varies (dropout is on), or a wrapper lowers its
                precision.
            SelfCheckError: when the sketches do not keep inner products.
        """
        rows = two_rows(rollouts)
        longest = longest_row(rollouts)
        refuse_unfit_forward(policy, rollouts.select(rows[:1]))
        with suitable_threads(policy):
            passes = {
                row: plain_pass(policy, rollouts, row, selection, sketch) for row in dict.fromkeys([*rows, longest])
            }
        made = cls(
            policy,
            rollouts,
            selection,
            sketch,
            [passes[row] for row in dict.fromkeys(rows)],
            [passes[longest]],
            _deviation_from_float32(policy, rollouts, [passes[row] for row in rows], selection),
        )
        if sketch is not None:
            of_finite = [one for one in passes.values() if _is_finite(one)]
            _refuse(deviations.of_projection(sketch, of_finite), "the projection", policy, "another sketch_seed")
        return made


def self_check(checked: CheckedSequences, engine: Engine, name: str) -> SelfCheck:
    """Compare an engine with the plain passes: two sequences padded together, and the longest alone.

    Sequences whose plain gradient is not finite are left out: they are left out of the measurement as well.

    Args:
        checked: the sequences.
        engine: the engine to check.
        name: its name, for messages.

    Returns:
        The largest deviations.

    Raises:
        SelfCheckError: when one exceeds what the dtype allows.
    """
    policy = checked.policy
    by_parameter = one_block_each(checked.selection)
    norms: list[Deviation] = []
    sketches: list[Deviation] = []
    tokens: list[Deviation] = []
    places = {one.row: one for one in checked.padded}
    padded = same_class(policy.model, checked.rollouts, list(places))
    for passes in (*([places[row] for row in rows] for rows in padded), checked.alone):
        chunk = make_chunk(checked.rollouts, [one.row for one in passes], policy.device, policy.dtype)
        with suitable_threads(policy):
            result = engine(policy, chunk, by_parameter, checked.sketch)
        for place, plain in enumerate(passes):
            if _is_finite(plain):
                norms += deviations.of_norms(result, place, plain, by_parameter, plain.dtype)
                sketches += deviations.of_sketches(result, place, plain, plain.dtype)
                tokens += deviations.of_tokens(token_quantities(result, place), plain.tokens, plain.dtype)
    _refuse([*norms, *sketches, *tokens], f'the engine "{name}"', policy, _remedy(policy, name))
    return SelfCheck(
        _largest([one for one in norms if one.what == deviations.WHOLE]),
        _largest([one for one in norms if one.what != deviations.WHOLE]),
        _largest(sketches) if sketches else None,
        _largest(tokens),
        TOLERANCES[checked.alone[0].dtype],
        deviations.TOLERANCES_OF_PARTS[checked.alone[0].dtype],
        checked.deviation_from_float32,
    )


def check_result(
    policy: Policy,
    rollouts: Rollouts,
    result: ChunkResult,
    place: int,
    selection: ParameterSelection,
    sketch: CountSketch | None,
    weightings: Sequence[Sequence[np.ndarray]] = (),
    further_tokens: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> None:
    """Compare one sequence of a measured chunk with a plain pass.

    Args:
        policy: the policy.
        rollouts: the sequences.
        result: what the engine returned for a chunk of them.
        place: the place of the sequence in the chunk.
        selection: the parameters and blocks that are measured.
        sketch: the projection, or None.
        weightings: the further token weights that were measured.
        further_tokens: other recorded quantities of its tokens, by name: the recorded and the exact ones.

    Raises:
        SelfCheckError: when a deviation exceeds what the dtype allows.
    """
    row = int(result.chunk.rows[place])
    with suitable_threads(policy):
        plain = plain_pass(policy, rollouts, row, selection, sketch, [weighting[row] for weighting in weightings])
    if not _is_finite(plain):
        return
    found = [
        *deviations.of_norms(result, place, plain, selection, plain.dtype),
        *deviations.of_sketches(result, place, plain, plain.dtype),
        *deviations.of_tokens(token_quantities(result, place), plain.tokens, plain.dtype),
    ]
    for name, (recorded, exact) in (further_tokens or {}).items():
        found += deviations.of_tokens({name: recorded}, {name: exact}, plain.dtype)
    named = f"{rollouts.prompt_id[row]}/{rollouts.sample_id[row]}"
    _refuse(found, f"a later chunk (sequence {named})", policy, _remedy(policy))


def refuse_not_finite(rollouts: Rollouts, result: ChunkResult) -> None:
    """Refuse a chunk in which something is not finite although the squared norms of that sequence are.

    A gradient that is not finite is left out of a measurement, with a warning; a sketch or a token's quantity that is
    not, beside a finite gradient, is a fault of the engine.

    Args:
        rollouts: the sequences.
        result: what the engine returned for a chunk of them.

    Raises:
        SelfCheckError: naming the sequence and what is not finite.
    """
    finite = np.isfinite(result.sq_norms_by_block).all(axis=(0, 2))
    found = {} if result.sketches is None else {"sketch": np.isfinite(result.sketches).all(axis=(0, 2))}
    for name in TokenStatistics._fields:
        ragged = result.chunk.ragged(getattr(result.statistics, name))
        found[f"recorded {name}"] = np.array([np.isfinite(values).all() for values in ragged])
    for what, sound in found.items():
        wrong = result.chunk.rows[finite & ~sound]
        if len(wrong):
            row = int(wrong[0])
            raise SelfCheckError(
                f"the {what} of the sequence {rollouts.prompt_id[row]}/{rollouts.sample_id[row]} is not finite, "
                f'although its gradient is: measure with engine="loop", or with dtype="float32"'
            )


def token_quantities(result: ChunkResult, place: int) -> dict[str, np.ndarray]:
    """Return the recorded quantities of one sequence's completion tokens, by name."""
    statistics = {name: getattr(result.statistics, name) for name in TokenStatistics._fields}
    return {name: result.chunk.ragged(values)[place] for name, values in statistics.items()}


def one_block_each(selection: ParameterSelection) -> ParameterSelection:
    """Return the same parameters, each in a block of its own."""
    names = tuple(selection.parameters)
    return replace(selection, block_names=names, block_index={name: place for place, name in enumerate(names)})


def two_rows(rollouts: Rollouts) -> list[int]:
    """Return rows of the shortest sequence and of the one of median length (the same row twice when there is one)."""
    order = np.argsort(rollouts.times, kind="stable")
    return [int(order[0]), int(order[len(order) // 2])]


def longest_row(rollouts: Rollouts) -> int:
    """Return the row of the longest sequence."""
    return int(np.argsort(rollouts.times, kind="stable")[-1])


def checked_rows(rollouts: Rollouts) -> list[int]:
    """Return the rows that the self-check looks at, in order: of these alone it chooses the same."""
    return sorted({*two_rows(rollouts), longest_row(rollouts)})


def refuse_unfit_forward(policy: Policy, rollouts: Rollouts) -> None:
    """Score the first sequence twice.

    Raises:
        ValueError: when the two results differ, or are computed in a narrower dtype than the parameters'.
    """
    with suitable_threads(policy), refusing_lower_precision(policy):
        first, second = (plain_tokens(policy, rollouts, 0)["logprobs"] for _ in range(2))
    if not np.array_equal(first, second, equal_nan=True) and not np.abs(first - second).max() <= 1e-4:
        raise ValueError(
            f"{policy.name} gives different outputs for the same input (dropout is on): call model.eval() before "
            "measuring"
        )


def _is_finite(plain: PlainPass) -> bool:
    norms = [value for gradient in plain.gradients for value in gradient.sq_norms.values()]
    return bool(np.isfinite(norms).all())


def _largest(found: Sequence[Deviation]) -> float:
    return max((deviation.value for deviation in found), default=0.0)


def _remedy(policy: Policy, engine: str = "") -> str:
    """Name a remedy that has not been tried: another engine, or a wider dtype."""
    dtype = {torch.float32: 'dtype="float64"', torch.float64: ""}.get(policy.dtype, 'dtype="float32"')
    return ", or ".join(filter(None, ["" if engine == "loop" else 'engine="loop"', dtype])) or "another model"


def _refuse(found: Sequence[Deviation], what: str, policy: Policy, remedy: str) -> None:
    failing = [deviation for deviation in found if not deviation.passes]
    if failing:
        # the largest deviation names a part, not the whole
        worst = max(failing, key=lambda one: np.inf if np.isnan(one.value) else one.value)
        raise SelfCheckError(
            f"{what} fails its self-check on {policy.name} in {policy.dtype}: {worst.what} deviates by "
            f"{worst.value:.2e} from one backward pass per sequence, where {worst.allowed:.0e} is allowed: use {remedy}"
        )


def _deviation_from_float32(
    policy: Policy, rollouts: Rollouts, passes: Sequence[PlainPass], selection: ParameterSelection
) -> float | None:
    if policy.dtype.itemsize >= 4 or is_sharded(policy.model):
        return None
    wide = with_dtype(policy, torch.float32)
    parameters = dict(wide.model.named_parameters())
    chosen = replace(selection, parameters={name: parameters[name] for name in selection.parameters})
    values = []
    for plain in passes:
        exact = plain_pass(wide, rollouts, plain.row, chosen, None).gradients[0]
        total = sum(exact.sq_norms.values())
        values.append(abs(sum(plain.gradients[0].sq_norms.values()) - total) / (total or 1.0))
    return float(max(values))
