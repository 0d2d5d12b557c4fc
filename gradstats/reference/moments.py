r"""Exact moments of a random gradient that takes finitely many values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class GradientMoments:
    r"""The moments of ĝ up to the second.

    Attributes:
        mean: E[ĝ], (D,).
        trace_cov: tr Cov ĝ, ``within_prompt`` plus ``between_prompt``.
        within_prompt: the mean over prompts of tr Cov(ĝ | prompt).
        between_prompt: tr Cov of E[ĝ | prompt] over prompts.
        true_gradient: ∇J, (D,).
    """

    mean: Float[np.ndarray, "d"]
    trace_cov: float
    within_prompt: float
    between_prompt: float
    true_gradient: Float[np.ndarray, "d"]

    @property
    def signal_sq(self) -> float:
        """‖E ĝ‖²."""
        return float(self.mean @ self.mean)

    @property
    def bias(self) -> Float[np.ndarray, "d"]:
        """E[ĝ] − ∇J."""
        return self.mean - self.true_gradient

    @property
    def noise_to_signal(self) -> float:
        """Tr Cov/‖E ĝ‖²; NaN when the signal is zero."""
        return self.trace_cov / self.signal_sq if self.signal_sq > 0 else float("nan")

    @property
    def cosine(self) -> float:
        """The cosine between E[ĝ] and ∇J; NaN when either is zero."""
        length = float(np.linalg.norm(self.mean) * np.linalg.norm(self.true_gradient))
        return float(self.mean @ self.true_gradient) / length if length > 0 else float("nan")

    @property
    def coefficient(self) -> float:
        """The part of ∇J that E[ĝ] keeps, c = ⟨E[ĝ], ∇J⟩/‖∇J‖²; NaN when ∇J is zero."""
        target_sq = float(self.true_gradient @ self.true_gradient)
        return float(self.mean @ self.true_gradient) / target_sq if target_sq > 0 else float("nan")

    @property
    def matched_trace_cov(self) -> float:
        """Tr Cov(ĝ)/c², after scaling ĝ so that E[ĝ] projects on ∇J with coefficient 1; NaN if it cannot."""
        return self.trace_cov / self.coefficient**2 if self.coefficient != 0 else float("nan")

    def bias_share(self, prompts_per_batch: int) -> float:
        """Return the share of bias in the mean squared error of the mean of so many groups."""
        return _share(float(self.bias @ self.bias), self.trace_cov / prompts_per_batch)

    def matched_bias_share(self, prompts_per_batch: int) -> float:
        """Return the same of ĝ/c, in which the scale of ĝ does not matter; NaN where c = 0."""
        if self.coefficient == 0:
            return float("nan")
        turned = self.mean / self.coefficient - self.true_gradient
        return _share(float(turned @ turned), self.matched_trace_cov / prompts_per_batch)


def gradient_moments(
    gradients: Float[np.ndarray, "k d"],
    probabilities: Float[np.ndarray, "k"],
    prompts: Int[np.ndarray, "k"],
    true_gradient: Float[np.ndarray, "d"],
) -> GradientMoments:
    """Return the moments of a gradient that takes the value ``gradients[k]`` with ``probabilities[k]``.

    Args:
        gradients: its values.
        probabilities: they sum to 1.
        prompts: which prompt each value belongs to, numbered from 0.
        true_gradient: ∇J.
    """
    mean = probabilities @ gradients
    mass = np.bincount(prompts, weights=probabilities)
    totals = np.zeros((mass.size, gradients.shape[1]))
    np.add.at(totals, prompts, probabilities[:, None] * gradients)
    prompt_means = totals / mass[:, None]
    within = float(probabilities @ ((gradients - prompt_means[prompts]) ** 2).sum(axis=1))
    between = float(mass @ ((prompt_means - mean) ** 2).sum(axis=1))
    return GradientMoments(mean, within + between, within, between, true_gradient)


def _share(bias_sq: float, variance: float) -> float:
    return bias_sq / (bias_sq + variance) if bias_sq + variance > 0 else float("nan")
