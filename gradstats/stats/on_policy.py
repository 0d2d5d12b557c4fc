"""What tokens that were drawn from the scored distribution have in common: its tests, and settings that exclude it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Int

from gradstats.config.sections import SamplingSection
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, require_level
from gradstats.stats.protocols import MeasuredPolicy, effective_sample_size
from gradstats.stats.token_profiles import has_token_energies, prompt_mean, summed_energy
from gradstats.stats.variance.moments import prompt_moments, shuffled_prompts, split_into_groups
from gradstats.stats.variance.products import PromptGrams, ScoreProducts, use_blocked_products
from gradstats.stats.variance.sketch_error import SketchError

#: Settings of a sampler that change the distribution of tokens, with the values that leave it as it is: for all but the
#: temperature their defaults, and what servers and trainers write instead.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **{name: (SamplingSection.model_fields[name].default,) for name in SamplingSection.fields_that("reshapes")},
    "top_k": (0, -1),
}


def departures_of(sampler: Mapping[str, object], scorer_temperature: float | None) -> list[str]:
    """List recorded settings with which a sampler does not draw from the scored distribution.

    A setting that was not recorded, or recorded as None, is not a departure.
    """
    neutral = {name: values for name, values in NEUTRAL.items() if name != "temperature"}
    if scorer_temperature is not None:
        neutral["temperature"] = (scorer_temperature,)
    return [f"{name}={sampler[name]}" for name, values in neutral.items() if not _is_one_of(sampler.get(name), values)]


def truncating(departures: Iterable[str]) -> tuple[str, ...]:
    """Return those of :func:`departures_of` with which some of what the scored policy can draw is never drawn."""
    cutting = SamplingSection.fields_that("truncates")
    return tuple(one for one in departures if one.partition("=")[0] in cutting)


def untruncated() -> str:
    """Return the settings that draw from a whole distribution, as "top_p=1, top_k=0"."""
    return ", ".join(f"{name}={NEUTRAL[name][0]:g}" for name in SamplingSection.fields_that("truncates"))


def other_policy_of(drawn_by: object, scored: Mapping[str, object]) -> list[str]:
    """List what was recorded of the policy that drew the tokens and differs from the scored one, as ``name=value``.

    The same weights may go by two names; other weights, a revision or an adapter are another policy.
    """
    if not isinstance(drawn_by, Mapping):
        return []
    found = [
        f"{name}={drawn_by[name]}"
        for name in ("revision", "adapter")
        if name in drawn_by and name in scored and drawn_by[name] != scored[name]
    ]
    drawn, now = _digest_of_weights(drawn_by), _digest_of_weights(scored)
    if not found and drawn and now and drawn != now:
        other = drawn_by.get("name") != scored.get("name")
        found.append(f"policy={drawn_by['name']}" if other else f"weights={drawn[:12]}")
    return found


def same_weights_recorded(drawn_by: object, scored: object) -> bool:
    """State whether what was recorded of two policies shows that they have the same weights."""
    if not (isinstance(drawn_by, Mapping) and isinstance(scored, Mapping)) or other_policy_of(drawn_by, scored):
        return False
    return bool(_digest_of_weights(drawn_by)) and _digest_of_weights(drawn_by) == _digest_of_weights(scored)


def _digest_of_weights(policy: Mapping[str, object]) -> str:
    """Return the digest of a policy's weights; empty where none was recorded."""
    digests = policy.get("digests")
    return str(digests.get("weights") or "") if isinstance(digests, Mapping) else ""


def _is_one_of(value: object, values: tuple[float, ...]) -> bool:
    return value is None or (
        isinstance(value, int | float) and any(math.isclose(value, one, rel_tol=1e-6) for one in values)
    )


def energy_ratio(measured: MeasuredPolicy, prompts: Int[np.ndarray, " n"]) -> tuple[Estimate, float]:
    r"""Estimate :math:`E‖S‖²/\sum_tE‖s_t‖²`, and the effective number of prompts behind it.

    On-policy token scores are uncorrelated, so that it is 1. Without token energies it is NaN.
    """
    if not has_token_energies(measured):
        return NOT_ESTIMATED, np.inf
    energies, along = summed_energy(measured)
    ratio = prompt_mean(np.asarray(measured.sq_norms), prompts) / prompt_mean(energies, prompts, along)
    return ratio.estimate(), effective_sample_size(np.bincount(prompts, energies) / np.bincount(prompts))


def holm(pvalues: Sequence[float]) -> Float[np.ndarray, " tests"]:
    """Adjust p-values so that rejecting those below a level errs, under any dependence, at most that often.

    The smallest of k is multiplied by k, the next by k − 1, and so on, without falling (Holm, Scandinavian Journal of
    Statistics 6, 1979).
    """
    order = np.argsort(pvalues, kind="stable")
    factors = len(order) - np.arange(len(order))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(pvalues, dtype=float)[order]), 1.0)
    return adjusted


def mean_score_sq(measured: MeasuredPolicy, prompts: Int[np.ndarray, " n"], rng: np.random.Generator) -> Estimate:
    r"""Estimate :math:`‖E S‖²` by inner products of the mean scores of different prompts.

    .. math:: \frac{1}{M(M-1)}\sum_{m≠m'}⟨\bar S_m, \bar S_{m'}⟩

    is unbiased, and may be negative. NaN without sketches.
    """
    if measured.sketches is None:
        return NOT_ESTIMATED
    groups = split_into_groups(shuffled_prompts(prompts, rng), np.arange(len(prompts)), None)
    sketches, weights = np.asarray(measured.sketches), 1.0 / groups.sizes[groups.group]
    sketch_error = SketchError(sketches.shape[1], groups.n_prompts, rng)
    if use_blocked_products(sketches, groups.sizes):
        within = PromptGrams.of(sketches, prompts)
        products = ScoreProducts(sketches, groups.rows, groups.prompt[groups.group], within, sketch_error)
        sums = products.sums_of(weights)
        return products.cross(sums, sums).estimate()
    scores = sketches[groups.rows].astype(np.float64)
    return prompt_moments(scores, weights, groups, None, sketch_error).signal.estimate()


# Relative to the scored temperature. Beyond these ends nothing is excluded.
_GRID = (0.5, 2.0, 41)  # the ends and the number, at equal ratios


@dataclass(frozen=True)
class TemperatureTest:
    r"""For each temperature, whether the tokens can have been drawn at it.

    With :math:`d = -\log π(y) - H` of a token drawn at τ times the scored temperature, π over the sampled distribution
    is proportional to :math:`e^{-δd}`, δ = 1 − 1/τ, so that :math:`E[d\,e^{-δd}] = 0` exactly, given the tokens before.
    """

    temperatures: Float[np.ndarray, " k"]  # (k,) τ, ascending
    means: Float[np.ndarray, " k"]  # (k,) the mean over prompts of Σ_t d_t e^{−δd_t}, which falls with τ
    stderrs: Float[np.ndarray, " k"]  # (k,) its standard error
    degrees: float

    def compatible(self, confidence_level: float) -> tuple[float, float]:
        """Return the lowest and the highest τ that is not excluded.

        0 and infinity where nothing is excluded between 0.5 and 2; NaN where all of them are, or no token is uncertain.
        """
        quantile = float(scipy.special.stdtrit(self.degrees, 0.5 + require_level(confidence_level) / 2.0))
        if not np.all(self.stderrs > 0):
            return np.nan, np.nan
        at = np.log(self.temperatures)
        t = np.minimum.accumulate(self.means / self.stderrs)  # falls with τ but for noise far from the estimate
        if t[-1] > quantile or t[0] < -quantile:
            return np.nan, np.nan
        low = 0.0 if t[0] <= quantile else float(np.exp(np.interp(-quantile, -t, at)))
        high = np.inf if t[-1] >= -quantile else float(np.exp(np.interp(quantile, -t, at)))
        return low, high


def temperature_test(excess: Sequence[np.ndarray], prompts: Int[np.ndarray, " n"]) -> TemperatureTest:
    """Test every temperature on a grid, given d of each completion's tokens, in nats."""
    tokens = np.concatenate(list(excess))
    owner = np.repeat(prompts, [len(d) for d in excess])
    sizes = np.bincount(prompts)
    temperatures = np.geomspace(*_GRID)
    means, stderrs = [], []
    for temperature in temperatures:
        tilted = tokens * np.exp(-(1.0 - 1.0 / temperature) * tokens)
        by_prompt = np.bincount(owner, weights=tilted, minlength=len(sizes)) / sizes
        means.append(by_prompt.mean())
        stderrs.append(by_prompt.std(ddof=1) / np.sqrt(len(sizes)))
    return TemperatureTest(temperatures, np.array(means), np.array(stderrs), len(sizes) - 1.0)
