"""The measurement: the result of measuring rollouts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from gradstats.measurement.token_quantities import TokenQuantities
from gradstats.measurement.weighted_gradients import WeightedGradients, sketched_gram
from gradstats.rollouts.table import Rollouts

#: Fields with one value per token.
TOKEN_FIELDS = ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")
#: Fields with one row per token that a measurement may lack.
OPTIONAL_TOKEN_FIELDS = ("ref_logprobs", "token_projections", "values", "fitted_values")
#: Fields with one row per exactly measured token, which a measurement may lack.
HEAVY_FIELDS = ("heavy_positions", "heavy_sq_norms", "heavy_sketches")


@dataclass(frozen=True)
class Measurement(TokenQuantities):
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

    def __post_init__(self) -> None:
        n = len(self.rollouts)
        counts = {name: len(rows) for name, rows in self.per_token_fields().items()}
        counts["sq_norms_by_block"] = len(self.sq_norms_by_block)
        if self.sketches is not None:
            counts["sketches"] = len(self.sketches)
        if self.sketches_by_block is not None:
            counts["sketches_by_block"] = len(self.sketches_by_block)
        counts |= {name: len(rows) for name, rows in self.heavy_fields().items()}
        counts |= {f"weighted[{name!r}]": len(gradients) for name, gradients in self.weighted.items()}
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
        if "sampler_logprobs" not in self.rollouts.frame:
            return None
        return [values.astype(np.float64) for values in self.rollouts.tokens("sampler_logprobs")]

    def gram(self) -> np.ndarray:
        r"""(N, N) estimates of :math:`\langle S_i, S_j\rangle`: unbiased from the sketches, exact on the diagonal.

        Raises:
            ValueError: when no sketches were measured.
        """
        return sketched_gram(self.sketches, self.sq_norms)

    def per_token_fields(self) -> dict[str, list[np.ndarray]]:
        """Return the fields with one row per token that this measurement has, by name."""
        return self._present((*TOKEN_FIELDS, *OPTIONAL_TOKEN_FIELDS))

    def heavy_fields(self) -> dict[str, list[np.ndarray]]:
        """Return the fields with one row per exactly measured token that this measurement has, by name."""
        return self._present(HEAVY_FIELDS)

    def _present(self, names: Sequence[str]) -> dict[str, list[np.ndarray]]:
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
        from gradstats.measurement.concatenation import concatenate_measurements

        return concatenate_measurements(shards, allow_policy_mismatch=allow_policy_mismatch)

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
        from gradstats.measurement.storage import save_measurement

        save_measurement(self, folder, token_dtype, overwrite=overwrite)
