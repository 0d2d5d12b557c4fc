"""A measurement: the gradients of completions as norms and sketches, their files, and the joining of shards."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from gradstats.config.options import EUCLIDEAN, how_to_set, written
from gradstats.config.sections import MeasurementSection
from gradstats.measurement.scored import SCORED, all_scored
from gradstats.measurement.state_values import stored_values
from gradstats.measurement.token_scores import TokenScores
from gradstats.rollouts.table import Rollouts, part_of_run, read_rollouts, refuse_different_policies
from gradstats.system.files import (
    FORMAT,
    atomic_path,
    changed_sentence,
    digest,
    file_digest,
    read_json,
    refuse_newer_format,
    write_json,
)
from gradstats.system.lazy_imports import pd
from gradstats.system.outputs import OutputType, claim, differing_entry
from gradstats.system.shards import OF_THE_CALL, ORIGIN, PLAN, planned_shards, read_origin, refuse_foreign_shard

T = TypeVar("T")


def metric_label(metadata: Mapping[str, Any]) -> str:
    """Return the label of the metric that a measurement's metadata records; without a record it is Euclidean.

    Two measurements are comparable if and only if their labels are equal: Adam's contains a digest of the second
    moments.

    Example:
        >>> metric_label({})
        'euclidean'
        >>> adam = {"name": "adam", "eps": 1e-8, "power": 0.5, "step": None, "beta2": 0.999, "moments": "1a2b"}
        >>> metric_label({"metric": adam})
        'adam(eps=1e-08, power=0.5, moments=1a2b)'
    """
    described = metadata.get("metric")
    if described is None:
        return EUCLIDEAN
    decay = [] if described.get("step") is None else ["step", "beta2"]
    names = ["eps", "power", *decay, "moments"]
    inside = ", ".join(f"{name}={_value(described[name])}" for name in names)
    return f"{described['name']}({inside})"


def metric_sentence(metadata: Mapping[str, Any]) -> str:
    """Return what the metric of a measurement is, as a sentence without its full stop; empty for the Euclidean one.

    Example:
        >>> adam = {"name": "adam", "eps": 1e-8, "power": 0.5, "step": None, "beta2": 0.999, "moments": "1a2b"}
        >>> metric_sentence({"metric": adam | {"source": "optimizer.pt"}})
        'norms and inner products are those of P·S with P = 1/(v̂^0.5 + 1e-08), v̂ from optimizer.pt'
    """
    described = metadata.get("metric")
    if described is None:
        return ""
    power, eps = _value(described["power"]), _value(described["eps"])
    source = described.get("source")
    return f"norms and inner products are those of P·S with P = 1/(v̂^{power} + {eps})" + (
        f", v̂ from {source}" if source else ""
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else written(value)


_LAYER = re.compile(r"^(?:.*?\.)?(?:layers|layer|h|blocks|block)\.(\d+)(?:\.(.*))?$")


def split_layer(name: str) -> tuple[int, str] | None:
    """Return the number of a layer and the rest of the name, or None for what is in no layer.

    Example:
        >>> split_layer("model.layers.3.mlp.up_proj.weight")
        (3, 'mlp.up_proj.weight')
        >>> split_layer("layers.3")
        (3, '')
        >>> split_layer("lm_head.weight") is None
        True
    """
    match = _LAYER.match(name)
    return None if match is None else (int(match.group(1)), match.group(2) or "")


#: The error of a measurement without the sketches by block that are needed.
NO_BLOCK_SKETCHES = (
    f"this measurement holds no sketches by block: measure with {how_to_set('measurement.block_sketches', True)}"
)
#: Why inner products of gradients are not known.
NO_SKETCHES = (
    "the measurement holds no sketches, which inner products of gradients need: measure with "
    f"{how_to_set('measurement.sketch_dim', 16384)}"
)


@dataclass(frozen=True)
class WeightedGradients:
    r"""Gradients :math:`\sum_t w_t \nabla\log\pi(y_{i,t})` under the user's token weights, as norms and sketches."""

    sq_norms_by_block: pd.DataFrame  # frame (N, blocks), squared norms
    # (N, sketch_dim), projections of the same seed as those of the measurement itself, or None
    sketches: np.ndarray | None
    # (N, blocks, sketch_dim), those of each block, which sum to sketches; or None
    sketches_by_block: np.ndarray | None = None
    # for each sequence its (T_i,) weights w_t; None for the scores themselves, and where they were not kept
    weights: list[np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.sq_norms_by_block)

    @property
    def sq_norms(self) -> np.ndarray:
        """(N,) squared norms."""
        return self.sq_norms_by_block.to_numpy(dtype=np.float64).sum(axis=1)

    def gram(self) -> np.ndarray:
        """Return (N, N) inner products: unbiased from the sketches, exact on the diagonal."""
        return sketched_gram(self.sketches, self.sq_norms)

    def select(self, rows: np.ndarray) -> WeightedGradients:
        """Return the sequences at the given positions, in that order."""
        table = self.sq_norms_by_block.iloc[rows].reset_index(drop=True)
        whole, by_block = (
            None if values is None else values[rows] for values in (self.sketches, self.sketches_by_block)
        )
        weights = None if self.weights is None else [self.weights[row] for row in rows]
        return WeightedGradients(table, whole, by_block, weights)

    def of_block(self, block: str) -> WeightedGradients:
        """Return the gradients with respect to the parameters of one block alone."""
        if self.sketches_by_block is None:
            raise ValueError(NO_BLOCK_SKETCHES)
        place = list(self.sq_norms_by_block).index(block)
        return WeightedGradients(self.sq_norms_by_block.filter(items=[block]), self.sketches_by_block[:, place])

    @classmethod
    def concatenate(cls, shards: Sequence[WeightedGradients]) -> WeightedGradients:
        """Stack the gradients of several shards, which all have the same sketches."""

        def stacked(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
            present = [values for values in arrays if values is not None]
            return np.concatenate(present) if present else None

        return cls(
            pd.concat([shard.sq_norms_by_block for shard in shards], ignore_index=True),
            stacked([shard.sketches for shard in shards]),
            stacked([shard.sketches_by_block for shard in shards]),
            None
            if any(shard.weights is None for shard in shards)
            else [row for shard in shards for row in shard.weights or ()],
        )


def sketched_gram(sketches: np.ndarray | None, sq_norms: np.ndarray) -> np.ndarray:
    r"""(N, N) inner products: :math:`\langle C S_i, C S_j\rangle` from the sketches, squared norms on the diagonal."""
    if sketches is None:
        raise ValueError(NO_SKETCHES)
    wide = sketches.astype(np.float64)
    gram = wide @ wide.T
    np.fill_diagonal(gram, sq_norms)
    return gram


#: Fields with one value per token.
_TOKEN_FIELDS = ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")
#: Fields with one row per token that a measurement may lack.
_OPTIONAL_TOKEN_FIELDS = ("ref_logprobs", "token_projections", "values", "fitted_values")
#: Fields with one row per exactly measured token, which a measurement may lack.
_HEAVY_FIELDS = ("heavy_positions", "heavy_sq_norms", "heavy_sketches")
#: What precedes the name of a proxy in the file of tensors.
_PROXIES = "proxies/"


def forward_proxies(
    logprobs: Sequence[np.ndarray],
    entropy: Sequence[np.ndarray],
    sum_pi_squared: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
    r"""Return what a forward pass foretells of squared norms, (N,) sums over each sequence's counted tokens.

    "logit" :math:`\sum_t (1 - 2\pi_t + \sum_v \pi_v^2)`, the squared norms of gradients with respect to the logits,
    "surprisal" :math:`\sum_t -\log\pi_t`, and "entropy".

    >>> half, counted = np.full(3, 0.5), np.array([True, True, False])
    >>> {name: float(sums[0]) for name, sums in forward_proxies([np.log(half)], [half], [half], [counted]).items()}
    {'logit': 1.0, 'surprisal': 1.3862943611198906, 'entropy': 1.0}
    """
    rows = [*zip(logprobs, entropy, sum_pi_squared, masks, strict=True)]
    sums = {
        "logit": [float((1 - 2 * np.exp(logs[mask]) + squares[mask]).sum()) for logs, _, squares, mask in rows],
        "surprisal": [-float(logs[mask].sum()) for logs, _, _, mask in rows],
        "entropy": [float(entropies[mask].sum()) for _, entropies, _, mask in rows],
    }
    return {name: np.array(values) for name, values in sums.items()}


@dataclass(frozen=True)
class Measurement:
    r"""Per-sequence gradients of :math:`S_i = \sum_t \nabla\log\pi(y_{i,t})`, kept as norms and sketches.

    Attributes:
        rollouts: the N sequences that were measured.
        sq_norms_by_block: frame (N, blocks), squared gradient norms; a row sums to :math:`\lVert S_i\rVert^2`.
        sketches: (N, ``sketch_dim``), unbiased random projections of the :math:`S_i`, or None.
        logprobs: for each sequence, :math:`(T_i,)` log-probabilities of its tokens under the scored distribution, in
            nats.
        entropy: for each sequence, :math:`(T_i,)` entropies of that distribution, in nats.
        sum_pi_squared: for each sequence, :math:`(T_i,)` sums of squared probabilities.
        hidden_sq_norms: for each sequence, :math:`(T_i,)` squared norms of what enters the output embedding.
        metadata: engine, parameters, sketch, policy, self-check, versions.
        ref_logprobs: for each sequence, :math:`(T_i,)` log-probabilities of its tokens under the reference policy, or
            None.
        weighted: further weightings of the tokens, by name.
        token_projections: for each sequence, :math:`(T_i, K)` projections :math:`\langle s_t, v_k\rangle` of every
            token's score on K random directions with :math:`\mathbb E\,v v^\top = I`, zero where masked; or None.
        heavy_positions: for each sequence, :math:`(m_i,)` sorted positions of the tokens measured exactly; or None.
        heavy_sq_norms: for each sequence, :math:`(m_i,)` exact :math:`\lVert s_t\rVert^2` of those; or None.
        heavy_sketches: for each sequence, (:math:`m_i`, ``sketch_dim``) sketches of those, of the same projection as
            ``sketches``; or None.
        values: for each sequence, :math:`(T_i,)` Monte-Carlo values of the state before each token, NaN inside steps;
            or None.
        fitted_values: for each sequence, :math:`(T_i,)` values of the same states by a fitted head; or None.
        sketches_by_block: (N, blocks, ``sketch_dim``) sketches of the parts of the :math:`S_i` that belong to the
            blocks of ``sq_norms_by_block``, which sum to ``sketches``; or None.
        proxies: (N,) arrays of what foretells a squared norm: of each sequence's counted tokens the sums "logit",
            "surprisal" and "entropy" (see :func:`forward_proxies`), and squared norms of the parts of its gradient that
            belong to ``"norm_layers"`` and to the ``"head"``, an output embedding that is not tied to the input's, as
            far as these parameters were measured. Empty where nothing recorded them.
        scored: ``prompt_id``, ``sample_id``, ``reward``, ``length`` and the first three proxies of every completion of
            a run that measures some of its prompts, of which these sequences are some; None elsewhere.

    Raises:
        ValueError: when the fields disagree about the number of sequences or of tokens.

    >>> rollouts = Rollouts.from_sequences([[5], [5]], [[1, 2], [3]], rewards=[1.0, 0.0], prompt_ids=["a", "a"])
    >>> per_token = [np.zeros(2), np.zeros(1)]
    >>> norms = pd.DataFrame({"layer 0": [4.0, 1.0], "layer 1": [5.0, 2.0]})
    >>> measured = Measurement(rollouts, norms, None, per_token, per_token, per_token, per_token)
    >>> measured.lengths.tolist(), measured.sq_norms.tolist()
    ([2, 1], [9.0, 3.0])
    >>> len(Measurement.concatenate([measured.select([1]), measured.select([0])]))
    2
    """

    rollouts: Rollouts
    sq_norms_by_block: pd.DataFrame
    sketches: np.ndarray | None
    logprobs: list[np.ndarray]
    entropy: list[np.ndarray]
    sum_pi_squared: list[np.ndarray]
    hidden_sq_norms: list[np.ndarray]
    metadata: dict[str, Any] = field(default_factory=dict)
    ref_logprobs: list[np.ndarray] | None = None
    weighted: dict[str, WeightedGradients] = field(default_factory=dict)
    token_projections: list[np.ndarray] | None = None
    heavy_positions: list[np.ndarray] | None = None
    heavy_sq_norms: list[np.ndarray] | None = None
    heavy_sketches: list[np.ndarray] | None = None
    values: list[np.ndarray] | None = None
    fitted_values: list[np.ndarray] | None = None
    sketches_by_block: np.ndarray | None = None
    proxies: Mapping[str, np.ndarray] = field(default_factory=dict)
    scored: pd.DataFrame | None = field(default=None, repr=False)
    # What analyses derived from a measurement that they share; None keeps nothing. A changed copy begins without.
    _derived: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        n = len(self.rollouts)
        whole = self._present(("sq_norms_by_block", "sketches", "sketches_by_block"))
        counts = {name: len(rows) for name, rows in (self.per_token_fields() | whole | self.heavy_fields()).items()}
        for name, gradients in self.weighted.items():
            counts[f"weighted[{name!r}]"] = len(gradients)
            if gradients.weights is not None:
                counts[f"weighted[{name!r}].weights"] = len(gradients.weights)
        counts |= {f"proxies[{name!r}]": len(values) for name, values in self.proxies.items()}
        for name, count in counts.items():
            if count != n:
                raise ValueError(f"the measurement's {name} has {count} rows for {n} rollouts")
        tokens = [len(tokens) for tokens in self.rollouts.frame["completion_tokens"]]
        for name, rows in self.per_token_fields().items():
            if [len(values) for values in rows] != tokens:
                raise ValueError(f"the measurement's {name} does not have one value per completion token")
        for name, rows in self.heavy_fields().items():
            if self.heavy_positions is None or list(map(len, rows)) != list(map(len, self.heavy_positions)):
                raise ValueError(f"the measurement's {name} does not have one row per position in heavy_positions")

    def __repr__(self) -> str:
        """Return what was measured, in a line."""
        sketch = "no sketches" if self.sketches is None else f"sketches of {self.sketches.shape[1]}"
        engine = self.metadata.get("engine", "unknown engine")
        n_blocks = len(self.sq_norms_by_block.columns)
        return f"<Measurement of {self.rollouts.summary()}; {n_blocks} blocks, {sketch}, {engine}>"

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) number of completion tokens that count."""
        return self.rollouts.lengths

    @property
    def sq_norms(self) -> np.ndarray:
        r"""(N,) :math:`\lVert S_i\rVert^2`."""
        return self.sq_norms_by_block.to_numpy(dtype=np.float64).sum(axis=1)

    @property
    def gradients(self) -> WeightedGradients:
        """Norms and sketches alone."""
        return WeightedGradients(self.sq_norms_by_block, self.sketches, self.sketches_by_block)

    @property
    def sketch_dim(self) -> int | None:
        """Number of buckets of the sketches, None without sketches."""
        return None if self.sketches is None else self.sketches.shape[1]

    @property
    def old_logprobs(self) -> list[np.ndarray] | None:
        """The sampler's log-probability of each token, one array per sequence, where it recorded them."""
        return self.rollouts.recorded_logprobs("sampler_logprobs")

    @property
    def proximal_logprobs(self) -> list[np.ndarray] | None:
        """That of the trainer's policy as the step began, one array per sequence, where the trainer recorded it."""
        return self.rollouts.recorded_logprobs("proximal_logprobs")

    def keeping_derived(self) -> Measurement:
        """Return this measurement, which from now on keeps what several analyses derive from it.

        Its rollouts must not be changed in place any more.
        """
        object.__setattr__(self, "_derived", {})
        return self

    @property
    def keeps_derived(self) -> bool:
        """Whether it keeps what several analyses derive from it."""
        return self._derived is not None

    def derived(self, name: str, make: Callable[[], T]) -> T:
        """Return what is derived from this measurement: from the second time on what was kept, where it keeps any."""
        if self._derived is None:
            return make()
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]

    def gram(self) -> np.ndarray:
        r"""(N, N) estimates of :math:`\langle S_i, S_j\rangle`: unbiased from the sketches, exact on the diagonal.

        Raises:
            ValueError: when no sketches were measured.
        """
        return sketched_gram(self.sketches, self.sq_norms)

    @property
    def n_token_probes(self) -> int:
        """K, the number of random directions that token scores were projected on; 0 for none."""
        return self.token_projections[0].shape[1] if self.token_projections else 0

    def token_scores(self) -> list[TokenScores] | None:
        """Return each sequence's measured token scores; None when neither probes nor exact tokens were measured."""
        if self.token_projections is None and self.heavy_positions is None:
            return None
        nothing = np.zeros(0)
        return [
            TokenScores(
                None if self.token_projections is None else self.token_projections[row],
                nothing.astype(np.int64) if self.heavy_positions is None else self.heavy_positions[row],
                nothing if self.heavy_sq_norms is None else self.heavy_sq_norms[row],
                None if self.heavy_sketches is None else self.heavy_sketches[row],
                mask,
            )
            for row, mask in enumerate(self.rollouts.masks)
        ]

    @property
    def token_energy(self) -> list[np.ndarray] | None:
        r"""For each sequence, :math:`(T_i,)` :math:`\lVert s_t\rVert^2`, unbiased: see :meth:`TokenScores.energy`."""
        scores = self._scores_with_probes(1, "token energies")
        return None if scores is None else [one.energy() for one in scores]

    @property
    def token_energy_stderr(self) -> list[np.ndarray] | None:
        """For each sequence, :math:`(T_i,)` standard errors of the token energies, 0 where they are exact."""
        scores = self._scores_with_probes(1, "token energies")
        return None if scores is None else [one.energy_stderr() for one in scores]

    @property
    def cumulative_energy(self) -> list[np.ndarray] | None:
        r"""For each sequence, :math:`(T_i,)` :math:`W_t = \sum_{u\le t}\lVert s_u\rVert^2`, unbiased."""
        scores = self._scores_with_probes(1, "cumulative energies")
        return None if scores is None else [one.cumulative_energy() for one in scores]

    @property
    def cumulative_energy_stderr(self) -> list[np.ndarray] | None:
        """For each sequence, :math:`(T_i,)` standard errors of cumulative energies, from the spread of the probes."""
        scores = self._scores_with_probes(2, "standard errors of cumulative energies")
        return None if scores is None else [one.cumulative_energy_stderr() for one in scores]

    @property
    def token_cross(self) -> list[np.ndarray] | None:
        r"""For each sequence, :math:`(T_i,)` :math:`\langle s_t, S\rangle`, unbiased: see :meth:`TokenScores.cross`."""
        scores = self._scores_with_probes(1, "inner products of light tokens")
        if scores is None:
            return None
        sketches = [None] * len(scores) if self.sketches is None else self.sketches
        return [one.cross(sketch) for one, sketch in zip(scores, sketches, strict=True)]

    def _scores_with_probes(self, needed: int, what: str) -> list[TokenScores] | None:
        """Return the token scores, with a warning where some tokens need more probes than were measured."""
        scores = self.token_scores()
        if scores is not None and self.n_token_probes < needed and any(one.light.any() for one in scores):
            warnings.warn(
                f"{what} are NaN on tokens that were not measured exactly, since token_probes is "
                f"{self.n_token_probes}: measure with {how_to_set('measurement.token_probes', max(needed, 32))}",
                RuntimeWarning,
                stacklevel=3,
            )
        return scores

    def per_token_fields(self) -> dict[str, list[np.ndarray]]:
        """Return the fields with one row per token that this measurement has, by name."""
        return self._present((*_TOKEN_FIELDS, *_OPTIONAL_TOKEN_FIELDS))

    def heavy_fields(self) -> dict[str, list[np.ndarray]]:
        """Return the fields with one row per exactly measured token that this measurement has, by name."""
        return self._present(_HEAVY_FIELDS)

    def _present(self, names: Sequence[str]) -> dict[str, Any]:
        rows = {name: getattr(self, name) for name in names}
        return {name: values for name, values in rows.items() if values is not None}

    def select(self, index: np.ndarray | Sequence[int] | slice) -> Measurement:
        """Return the sequences at the given positions, in that order."""
        rows = np.arange(len(self))[index]
        gradients = self.gradients.select(rows)
        per_sequence = self.per_token_fields() | self.heavy_fields()
        return replace(
            self,
            rollouts=self.rollouts.select(rows),
            sq_norms_by_block=gradients.sq_norms_by_block,
            sketches=gradients.sketches,
            sketches_by_block=gradients.sketches_by_block,
            **{name: [values[row] for row in rows] for name, values in per_sequence.items()},
            weighted={name: gradients.select(rows) for name, gradients in self.weighted.items()},
            proxies={name: values[rows] for name, values in self.proxies.items()},
        )

    @classmethod
    def concatenate(cls, shards: Iterable[Measurement], *, allow_policy_mismatch: bool = False) -> Measurement:
        """Stack measurements of the same policy, parameters and sketch.

        Args:
            shards: the measurements.
            allow_policy_mismatch: join measurements, or their completions, of policies with different digests.

        Returns:
            One measurement, with the metadata of the first and the sequences of all whose gradient was not finite.

        Raises:
            ValueError: when there are none, or they differ in policy, blocks, sketches, weightings or reference policy.
        """
        shards = list(shards)
        if not shards:
            raise ValueError("there are no measurements to concatenate: give at least one")
        _refuse_different(shards)
        if not allow_policy_mismatch:
            refuse_different_policies((shard.metadata for shard in shards), "measurements")
        tables = (shard.rollouts for shard in shards)
        gradients = WeightedGradients.concatenate([shard.gradients for shard in shards])
        per_token = [shard.per_token_fields() | shard.heavy_fields() for shard in shards]
        return cls(
            Rollouts.concatenate(tables, allow_policy_mismatch=allow_policy_mismatch),
            gradients.sq_norms_by_block,
            gradients.sketches,
            **{name: [rows for fields in per_token for rows in fields[name]] for name in per_token[0]},
            weighted={
                name: WeightedGradients.concatenate([shard.weighted[name] for shard in shards])
                for name in shards[0].weighted
            },
            metadata={name: value for name, value in shards[0].metadata.items() if name != ORIGIN}
            | {"not_finite": [row for shard in shards for row in shard.metadata.get("not_finite", [])]},
            sketches_by_block=gradients.sketches_by_block,
            scored=None,
            # Shards of an earlier release hold none.
            proxies={
                name: np.concatenate([shard.proxies[name] for shard in shards])
                for name in shards[0].proxies
                if all(name in shard.proxies for shard in shards)
            },
        )

    def save(self, folder: str | os.PathLike[str], token_dtype: str = "float32", *, overwrite: bool = False) -> None:
        """Write ``rollouts.parquet``, ``tensors.safetensors`` and ``measurement.json``, all of them or none.

        Args:
            folder: where to write them; a measurement of the same completions with the same settings is replaced.
            token_dtype: "float32" or "float16", of token projections and of the sketches of exactly measured tokens.
            overwrite: replace another measurement as well.

        Raises:
            FileExistsError: when something else lies there, which is left alone.
            ValueError: when a projection is too large for ``token_dtype``, or for another type.
        """
        from safetensors.numpy import save_file  # which imports NumPy

        claim_measurement(folder, self.metadata, self.rollouts, overwrite)
        tensors = {name: np.concatenate(rows) for name, rows in (self.per_token_fields() | self.heavy_fields()).items()}
        if self.heavy_positions is not None:
            tensors["heavy_counts"] = np.array([len(rows) for rows in self.heavy_positions], dtype=np.int64)
        for name in _NARROWED & set(tensors):
            tensors[name] = _narrowed(name, tensors[name], token_dtype)
        weighted = {f"weighted/{name}/": gradients for name, gradients in self.weighted.items()}
        for prefix, gradients in {"": self.gradients, **weighted}.items():
            tensors[f"{prefix}sq_norms_by_block"] = gradients.sq_norms_by_block.to_numpy(dtype=np.float64)
            if gradients.sketches is not None:
                tensors[f"{prefix}sketches"] = gradients.sketches
            if gradients.sketches_by_block is not None:
                tensors[f"{prefix}sketches_by_block"] = gradients.sketches_by_block
            if gradients.weights is not None:
                tensors[f"{prefix}weights"] = np.concatenate(gradients.weights)
        tensors |= {f"{_PROXIES}{name}": values for name, values in self.proxies.items()}
        # safetensors writes an array's memory as it is laid out: a transposed array would be read back scrambled.
        tensors = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        with atomic_path(folder, replace_folder=True) as partial:
            partial.mkdir()
            self.rollouts.to_parquet(partial / "rollouts.parquet")
            try:
                save_file(tensors, partial / "tensors.safetensors")
            except SafetensorError as error:  # the error of safetensors for a full disk
                raise OSError(
                    f"the measurement cannot be written to {os.fspath(folder)} ({error}): free some space"
                ) from error
            described = {
                "format": FORMAT,
                "block_names": list(self.sq_norms_by_block),
                "weighted": list(self.weighted),
                "metadata": self.metadata,
                "tensors": file_digest(partial / "tensors.safetensors"),
                "sequences": _sequences_digest(self.rollouts),
            }
            write_json(partial / "measurement.json", described)


# Entries of the metadata that measurements must share to be joined: settings, and what follows from others.
_SHARED = (*MeasurementSection.fields_that("shared"), "block_names", "token_distribution")


def _refuse_different(shards: Sequence[Measurement]) -> None:
    """Refuse measurements whose values are not comparable."""
    for name in _SHARED:
        values = {str(shared_entry(shard, name)) for shard in shards}
        if len(values) > 1:
            raise ValueError(
                f"measurements differ in {name} ({', '.join(sorted(values))}): measure them with the same settings"
            )
    for name, kinds in (
        ("sketches by block", {shard.sketches_by_block is None for shard in shards}),
        ("ref_logprobs", {shard.ref_logprobs is None for shard in shards}),
        ("values", {shard.values is None for shard in shards}),
        ("fitted_values", {shard.fitted_values is None for shard in shards}),
        ("token_projections", {shard.token_projections is None for shard in shards}),
        ("the tokens measured exactly", {tuple(shard.heavy_fields()) for shard in shards}),
        ("the names of their token_weights", {tuple(shard.weighted) for shard in shards}),
    ):
        if len(kinds) > 1:
            raise ValueError(f"measurements differ in {name}: measure them with the same settings")


def shared_entry(measured: Measurement, name: str) -> object:
    """Return an entry of the metadata; measurements that record no version of the sketch have version 1."""
    if name == "metric":
        return metric_label(measured.metadata)
    if name == "sketch_version":
        return None if measured.sketches is None else measured.metadata.get(name, 1)
    return measured.metadata.get(name)


# What ``token_dtype`` narrows.
_NARROWED = {"token_projections", "heavy_sketches"}


def _narrowed(name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype not in ("float32", "float16"):
        raise ValueError(f'token_dtype is {dtype!r}: choose "float32" or "float16"')
    largest = np.abs(values).max(initial=0.0)
    if largest > np.finfo(dtype).max:
        raise ValueError(f'{name} reach {largest:.3g}, too large for {dtype}: save with token_dtype="float32"')
    return values.astype(dtype)


def _sequences_digest(rollouts: Rollouts) -> str:
    """Digest which completions were measured; their rewards may change when a run is scored again."""
    columns = ("prompt_id", "sample_id", "prompt_tokens", "completion_tokens", "completion_mask")
    return digest([rollouts.frame[name].map(_listed).tolist() for name in columns if name in rollouts.frame])


def _listed(cell: Any) -> Any:
    return np.asarray(cell).tolist() if isinstance(cell, (list, tuple, np.ndarray)) else cell


def claim_measurement(
    folder: str | os.PathLike[str], metadata: Mapping[str, object], rollouts: Rollouts, overwrite: bool
) -> None:
    """Refuse to write a measurement where something else lies, or one of other settings or completions."""

    def difference() -> str | None:
        there = read_json(Path(folder) / "measurement.json")
        known = {name: value for name, value in there["metadata"].items() if name in metadata}
        other = None if there.get("sequences") == _sequences_digest(rollouts) else "other completions"
        return differing_entry(known, metadata, OF_THE_CALL) or other

    claim(folder, MEASUREMENT, overwrite=overwrite, difference=difference)


# The files of a measurement.
_FILES = {"rollouts.parquet", "tensors.safetensors", "measurement.json"}


def _is_measurement_folder(folder: Path) -> bool:
    """Return whether a folder holds the files of a measurement that this program wrote, and nothing else."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - _FILES:
        return False
    try:
        described = read_json(folder / "measurement.json")
    except (ValueError, OSError):
        return False
    return isinstance(described.get("metadata"), dict) and "block_names" in described


MEASUREMENT = OutputType("a measurement", _is_measurement_folder)


def read_measurement(folder: str | os.PathLike[str], *, partial: bool = False) -> Measurement:
    """Read what :meth:`Measurement.save` wrote, a folder of such folders (in the order of their names), or a run's.

    Args:
        folder: the folder or the run directory.
        partial: read the shards there are where some of those that the run planned are missing.

    Raises:
        FileNotFoundError: when there is no measurement in it.
        ValueError: when a file is damaged, has changed since it was written (by its checksum), or belongs to another
            run; when shards are missing; and for a run whose completions are being scored again.
    """
    folder = part_of_run(Path(folder), "measurement")
    if not (folder / "measurement.json").exists():
        measured = Measurement.concatenate(_read_shards(folder, partial))
        if folder.name != "measurement":
            return measured
        # Within a run, state values lie beside its measurement, and proxies of what is not measured in it.
        plan_file, rollouts = folder.parent / "rollouts" / PLAN, measured.rollouts
        scored = all_scored(folder, plan_file, rollouts, measured.proxies, partial)
        return replace(measured, scored=scored, **stored_values(folder.parent / "values", rollouts))
    rollouts = read_rollouts(folder / "rollouts.parquet")
    described = read_json(folder / "measurement.json")
    refuse_newer_format(folder, described.get("format", 1))
    tensors_file = folder / "tensors.safetensors"
    try:
        if "tensors" in described and described["tensors"] != file_digest(tensors_file):
            raise ValueError(changed_sentence(tensors_file))
        if "sequences" in described and described["sequences"] != _sequences_digest(rollouts):
            raise ValueError("its rollouts.parquet holds other completions than those that were measured")
        return _measurement(described, _load_file(tensors_file), rollouts)
    except (SafetensorError, LookupError, TypeError, AttributeError, ValueError, OSError) as error:
        raise ValueError(
            f"the measurement in {folder} cannot be read ({error}): remove it and measure again"
        ) from error


#: The sketches of so many bytes are left in their file, from which parts are read as they are needed.
_MAPPED_BYTES = 2**26


def _load_file(path: Path) -> dict[str, np.ndarray]:
    """Read tensors; large sketches are mapped from the file, and what is written into them stays in memory."""
    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        mapped = _mapped_sketches(path)
        return {name: mapped[name] if name in mapped else file.get_tensor(name) for name in names}


def _mapped_sketches(path: Path) -> dict[str, np.ndarray]:
    """Map large sketches of four bytes a number: a file begins with the length of a JSON header, then has that."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    mapped = {}
    for name, entry in header.items():
        if not (name.endswith("sketches") and entry["dtype"] == "F32"):
            continue
        first, last = entry["data_offsets"]
        if last - first >= _MAPPED_BYTES:
            place = {"offset": 8 + size + first, "shape": tuple(entry["shape"])}
            mapped[name] = np.memmap(path, dtype="<f4", mode="c", **place)
    return mapped


def _without_measurement(folder: Path) -> str:
    """Say why a folder holds no measurement, and what to name."""
    if folder.is_file():
        return f"{folder} is a file: name a run directory or a measurement folder"
    if not folder.is_dir():
        return f"{folder} does not exist: name a run directory or a measurement folder"
    inside = sorted(path.parent.name for path in folder.glob("*/experiment.yaml"))
    if inside:
        return f"{folder} is a folder of runs: name one of them, as in {folder / inside[0]}"
    return f"the folder {folder} holds no measurement: run `gradstats measure` or `run` first"


def _read_shards(folder: Path, partial: bool) -> Iterator[Measurement]:
    """Return the shards of a folder: those that its plan names, or all where it has none."""
    # Within a run, the plan of what was to be sampled: measuring may not have begun on all of it.
    sampled = folder.parent / "rollouts" / PLAN
    plan_file = sampled if folder.name == "measurement" and sampled.exists() else folder / PLAN
    scored: list[int] = []
    if (folder / SCORED).is_dir():  # whose files say that a shard is finished, also where nothing of it is measured
        finished = planned_shards(folder / SCORED, ".parquet", plan_file=plan_file, partial=partial)
        scored = [] if finished is None else finished.numbers
    planned = planned_shards(folder, "", plan_file=plan_file, partial=partial, unneeded=scored)
    if planned and plan_file != folder / PLAN:
        # Runs that share completions share the plan of these; what was measured states the settings of its own run.
        planned = replace(planned, origin=read_origin(folder) or planned.origin)
    shards = planned.paths if planned else sorted(path.parent for path in folder.glob("[!.]*/measurement.json"))
    if not shards:
        raise FileNotFoundError(_without_measurement(folder))
    # A run that measures a further weighting holds it in some shards before it does in all.
    common = set.intersection(*(set(weightings_in(shard)) for shard in shards)) if planned else None
    names = [name for name in weightings_in(shards[0]) if common is not None and name in common]
    for shard in shards:
        measured = read_measurement(shard)
        refuse_foreign_shard(measured.metadata, shard, planned, partial=partial)
        if common is not None:
            measured = replace(measured, weighted={name: measured.weighted[name] for name in names})
        yield measured


def weightings_in(folder: Path) -> list[str]:
    """Return the names of the further weightings that a measurement's folder holds, without reading their gradients."""
    return list(read_json(folder / "measurement.json").get("weighted", ()))


def _measurement(described: Mapping[str, Any], tensors: Mapping[str, np.ndarray], rollouts: Rollouts) -> Measurement:
    def gradients(prefix: str) -> WeightedGradients:
        norms = pd.DataFrame(tensors[f"{prefix}sq_norms_by_block"], columns=described["block_names"])
        sketches = tensors.get(f"{prefix}sketches"), tensors.get(f"{prefix}sketches_by_block")
        name = f"{prefix}weights"
        return WeightedGradients(norms, *sketches, _rows(tensors, [name], lengths)[name] if name in tensors else None)

    lengths = [len(tokens) for tokens in rollouts.frame["completion_tokens"]]
    measured = gradients("")
    return Measurement(
        rollouts,
        measured.sq_norms_by_block,
        measured.sketches,
        **_rows(tensors, _TOKEN_FIELDS, lengths),
        **_rows(tensors, [name for name in _OPTIONAL_TOKEN_FIELDS if name in tensors], lengths),
        **_rows(tensors, [name for name in _HEAVY_FIELDS if name in tensors], tensors.get("heavy_counts", ())),
        weighted={name: gradients(f"weighted/{name}/") for name in described.get("weighted", ())},
        metadata=described["metadata"],
        sketches_by_block=measured.sketches_by_block,
        scored=None,
        proxies={name.removeprefix(_PROXIES): values for name, values in tensors.items() if name.startswith(_PROXIES)},
    )


def _rows(
    tensors: Mapping[str, np.ndarray], names: Sequence[str], counts: Sequence[int] | np.ndarray
) -> dict[str, list[np.ndarray]]:
    """Return tensors in which the sequences lie one after another, cut into one array per sequence."""
    ends = np.cumsum(counts)[:-1]
    return {name: np.split(tensors[name], ends) for name in names}
