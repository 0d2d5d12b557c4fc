"""Whether tokens were drawn from the distribution that is scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Statistic
from gradstats.stats.measured import MeasuredPolicy
from gradstats.stats.tokens.profiles import has_token_energies, summed_energy
from gradstats.stats.variance.group_moments import prompt_moments, shuffled_prompts, split_into_groups
from gradstats.stats.variance.probe_error import probed_statistic
from gradstats.stats.variance.sketch_error import SketchError

FEWEST_ENERGY_PROMPTS = 10.0
SAMPLER_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class OnPolicyCheck:
    r"""Three consequences of drawing tokens from the scored distribution, each NaN where it could not be estimated.

    Attributes:
        surprise: mean over prompts of :math:`\sum_t(-\log π(y_t) - H_t)` in nats per completion; 0 on-policy,
            negative when the sampler prefers likely tokens (a lower temperature, a truncated tail).
        mean_score_sq: :math:`‖E S‖²`, unbiased, from different prompts; 0 on-policy.
        energy_ratio: :math:`E‖S‖² / \sum_t E‖s_t‖²`; 1 on-policy.
        sampler: the sampler's settings, as far as recorded.
        scorer_temperature: temperature of the scored distribution; None where not recorded.
        n_prompts: prompts, the independent units.
        energy_prompts: effective number of prompts behind the energy ratio, :math:`(\sum_m x_m)²/\sum_m x_m²` of
            prompts' energies. Where a few hold nearly all, its interval is too narrow to count against the sampler.
    """

    surprise: Estimate
    mean_score_sq: Estimate
    energy_ratio: Estimate
    sampler: Mapping[str, object]
    scorer_temperature: float | None
    n_prompts: int
    energy_prompts: float = np.inf

    def failures(self, confidence_level: float = 0.99) -> list[str]:
        """Names of the quantities whose interval excludes what on-policy sampling gives."""
        expected = {"surprise": 0.0, "mean_score_sq": 0.0, "energy_ratio": 1.0}
        failed = []
        if self.energy_prompts < FEWEST_ENERGY_PROMPTS:
            del expected["energy_ratio"]
        for name, value in expected.items():
            low, high = getattr(self, name).confidence_interval(confidence_level)
            # ‖E S‖² is at least 0: only a positive estimate is evidence against the sampler.
            if low > value or (high < value and name != "mean_score_sq"):
                failed.append(name)
        return failed

    def verdict(self, confidence_level: float = 0.99) -> str:
        """One sentence: whether the samples are on-policy, by which evidence, and which settings explain a failure."""
        estimates = {
            name: getattr(self, name)
            for name in ("surprise", "mean_score_sq", "energy_ratio")
            if np.isfinite(getattr(self, name).stderr)
        }
        if not estimates:
            return (
                "Whether the samples are on-policy could not be checked: measure log-probabilities and "
                "entropies on at least 3 prompts."
            )
        evidence = ", ".join(
            f"{WORDS[name]} {estimate.value:.3g} [{low:.3g}, {high:.3g}]"
            for name, estimate in estimates.items()
            for low, high in [estimate.confidence_interval(confidence_level)]
        )
        if "energy_ratio" in estimates and self.energy_prompts < FEWEST_ENERGY_PROMPTS:
            evidence += f", the last not counted since it rests on effectively {self.energy_prompts:.1f} prompts"
        failures = self.failures(confidence_level)
        if not failures:
            return f"Consistent with on-policy sampling ({evidence}; {confidence_level:.0%} intervals)."
        return (
            f"Not on-policy: {' and '.join(WORDS[name] for name in failures)} off ({evidence}; "
            f"{confidence_level:.0%} intervals). {self._explanation()} Such samples bias alpha up "
            "or down."
        )

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per quantity: ``quantity, on_policy_value, estimate, low, high``."""
        rows = []
        for name, expected in (("surprise", 0.0), ("mean_score_sq", 0.0), ("energy_ratio", 1.0)):
            estimate = getattr(self, name)
            low, high = estimate.confidence_interval(confidence_level)
            rows.append(
                {
                    "quantity": name,
                    "on_policy_value": expected,
                    "estimate": estimate.value,
                    "low": low,
                    "high": high,
                }
            )
        return pd.DataFrame(rows)

    def _explanation(self) -> str:
        departures = departures_of(self.sampler, self.scorer_temperature)
        if departures:
            scored = "" if self.scorer_temperature is None else f" at temperature {self.scorer_temperature:g}"
            return (
                f"The tokens were drawn with {', '.join(departures)} and scored{scored} without: draw "
                "with top_p=1, top_k=0 and score at the sampler's temperature."
            )
        return "The recorded settings do not explain it: check the weights and precision of sampler and scorer."


WORDS = {
    "surprise": "surprise over entropy",
    "mean_score_sq": "squared mean score",
    "energy_ratio": "energy ratio",
}


def departures_of(sampler: Mapping[str, object], scorer_temperature: float | None) -> list[str]:
    """List recorded settings with which a sampler does not draw from the scored distribution."""
    neutral: dict[str, float] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    if scorer_temperature is not None:
        neutral["temperature"] = scorer_temperature
    return [f"{name}={sampler[name]}" for name, value in neutral.items() if sampler.get(name, value) != value]


def check_on_policy(measured: MeasuredPolicy, *, rng: int | np.random.Generator | None = 0) -> OnPolicyCheck:
    r"""Test whether samples come from the distribution that is scored.

    If every token was drawn from exactly the scored distribution (a length cap is allowed), the token scores
    and the surprises less their entropies are martingale differences. Then :math:`\sum_t(-\log π(y_t) - H_t)` has
    mean zero (a check that needs no gradient), E S = 0, and E‖S‖² = Σ_t E‖s_t‖². Intervals are by
    delete-one-prompt jackknife.

    Args:
        measured: a measurement; without sketches or token energies, the quantities that need them are NaN.
        rng: for estimating the sketch's error.

    Returns:
        An :class:`OnPolicyCheck`; its ``.verdict()`` is the sentence to print next to α.

    Raises:
        ValueError: for fewer than 3 prompts.

    Example:
        >>> from types import SimpleNamespace
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> drawn = rng.random((120, 20)) < 0.9  # tokens of a coin, drawn at 0.9 and scored at 0.8
        >>> rollouts = SimpleNamespace(
        ...     prompt_id=np.repeat(np.arange(30), 4), masks=np.ones((120, 20), dtype=bool), metadata={}
        ... )
        >>> measured = SimpleNamespace(
        ...     rollouts=rollouts,
        ...     logprobs=np.log(np.where(drawn, 0.8, 0.2)),
        ...     entropy=np.full((120, 20), -0.8 * np.log(0.8) - 0.2 * np.log(0.2)),
        ...     sq_norms=np.ones(120),
        ...     sketches=None,
        ...     metadata={},
        ... )
        >>> check = gs.check_on_policy(measured)
        >>> round(check.surprise.value, 1), check.failures()
        (-2.8, ['surprise'])
    """
    rollouts = measured.rollouts
    prompts = np.unique(np.asarray(rollouts.prompt_id), return_inverse=True)[1]
    n_prompts = int(prompts.max()) + 1
    if n_prompts < 3:
        raise ValueError(f"the on-policy check needs at least 3 prompts, got {n_prompts}: measure more")
    masks = rollouts.masks
    excess = np.array(
        [
            -float(np.sum(logprob[mask] + entropy[mask]))
            for logprob, entropy, mask in zip(measured.logprobs, measured.entropy, masks, strict=True)
        ]
    )
    ratio, energy_prompts = NOT_ESTIMATED, np.inf
    if has_token_energies(measured):
        energies, along = summed_energy(measured)
        by_prompt = np.bincount(prompts, energies) / np.bincount(prompts)
        energy_prompts = float(by_prompt.sum() ** 2 / np.sum(by_prompt**2))
        ratio = (
            _prompt_mean(np.asarray(measured.sq_norms), prompts) / _prompt_mean(energies, prompts, along)
        ).estimate()
    scorer = measured.metadata.get("policy") or {}
    recorded = rollouts.metadata.get("sampler") or {}
    return OnPolicyCheck(
        surprise=_prompt_mean(excess, prompts).estimate(),
        mean_score_sq=_mean_score(measured, prompts, np.random.default_rng(rng)),
        energy_ratio=ratio,
        sampler={name: recorded[name] for name in SAMPLER_SETTINGS if name in recorded},
        scorer_temperature=scorer.get("temperature"),
        n_prompts=n_prompts,
        energy_prompts=energy_prompts,
    )


def _mean_score(measured: MeasuredPolicy, prompts: Int[np.ndarray, " n"], rng: np.random.Generator) -> Estimate:
    if measured.sketches is None:
        return NOT_ESTIMATED
    groups = split_into_groups(shuffled_prompts(prompts, rng), np.arange(len(prompts)), None)
    scores = np.asarray(measured.sketches, dtype=np.float64)[groups.rows]
    weights = 1.0 / groups.sizes[groups.group]
    sketch_error = SketchError(scores.shape[1], groups.n_prompts, rng)
    return prompt_moments(scores, weights, groups, None, sketch_error).signal.estimate()


def _prompt_mean(
    values: Float[np.ndarray, " n"], prompts: Int[np.ndarray, " n"], along: Float[np.ndarray, "n k"] | None = None
) -> Statistic:
    """Return the mean over prompts of their completions' means; ``along`` holds the same quantity along each probe."""
    sizes = np.bincount(prompts)
    per_probe = None
    if along is not None:
        per_probe = np.zeros((len(sizes), along.shape[1]))
        np.add.at(per_probe, prompts, along / sizes[prompts][:, None])
    return probed_statistic(np.bincount(prompts, weights=values) / sizes, per_probe)
