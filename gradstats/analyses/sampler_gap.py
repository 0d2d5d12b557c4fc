"""The distance between the engine that sampled and the model that is scored, token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from gradstats.analyses.numbers import format_number
from gradstats.analyses.printed import ReprMixin, records
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import Estimate, mean_statistic
from gradstats.stats.on_policy import NEUTRAL, departures_of, other_policy_of, truncating
from gradstats.stats.protocols import MeasuredSampler, effective_sample_size
from gradstats.system.lazy_imports import pd

_LEVELS = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
# Rounding in float32 changes a token's log-probability by less, other kernels and quantised weights by more.
_ROUNDING = 1e-3
# A mean of rewards between 0 and 1 that may be off by more than this is worth a warning.
_NOTICEABLE = 0.02
_ESTIMATED = ("mean_abs_gap", "token_kl", "token_distance", "mean_token_ratio", "sequence_kl", "sequence_distance")


@dataclass(frozen=True, repr=False)
class SamplerGap(ReprMixin):
    r"""Log-ratios of the scored distribution π to the sampled one q, on tokens drawn from q.

    With :math:`ρ_t = π(y_t)/q(y_t)` and :math:`w = \prod_t ρ_t` over a completion, everything is an average over
    draws from q and needs no other draws: :math:`\mathrm{KL}(q‖π) = E_q[-\log ρ]`, and the total variation distance
    :math:`\tfrac12\sum|π-q| = E_q[(1-ρ)_+]`, with w for ρ for whole completions. The expected values under π and q of
    anything between 0 and 1, such as a success rate, differ by at most that distance.

    Attributes:
        gaps: for each completion, log π − log q of its counted tokens, in nats; NaN where q is not known.
        mean_abs_gap: mean of :math:`|\log π - \log q|` over tokens.
        token_kl: KL(q‖π) per token.
        token_distance: total variation distance per token; 0 when on-policy.
        mean_token_ratio: mean of ρ: 1 where q can draw every token; its shortfall is the share of π's mass that
            truncation (top-p, top-k, min-p) leaves out.
        sequence_kl: KL(q‖π) per completion; NaN where every completion has an unknown token.
        sequence_distance: total variation distance per completion.
        effective_sample_size: :math:`(\sum w)^2/\sum w^2` of the completions whose tokens are all known (except for
            a last token that ended the completion); 2602.17616 scales learning rates by it.
        n_tokens: tokens whose q is known.
        n_unknown: counted tokens whose q is not.
        n_sequences: completions that enter the sequence quantities.
        sampler: the sampler's settings, as far as recorded.
        scorer_temperature: temperature of the scored distribution; None where not recorded.
        other_policy: what is recorded of the policy that sampled and differs from the scored one, as ``name=value``.
    """

    gaps: list[np.ndarray]
    mean_abs_gap: Estimate
    token_kl: Estimate
    token_distance: Estimate
    mean_token_ratio: Estimate
    sequence_kl: Estimate
    sequence_distance: Estimate
    effective_sample_size: float
    n_tokens: int
    n_unknown: int
    n_sequences: int
    sampler: Mapping[str, object]
    scorer_temperature: float | None
    other_policy: tuple[str, ...] = ()

    @property
    def departures(self) -> list[str]:
        """Settings that make the sampled distribution differ from the scored one, as ``name=value``."""
        return departures_of(self.sampler, self.scorer_temperature)

    @property
    def sequence_log_ratios(self) -> Float[np.ndarray, " n"]:
        """Log w of the completions that enter the sequence quantities."""
        return np.array([total for gap in self.gaps if np.isfinite(total := _total(gap))])

    def quantiles(self) -> pd.DataFrame:
        """Return one row per level: ``level, token_gap, token_ratio, sequence_log_ratio, sequence_ratio``."""
        tokens = np.concatenate(self.gaps)
        tokens = np.quantile(tokens[np.isfinite(tokens)], _LEVELS)
        sequences = self.sequence_log_ratios
        whole = np.quantile(sequences, _LEVELS) if sequences.size else np.full(len(_LEVELS), np.nan)
        with np.errstate(over="ignore"):
            return pd.DataFrame(
                {
                    "level": _LEVELS,
                    "token_gap": tokens,
                    "token_ratio": np.exp(tokens),
                    "sequence_log_ratio": whole,
                    "sequence_ratio": np.exp(whole),
                }
            )

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per quantity: ``quantity, estimate, low, high``, with delete-one-prompt jackknife intervals."""
        rows = []
        for name in _ESTIMATED:
            estimate = getattr(self, name)
            low, high = estimate.confidence_interval(confidence_level)
            rows.append({"quantity": name, "estimate": estimate.value, "low": low, "high": high})
        size = self.effective_sample_size
        rows.append({"quantity": "effective_sample_size", "estimate": size, "low": np.nan, "high": np.nan})
        return pd.DataFrame(rows)

    def summary(self, confidence_level: float = CONFIDENCE_LEVEL) -> dict[str, object]:
        """Return everything as nested numbers, as in a run's manifest."""
        frames = {"quantities": self.to_frame(confidence_level), "quantiles": self.quantiles()}
        nested = {name: records(frame) for name, frame in frames.items()}
        counts = {name: getattr(self, name) for name in ("n_tokens", "n_unknown", "n_sequences")}
        return {"sentence": self.sentence(confidence_level), "off_policy": self.off_policy, **nested, **counts}

    @property
    def off_policy(self) -> bool:
        """Whether settings or policy differ, or the distance of the distributions over completions is noticeable."""
        low, _ = self.sequence_distance.confidence_interval()
        return bool(self.departures) or bool(self.other_policy) or low > _NOTICEABLE

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """Return how far sampler and scorer differ and, where they do, how much it may matter and what to do."""
        tokens = np.concatenate(self.gaps)
        tokens = np.abs(tokens[np.isfinite(tokens)])
        difference = (
            "the log-probabilities of sampler and scorer differ by a median "
            f"{format_number(float(np.median(tokens)), 2)} nats per token and "
            f"{format_number(float(np.quantile(tokens, 0.99)), 2)} at the 99th percentile"
        )
        if not self.off_policy:
            small = np.quantile(tokens, 0.99) < _ROUNDING
            cause = "rounding" if small else "other kernels or another precision"
            return f"Sampler and scorer agree: {difference}, as {cause} would explain."
        drift = f"{difference}; KL(sampler‖scorer) is {format_number(self.token_kl.value, 2)} nats per token"
        if self.n_sequences:
            low, high = self.sequence_distance.confidence_interval(confidence_level)
            drift += (
                f" and {format_number(self.sequence_kl.value)} a completion, so that a success rate under the scored "
                f"distribution may differ from the measured one by up to {self.sequence_distance.value:.2f} "
                f"[{max(low, 0.0):.2f}, {min(high, 1.0):.2f}], and the effective sample size of "
                f"{self.n_sequences} completions is {self.effective_sample_size:.1f}"
            )
        if self.mean_token_ratio.value < 1.0 - _ROUNDING and self._truncates:
            drift += f"; truncation leaves out {1.0 - self.mean_token_ratio.value:.1%} of its mass a token"
        if self.departures:
            remedy = (
                f"the tokens were drawn with {', '.join(self.departures)}, which is not scored: draw with top_p=1, "
                "top_k=0 at the scorer's temperature"
            )
        elif self.other_policy:
            remedy = (
                f"they were drawn by another policy, as recorded ({', '.join(self.other_policy)}), and comparisons "
                "weight them by importance ratios"
            )
        else:
            remedy = "the recorded settings do not explain it: check weights, precision and quantisation of the two"
        return f"The samples are off-policy: {drift}; {remedy}."

    @property
    def _truncates(self) -> bool:
        return bool(truncating(self.departures))


def sampler_gap(measured: MeasuredSampler) -> SamplerGap:
    r"""Compare the log-probabilities of the sampler q and of the scored model π, :math:`\log π(y_t) - \log q(y_t)`.

    :class:`SamplerGap` defines each quantity; intervals are by delete-one-prompt jackknife.

    Args:
        measured: a measurement whose rollouts have ``sampler_logprobs``.

    Raises:
        ValueError: when the sampler recorded none.

    Example:
        >>> import numpy as np, pandas as pd
        >>> import gradstats as gs
        >>> likely = np.random.default_rng(0).random((40, 8)) < 0.9  # tokens of a coin, drawn at 0.9 and scored at 0.8
        >>> drawn, scored = np.log(np.where(likely, 0.9, 0.1)), np.log(np.where(likely, 0.8, 0.2))
        >>> rollouts = gs.Rollouts.from_sequences(
        ...     [[5]] * 40, likely.astype(int).tolist(), rewards=[1.0] * 40, prompt_ids=np.arange(40) // 4,
        ...     sampler_logprobs=list(drawn),
        ... )
        >>> nothing = [np.zeros(8)] * 40
        >>> measured = gs.Measurement(
        ...     rollouts, pd.DataFrame({"all": np.ones(40)}), None, list(scored), nothing, nothing, nothing
        ... )
        >>> gap = gs.sampler_gap(measured)
        >>> round(gap.mean_token_ratio.value, 3), round(gap.effective_sample_size, 1), gap.off_policy
        (1.038, 15.7, True)
    """
    if measured.old_logprobs is None or not any(np.isfinite(values).any() for values in measured.old_logprobs):
        raise ValueError(
            "the rollouts hold no log-probabilities of their sampler (sampler_logprobs): sample with an engine that "
            "records them, such as transformers or vllm"
        )
    rollouts = measured.rollouts
    gaps = [
        (np.asarray(scored, dtype=np.float64) - drawn)[mask]
        for scored, drawn, mask in zip(measured.logprobs, measured.old_logprobs, rollouts.masks, strict=True)
    ]
    prompts = np.unique(np.asarray(rollouts.prompt_id), return_inverse=True)[1]
    known = [gap[np.isfinite(gap)] for gap in gaps]
    totals = np.array([_total(gap) for gap in gaps])
    whole = np.isfinite(totals)

    def token_mean(function: Callable[[np.ndarray], np.ndarray]) -> Estimate:
        return _ratio([float(np.sum(function(gap))) for gap in known], [gap.size for gap in known], prompts)

    def sequence_mean(values: np.ndarray) -> Estimate:
        return _ratio(np.where(whole, values, 0.0), whole.astype(float), prompts)

    sampler = rollouts.metadata.get("sampler") or {}
    scorer = measured.metadata.get("policy") or {}
    with np.errstate(over="ignore", invalid="ignore"):
        return SamplerGap(
            gaps=gaps,
            mean_abs_gap=token_mean(np.abs),
            token_kl=token_mean(np.negative),
            token_distance=token_mean(lambda gap: np.maximum(1.0 - np.exp(gap), 0.0)),
            mean_token_ratio=token_mean(np.exp),
            sequence_kl=sequence_mean(-totals),
            sequence_distance=sequence_mean(np.maximum(1.0 - np.exp(totals), 0.0)),
            effective_sample_size=_of_whole(totals[whole]),
            n_tokens=sum(gap.size for gap in known),
            n_unknown=sum(gap.size for gap in gaps) - sum(gap.size for gap in known),
            n_sequences=int(whole.sum()),
            sampler={name: sampler[name] for name in NEUTRAL if name in sampler},
            scorer_temperature=scorer.get("temperature"),
            other_policy=tuple(other_policy_of(rollouts.metadata.get("policy"), scorer)),
        )


def _total(gap: Float[np.ndarray, " t"]) -> float:
    """Log w of a completion. Servers leave out the token that ended it, which is ignored where there are others."""
    if gap.size > 1 and np.isnan(gap[-1]):
        gap = gap[:-1]
    return float(gap.sum())


def _of_whole(log_ratios: Float[np.ndarray, " n"]) -> float:
    """Return the effective sample size, which does not depend on the scale of the ratios; they may overflow."""
    return effective_sample_size(np.exp(log_ratios - log_ratios.max())) if log_ratios.size else np.nan


def _ratio(sums: npt.ArrayLike, counts: npt.ArrayLike, prompts: np.ndarray) -> Estimate:
    """Return Σ sums / Σ counts, jackknifed by prompt; NaN where nothing was counted."""
    sums, counts = (np.bincount(prompts, weights=np.asarray(values, dtype=np.float64)) for values in (sums, counts))
    if len(sums) < 2:
        return Estimate(float(sums.sum() / counts.sum()) if counts.sum() else np.nan, np.nan, "raw", np.nan)
    return (mean_statistic(sums) / mean_statistic(counts)).estimate()
