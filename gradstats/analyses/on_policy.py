"""Were the tokens drawn from the distribution that is scored? Three tests, the recorded settings, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradstats.analyses.numbers import format_estimate, percent
from gradstats.analyses.printed import ReprMixin
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import Estimate, require_level
from gradstats.stats.on_policy import (
    NEUTRAL,
    TemperatureTest,
    departures_of,
    energy_ratio,
    holm,
    mean_score_sq,
    other_policy_of,
    temperature_test,
)
from gradstats.stats.protocols import MeasuredPolicy
from gradstats.stats.token_profiles import excess_of, surprise
from gradstats.stats.variance.quantities import NO_LIMITS
from gradstats.system.lazy_imports import pd

_FEWEST_ENERGY_PROMPTS = 10.0
# On-policy samples are called off-policy in at most one of a hundred studies.
_VERDICT_LEVEL = 0.99
# The samples say that they are on-policy only if they exclude temperatures outside these, relative to the scored one.
_EQUIVALENT = (0.8, 1.25)
WORDS = {
    "surprise": "surprise minus entropy",
    "mean_score_sq": "squared mean score",
    "energy_ratio": "energy ratio",
}
#: What on-policy sampling gives.
_EXPECTED = {"surprise": 0.0, "mean_score_sq": 0.0, "energy_ratio": 1.0}
_LIMITS = {"surprise": NO_LIMITS, "mean_score_sq": (0.0, math.inf), "energy_ratio": (0.0, math.inf)}
_UNITS = {"surprise": " nats per completion"}


@dataclass(frozen=True, repr=False)
class OnPolicyCheck(ReprMixin):
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
        temperatures: which temperatures the surprises exclude; None where they were not tested.
        other_policy: what is recorded of the policy that sampled and differs from the scored one, as ``name=value``.
    """

    surprise: Estimate
    mean_score_sq: Estimate
    energy_ratio: Estimate
    sampler: Mapping[str, object]
    scorer_temperature: float | None
    n_prompts: int
    energy_prompts: float = math.inf
    temperatures: TemperatureTest | None = None
    other_policy: tuple[str, ...] = ()

    @property
    def departures(self) -> list[str]:
        """Recorded settings with which the sampler does not draw from the scored distribution, as ``name=value``."""
        return departures_of(self.sampler, self.scorer_temperature)

    def pvalues(self) -> dict[str, float]:
        """Return the two-sided p-values of what on-policy sampling gives, adjusted by Holm for there being several.

        Quantities that could not be estimated, or rest on too few prompts, are not among them. As ‖E S‖² is at least 0,
        only a positive estimate of it is evidence against the sampler.
        """
        tested = {
            name: getattr(self, name)
            for name in _EXPECTED
            if np.isfinite(getattr(self, name).stderr)
            and (name != "energy_ratio" or self.energy_prompts >= _FEWEST_ENERGY_PROMPTS)
        }
        raw = [
            estimate.pvalue(_EXPECTED[name], only_above=name == "mean_score_sq") for name, estimate in tested.items()
        ]
        return dict(zip(tested, holm(raw).tolist(), strict=True))

    def failures(self, confidence_level: float = _VERDICT_LEVEL) -> list[str]:
        """Return the names of the quantities that on-policy sampling does not explain.

        On-policy samples have any with a probability of at most 1 − ``confidence_level`` (Holm over the tests).
        """
        level = 1.0 - require_level(confidence_level)
        return [name for name, pvalue in self.pvalues().items() if pvalue < level]

    def compatible_temperatures(self, confidence_level: float = _VERDICT_LEVEL) -> tuple[float, float]:
        """Return the temperatures of the sampler that its surprises do not exclude; see :class:`TemperatureTest`.

        Relative to the scored temperature where that was not recorded. The tests share the level (Bonferroni), so that
        the scored temperature itself is only excluded where a test fails.
        """
        level = 1.0 - (1.0 - confidence_level) / max(len(self.pvalues()), 1)
        low, high = (0.0, np.inf) if self.temperatures is None else self.temperatures.compatible(level)
        scale = 1.0 if self.scorer_temperature is None else self.scorer_temperature
        return scale * low, scale * high

    def holds(self, confidence_level: float = _VERDICT_LEVEL) -> bool | None:
        """Whether the samples are on-policy, as :meth:`verdict` puts it in words; None where it is not resolved."""
        if self.departures or self.other_policy or self.failures(confidence_level):
            return False
        low, high = self.compatible_temperatures(confidence_level)
        scale = 1.0 if self.scorer_temperature is None else self.scorer_temperature
        return True if _EQUIVALENT[0] * scale <= low <= scale <= high <= _EQUIVALENT[1] * scale else None

    def verdict(self, confidence_level: float = _VERDICT_LEVEL) -> str:
        """Whether the samples are on-policy: by the recorded settings, which overrule a test, and by the samples.

        They are called consistent with on-policy sampling only where they exclude every temperature below 0.8 and above
        1.25 of the scored one; otherwise the question is not resolved, and the compatible temperatures are given.
        """
        estimates = {name: getattr(self, name) for name in _EXPECTED if np.isfinite(getattr(self, name).stderr)}
        failures = self.failures(confidence_level)
        evidence = self._evidence(estimates, confidence_level)
        off = f"{' and '.join(WORDS[name] for name in failures)} off"
        if self.departures:
            scored = "" if self.scorer_temperature is None else f" at temperature {self.scorer_temperature:g}"
            seen = (f" {off[0].upper()}{off[1:]}" if failures else " The samples do not resolve it") + f" ({evidence})."
            return (
                f"Not on-policy by the recorded settings: the tokens were drawn with {', '.join(self.departures)} and "
                f"scored{scored} without; draw with top_p=1, top_k=0 and score at the sampler's temperature."
                f"{seen if estimates else ''} Such samples bias alpha up or down."
            )
        if self.other_policy:
            return (
                f"Not on-policy: the tokens were drawn by another policy, as recorded ({', '.join(self.other_policy)})."
                f"{f' {off[0].upper()}{off[1:]} ({evidence}).' if failures else ''} Such samples bias alpha up or down."
            )
        if not estimates:
            return (
                "Whether the samples are on-policy could not be checked: measure log-probabilities and "
                "entropies on at least 3 prompts."
            )
        if failures:
            return (
                f"Not on-policy: {off} ({evidence}). The recorded settings do not explain it: check the weights and "
                "precision of sampler and scorer. Such samples bias alpha up or down."
            )
        low, high = self.compatible_temperatures(confidence_level)
        times = " times the scored one" if self.scorer_temperature is None else ""
        if self.holds(confidence_level):
            return (
                f"Consistent with on-policy sampling: temperatures below {low:.3g} and above {high:.3g}{times} are "
                f"excluded ({evidence})."
            )
        known = "On-policy by its settings; the samples alone cannot tell"
        said = known if "temperature" in self.sampler else "The samples alone cannot tell whether they are on-policy"
        lowest = f"from {low:.3g}" if low > 0.0 else "up"
        span = f"{lowest} to {high:.3g}" if np.isfinite(high) else f"{lowest} on" if low > 0.0 else ""
        fitting = f"Sampling temperatures {span}{times} fit" if span else "Every sampling temperature fits"
        return f"{said} ({evidence}). {fitting}; more prompts would resolve it."

    def _evidence(self, estimates: Mapping[str, Estimate], confidence_level: float) -> str:
        evidence = "; ".join(
            f"{WORDS[name]} {format_estimate(*estimate.with_interval(confidence_level), limits=_LIMITS[name])}"
            f"{_UNITS.get(name, '')}, expected {_EXPECTED[name]:g}"
            for name, estimate in estimates.items()
        )
        if "energy_ratio" in estimates and self.energy_prompts < _FEWEST_ENERGY_PROMPTS:
            evidence += f", the last not counted since it rests on effectively {self.energy_prompts:.1f} prompts"
        return f"{evidence}; {percent(confidence_level)} intervals"

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per quantity: ``quantity, on_policy_value, estimate, low, high, pvalue`` (adjusted by Holm)."""
        rows = []
        pvalues = self.pvalues()
        for name, expected in _EXPECTED.items():
            estimate = getattr(self, name)
            low, high = estimate.confidence_interval(confidence_level)
            rows.append(
                {
                    "quantity": name,
                    "on_policy_value": expected,
                    "estimate": estimate.value,
                    "low": low,
                    "high": high,
                    "pvalue": pvalues.get(name, np.nan),
                }
            )
        return pd.DataFrame(rows)


def check_on_policy(measured: MeasuredPolicy, *, rng: int | np.random.Generator | None = 0) -> OnPolicyCheck:
    r"""Test whether samples come from the distribution that is scored.

    If every token was drawn from exactly the scored distribution (a length cap is allowed), the token scores
    and the surprises less their entropies are martingale differences. Then :math:`\sum_t(-\log π(y_t) - H_t)` has
    mean zero (a check that needs no gradient), :math:`E S = 0`, and :math:`E‖S‖² = \sum_t E‖s_t‖²`. Intervals are by
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
    excess = excess_of(measured)
    ratio, energy_prompts = energy_ratio(measured, prompts)
    scorer = measured.metadata.get("policy") or {}
    recorded = rollouts.metadata.get("sampler") or {}
    return OnPolicyCheck(
        surprise=surprise(excess, prompts),
        mean_score_sq=mean_score_sq(measured, prompts, np.random.default_rng(rng)),
        energy_ratio=ratio,
        sampler={name: recorded[name] for name in NEUTRAL if name in recorded},
        scorer_temperature=scorer.get("temperature"),
        n_prompts=n_prompts,
        energy_prompts=energy_prompts,
        temperatures=temperature_test(excess, prompts),
        other_policy=tuple(other_policy_of(rollouts.metadata.get("policy"), scorer)),
    )
