"""The exact expectation and variance of a trainer's gradient, over every batch that two enumerated prompts can give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gradstats.integrations.certify.batches import ROUNDING, Batches, Completions
from gradstats.integrations.certify.invariances import INVARIANCES, Invariance, Subject, length_scaled
from gradstats.integrations.certify.labels import Catalogue
from gradstats.reference.enumerated import GradientMoments


@dataclass(frozen=True)
class Row:
    """What one setting estimates on one sampler; NaN where something is not a number or does not apply.

    Attributes:
        setting: names of the trainer.
        sampler: what drew the completions.
        scale: c = ⟨E ĝ, ∇J⟩/‖∇J‖².
        bias: ‖E ĝ − ∇J‖/‖∇J‖.
        cosine: of E ĝ and ∇J.
        variance: tr Cov(ĝ)/c² over that of RLOO, with sequence ratios where the sampler is older.
        label: the nearest label.
        factor: what its weights are multiplied by.
        likeness: the cosine of its weights with those found, 1 where they are equal to rounding.
        deviations: name of an invariance → how far it is from holding, as a share of the largest weight.
        own_length: what twice the tokens multiply the weight of each of a completion's tokens by.
        other_length: what they multiply the weights of all other completions by.
        error: of the trainer, where it refuses.
    """

    setting: str
    sampler: str
    scale: float = np.nan
    bias: float = np.nan
    cosine: float = np.nan
    variance: float = np.nan
    label: str = ""
    factor: float = np.nan
    likeness: float = np.nan
    deviations: dict[str, float] | None = None
    own_length: float = np.nan
    other_length: float = np.nan
    error: str = ""

    @property
    def failing(self) -> list[str]:
        """The invariances that do not hold."""
        return [name for name, value in (self.deviations or {}).items() if not value <= allowed(name)]

    @property
    def equals(self) -> str:
        """The label, its factor, and a sign that says whether weights are equal or only near."""
        if not self.label:
            return "–"
        times = "" if abs(self.factor - 1) < ROUNDING else f"{self.factor:.4g} × "
        return f"{times}{self.label}" if self.likeness == 1 else f"≈ {self.label} ({self.likeness:.3f})"

    @property
    def is_unbiased(self) -> bool:
        """Whether E ĝ has the direction of ∇J."""
        return self.cosine > 1 - ROUNDING


#: Advantages of equal rewards come from rounding in float32: up to this they are harmless.
_ROUNDED_ADVANTAGE = 1e-3


def allowed(name: str) -> float:
    """Return the greatest deviation that is rounding."""
    return _ROUNDED_ADVANTAGE if name == "equal rewards" else ROUNDING


def certify(subjects: Sequence[Subject]) -> Iterator[Row]:
    """Yield what each setting estimates."""
    catalogues: dict[tuple[str, bool], Catalogue] = {}
    for subject in subjects:
        try:
            yield _certified(subject, catalogues)
        except Exception as error:
            if not subject.raised(error):
                raise
            yield Row(subject.name, subject.sampler, error=f"{type(error).__name__}: {error}")


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return rows in the order of what is wrong: an error, no number, the direction of E ĝ, its variance."""
    return sorted(rows, key=lambda row: (not row.error, np.isfinite(row.cosine), row.cosine, -row.variance))


def _certified(subject: Subject, catalogues: dict[tuple[str, bool], Catalogue]) -> Row:
    batches = Batches.of(subject.sampler)
    tried = [batches.completions(int(number)) for number in batches.tried]
    found = {name: [_tried(check, subject, batch) for batch in tried] for name, check in INVARIANCES.items()}
    deviations = {name: float(np.max(values)) for name, values in found.items()}
    if subject.has_kl:
        deviations["KL term"] = 1 - _kl_cosine(subject)
    ordered = not deviations["order of rows"] <= ROUNDING  # a multiset then stands for several groups
    key = subject.sampler, ordered
    if key not in catalogues:
        catalogues[key] = Catalogue(Batches.of(*key), subject.parameters)
    catalogue = catalogues[key]
    batches = catalogue.batches
    weights = np.stack([subject.gradient(batches.completions(at)).numpy() for at in range(len(batches.rows))])
    if not np.isfinite(weights).all():
        return Row(subject.name, subject.sampler, deviations=deviations, error="weights are not finite")
    moments, reference = batches.moments(weights), batches.moments(catalogue.reference)
    label, factor, likeness = catalogue.nearest(weights, subject.expected)
    own, others = length_scaled(subject, tried[0]) if subject.sampler == "on-policy" else (np.nan, np.nan)
    return Row(
        subject.name, subject.sampler, moments.coefficient, _relative_bias(moments), moments.cosine,
        moments.matched_trace_cov / reference.trace_cov, label, factor, likeness, deviations, own, others,
    )  # fmt: skip


def _relative_bias(moments: GradientMoments) -> float:
    return float(np.linalg.norm(moments.bias) / np.linalg.norm(moments.true_gradient))


def _tried(check: Invariance, subject: Subject, batch: Completions) -> float:
    """Return a deviation; infinity where the trainer refuses."""
    try:
        return check(subject, batch)
    except Exception as error:
        if not subject.raised(error):
            raise
        return float("inf")


def _kl_cosine(subject: Subject) -> float:
    """Return the cosine of the expected gradient of a loss without advantages with −∇KL(π‖π_ref), of one token."""
    batches = Batches.of(subject.sampler, max_length=1)
    drawn = [batches.completions(number) for number in range(len(batches.rows))]
    weights = np.stack([subject.weights(one, torch.zeros_like(one.rewards)).numpy() for one in drawn])
    made = batches.policy
    k1 = (made.logprobs - batches.reference.old_logprobs)[:, 0]
    expected, mean = -(made.probabilities * k1) @ made.sequence_scores, batches.moments(weights).mean
    length = float(np.linalg.norm(mean) * np.linalg.norm(expected))
    return float(mean @ expected) / length if length > ROUNDING else float("nan")
