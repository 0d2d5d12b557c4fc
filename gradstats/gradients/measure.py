"""`measure`: from rollouts to a measurement, whatever the engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from gradstats.gradients.blocks import Blocks, ParameterSelection, select_parameters
from gradstats.gradients.chunking import plan_chunks
from gradstats.gradients.loop import loop_engine
from gradstats.gradients.objective import TokenStatistics, make_chunk
from gradstats.gradients.reduction import ChunkResult
from gradstats.gradients.self_check import Engine, SelfCheck, self_check
from gradstats.gradients.sketches import CountSketch
from gradstats.gradients.vmap import vmap_engine
from gradstats.measurement import Measurement
from gradstats.policy import Policy, as_policy
from gradstats.progress import progress_bar
from gradstats.rollouts import Rollouts

ENGINES: dict[str, Engine] = {"vmap": vmap_engine, "loop": loop_engine}


def measure(
    policy: Policy | Any,
    rollouts: Rollouts,
    *,
    engine: str = "auto",
    params: str | None = None,
    blocks: Blocks = "layer",
    sketch_dim: int | None = 16384,
    sketch_seed: int = 0,
    token_budget: int | None = None,
    memory_gib: float | None = None,
    progress: bool = True,
) -> Measurement:
    r"""Measure the gradient :math:`S_i = \sum_t \nabla_\theta \log\pi(y_{i,t})` of every rollout.

    Begins with a self-check on two sequences (the engine against one backward pass per sequence, alone against
    padded) and refuses to go on past the tolerance of the model's dtype.

    Args:
        policy: a :class:`gradstats.Policy`, or a transformers model (scored at temperature 1).
        rollouts: the sequences; tokens with a False ``completion_mask`` have weight 0.
        engine: "vmap" (``torch.func``, any architecture that it traces), "loop" (one backward pass per sequence), or
            "auto" (vmap).
        params: regular expression of the parameters to differentiate; all trainable ones when None.
        blocks: how squared norms are split, see :func:`gradstats.gradients.select_parameters`.
        sketch_dim: dimension of each gradient's random projection, which variance comparisons need; None for none.
        sketch_seed: seed of the projection; measurements to be compared need the same.
        token_budget: most tokens that go through the model at once, padding included (4096 when None).
        memory_gib: most memory for per-sequence gradients; at most 4 GiB by default.
        progress: show a progress bar.

    Returns:
        The measurement. Sequences whose gradient is not finite are left out, warned about, and listed in its metadata.

    Raises:
        SelfCheckError: when the self-check fails.
        ValueError: for an unknown engine, a pattern that matches no parameter, dropout that is on, token ids outside
            the model's vocabulary, or when no gradient is finite.
    """
    session = MeasuringSession.open(
        policy,
        rollouts,
        engine=engine,
        params=params,
        blocks=blocks,
        sketch_dim=sketch_dim,
        sketch_seed=sketch_seed,
        token_budget=token_budget,
        memory_gib=memory_gib,
    )
    with progress_bar("measuring", len(rollouts), shown=progress) as report:

        def finished(n_sequences: int, n_tokens: int) -> None:
            report.advance(n_sequences)
            report.tokens(n_tokens)

        return session.measure(rollouts, finished)


@dataclass(frozen=True)
class MeasuringSession:
    """A policy, an engine and settings that have passed the self-check, ready to measure shard after shard."""

    policy: Policy
    engine: Engine
    selection: ParameterSelection
    sketch: CountSketch | None
    token_budget: int | None
    memory_gib: float | None
    metadata: dict[str, Any]

    @classmethod
    def open(
        cls,
        policy: Policy | Any,
        rollouts: Rollouts,
        *,
        engine: str = "auto",
        params: str | None = None,
        blocks: Blocks = "layer",
        sketch_dim: int | None = 16384,
        sketch_seed: int = 0,
        token_budget: int | None = None,
        memory_gib: float | None = None,
    ) -> MeasuringSession:
        """Resolve the settings and run the self-check on two of the rollouts; arguments as for :func:`measure`."""
        policy = as_policy(policy)
        if engine != "auto" and engine not in ENGINES:
            raise ValueError(f"engine is {engine!r}: choose one of auto, {', '.join(ENGINES)}")
        chosen = "vmap" if engine == "auto" else engine
        selection = select_parameters(policy.model, params, blocks)
        sketch = None if sketch_dim is None else CountSketch(sketch_dim, sketch_seed)
        _check_vocabulary(policy, rollouts)
        check: SelfCheck = self_check(policy, rollouts, ENGINES[chosen], chosen, selection)
        metadata = {
            "policy": policy.describe(),
            "engine": chosen,
            "params": params,
            "n_parameters": selection.n_parameters,
            "block_names": list(selection.block_names),
            "sketch_dim": sketch_dim,
            "sketch_seed": sketch_seed,
            "self_check": asdict(check),
            "versions": {name: version(name) for name in ("gradstats", "torch", "transformers")},
        }
        return cls(policy, ENGINES[chosen], selection, sketch, token_budget, memory_gib, metadata)

    def measure(
        self, rollouts: Rollouts, finished: Callable[[int, int], None] = lambda n_sequences, n_tokens: None
    ) -> Measurement:
        """Measure rollouts.

        Args:
            rollouts: the sequences.
            finished: called after each chunk with its numbers of sequences and tokens.
        """
        results = []
        plan = plan_chunks(rollouts, self.policy, self.selection, self.token_budget, self.memory_gib)
        for rows in plan:
            chunk = make_chunk(rollouts, rows, self.policy.device, self.policy.dtype)
            results.append(self.engine(self.policy, chunk, self.selection, self.sketch))
            finished(len(rows), chunk.n_tokens)
        return self._collect(rollouts, results)

    def _collect(self, rollouts: Rollouts, results: Sequence[ChunkResult]) -> Measurement:
        """Put chunk results back into the order of the rollouts; leave out gradients that are not finite."""
        rows = np.concatenate([result.chunk.rows for result in results])
        norms = np.concatenate([result.sq_norms_by_block for result in results])
        finite = np.asarray(np.isfinite(norms).all(axis=1))
        if not finite.all():
            _report_non_finite(rollouts, rows[~finite])
        kept = np.argsort(rows, kind="stable")
        kept = kept[finite[kept]]
        sketches = None
        if self.sketch is not None:
            sketches = np.concatenate([result.sketches for result in results if result.sketches is not None])[kept]
        ragged = {
            name: [values for result in results for values in result.chunk.ragged(getattr(result.statistics, name))]
            for name in TokenStatistics._fields
        }
        lost = rollouts.frame.loc[rows[~finite], ["prompt_id", "sample_id"]].to_numpy().tolist()
        return Measurement(
            rollouts.select(rows[kept]),
            pd.DataFrame(norms[kept], columns=list(self.selection.block_names)),
            sketches,
            **{name: [values[index] for index in kept] for name, values in ragged.items()},
            metadata=self.metadata | {"not_finite": lost},
        )


def _check_vocabulary(policy: Policy, rollouts: Rollouts) -> None:
    size = policy.model.get_input_embeddings().weight.shape[0]
    for column in ("prompt_tokens", "completion_tokens"):
        largest = max(max(tokens) for tokens in rollouts.frame[column])
        smallest = min(min(tokens) for tokens in rollouts.frame[column])
        if smallest < 0 or largest >= size:
            wrong = smallest if smallest < 0 else largest
            raise ValueError(
                f"{column} hold the token id {wrong}, but {policy.name} has a vocabulary of {size}: the rollouts "
                "belong to another tokenizer"
            )


def _report_non_finite(rollouts: Rollouts, rows: np.ndarray) -> None:
    named = ", ".join(f"{rollouts.prompt_id[row]}/{rollouts.sample_id[row]}" for row in rows[:5])
    more = " …" if len(rows) > 5 else ""
    message = f"{len(rows)} of {len(rollouts)} sequences have a gradient that is not finite ({named}{more})"
    if len(rows) == len(rollouts):
        raise ValueError(f'{message}: none is left to measure; try dtype="float32"')
    warnings.warn(f"{message}; they are left out", RuntimeWarning, stacklevel=4)
