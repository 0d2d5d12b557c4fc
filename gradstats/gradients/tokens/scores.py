"""Token scores: which tokens are measured exactly, under which weightings, and the check of their sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gradstats.config.sections import MeasurementSection
from gradstats.gradients.attention import own_precision, same_class
from gradstats.gradients.checks.self_check import TOLERANCES, SelfCheckError, two_rows
from gradstats.gradients.distributed import Ranks
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.gradients.engines.reduction import ChunkResult
from gradstats.gradients.engines.registry import Engine, chunk_gradient, loop_engine
from gradstats.gradients.objective import Chunk, TokenStatistics, default_memory_gib, make_chunk
from gradstats.gradients.parameters import ParameterSelection, whole_parameters
from gradstats.gradients.sketches import CountSketch
from gradstats.gradients.tokens.projections import Tangents, head_gradients, project_tokens
from gradstats.policy.policy import Policy, suitable_threads
from gradstats.rollouts.table import Rollouts

TokenWeights = Mapping[str, Sequence[ArrayLike]] | Sequence[ArrayLike]

#: Name of a weighting that is given without a name.
_DEFAULT_NAME = "weighted"


def named_weightings(token_weights: TokenWeights | None, rollouts: Rollouts) -> dict[str, list[np.ndarray]]:
    """Return weightings by name, each with one array per completion."""
    if token_weights is None:
        return {}
    by_name = token_weights if isinstance(token_weights, Mapping) else {_DEFAULT_NAME: token_weights}
    return {str(name): _checked(str(name), rows, rollouts) for name, rows in by_name.items()}


def _checked(name: str, rows: Sequence[ArrayLike], rollouts: Rollouts) -> list[np.ndarray]:
    if len(rows) != len(rollouts):
        raise ValueError(f"token_weights {name!r} has {len(rows)} rows for {len(rollouts)} rollouts: give one each")
    checked = [np.asarray(row, dtype=np.float64) for row in rows]
    for number, (row, tokens) in enumerate(zip(checked, rollouts.frame["completion_tokens"], strict=True)):
        if row.shape != (len(tokens),):
            raise ValueError(
                f"token_weights {name!r} has the shape {row.shape} in row {number}, whose completion has {len(tokens)} "
                "tokens: give one weight per completion token"
            )
        if not np.isfinite(row).all():
            raise ValueError(f"token_weights {name!r} is not finite in row {number}: weights must be finite numbers")
    return checked


@dataclass(frozen=True)
class TokenSettings:
    """How token scores are measured."""

    n_probes: int
    # number of tokens of each sequence measured exactly, or the share of the proxy's sum that they hold
    exact: int | float
    seed: int

    @classmethod
    def of(cls, section: MeasurementSection) -> TokenSettings | None:
        """Return the settings of a section, or None where no token scores are wanted."""
        if not section.token_probes and not section.token_exact:
            return None
        return cls(section.token_probes, section.token_exact, section.token_seed)

    @property
    def tangents(self) -> Tangents:
        """The random directions."""
        return Tangents(self.seed, self.n_probes)


@dataclass(frozen=True)
class TokenResult:
    """Token scores of one chunk, one entry per sequence, with the names of :class:`gradstats.Measurement`."""

    token_projections: list[np.ndarray] | None
    heavy_positions: list[np.ndarray]
    heavy_sq_norms: list[np.ndarray]
    heavy_sketches: list[np.ndarray] | None

    @property
    def finite(self) -> np.ndarray:
        """(batch,), whether all scores measured for a sequence's tokens are finite."""
        measured = [rows for rows in (self.token_projections, self.heavy_sq_norms) if rows is not None]
        return np.array([all(np.isfinite(values).all() for values in rows) for rows in zip(*measured, strict=True)])

    @classmethod
    def concatenate(cls, results: Iterable[TokenResult]) -> dict[str, list[np.ndarray]]:
        """Return the fields that were measured, chunk after chunk."""
        tables = [{name: rows for name, rows in vars(result).items() if rows is not None} for result in results]
        return {name: [values for table in tables for values in table[name]] for name in tables[0]}


class MeasuredChunk(NamedTuple):
    """What is measured on one chunk: by the engine, for its tokens, of the reference policy, and of the adapter."""

    result: ChunkResult
    tokens: TokenResult | None
    reference: Tensor | None
    residual: Tensor | None = None


def measure_tokens(
    policy: Policy,
    chunk: Chunk,
    selection: ParameterSelection,
    sketch: CountSketch | None,
    engine: Engine,
    settings: TokenSettings,
    memory_gib: float,
) -> tuple[ChunkResult, TokenResult]:
    """Measure a chunk with its token scores.

    The heaviest tokens are chosen from one forward pass, before any gradient is known, so estimates from random
    directions remain unbiased.
    """
    gradients = head_gradients(policy, chunk)
    heavy = [np.zeros(0, dtype=np.int64) for _ in chunk.rows]
    if settings.exact:
        heavy = heaviest_tokens(gradients.statistics, chunk, settings.exact)
    projections = None
    if settings.n_probes:
        projected = project_tokens(policy, chunk, selection, settings.tangents, gradients, memory_gib).cpu().numpy()
        spans = enumerate(zip(chunk.starts, chunk.lengths, strict=True))
        projections = [projected[row, start : start + length] for row, (start, length) in spans]
    del gradients
    result, exact = _with_exact_tokens(policy, chunk, selection, sketch, engine, heavy)
    n_given = len(chunk.weights)
    counts = list(map(len, heavy))
    norms = exact.sq_norms_by_parameter[n_given:].sum(axis=2)
    sketches = None if exact.sketches is None else exact.sketches[n_given:]
    return result, TokenResult(
        projections,
        heavy,
        [norms[:count, row] for row, count in enumerate(counts)],
        None if sketches is None else [sketches[:count, row] for row, count in enumerate(counts)],
    )


def heaviest_tokens(statistics: TokenStatistics, chunk: Chunk, exact: int | float) -> list[np.ndarray]:
    r"""Return the sorted positions in each completion of the tokens with the largest values of the forward-only proxy.

    :math:`w_t = 1 - 2\pi(y_t) + \sum\pi^2` is the squared norm of the gradient with respect to the logits. ``exact`` is
    a number of tokens, or the least share of :math:`\sum_t w_t` that they have to hold; masked-out tokens are never
    chosen.
    """
    weights = 1 - 2 * statistics.logprobs.exp() + statistics.sum_pi_squared
    chosen = []
    for proxy, counts in zip(chunk.ragged(weights), chunk.ragged(chunk.weights[0]), strict=True):
        places = np.flatnonzero(counts)
        ordered = places[np.argsort(-proxy[places], kind="stable")]
        number = int(exact)
        if 0 < exact < 1:
            held = np.cumsum(proxy[ordered])
            number = int(np.searchsorted(held, exact * held[-1])) + 1
        chosen.append(np.sort(ordered[:number]))
    return chosen


def _with_exact_tokens(
    policy: Policy,
    chunk: Chunk,
    selection: ParameterSelection,
    sketch: CountSketch | None,
    engine: Engine,
    heavy: list[np.ndarray],
) -> tuple[ChunkResult, ChunkResult]:
    """Return the engine's result for the chunk, and a result in which each heavy token is one more weighting.

    A weighting that is 1 on one token of each sequence costs a backward pass and shares the forward pass.
    """
    # Ranks that hold the model together have to make equally many backward passes; the weights of some are all zero.
    most = max(Ranks.of(policy.model).exchange(max(map(len, heavy))))
    one_hot = _one_hot(chunk, heavy, most)
    extended = replace(chunk, weights=torch.cat([chunk.weights, one_hot]))
    if not len(one_hot) or engine is ghost_engine:
        both = engine(policy, extended, selection, sketch)
        given = slice(len(chunk.weights))
        projected = {
            name: values[given]
            for name in ("sketches", "sketches_by_block")
            if (values := getattr(both, name)) is not None
        }
        return replace(both, chunk=chunk, sq_norms_by_parameter=both.sq_norms_by_parameter[given], **projected), both
    # The vmap engine would hold a whole gradient for each token.
    return engine(policy, chunk, selection, sketch), loop_engine(policy, extended, selection, sketch)


def _one_hot(chunk: Chunk, heavy: list[np.ndarray], most: int) -> Tensor:
    """Return (most, batch, kept): the n-th is 1 on each sequence's n-th heavy token, zero where it has fewer."""
    weights = torch.zeros(most, *chunk.weights.shape[1:])
    for row, (start, positions) in enumerate(zip(chunk.starts, heavy, strict=True)):
        weights[torch.arange(len(positions)), row, start + torch.from_numpy(positions)] = 1
    return weights.to(chunk.weights)


_DIRECTIONS = 2
# In float64 as well: the norms of transformers compute in float32, and round differently forward and backward.
_LEAST_TOLERANCE = 1e-5


def check_projections(policy: Policy, rollouts: Rollouts, selection: ParameterSelection, seed: int) -> float:
    r"""Return the largest deviation of :math:`\sum_t \langle s_t, v\rangle` from one backward pass's :math:`\langle S,
    v\rangle`.

    It is in units of :math:`\lVert S\rVert`. The sequences are the shortest (padded) and the one of median length;
    there are two directions.
    """
    whole_parameters(policy.model, selection)
    rows = two_rows(rollouts)
    tangents = Tangents(seed, _DIRECTIONS)
    memory = default_memory_gib(policy.device)
    with suitable_threads(policy), own_precision(policy):
        projected: dict[int, Tensor] = {}
        for together in same_class(policy.model, rollouts, rows):
            chunk = make_chunk(rollouts, together, policy.device, policy.dtype)
            of_chunk = project_tokens(policy, chunk, selection, tangents, head_gradients(policy, chunk), memory)
            projected |= dict(zip(together, of_chunk, strict=True))
        worst = 0.0
        for row in rows:
            alone = make_chunk(rollouts, [row], policy.device, policy.dtype)
            total, sq_norm = torch.zeros(_DIRECTIONS, dtype=torch.float64, device=policy.device), 0.0
            for name, gradient in chunk_gradient(policy, alone, selection).items():
                wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).flatten()
                if name in selection.preconditioner:
                    wide = wide * selection.preconditioner[name].flatten()
                directions = tangents.dense(name, gradient.shape, range(_DIRECTIONS), wide)
                total += (directions.flatten(1) @ wide).double()
                sq_norm += float(wide.square().sum())
            difference = float((projected[row].sum(dim=0).double() - total).abs().max())
            worst = max(worst, difference / sq_norm**0.5 if sq_norm else difference)
    tolerance = max(TOLERANCES[policy.dtype], _LEAST_TOLERANCE)
    if not worst <= tolerance:
        raise SelfCheckError(
            f"token_probes fail their self-check on {policy.name} in {policy.dtype}: the projections of a sequence's "
            f"tokens add up to that of its gradient only within {worst:.2e} of the gradient's norm, where "
            f'{tolerance:.0e} is allowed: use dtype="float32", leave modules that read other modules\' weights out '
            "with params, or measure without token_probes"
        )
    return worst
