"""A policy, its reference, an engine and settings that have passed the self-check, ready to measure shards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

from gradstats.config.options import TOKEN_BUDGET
from gradstats.config.sections import MeasurementSection
from gradstats.estimators.batch import Batch
from gradstats.gradients.adapter import adapter_residual, refuse_without_adapter, with_residuals
from gradstats.gradients.arithmetic import in_one_order
from gradstats.gradients.attention import (
    own_precision,
    refuse_long_sequences,
    refuse_mixed_lengths,
    warn_of_other_attention,
)
from gradstats.gradients.checks.forward_pass import refuse_unfit_forward
from gradstats.gradients.checks.plain_pass import plain_tokens
from gradstats.gradients.checks.self_check import (
    CheckedSequences,
    SelfCheck,
    SelfCheckError,
    check_result,
    refuse_not_finite,
    self_check,
    two_rows,
)
from gradstats.gradients.distributed import GroupMemoryError, Ranks
from gradstats.gradients.engines.experts import experts_implementation
from gradstats.gradients.engines.reduction import ChunkResult
from gradstats.gradients.engines.registry import ENGINES, Engine, vmap_engine
from gradstats.gradients.metric import AdamMetric, read_metric, refuse_estimated_from
from gradstats.gradients.objective import (
    Chunk,
    Objective,
    TokenStatistics,
    default_memory_gib,
    gradients_that_fit,
    make_chunk,
    plan_chunks,
)
from gradstats.gradients.parameters import (
    ParameterSelection,
    UnsupportedModuleError,
    refuse_dispatched,
    select_parameters,
)
from gradstats.gradients.recompute import RecomputeRule
from gradstats.gradients.sketches import CountSketch, default_sketch_version
from gradstats.gradients.tokens.scores import (
    MeasuredChunk,
    TokenResult,
    TokenSettings,
    TokenWeights,
    check_projections,
    measure_tokens,
    named_weightings,
)
from gradstats.measurement.measurement import Measurement, WeightedGradients, forward_proxies
from gradstats.policy.memory import is_out_of_memory, release_unused, why_out_of_memory
from gradstats.policy.model import n_logits, refuse_weights_that_are_not_finite, uncompiled, vocabulary_size
from gradstats.policy.policy import Policy, as_policy, refuse_unusable, suitable_threads
from gradstats.policy.sharding import is_sharded
from gradstats.rollouts.table import Rollouts
from gradstats.system.environment import version_of
from gradstats.system.outputs import differing_entry


class _Scored(SimpleNamespace):
    """Completions with what is known of their tokens before gradients are measured."""

    rollouts: Rollouts


def _as_reference(reference: object, policy: Policy) -> Policy:
    """Return the reference as a policy; a bare model is scored at the measured policy's temperature."""
    other = as_policy(reference)
    if other is not reference:
        other = replace(other, temperature=policy.temperature)
    expected, given = n_logits(policy.model), n_logits(other.model)
    if given != expected:
        raise ValueError(
            f"reference_policy {other.name} has a vocabulary of {given}, but {policy.name} one of {expected}: give a "
            "reference with the same tokenizer"
        )
    return other


def token_statistics(policy: Policy, chunk: Chunk) -> TokenStatistics:
    """Statistics, (batch, kept) each, of a chunk's tokens under a policy, by a forward pass without gradients."""
    refuse_mixed_lengths(policy.model, chunk.times)
    with torch.no_grad(), own_precision(policy), Objective(policy.model, policy.temperature) as objective:
        _, statistics = objective(policy.model, chunk.input_ids.to(policy.device), chunk.kept)
    return statistics


def reference_logprobs(reference: Policy, chunk: Chunk) -> torch.Tensor:
    """Log-probabilities (batch, kept) of a chunk's tokens, by a forward pass without gradients."""
    return token_statistics(reference, chunk).logprobs


@dataclass
class MeasuringSession:
    """A policy, an engine and settings that have passed the self-check, ready to measure shard after shard."""

    policy: Policy
    engine: Engine
    selection: ParameterSelection
    sketch: CountSketch | None
    reference: Policy | None
    tokens: TokenSettings | None
    token_budget: int
    memory_gib: float | None
    metadata: dict[str, Any]
    recompute: RecomputeRule
    # the sequences of the self-check, whose plain passes serve the later check of one of them as well
    checked: CheckedSequences | None = None
    # what the engine gave for the chunks of the self-check, for the first measurement alone: weights may change later
    results: list[ChunkResult] = field(default_factory=list)
    # prompt_id and sample_id of a sequence that is compared with a plain pass once more when its chunk is measured, see
    # expect; None afterwards
    checked_later: tuple[str, int] | None = None
    # whether one of the next chunk is compared as well: the self-check is that of an earlier session
    checked_next: bool = False
    ranks: Ranks = field(default_factory=Ranks)
    # whether sums are taken in the same order each time
    deterministic: bool = False
    # whether the adapter's residual at each token is kept, as a column of the rollouts
    adapter_residual: bool = False
    # digests of the prompts from which the metric's second moments were estimated
    estimated_from: frozenset[str] = frozenset()

    @classmethod
    @uncompiled()
    def open(
        cls,
        policy: object,
        rollouts: Rollouts,
        section: MeasurementSection,
        *,
        reference_policy: object = None,
        metric: AdamMetric | None = None,
        earlier: Mapping[str, object] | None = None,
        in_training: bool = False,
    ) -> MeasuringSession:
        """Resolve the settings and run the self-check on a few of the rollouts.

        Where ``earlier``, the metadata of a measurement, agrees in everything that the self-check depends on (policy,
        settings, hardware, versions, and how long sequences are), that check serves again, and one sequence of the
        first chunk is compared instead. Models that several ranks hold together are always checked. A model that is
        ``in_training`` is not compared with itself in float32, whose memory belongs to the trainer.
        """
        policy = as_policy(policy)
        ranks = Ranks.of(policy.model)
        ranks.require_same(rollouts)
        tokens = TokenSettings.of(section)
        selection = select_parameters(policy.model, section.params, section.blocks)
        metric = metric or read_metric(section.metric, section.second_moments, policy.model)
        if metric is not None:
            selection = metric.applied_to(selection, policy.model, rollouts)
        sketch_version = section.sketch_version or default_sketch_version(selection.n_parameters)
        sketch = None
        if section.sketch_dim is not None:
            sketch = CountSketch(section.sketch_dim, section.sketch_seed, sketch_version, section.block_sketches)
        refuse_dispatched(policy.model)
        refuse_unusable(str(policy.device))
        _check_vocabulary(policy, rollouts)
        refuse_long_sequences(policy, rollouts)
        refuse_weights_that_are_not_finite(policy.model, policy.name)
        if section.adapter_residual:
            refuse_without_adapter(policy)
        reference = None if reference_policy is None else _as_reference(reference_policy, policy)
        if reference is not None:
            refuse_dispatched(reference.model)
            refuse_unfit_forward(reference, rollouts.select([0]))
        recompute = RecomputeRule.of(policy, section.recompute, section.memory_gib, section.engine)
        described = {"policy": policy.describe()}
        settings = {
            **section.recorded(),
            "n_parameters": selection.n_parameters,
            "block_names": list(selection.block_names),
            "metric": None if metric is None else metric.describe(),
            "sketch_version": sketch_version,
            "reference_policy": None if reference is None else reference.describe(),
            "token_distribution": None if tokens is None else tokens.tangents.distribution,
        }
        versions = {"versions": {name: version_of(name) for name in ("gradstats", "torch", "transformers")}}
        refuse_unfit_forward(policy, rollouts.select(two_rows(rollouts)[:1]))
        checked, results = None, []
        found = None if earlier is None else _earlier_check(earlier, described | settings | versions, section.engine)
        if found is None or not found[1].serves(policy, int(rollouts.times.max()), recompute):
            checked, (chosen, check, results, passed_over) = _check(
                policy, rollouts, selection, sketch, section, recompute, in_training
            )
            recompute = checked.recompute
        else:
            chosen, check, passed_over = found
        for reason in passed_over.values():
            warnings.warn(f'measuring with engine "{chosen}": {reason}', UserWarning, stacklevel=3)
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
        of_engine = {
            "engine": chosen,
            "engines_passed_over": passed_over,
            "experts_implementation": experts_implementation(policy.model, chosen),
        }
        of_checks = {"self_check": asdict(check), "token_self_check": token_check}
        budget = section.token_budget or recompute.token_budget
        execution = {"execution": {"token_budget": budget, "tf32": False, "deterministic": section.deterministic}}
        session = cls(
            policy,
            ENGINES[chosen],
            selection,
            sketch,
            reference,
            tokens,
            budget,
            section.memory_gib,
            described | of_engine | settings | of_checks | execution | versions,
            recompute,
            checked,
            results,
            checked_next=checked is None,
            ranks=ranks,
            deterministic=section.deterministic,
            adapter_residual=section.adapter_residual,
        )
        session.estimated_from = frozenset() if metric is None else metric.prompts
        session.schedule_recheck(rollouts)
        return session

    def schedule_recheck(self, rollouts: Rollouts) -> None:
        """Choose one of the remaining sequences at random, to repeat the check on its chunk."""
        self.checked_later = sequence_to_check(rollouts)

    @uncompiled()
    def scored_batch(self, rollouts: Rollouts) -> Batch:
        """Return the batch of everything that is known before gradients are measured, from a forward pass."""
        columns = {"old_logprobs": "sampler_logprobs", "proximal_logprobs": "proximal_logprobs"}
        recorded = {field: rollouts.recorded_logprobs(column) for field, column in columns.items()}
        return Batch.from_measurement(_Scored(rollouts=rollouts, **recorded, **self.token_statistics(rollouts)))

    def token_statistics(self, rollouts: Rollouts) -> dict[str, list[np.ndarray]]:
        """Score rollouts by a forward pass alone: quantity → one array (T_i,) per completion.

        The quantities are those of :class:`gradstats.gradients.objective.TokenStatistics`, as ``"logprobs"``; and
        ``"ref_logprobs"`` where there is a reference policy.
        """
        found: dict[str, dict[int, np.ndarray]] = {name: {} for name in TokenStatistics._fields}
        if self.reference is not None:
            found["ref_logprobs"] = {}
        plan = self._plan(rollouts, np.arange(len(rollouts)), 0)
        while plan:
            chunk = make_chunk(rollouts, self.ranks.own(plan), self.policy.device, self.policy.dtype)
            try:
                with suitable_threads(self.policy), in_one_order(self.deterministic):
                    values = token_statistics(self.policy, chunk)._asdict()
                    if self.reference is not None:
                        values["ref_logprobs"] = reference_logprobs(self.reference, chunk)
                ragged = {name: chunk.ragged(value) for name, value in values.items()}
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._halve_budget(chunk, error)
            else:
                for rows, of_chunk in self.ranks.exchange((chunk.rows, ragged)):
                    for name, arrays in of_chunk.items():
                        found[name] |= dict(zip(map(int, rows), arrays, strict=True))
                plan = plan[self.ranks.size :]
                continue
            # Outside the handler, whose traceback would keep the tensors alive that did not fit.
            plan = self._plan(rollouts, np.concatenate(plan), 0)
        return {name: [values[row] for row in range(len(rollouts))] for name, values in found.items()}

    @uncompiled()
    def measure(
        self,
        rollouts: Rollouts,
        finished: Callable[[int, int], None] = lambda n_sequences, n_tokens: None,
        token_weights: TokenWeights | None = None,
        earlier: Measurement | None = None,
    ) -> Measurement:
        """Measure rollouts; to an earlier measurement of them, add the weightings and measure nothing else."""
        _check_vocabulary(self.policy, rollouts)
        refuse_long_sequences(self.policy, rollouts)
        refuse_estimated_from(self.estimated_from, rollouts)
        weightings = named_weightings(token_weights, rollouts)
        measured: list[MeasuredChunk] = []
        known, self.results = self.results, []
        n_further = len(weightings) if earlier is None else len(weightings) - 1
        plan = self._plan(rollouts, np.arange(len(rollouts)), n_further)
        while plan:
            own = self.ranks.own(plan)
            chunk = make_chunk(rollouts, own, self.policy.device, self.policy.dtype, list(weightings.values()))
            if earlier is not None:
                chunk = replace(chunk, weights=chunk.weights[1:])
            if self.engine is not vmap_engine:
                chunk = replace(chunk, recompute=self.recompute(*chunk.input_ids.shape))
            scored = self.reference if earlier is None else None
            try:
                with in_one_order(self.deterministic):
                    with suitable_threads(self.policy):
                        result, tokens = self._run(chunk, known, with_tokens=earlier is None)
                    reference = None if scored is None else reference_logprobs(scored, chunk)
                    of_adapter = earlier is None and self.adapter_residual
                    residual = adapter_residual(self.policy, chunk) if of_adapter else None
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._halve_budget(chunk, error)
            else:
                # Where there are more ranks than chunks, the last ones repeat one that is already there.
                for one in self.ranks.exchange(MeasuredChunk(result, tokens, reference, residual))[: len(plan)]:
                    refuse_not_finite(rollouts, one.result)
                    self._check_later(rollouts, one, list(weightings.values()))
                    measured.append(one)
                    finished(len(one.result.chunk.rows), one.result.chunk.n_tokens)
                plan = plan[self.ranks.size :]
                continue
            # Outside the handler, whose traceback would keep the tensors alive that did not fit.
            plan = self._plan(rollouts, np.concatenate(plan), n_further)
        return self._collect(rollouts, measured, weightings, earlier)

    def _run(
        self, chunk: Chunk, known: Sequence[ChunkResult], with_tokens: bool
    ) -> tuple[ChunkResult, TokenResult | None]:
        if self.tokens is None or not with_tokens:
            # Where ranks hold the model together, another one's chunk may not be known, and needs this one's weights.
            same = (one for one in known if self.ranks.size == 1 and one.chunk.is_same(chunk))
            if (result := next(same, None)) is not None:
                return replace(result, chunk=chunk), None
            return self.engine(self.policy, chunk, self.selection, self.sketch), None
        memory = default_memory_gib(self.policy.device) if self.memory_gib is None else self.memory_gib
        return measure_tokens(self.policy, chunk, self.selection, self.sketch, self.engine, self.tokens, memory)

    def _check_later(
        self, rollouts: Rollouts, measured: MeasuredChunk, weightings: Sequence[Sequence[np.ndarray]]
    ) -> None:
        """Compare a sequence with a plain pass: the chosen one where the chunk holds it, or one of the next chunk."""
        result, reference = measured.result, measured.reference
        rows = result.chunk.rows
        named = [*zip(map(str, rollouts.prompt_id[rows]), map(int, rollouts.sample_id[rows]), strict=True)]
        if self.checked_later in named:
            place = named.index(self.checked_later)
            self.checked_later = None
        elif self.checked_next:
            place = int(np.random.default_rng(len(rollouts)).integers(len(rows)))
        else:
            return
        for sparing in (False, True):
            if sparing:
                again = self.recompute.sparing()(1, result.chunk.times[place])
                result = replace(result, chunk=replace(result.chunk, recompute=again))
            try:
                further = {}
                if reference is not None and self.reference is not None:
                    exact = plain_tokens(self.reference, rollouts, int(rows[place]))["logprobs"]
                    further["ref_logprobs"] = (result.chunk.ragged(reference)[place], exact)
                plain = (
                    None if weightings or self.checked is None else self.checked.plain_of(rollouts, int(rows[place]))
                )
                given = (result, place, self.selection, self.sketch, weightings, further, plain)
                if check_result(self.policy, rollouts, *given):
                    self.checked_next = False
                return
            except Exception as error:
                if not is_out_of_memory(error) or is_sharded(self.policy.model):  # whose other ranks wait in a pass
                    raise
                why = why_out_of_memory(error)
            # Outside the handler, whose traceback would keep the tensors alive that did not fit.
            release_unused(self.policy.device)
            again = "repeating it with layers that run again in the backward pass where they can"
            then = "it is measured, and not compared with a plain pass" if sparing else again
            warnings.warn(
                f"memory ran out in the check of a later sequence ({why}): {then}", RuntimeWarning, stacklevel=4
            )

    def _plan(self, rollouts: Rollouts, rows: np.ndarray, n_weightings: int) -> list[np.ndarray]:
        gradients_held = 1 + n_weightings if self.engine is vmap_engine else 0
        plan = plan_chunks(
            rollouts,
            self.policy,
            self.selection,
            self.token_budget,
            self.memory_gib,
            gradients_held,
            rows,
            self.reference,
        )
        return self.ranks.common_plan(plan, rollouts)

    def _halve_budget(self, chunk: Chunk, error: Exception) -> None:
        """Halve the token budget from now on."""
        if len(chunk.rows) == 1:
            raise _too_long(f"on a single sequence of {chunk.n_tokens} tokens", error, chunk.recompute) from error
        self.token_budget = max(chunk.n_tokens // 2, 1)
        if self.ranks.size > 1:
            raise GroupMemoryError(len(chunk.rows), chunk.n_tokens, self.token_budget) from error
        warnings.warn(
            f"memory ran out on {len(chunk.rows)} sequences of {chunk.n_tokens} tokens together: continuing with at "
            f"most {self.token_budget} tokens at once",
            RuntimeWarning,
            stacklevel=4,
        )
        release_unused(self.policy.device)

    def _collect(
        self,
        rollouts: Rollouts,
        measured: Sequence[MeasuredChunk],
        weightings: Mapping[str, list[np.ndarray]],
        earlier: Measurement | None,
    ) -> Measurement:
        """Put chunk results back into the order of the rollouts; leave out gradients that are not finite."""
        results = [one.result for one in measured]
        token_results = [one.tokens for one in measured if one.tokens is not None]
        rows = np.concatenate([result.chunk.rows for result in results])
        norms = np.concatenate([self.selection.by_block(one.sq_norms_by_parameter) for one in results], axis=1)
        finite = np.asarray(np.isfinite(norms).all(axis=(0, 2)))
        if token_results:
            finite &= np.concatenate([result.finite for result in token_results])
        if not finite.all():
            _report_non_finite(rollouts, rows[~finite], bool(self.selection.preconditioner))
        kept = np.argsort(rows, kind="stable")
        kept = kept[finite[kept]]
        names = list(self.selection.block_names)
        parts = [{"sq_norms_by_block": pd.DataFrame(table[kept], columns=names), "sketches": None} for table in norms]
        for name in ("sketches", "sketches_by_block"):
            of_chunks = [values for one in results if (values := getattr(one, name)) is not None]
            for part, projected in zip(parts, np.concatenate(of_chunks, axis=1) if of_chunks else (), strict=False):
                part[name] = projected[kept]
        lost = rollouts.frame.loc[rows[~finite], ["prompt_id", "sample_id"]].to_numpy().tolist()
        further = parts if earlier is not None else parts[1:]
        weighted = {
            name: WeightedGradients(**part, weights=[weights[row] for row in rows[kept]])
            for (name, weights), part in zip(weightings.items(), further, strict=True)
        }
        if earlier is not None:
            metadata = earlier.metadata | {"not_finite": [*earlier.metadata.get("not_finite", ()), *lost]}
            earlier = earlier.select(rows[kept]) if lost else earlier
            return replace(earlier, weighted=earlier.weighted | weighted, metadata=metadata)
        ragged: dict[str, Any] = {
            name: [values for result in results for values in result.chunk.ragged(getattr(result.statistics, name))]
            for name in TokenStatistics._fields
        }
        if self.reference is not None:
            scored = [(one.result.chunk, one.reference) for one in measured if one.reference is not None]
            ragged["ref_logprobs"] = [values for chunk, logprobs in scored for values in chunk.ragged(logprobs)]
        if self.tokens is not None:
            ragged |= TokenResult.concatenate(token_results)
        ragged = {name: [values[index] for index in kept] for name, values in ragged.items()}
        rollouts = rollouts.select(rows[kept])
        if self.adapter_residual:
            residuals = [
                values
                for one in measured
                if one.residual is not None
                for values in one.result.chunk.ragged(one.residual)
            ]
            rollouts = with_residuals(rollouts, [residuals[index] for index in kept])
        forward = forward_proxies(ragged["logprobs"], ragged["entropy"], ragged["sum_pi_squared"], rollouts.masks)
        by_parameter = np.concatenate([one.sq_norms_by_parameter[0] for one in results])[kept]
        return Measurement(
            rollouts,
            **parts[0],
            **ragged,
            proxies=forward | self.selection.by_proxy(by_parameter),
            weighted=weighted,
            metadata=self.metadata | {"not_finite": lost},
        )


def sequence_to_check(rollouts: Rollouts) -> tuple[str, int]:
    """Return prompt_id and sample_id of one of the sequences, chosen at random."""
    row = int(np.random.default_rng(len(rollouts)).integers(len(rollouts)))
    return str(rollouts.prompt_id[row]), int(rollouts.sample_id[row])


def _too_long(what: str, error: Exception, recomputed: bool) -> RuntimeError:
    again = "" if recomputed else 'with recompute="on", '
    return RuntimeError(
        f"memory ran out {what} ({why_out_of_memory(error)}): "
        f"measure {again}fewer parameters (params), in bfloat16, or on a machine with more memory"
    )


def _check(
    policy: Policy,
    rollouts: Rollouts,
    selection: ParameterSelection,
    sketch: CountSketch | None,
    section: MeasurementSection,
    recompute: RecomputeRule,
    in_training: bool,
) -> tuple[CheckedSequences, tuple[str, SelfCheck, list[ChunkResult], dict[str, str]]]:
    """Choose the engine by its self-check; where memory runs out, once more with as little of it as possible."""
    for sparing in (False, True):
        given = (recompute.sparing(), 0) if sparing else (recompute, TOKEN_BUDGET)
        try:
            with in_one_order(section.deterministic):
                checked = CheckedSequences.make(policy, rollouts, selection, sketch, *given, in_training)
                return checked, _choose_engine(section, checked)
        except Exception as error:
            if not is_out_of_memory(error) or is_sharded(policy.model):  # whose other ranks wait in a pass
                raise
            if sparing:
                raise _too_long("in the self-check", error, given[0].wanted == "on") from error
        # Outside the handler, whose traceback would keep the tensors alive that did not fit.
        release_unused(policy.device)
        warnings.warn(
            "memory ran out in the self-check: repeating it with each sequence alone, whose layers run again in the "
            "backward pass where they can",
            RuntimeWarning,
            stacklevel=4,
        )
    raise AssertionError("the second attempt either returns or raises")


def _choose_engine(
    section: MeasurementSection, checked: CheckedSequences
) -> tuple[str, SelfCheck, list[ChunkResult], dict[str, str]]:
    """Return the engine, its self-check with the results, and why ``auto`` passed over each earlier one."""
    engine = section.engine
    if engine == "auto" and is_sharded(checked.policy.model):
        engine = "ghost"  # the only one that works without whole parameters
    if engine != "auto":
        return engine, *self_check(checked, ENGINES[engine], engine), {}
    passed_over: dict[str, str] = {}
    for name in ENGINES:
        if name == "vmap" and gradients_that_fit(checked.policy, checked.selection, section.memory_gib) < 2:
            # Checking it holds two gradients; measuring would take one sequence at a time, as the loop does.
            passed_over[name] = 'engine="vmap" holds a gradient for each sequence: memory_gib has room for one at most'
            continue
        try:
            check, results = self_check(checked, ENGINES[name], name)
        except (UnsupportedModuleError, SelfCheckError) as error:
            if name == "loop":
                raise
            passed_over[name] = str(error)
        else:
            return name, check, results, passed_over
    raise AssertionError("the loop is the last engine, and either passes or raises")


def _earlier_check(
    earlier: Mapping[str, Any], depends_on: Mapping[str, object], engine: str
) -> tuple[str, SelfCheck, dict[str, str]] | None:
    """Return engine, self-check and engines passed over of an earlier measurement, None where its settings differ."""
    known = {name: earlier.get(name) for name in depends_on}
    if engine not in ("auto", earlier.get("engine")) or differing_entry(known, depends_on) is not None:
        return None
    check = earlier.get("self_check") or {}
    if check.keys() != {one.name for one in fields(SelfCheck)}:  # of an earlier release
        return None
    return earlier["engine"], SelfCheck(**check), dict(earlier["engines_passed_over"])


def _check_vocabulary(policy: Policy, rollouts: Rollouts) -> None:
    size = vocabulary_size(policy.model)
    for column in ("prompt_tokens", "completion_tokens"):
        largest = max(max(tokens) for tokens in rollouts.frame[column])
        smallest = min(min(tokens) for tokens in rollouts.frame[column])
        if smallest < 0 or largest >= size:
            wrong = smallest if smallest < 0 else largest
            raise ValueError(
                f"{column} hold the token id {wrong}, but {policy.name} has a vocabulary of {size}: the rollouts "
                "belong to another tokenizer"
            )


def _report_non_finite(rollouts: Rollouts, rows: np.ndarray, in_metric: bool) -> None:
    named = ", ".join(f"{rollouts.prompt_id[row]}/{rollouts.sample_id[row]}" for row in rows[:5])
    more = " …" if len(rows) > 5 else ""
    where, advice = (" in this metric", "give it a larger eps") if in_metric else ("", 'try dtype="float32"')
    message = f"{len(rows)} of {len(rollouts)} sequences have a gradient that is not finite{where} ({named}{more})"
    if len(rows) == len(rollouts):
        raise ValueError(f"{message}: none is left to measure; {advice}")
    warnings.warn(f"{message}; they are left out", RuntimeWarning, stacklevel=4)
