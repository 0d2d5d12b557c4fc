"""`measure`: from rollouts to a measurement, whatever the engine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
import torch

from gradstats.gradients.attention import warn_of_other_attention
from gradstats.gradients.blocks import Blocks, ParameterSelection, select_parameters
from gradstats.gradients.chunking import default_memory_gib, plan_chunks
from gradstats.gradients.ghost import ghost_engine
from gradstats.gradients.loop import loop_engine
from gradstats.gradients.memory import is_out_of_memory
from gradstats.gradients.objective import Chunk, TokenStatistics, make_chunk
from gradstats.gradients.reduction import ChunkResult
from gradstats.gradients.reference_policy import as_reference, reference_logprobs
from gradstats.gradients.self_check import Engine, SelfCheck, SelfCheckError, self_check
from gradstats.gradients.sketches import CountSketch
from gradstats.gradients.token_check import check_projections
from gradstats.gradients.token_scores import TokenResult, TokenSettings, measure_tokens
from gradstats.gradients.token_weights import TokenWeights, named_weightings
from gradstats.gradients.unsupported import UnsupportedModuleError
from gradstats.gradients.vmap import vmap_engine
from gradstats.measurement import Measurement, WeightedGradients, read_measurement
from gradstats.parts import KeptParts, digest
from gradstats.policy import Policy, as_policy
from gradstats.progress import progress_bar
from gradstats.rollouts import Rollouts
from gradstats.threads import suitable_threads

#: Sequences that are measured and kept together where a call keeps its parts.
PART = 64
#: The engines by name, in the order in which ``auto`` tries them.
ENGINES: dict[str, Engine] = {"ghost": ghost_engine, "vmap": vmap_engine, "loop": loop_engine}


def measure(
    policy: Policy | Any,
    rollouts: Rollouts,
    *,
    engine: str = "auto",
    params: str | None = None,
    blocks: Blocks = "layer",
    sketch_dim: int | None = 16384,
    sketch_seed: int = 0,
    token_weights: TokenWeights | None = None,
    reference_policy: Policy | Any | None = None,
    token_probes: int = 0,
    token_exact: int | float = 0,
    token_seed: int = 0,
    token_budget: int | None = None,
    memory_gib: float | None = None,
    keep_in: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Measurement:
    r"""Measure the gradient :math:`S_i = \sum_t \nabla_\theta \log\pi(y_{i,t})` of every rollout.

    Begins with a self-check on two sequences (the engine against one backward pass per sequence, alone against
    padded) and refuses to go on past the tolerance of the model's dtype.

    Args:
        policy: a :class:`gradstats.Policy`, or a transformers model (scored at temperature 1).
        rollouts: the sequences; tokens with a False ``completion_mask`` have weight 0.
        engine: "ghost" (one ordinary backward pass for a whole chunk, for the layers it knows), "vmap"
            (``torch.func``, any architecture that it traces), "loop" (one backward pass per sequence), or "auto": the
            first of these that knows the model and passes the self-check. What decided against an earlier one is
            warned about and kept in the metadata.
        params: regular expression of the parameters to differentiate; all trainable ones when None.
        blocks: how squared norms are split, see :func:`gradstats.gradients.select_parameters`.
        sketch_dim: dimension of each gradient's random projection, which variance comparisons need; None for none.
        sketch_seed: seed of the projection; measurements to be compared need the same.
        token_weights: further weightings to measure, :math:`\sum_t w_{i,t} \nabla\log\pi(y_{i,t})`: name → for each
            rollout, one weight per completion token; or one such list, named "weighted". They share the forward pass
            and come back as ``measured.weighted[name]``.
        reference_policy: a policy (or model, scored at the policy's temperature) whose log-probabilities of the same
            tokens are recorded as ``measured.ref_logprobs``.
        token_probes: number of random directions K on which every token's score is projected, by forward
            differentiation with eager attention: ``measured.token_projections``, and what follows from them. Token
            energies then have a relative standard error of about :math:`\sqrt{2/K}`; 0 measures no token scores.
        token_exact: how many tokens of each sequence are measured exactly as well, by one backward pass each: those
            that are heaviest by :math:`w_t = 1 - 2\pi(y_t) + \sum\pi^2`. A share between 0 and 1 takes as many as
            hold that share of :math:`\sum_t w_t`.
        token_seed: seed of the directions; measurements to be compared need the same.
        token_budget: most tokens that go through the model at once, padding included (4096 when None).
        memory_gib: most memory for logits and, with vmap, for per-sequence gradients; at most 4 GiB by default.
        keep_in: a folder in which sequences are kept, some at a time, as they are measured; an interrupted call is
            taken up from them by the same call, and the folder is yours to remove in the end.
        progress: show a progress bar.

    Returns:
        The measurement. Sequences whose gradient is not finite are left out, warned about, and listed in its metadata.
        When memory runs out, the token budget is halved with a warning, and the run goes on.

    Raises:
        SelfCheckError: when the self-check fails.
        UnsupportedModuleError: when the chosen engine does not know a module, which is named.
        ValueError: for an unknown engine, a pattern that matches no parameter, dropout that is on, token settings out
            of range, token ids outside the model's vocabulary, weights of a wrong length, a reference of another
            vocabulary, or when no gradient is finite.
    """
    session = MeasuringSession.open(
        policy,
        rollouts,
        engine=engine,
        params=params,
        blocks=blocks,
        sketch_dim=sketch_dim,
        sketch_seed=sketch_seed,
        reference_policy=reference_policy,
        token_probes=token_probes,
        token_exact=token_exact,
        token_seed=token_seed,
        token_budget=token_budget,
        memory_gib=memory_gib,
    )
    with progress_bar("measuring", len(rollouts), shown=progress) as report:

        def finished(n_sequences: int, n_tokens: int) -> None:
            report.advance(n_sequences)
            report.tokens(n_tokens)

        if keep_in is None:
            return session.measure(rollouts, finished, token_weights=token_weights)
        return _measure_in_parts(session, rollouts, finished, named_weightings(token_weights, rollouts), keep_in)


def _measure_in_parts(
    session: MeasuringSession,
    rollouts: Rollouts,
    finished: Callable[[int, int], None],
    weightings: dict[str, list[np.ndarray]],
    keep_in: str | os.PathLike[str],
) -> Measurement:
    """Measure a few sequences at a time, each lot kept on disk as soon as it is finished."""
    tokens = [rollouts.frame[column].map(list).tolist() for column in ("prompt_tokens", "completion_tokens")]
    listed = {name: [row.tolist() for row in rows] for name, rows in weightings.items()}
    settings = {name: value for name, value in session.metadata.items() if name not in ("self_check", "token_check")}
    kept = KeptParts(
        keep_in, settings | {"rollouts": digest([tokens, rollouts.rewards.tolist()]), "weights": digest(listed)}
    )
    paths = []
    for number, first in enumerate(range(0, len(rollouts), PART)):
        rows = np.arange(first, min(first + PART, len(rollouts)))
        paths.append(kept.path(number))
        if paths[-1].exists():
            finished(len(rows), 0)
            continue
        weights = {name: [values[row] for row in rows] for name, values in weightings.items()}
        session.measure(rollouts.select(rows), finished, token_weights=weights or None).save(paths[-1])
    return Measurement.concatenate(read_measurement(path) for path in paths)


@dataclass
class MeasuringSession:
    """A policy, an engine and settings that have passed the self-check, ready to measure shard after shard."""

    policy: Policy
    engine: Engine
    selection: ParameterSelection
    sketch: CountSketch | None
    reference: Policy | None
    tokens: TokenSettings | None
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
        reference_policy: Policy | Any | None = None,
        token_probes: int = 0,
        token_exact: int | float = 0,
        token_seed: int = 0,
        token_budget: int | None = None,
        memory_gib: float | None = None,
    ) -> MeasuringSession:
        """Resolve the settings and run the self-check on two of the rollouts; arguments as for :func:`measure`."""
        policy = as_policy(policy)
        tokens = TokenSettings.of(token_probes, token_exact, token_seed)
        selection = select_parameters(policy.model, params, blocks)
        sketch = None if sketch_dim is None else CountSketch(sketch_dim, sketch_seed)
        _check_vocabulary(policy, rollouts)
        reference = None if reference_policy is None else as_reference(reference_policy, policy)
        chosen, check, passed_over = _choose_engine(engine, policy, rollouts, selection)
        if check.deviation_from_float32 is not None:
            warnings.warn(
                f"in {policy.dtype} squared norms deviate by up to {check.deviation_from_float32:.1%} from those in "
                "float32, on two sequences",
                UserWarning,
                stacklevel=3,
            )
        token_check = None
        if tokens is not None and tokens.n_probes:
            warn_of_other_attention(policy)
            token_check = check_projections(policy, rollouts, selection, tokens.seed)
        metadata = {
            "policy": policy.describe(),
            "engine": chosen,
            "engines_passed_over": passed_over,
            "params": params,
            "n_parameters": selection.n_parameters,
            "block_names": list(selection.block_names),
            "sketch_dim": sketch_dim,
            "sketch_seed": sketch_seed,
            "reference_policy": None if reference is None else reference.describe(),
            "token_probes": token_probes,
            "token_exact": token_exact,
            "token_seed": token_seed,
            "token_distribution": None if tokens is None else tokens.tangents.distribution,
            "self_check": asdict(check),
            "token_self_check": token_check,
            "versions": {name: version(name) for name in ("gradstats", "torch", "transformers")},
        }
        return cls(policy, ENGINES[chosen], selection, sketch, reference, tokens, token_budget, memory_gib, metadata)

    def measure(
        self,
        rollouts: Rollouts,
        finished: Callable[[int, int], None] = lambda n_sequences, n_tokens: None,
        token_weights: TokenWeights | None = None,
    ) -> Measurement:
        """Measure rollouts.

        Args:
            rollouts: the sequences.
            finished: called after each chunk with its numbers of sequences and tokens.
            token_weights: as for :func:`measure`.
        """
        weightings = named_weightings(token_weights, rollouts)
        results: list[ChunkResult] = []
        token_results: list[TokenResult] = []
        references: list[torch.Tensor] = []
        plan = self._plan(rollouts, np.arange(len(rollouts)), len(weightings))
        while plan:
            chunk = make_chunk(rollouts, plan[0], self.policy.device, self.policy.dtype, list(weightings.values()))
            try:
                with suitable_threads(self.policy):
                    result, tokens = self._run(chunk)
                if self.reference is not None:
                    references.append(reference_logprobs(self.reference, chunk))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._halve_budget(chunk, error)
            else:
                results.append(result)
                if tokens is not None:
                    token_results.append(tokens)
                finished(len(plan[0]), chunk.n_tokens)
                plan = plan[1:]
                continue
            # Outside the handler, whose traceback would keep what did not fit alive.
            plan = self._plan(rollouts, np.concatenate(plan), len(weightings))
        return self._collect(rollouts, results, token_results, references, list(weightings))

    def _run(self, chunk: Chunk) -> tuple[ChunkResult, TokenResult | None]:
        if self.tokens is None:
            return self.engine(self.policy, chunk, self.selection, self.sketch), None
        memory = default_memory_gib(self.policy.device) if self.memory_gib is None else self.memory_gib
        return measure_tokens(self.policy, chunk, self.selection, self.sketch, self.engine, self.tokens, memory)

    def _plan(self, rollouts: Rollouts, rows: np.ndarray, n_weightings: int) -> list[np.ndarray]:
        gradients_held = 1 + n_weightings if self.engine is vmap_engine else 0
        return plan_chunks(
            rollouts, self.policy, self.selection, self.token_budget, self.memory_gib, gradients_held, rows
        )

    def _halve_budget(self, chunk: Chunk, error: Exception) -> None:
        """Take half the tokens at once from now on.

        Raises:
            RuntimeError: when the chunk was one sequence alone, which cannot be split.
        """
        if len(chunk.rows) == 1:
            raise RuntimeError(
                f"memory ran out on a single sequence of {chunk.n_tokens} tokens ({str(error).splitlines()[0]}): "
                "measure fewer parameters (params), in bfloat16, or on a machine with more memory"
            ) from error
        self.token_budget = max(chunk.n_tokens // 2, 1)
        warnings.warn(
            f"memory ran out on {len(chunk.rows)} sequences of {chunk.n_tokens} tokens together: going on with at most "
            f"{self.token_budget} tokens at once",
            RuntimeWarning,
            stacklevel=4,
        )
        if self.policy.device.type == "cuda":
            torch.cuda.empty_cache()

    def _collect(
        self,
        rollouts: Rollouts,
        results: Sequence[ChunkResult],
        token_results: Sequence[TokenResult],
        references: Sequence[torch.Tensor],
        weightings: Sequence[str],
    ) -> Measurement:
        """Put chunk results back into the order of the rollouts; leave out gradients that are not finite."""
        rows = np.concatenate([result.chunk.rows for result in results])
        norms = np.concatenate([result.sq_norms_by_block for result in results], axis=1)
        finite = np.asarray(np.isfinite(norms).all(axis=(0, 2)))
        if token_results:
            finite &= np.concatenate([result.finite for result in token_results])
        if not finite.all():
            _report_non_finite(rollouts, rows[~finite])
        kept = np.argsort(rows, kind="stable")
        kept = kept[finite[kept]]
        parts = [{"sq_norms_by_block": self._by_block(table[kept]), "sketches": None} for table in norms]
        if self.sketch is not None:
            sketches = np.concatenate([part.sketches for part in results if part.sketches is not None], axis=1)
            for part, projected in zip(parts, sketches, strict=True):
                part["sketches"] = projected[kept]
        ragged: dict[str, Any] = {
            name: [values for result in results for values in result.chunk.ragged(getattr(result.statistics, name))]
            for name in TokenStatistics._fields
        }
        if self.reference is not None:
            pairs = zip(results, references, strict=True)
            ragged["ref_logprobs"] = [values for part, logprobs in pairs for values in part.chunk.ragged(logprobs)]
        if self.tokens is not None:
            ragged |= TokenResult.concatenate(token_results)
        ragged = {name: [values[index] for index in kept] for name, values in ragged.items()}
        lost = rollouts.frame.loc[rows[~finite], ["prompt_id", "sample_id"]].to_numpy().tolist()
        return Measurement(
            rollouts.select(rows[kept]),
            **parts[0],
            **ragged,
            weighted={name: WeightedGradients(**part) for name, part in zip(weightings, parts[1:], strict=True)},
            metadata=self.metadata | {"not_finite": lost},
        )

    def _by_block(self, norms: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(norms, columns=list(self.selection.block_names))


def _choose_engine(
    engine: str, policy: Policy, rollouts: Rollouts, selection: ParameterSelection
) -> tuple[str, SelfCheck, dict[str, str]]:
    """The engine, its self-check, and why ``auto`` passed over each earlier one."""
    if engine != "auto":
        if engine not in ENGINES:
            raise ValueError(f"engine is {engine!r}: choose one of auto, {', '.join(ENGINES)}")
        return engine, self_check(policy, rollouts, ENGINES[engine], engine, selection), {}
    passed_over: dict[str, str] = {}
    for name in ENGINES:
        try:
            check = self_check(policy, rollouts, ENGINES[name], name, selection)
        except (UnsupportedModuleError, SelfCheckError) as error:
            if name == "loop":
                raise
            passed_over[name] = str(error)
        else:
            for reason in passed_over.values():
                warnings.warn(f'measuring with engine "{name}": {reason}', UserWarning, stacklevel=4)
            return name, check, passed_over
    raise AssertionError("the loop is the last engine, and either passes or raises")


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
