"""The check before every measuring run: an engine against ordinary backward passes, by parameter and by quantity."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from gradstats.config.options import TOKEN_BUDGET, how_to_set
from gradstats.gradients.attention import own_precision, same_class
from gradstats.gradients.checks.plain_pass import PlainPass, plain_pass, plain_sketch, sq_norm_in_float32
from gradstats.gradients.engines.reduction import ChunkResult
from gradstats.gradients.engines.registry import Engine
from gradstats.gradients.objective import TokenStatistics, make_chunk
from gradstats.gradients.parameters import ParameterSelection, UnsupportedModuleError, describe
from gradstats.gradients.recompute import RecomputeRule
from gradstats.gradients.sketches import CountSketch
from gradstats.policy.memory import hardware_of, is_out_of_memory, release_unused, why_out_of_memory
from gradstats.policy.model import n_logits
from gradstats.policy.policy import Policy, suitable_threads
from gradstats.policy.sharding import is_sharded
from gradstats.rollouts.table import Rollouts


def with_dtype(policy: Policy, dtype: torch.dtype) -> Policy:
    """Copy a policy with parameters of another dtype; return the policy itself where they have that dtype.

    Buffers keep their dtype, as they do when weights are loaded in that dtype: rotary frequencies rounded to bfloat16
    would define another model. A method that is bound to a module is copied with it. Where a wrapper has put a function
    in its place, which would run the model itself, the copy has the forward method of its class, if that computes the
    same.
    """
    if policy.dtype == dtype:
        return policy
    model = copy.deepcopy(policy.model)
    wrapped = [
        (path, module)
        for path, module in model.named_modules()
        if "forward" in vars(module) and getattr(module.forward, "__self__", None) is not module
    ]
    for _, module in wrapped:
        del module.forward
    if wrapped:
        _refuse_other_function(policy, replace(policy, model=model), *wrapped[0])
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return replace(policy, model=model)


def _refuse_other_function(policy: Policy, other: Policy, path: str, module: nn.Module) -> None:
    """Compare the logits of a copy, still in the same dtype, with those of the model."""
    n = min(8, n_logits(policy.model))
    ids = torch.arange(n, device=policy.device)[None]
    with own_precision(policy), torch.no_grad():
        ours, theirs = (one.model(ids, use_cache=False)["logits"] for one in (policy, other))
    if not torch.allclose(ours.to(theirs.dtype), theirs, equal_nan=True):
        raise ValueError(
            f"{policy.name} cannot be copied into another dtype: the forward method that is bound to "
            f"{describe(path, module)} computes something else than that of its class, and a copy of it would run the "
            "model itself: remove the wrapper around the forward method"
        )


#: Largest relative deviation of ‖S‖² that is accepted, by the model's dtype. Norms of layers that transformers computes
#: in float32 do so in a model in float64 too (Gemma's), and round differently on each processor.
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
#: The same for one parameter or a sketch. It sums fewer terms than ‖S‖², so that rounding shows more: in float32, two
#: plain passes over a model with large activations (Qwen2.5-0.5B, with padding and without) differ by 1e-3 in some
#: matrices.
_TOLERANCES_OF_PARTS = {torch.float64: 1e-5, torch.float32: 1e-2, torch.bfloat16: 0.5, torch.float16: 0.5}
#: What the deviation of ‖S‖² is called.
_WHOLE = "the squared norm of the whole gradient"
# Deviations of a parameter are relative to its own ‖S‖², or to this share of the whole where that is more. In bfloat16
# a small matrix may differ by rounding alone between a batch and a sequence alone: on a CPU one of Qwen2.5-0.5B's with
# 0.08 % of ‖S‖² alone had 0.18 % beside three other sequences, where ‖S‖² itself was 3 % larger.
_LEAST_SHARE = {torch.float64: 1e-12, torch.float32: 1e-8, torch.bfloat16: 5e-3, torch.float16: 1e-3}
# Deviations of token quantities are relative to the largest of the sequence, or to this where that is more.
_LEAST_TOKEN = {torch.float64: 1e-4, torch.float32: 1e-2, torch.bfloat16: 1.0, torch.float16: 1.0}
# Inner products of sketches may be off by this many standard deviations.
_DEVIATIONS = 10.0


@dataclass(frozen=True)
class Deviation:
    """One comparison: a relative deviation, what is allowed, and of what."""

    value: float
    allowed: float
    what: str

    @property
    def passes(self) -> bool:
        """Whether the deviation is allowed; NaN is not."""
        return bool(self.value <= self.allowed)


def _of_norms(
    result: ChunkResult, place: int, plain: PlainPass, selection: ParameterSelection, dtype: torch.dtype
) -> list[Deviation]:
    """Return the squared norms by parameter and of the whole."""
    found = []
    names = list(selection.parameters)
    for norms, gradient in zip(result.sq_norms_by_parameter[:, place], plain.gradients, strict=True):
        exact = np.array([gradient.sq_norms[name] for name in names])
        total = float(exact.sum())
        scale = np.maximum(exact, _LEAST_SHARE[dtype] * total) if total else np.ones_like(exact)
        values = np.abs(norms - exact) / np.where(scale == 0, 1.0, scale)
        worst = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
        found.append(
            Deviation(float(values[worst]), _TOLERANCES_OF_PARTS[dtype], f"the squared norm of {names[worst]}")
        )
        whole = abs(float(norms.sum()) - total) / (total or 1.0)
        found.append(Deviation(whole, TOLERANCES[dtype], _WHOLE))
    return found


def _of_sketches(result: ChunkResult, place: int, plain: PlainPass, dtype: torch.dtype) -> list[Deviation]:
    """Return the engine's sketch against that of the plain pass, relative to its norm."""
    if result.sketches is None:
        return []
    found = []
    for sketch, gradient in zip(result.sketches[:, place], plain.gradients, strict=True):
        assert gradient.sketch is not None
        off = float(np.linalg.norm(sketch.astype(np.float64) - gradient.sketch))
        # ‖S‖² deviates by twice what S deviates by.
        found.append(
            Deviation(
                off / (float(np.linalg.norm(gradient.sketch)) or 1.0), _TOLERANCES_OF_PARTS[dtype] / 2, "the sketch"
            )
        )
    return found


def of_tokens(tokens: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], dtype: torch.dtype) -> list[Deviation]:
    """Return the quantities of a sequence's tokens."""
    found = []
    for name, values in tokens.items():
        scale = max(float(np.abs(exact[name]).max(initial=0.0)), _LEAST_TOKEN[dtype])
        off = np.abs(values - exact[name]).max(initial=0.0) if len(values) == len(exact[name]) else np.inf
        found.append(Deviation(float(off) / scale, TOLERANCES[dtype], f"the recorded {name} of its tokens"))
    return found


def _of_projection(sketch: CountSketch, plain: Sequence[PlainPass]) -> list[Deviation]:
    """Compare sketches with their definition, and their inner products with those of the gradients.

    Every norm of a whole gradient is compared, and the inner products of the coordinates that were kept.
    """
    found = []
    spread = float(np.sqrt(2.0 / sketch.dim))
    gradients = [one.gradients[0] for one in plain]
    for gradient in gradients:
        total = sum(gradient.sq_norms.values())
        if gradient.sketch is not None and total:
            off = abs(float(gradient.sketch @ gradient.sketch) / total - 1.0)
            found.append(Deviation(off, _DEVIATIONS * spread, "the squared norm of the sketch against the gradient's"))
    names = gradients[0].kept if gradients else {}
    if not names:
        return found
    kept = {name: np.stack([gradient.kept[name] for gradient in gradients]) for name in names}
    defined = plain_sketch(sketch, kept)
    made = torch.zeros(len(gradients), sketch.dim, dtype=torch.float64)
    for name, values in kept.items():
        sketch.add(made, name, torch.from_numpy(values))
    off_by = np.linalg.norm(made.numpy() - defined, axis=1) / _or_one(np.linalg.norm(defined, axis=1))
    what = "the sketch of its smaller parameters, against the definition,"
    found += [Deviation(float(off), 1e-9, what) for off in off_by]
    exact = np.sum([values @ values.T for values in kept.values()], axis=0)
    size = _or_one(np.sqrt(np.outer(np.diag(exact), np.diag(exact))))
    off_by = (np.abs(defined @ defined.T - exact) / size)[np.tril_indices(len(gradients), -1)]
    found += [Deviation(float(off), _DEVIATIONS * spread, "an inner product of sketches") for off in off_by]
    return found


def _or_one(sizes: np.ndarray) -> np.ndarray:
    """Return sizes to divide by, 1 in place of 0."""
    return np.where(sizes == 0.0, 1.0, sizes)


class SelfCheckError(RuntimeError):
    """An engine disagrees with the plain backward pass by more than the dtype allows."""


@dataclass(frozen=True)
class SelfCheck:
    """Largest relative deviations of an engine from one backward pass per sequence, on a few sequences."""

    squared_norms: float  # of ‖S‖²
    parameters: float  # of the part of ‖S‖² that is one parameter's
    sketches: float | None  # of the sketches; None where there are none
    token_quantities: float  # of the recorded quantities of tokens
    tolerance: float  # the largest deviation of ‖S‖² and of token quantities that was accepted
    tolerance_of_parts: float
    # for a model in bfloat16 or float16, of ‖S‖² from that in float32 (the error of the dtype, without a tolerance);
    # None otherwise, and where ``without_float32`` says why
    deviation_from_float32: float | None = None
    longest: int = 0  # tokens of the longest sequence with a finite gradient
    recomputed: bool = False  # whether the layers ran twice for the longest sequence
    hardware: str = ""  # the accelerator's name, or what instructions of the CPU torch uses
    without_float32: str = ""  # why there is no comparison with float32, where the dtype calls for one

    def serves(self, policy: Policy, longest: int, recompute: RecomputeRule) -> bool:
        """Return whether the check says as much of another session with the same settings, up to so many tokens."""
        here = (recompute(1, longest), hardware_of(policy.device))
        return not is_sharded(policy.model) and longest <= self.longest and here == (self.recomputed, self.hardware)


@dataclass(frozen=True)
class CheckedSequences:
    """Plain passes over the shortest, the median and the longest sequence, which serve the checks of every engine."""

    policy: Policy
    rollouts: Rollouts
    selection: ParameterSelection
    sketch: CountSketch | None
    padded: list[PlainPass]
    alone: list[PlainPass]
    deviation_from_float32: float | None
    recompute: RecomputeRule
    token_budget: int = TOKEN_BUDGET
    without_float32: str = ""

    @classmethod
    def make(
        cls,
        policy: Policy,
        rollouts: Rollouts,
        selection: ParameterSelection,
        sketch: CountSketch | None,
        recompute: RecomputeRule,
        token_budget: int = TOKEN_BUDGET,
        in_training: bool = False,
    ) -> CheckedSequences:
        """Make the plain passes, and check that the sketches keep inner products."""
        rows = two_rows(rollouts)
        longest = longest_row(rollouts)
        with suitable_threads(policy):
            passes = {
                row: plain_pass(
                    policy,
                    rollouts,
                    row,
                    selection,
                    sketch,
                    recompute=recompute(1, int(rollouts.times[row])),
                )
                for row in dict.fromkeys([*rows, longest])
            }
            padded = [passes[row] for row in dict.fromkeys(rows)]
            compared = _compared_with_float32(policy, rollouts, padded, selection, recompute, in_training)
        deviation, without_float32 = compared
        made = cls(
            policy,
            rollouts,
            selection,
            sketch,
            padded,
            [passes[longest]],
            deviation,
            recompute,
            token_budget,
            without_float32,
        )
        if sketch is not None:
            of_finite = [one for one in passes.values() if _is_finite(one)]
            _refuse(_of_projection(sketch, of_finite), "the projection", policy, "another sketch_seed")
        return made

    def plain_of(self, rollouts: Rollouts, row: int) -> PlainPass | None:
        """Return the plain pass over a sequence of other rollouts, if it is one of these."""

        def content(of: Rollouts, at: int) -> list[list[object]]:
            columns = ("prompt_tokens", "completion_tokens", "completion_mask")
            return [list(of.frame[name].iloc[at]) if name in of.frame else [] for name in columns]

        wanted = content(rollouts, row)
        return next((one for one in (*self.padded, *self.alone) if content(self.rollouts, one.row) == wanted), None)

    def chunks(self) -> list[list[PlainPass]]:
        """Return what an engine measures together: the first two sequences, if they fit a chunk, and the longest."""
        passes = {one.row: one for one in self.padded}
        together = same_class(self.policy.model, self.rollouts, list(passes))
        if len(passes) * self.rollouts.times[list(passes)].max() > self.token_budget:
            together = [[row] for row in passes]
        chunks = [[passes[row] for row in rows] for rows in together]
        return chunks if self.alone in chunks else [*chunks, self.alone]


def self_check(checked: CheckedSequences, engine: Engine, name: str) -> tuple[SelfCheck, list[ChunkResult]]:
    """Compare an engine with the plain passes: two sequences padded together, and the longest alone.

    Sequences whose plain gradient is not finite are left out: they are left out of the measurement as well.

    Returns:
        The deviations, and the engine's results, which a measurement of the same chunks need not compute again.
    """
    policy, selection = checked.policy, checked.selection
    results: list[ChunkResult] = []
    norms: list[Deviation] = []
    sketches: list[Deviation] = []
    tokens: list[Deviation] = []
    for passes in checked.chunks():
        chunk = make_chunk(checked.rollouts, [one.row for one in passes], policy.device, policy.dtype)
        chunk = replace(chunk, recompute=checked.recompute(*chunk.input_ids.shape))
        with suitable_threads(policy):
            result = engine(policy, chunk, selection, checked.sketch)
        results.append(result)
        for place, plain in enumerate(passes):
            if _is_finite(plain):
                norms += _of_norms(result, place, plain, selection, plain.dtype)
                sketches += _of_sketches(result, place, plain, plain.dtype)
                tokens += of_tokens(token_quantities(result, place), plain.tokens, plain.dtype)
    _refuse([*norms, *sketches, *tokens], f'the engine "{name}"', policy, _remedy(policy, name))
    check = SelfCheck(
        _largest([one for one in norms if one.what == _WHOLE]),
        _largest([one for one in norms if one.what != _WHOLE]),
        _largest(sketches) if sketches else None,
        _largest(tokens),
        TOLERANCES[checked.alone[0].dtype],
        _TOLERANCES_OF_PARTS[checked.alone[0].dtype],
        checked.deviation_from_float32,
        max(
            (int(checked.rollouts.times[one.row]) for one in (*checked.padded, *checked.alone) if _is_finite(one)),
            default=0,
        ),
        checked.recompute(1, int(checked.rollouts.times.max())),
        hardware_of(policy.device),
        checked.without_float32,
    )
    return check, results


def check_result(
    policy: Policy,
    rollouts: Rollouts,
    result: ChunkResult,
    place: int,
    selection: ParameterSelection,
    sketch: CountSketch | None,
    weightings: Sequence[Sequence[np.ndarray]] = (),
    further_tokens: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    plain: PlainPass | None = None,
) -> bool:
    """Compare one sequence of a measured chunk with a plain pass, which is made where it is not given.

    Returns:
        Whether there was something to compare: the plain gradient is finite.
    """
    row = int(result.chunk.rows[place])
    if plain is None:
        of_row = [weighting[row] for weighting in weightings]
        with suitable_threads(policy):
            plain = plain_pass(policy, rollouts, row, selection, sketch, of_row, result.chunk.recompute)
    if not _is_finite(plain):
        return False
    # A chunk may be of further weightings alone.
    plain = replace(plain, gradients=plain.gradients[-len(result.sq_norms_by_parameter) :])
    found = [
        *_of_norms(result, place, plain, selection, plain.dtype),
        *_of_sketches(result, place, plain, plain.dtype),
        *of_tokens(token_quantities(result, place), plain.tokens, plain.dtype),
    ]
    for name, (recorded, exact) in (further_tokens or {}).items():
        found += of_tokens({name: recorded}, {name: exact}, plain.dtype)
    named = f"{rollouts.prompt_id[row]}/{rollouts.sample_id[row]}"
    _refuse(found, f"a later chunk (sequence {named})", policy, _remedy(policy))
    return True


def refuse_not_finite(rollouts: Rollouts, result: ChunkResult) -> None:
    """Refuse a chunk in which something is not finite although the squared norms of that sequence are.

    A gradient that is not finite is left out of a measurement, with a warning; a sketch or a token's quantity that is
    not, beside a finite gradient, is a fault of the engine.
    """
    finite = np.isfinite(result.sq_norms_by_parameter).all(axis=(0, 2))
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
                f"although its gradient is: measure with {how_to_set('measurement.engine', 'loop')}, or with "
                f"{how_to_set('policy.dtype', 'float32')}"
            )


def token_quantities(result: ChunkResult, place: int) -> dict[str, np.ndarray]:
    """Return the recorded quantities of one sequence's completion tokens, by name."""
    statistics = {name: getattr(result.statistics, name) for name in TokenStatistics._fields}
    return {name: result.chunk.ragged(values)[place] for name, values in statistics.items()}


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


def _is_finite(plain: PlainPass) -> bool:
    norms = [value for gradient in plain.gradients for value in gradient.sq_norms.values()]
    return bool(np.isfinite(norms).all())


def _largest(found: Sequence[Deviation]) -> float:
    return max((deviation.value for deviation in found), default=0.0)


def _remedy(policy: Policy, engine: str = "") -> str:
    """Name a remedy that has not been tried: another engine, or a wider dtype."""
    wider = {torch.float32: "float64", torch.float64: ""}.get(policy.dtype, "float32")
    remedies = ["" if engine == "loop" else how_to_set("measurement.engine", "loop")]
    remedies.append(how_to_set("policy.dtype", wider) if wider else "")
    return ", or ".join(filter(None, remedies)) or "another model"


def _refuse(found: Sequence[Deviation], what: str, policy: Policy, remedy: str) -> None:
    failing = [deviation for deviation in found if not deviation.passes]
    if failing:
        # the largest deviation names a part, not the whole
        worst = max(failing, key=lambda one: np.inf if np.isnan(one.value) else one.value)
        raise SelfCheckError(
            f"{what} fails its self-check on {policy.name} in {policy.dtype}: {worst.what} deviates by "
            f"{worst.value:.2e} from one backward pass per sequence, where {worst.allowed:.0e} is allowed: use {remedy}"
        )


def _compared_with_float32(
    policy: Policy,
    rollouts: Rollouts,
    passes: Sequence[PlainPass],
    selection: ParameterSelection,
    recompute: RecomputeRule,
    in_training: bool,
) -> tuple[float | None, str]:
    """Return the largest deviation of squared norms in 16 bits from those in float32, or why they are not compared.

    One layer at a time is float32, while it runs: no copy of the model is made.
    """
    if policy.dtype.itemsize >= 4:
        return None, ""
    if is_sharded(policy.model):
        return None, "no rank holds the layers of a sharded model whole"
    if in_training:
        return None, "the model is being trained, and its weights are left alone"
    if recompute.why_not:
        return None, f"its layers cannot run one at a time: {recompute.why_not}"
    values = []
    try:
        for plain in passes:
            exact = sq_norm_in_float32(policy, rollouts, plain.row, selection)
            values.append(abs(sum(plain.gradients[0].sq_norms.values()) - exact) / (exact or 1.0))
    except UnsupportedModuleError as error:
        return None, f"its layers cannot run one at a time: {error}"
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = why_out_of_memory(error)
    else:
        return float(max(values)), ""
    # Outside the handler, whose traceback would keep the tensors alive that did not fit.
    release_unused(policy.device)
    return None, f"memory ran out: {reason}"
