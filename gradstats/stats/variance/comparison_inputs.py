"""What a comparison starts from: completions in sample order, and what is known of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting
from gradstats.stats.variance.group_moments import Groups
from gradstats.stats.variance.probe_error import TokenProbes
from gradstats.stats.variance.probed_sums import ProbedTokens, probed_tokens
from gradstats.stats.variance.reduced_coordinates import in_fewer_coordinates
from gradstats.stats.variance.score_vectors import Scores, prepare_scores
from gradstats.stats.variance.sketch_error import SketchProbes


@dataclass(frozen=True)
class ComparisonInputs:
    """Completions and their gradients, as measured or given.

    Attributes:
        batch: the completions.
        order: (N,) their positions in sample order.
        scores: (N, D) or (N, T, D).
        sketched: whether the scores are a random projection.
        probed: what probes tell of the tokens; None where they were not measured, or nothing asks for tokens.
    """

    batch: Batch
    order: Int[np.ndarray, " n"]
    scores: np.ndarray
    sketched: bool
    probed: ProbedTokens | None

    def prepared(self, rows: Int[np.ndarray, " kept"]) -> Scores:
        """The scores of some completions, in that order."""
        return prepare_scores(self.scores, self.batch.mask, rows, self.sketched, self.batch.sq_norms, self.probed)

    def probes(self, n_prompts: int, rng: np.random.Generator) -> SketchProbes | None:
        """What prices the error of sketch and token probes; None where inner products are exact."""
        dim = self.scores.shape[-1]
        if self.probed is not None:
            return TokenProbes(dim, n_prompts, rng, self.probed.n_probes, self.sketched)
        return SketchProbes(dim, n_prompts, rng) if self.sketched else None

    def with_coordinates(self, groups: Groups, rng: np.random.Generator) -> tuple[Batch, Scores, SketchProbes | None]:
        """The completions of a split in its order, their scores, and what prices errors of these."""
        scores, probes = in_fewer_coordinates(self.prepared(groups.rows), self.probes(groups.n_prompts, rng))
        return self.batch.select(groups.rows).with_fields(groups=groups.group), scores, probes


def comparison_inputs(
    measured_or_batch: Any,
    scores: ArrayLike | None,
    scores_are_sketches: bool | None,
    weightings: Sequence[Weighting] = (),
    fields: Mapping[str, Any] | None = None,
) -> ComparisonInputs:
    """The completions, their sample order, their scores, and what probes tell of tokens.

    Args:
        measured_or_batch: a measurement, or a `Batch` with ``scores``.
        scores: as for `compare`.
        scores_are_sketches: as for `compare`.
        weightings: what is compared: token scores are prepared only when one of them weights tokens.
        fields: further fields of a measurement's batch.

    Raises:
        TypeError: for a Batch without scores, or with further fields; for fields that are measured.
    """
    fields = dict(fields or {})
    if isinstance(measured_or_batch, Batch):
        if scores is None:
            raise TypeError("a Batch has no gradients: pass scores=(N, D) of its completions, or a measurement")
        if fields:
            raise TypeError(f"give {', '.join(fields)} to the Batch itself: batch.with_fields({next(iter(fields))}=…)")
        batch = measured_or_batch
        return ComparisonInputs(
            batch, np.arange(len(batch.rewards)), np.asarray(scores), bool(scores_are_sketches), None
        )
    measured = measured_or_batch
    batch = Batch.from_measurement(measured, **fields)
    order = np.argsort(np.asarray(measured.rollouts.sample_id), kind="stable")
    if scores is not None:
        return ComparisonInputs(batch, order, np.asarray(scores), bool(scores_are_sketches), None)
    if measured.sketches is None:
        gram = np.asarray(measured.gram(), dtype=np.float64)
        return ComparisonInputs(batch, order, _coordinates(gram), False, None)
    sketched = True if scores_are_sketches is None else scores_are_sketches
    probed = None
    if getattr(measured, "token_projections", None) is not None and any(each.level == "token" for each in weightings):
        measured_here = {"token_energy", "token_cross"} & set(fields)
        if measured_here:
            raise TypeError(
                f"{' and '.join(sorted(measured_here))} come from the measurement: pass a Batch with scores=…"
            )
        probed = probed_tokens(measured, batch)
    return ComparisonInputs(batch, order, np.asarray(measured.sketches), sketched, probed)


def _coordinates(gram: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """Vectors whose inner products are the Gram matrix."""
    values, vectors = np.linalg.eigh(gram)
    return vectors * np.sqrt(np.maximum(values, 0.0))
