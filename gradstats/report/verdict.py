"""The answer first: what a run says about α, which estimator to use or avoid, and how large a batch should be.

The terminal and the page of a report begin with these verdicts, from the numbers as they are saved. An estimator is
judged by its relative noise: how many samples it takes for the same noise at the same signal, where the reference
takes one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gradstats.analyses.alpha import CURVED_BELOW
from gradstats.analyses.numbers import ROUNDING, Triple, number_with_interval, readable
from gradstats.analyses.plan import prompts_to_distinguish
from gradstats.analyses.variance import NEEDED, VarianceComparison
from gradstats.stats.variance.best_set import EQUAL, equal_by_construction
from gradstats.stats.variance.quantities import JUDGED, NOT_NEGATIVE, QUANTITIES, Limits
from gradstats.system.late import np, npt

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.rollouts.table import Rollouts

#: An estimator is one to avoid where it takes at least this many times the samples of the reference, beyond doubt.
WORTH_AVOIDING = 1.1
#: Bias is a verdict where it makes at least this share of the error of a batch, beyond doubt.
WORTH_NAMING = 0.1
# Rows whose estimate and ends lie within this share of one another look the same.
_ALIKE = 0.015
_SEVENTHS = 1e-4  # how exactly a scale is a fraction of small numbers
_LARGEST_DENOMINATOR = 64

NO_BREAK = "\u00a0"
UNKNOWN: Triple = (math.nan, math.nan, math.nan)
_BIAS = "matched_bias_share"

# Share of completions above which a headline says that they were cut off.
_MANY_CUT = 0.01

#: What a reader sees of an estimator instead of its label.
Naming = Callable[[str], str]


def as_labelled(label: str) -> str:
    """Return the label itself, as the terminal shows it."""
    return label


@dataclass(frozen=True)
class Verdict:
    """One line of the answer.

    Attributes:
        topic: what it is about, in a word: α, best, avoid, bias, open, batch.
        text: the verdict.
    """

    topic: str
    text: str


@dataclass(frozen=True)
class Noise:
    """Estimators that share a row: equal up to their scale, or too much alike to tell apart.

    Attributes:
        labels: of the estimators.
        scale: of the first one's gradient over that of the others, where they are equal up to it; NaN where they are
            only alike.
        shown: relative noise as readers see it, NaN for what is not known.
        together: the ends of its interval that hold for all rows at once, where the comparison has them.
        bias: share of bias in the error of a batch, with its interval; NaN where it is not resolved.
        is_reference: whether the reference is among them.
        estimates: the least and the greatest relative noise of estimators that are only alike.
    """

    labels: tuple[str, ...]
    scale: float
    shown: Triple
    together: tuple[float, float]
    bias: Triple = UNKNOWN
    is_reference: bool = False
    estimates: tuple[float, ...] = ()

    @property
    def may_share(self) -> bool:
        """Whether the row may be shown together with others that look the same."""
        return not self.is_reference and math.isnan(self.bias[1]) and all(map(math.isfinite, self.shown))

    @property
    def alike(self) -> bool:
        """Whether the row holds estimators that are not equal by construction."""
        return len(self.labels) > 1 and math.isnan(self.scale)

    def name(self, naming: Naming = as_labelled, width: int = 80) -> str:
        """Name the row in at most so many letters.

        >>> Noise(("rloo", "group_mean", "dr_grpo"), 8 / 7, (1, 1, 1), (1, 1)).name()
        'rloo = group_mean = dr_grpo at 8/7'
        """
        if not self.alike:
            return joined_name(list(map(naming, self.labels)), self.scale, width)
        return f"{shortened(naming(self.labels[0]), width - 11)} and {len(self.labels) - 1} more"

    def text(self) -> str:
        """Write the relative noise with its interval; of rows that look alike, the range of their estimates."""
        if self.alike:
            return "–".join(dict.fromkeys(f"{value:.2f}" for value in self.estimates))
        return number_with_interval(*self.shown)

    def bias_text(self) -> str:
        """Write the interval of the share of bias in per cent where it is resolved, else nothing."""
        _, low, high = self.bias
        if math.isnan(low):
            return ""
        return (
            "< 1 %"
            if high < 0.01
            else f"{100 * low:.0f}–{100 * high:.0f} %"
            if low >= 0.01
            else f"≤ {100 * high:.0f} %"
        )


def joined_name(names: Sequence[str], scale: float, width: int) -> str:
    """Name estimators that are equal up to a scale in at most so many letters.

    >>> joined_name(["rloo", "group_mean", "dr_grpo"], 1.0, 80), joined_name(["rloo", "group_mean", "dr_grpo"], 1.0, 20)
    ('rloo = group_mean = dr_grpo', 'rloo and 2 equal')
    """
    if len(names) > 1:
        at = "" if abs(scale - 1) < _SEVENTHS else f" at {_as_fraction(scale)}"
        full = f"{' = '.join(names)}{at}"
        return full if len(full) <= width else f"{shortened(names[0], width - 12)} and {len(names) - 1} equal"
    return shortened(names[0], width)


def common_scale(scales: Sequence[float]) -> float:
    """Return the first of some scales over that of all others; 1 where these differ or are not known."""
    relative = [scales[0] / scale for scale in scales[1:] if scale > 0]
    common = relative and all(math.isclose(one, relative[0], rel_tol=EQUAL) for one in relative)
    return relative[0] if common else 1.0


def _as_fraction(scale: float) -> str:
    found = Fraction(scale).limit_denominator(_LARGEST_DENOMINATOR)
    return str(found) if abs(float(found) - scale) < _SEVENTHS * scale else f"{scale:.3g}"


def shortened(name: str, width: int) -> str:
    """Cut a name to a width; what stands in brackets stays in brackets.

    >>> shortened("length_weighted(alpha=within_prompt, loo=True)", 30)
    'length_weighted(alpha=within…)'
    """
    if len(name) <= width:
        return name
    end = "…)" if name.endswith(")") else "…"
    return name[: width - len(end)].rstrip(" ,_=") + end


@dataclass(frozen=True)
class Compared:
    """The comparison of estimators as a reader needs it first.

    Attributes:
        reference: label of the estimator whose samples count as 1.
        estimators: those that are equal by construction together, from the least noise to the most.
        unresolved: labels of estimators whose relative noise these data leave open.
        silent: labels of estimators without a gradient, or whose inputs were not measured.
        about: how they were compared: the ``.attrs`` of the frame.
        group_size: completions per group of these rows, where the comparison has several sizes; else None.
        planned: estimators whose relative noise is not resolved from 1, with the prompts that would resolve it; None
            where that cannot be said.
    """

    reference: str
    estimators: tuple[Noise, ...]
    unresolved: tuple[str, ...]
    silent: tuple[str, ...]
    about: Mapping[Hashable, Any]
    group_size: float | None = None
    planned: Mapping[str, int | None] = field(default_factory=dict)

    def rows(self) -> list[Noise]:
        """Return the rows of a short table: neighbours that no one could tell apart share one.

        The reference, and estimators with a bias, stay by themselves.
        """
        merged: list[list[Noise]] = []
        for one in self.estimators:
            beside = merged[-1][0] if merged else one
            if merged and one.may_share and beside.may_share and _same(beside.shown, one.shown, _ALIKE):
                merged[-1].append(one)
            else:
                merged.append([one])
        return [_alike(group) if len(group) > 1 else group[0] for group in merged]


#: Entry of a comparison's ``.attrs`` in a run: what is planned of it, so that its page says what its terminal said.
PLANNED = "prompts_to_distinguish"


def compared_first(frame: pd.DataFrame, pilot: VarianceComparison | None = None) -> Compared:
    """Sort the rows of a comparison, those of its first group size where it has several.

    Args:
        frame: of the comparison.
        pilot: the comparison itself, where it was not read from a file: it plans closer.
    """
    reference = str(frame.attrs.get("reference", ""))
    sizes = list(dict.fromkeys(frame["group_size"].dropna())) if "group_size" in frame else []
    group_size = float(sizes[0]) if len(sizes) > 1 else None
    chosen = frame if group_size is None else frame.loc[frame["group_size"] == group_size]
    rows = chosen.to_dict("records")
    known: list[dict[Hashable, Any]] = []
    unresolved, silent = [], []
    for row in sorted(rows, key=lambda row: row["estimator"] != reference):  # the reference names what equals it
        label, shown = str(row["estimator"]), _shown(row, JUDGED.name)
        if all(map(math.isnan, shown)):
            (silent if math.isnan(_number(row, "trace_cov")) else unresolved).append(label)
        else:
            known.append(row)
    groups = equal_by_construction([_shown(row, JUDGED.name) for row in known])
    estimators = [_joined([known[at] for at in group], reference) for group in groups]
    estimators.sort(key=lambda one: next(number for number in one.shown if math.isfinite(number)))
    planned = frame.attrs.get(PLANNED)
    if planned is None and {"n_prompts", "confidence_level"} <= set(frame.attrs):
        planned = prompts_to_distinguish(chosen, pilot)
    return Compared(
        reference, tuple(estimators), tuple(unresolved), tuple(silent), frame.attrs, group_size, planned or {}
    )


def _number(row: Mapping[Any, Any], name: str) -> float:
    value = row.get(name)
    return math.nan if value is None else float(value)


def _triple(row: Mapping[Any, Any], name: str) -> Triple:
    return _number(row, name), _number(row, f"{name}_low"), _number(row, f"{name}_high")


def _shown(row: Mapping[Any, Any], name: str, limits: Limits | None = None) -> Triple:
    """Return an estimate as readers see it, with NaN also for what is infinite."""
    shown = readable(*_triple(row, name), QUANTITIES[name].limits if limits is None else limits)
    value, low, high = (math.nan if math.isinf(number) else number for number in shown)
    return value, low, high


def _same(one: Triple, other: Triple, tolerance: float) -> bool:
    return bool(np.allclose(one, other, rtol=tolerance, atol=0.0, equal_nan=True))


def _joined(rows: Sequence[Mapping[Any, Any]], reference: str) -> Noise:
    shown, bias = _shown(rows[0], JUDGED.name), _shown(rows[0], _BIAS)
    return Noise(
        labels=tuple(str(row["estimator"]) for row in rows),
        scale=common_scale([math.sqrt(_number(row, "ratio")) for row in rows]),
        shown=shown,
        together=(_together(rows[0], "low", shown[1]), _together(rows[0], "high", shown[2])),
        bias=bias if bias[1] > ROUNDING else UNKNOWN,
        is_reference=any(str(row["estimator"]) == reference for row in rows),
    )


def _together(row: Mapping[Any, Any], end: str, own: float) -> float:
    """Return an end that holds for all rows at once; that of the row itself where the comparison has none."""
    at_once = _number(row, f"{JUDGED.name}_simultaneous_{end}")
    return own if math.isnan(at_once) else at_once


def _alike(rows: Sequence[Noise]) -> Noise:
    values, lows, highs = zip(*(row.shown for row in rows), strict=True)
    return Noise(
        labels=tuple(sorted((label for row in rows for label in row.labels), key=len)),
        scale=math.nan,
        shown=(float(np.median(values)), min(lows), max(highs)),
        estimates=(min(values), max(values)),
        together=(min(row.together[0] for row in rows), max(row.together[1] for row in rows)),
    )


def headline(
    name: str,
    n_prompts: int,
    n_completions: int,
    *,
    rewards: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    n_truncated: float = 0,
) -> str:
    """Return the line above the verdicts: what was measured.

    >>> headline("embedded", 96, 768, rewards=[0, 1, 1], lengths=[24, 60, 291]).replace(NO_BREAK, " ")
    'embedded   96 prompts × 8 completions · reward 0.67 · 24–291 tokens, median 60'
    """
    each, rest = divmod(n_completions, n_prompts) if n_prompts else (0, 0)
    if rest or each < 2:
        parts = [f"{n_completions:,} completions of {n_prompts:,} prompts"]
    else:
        parts = [f"{n_prompts:,} prompts × {each} completions"]
    if rewards is not None:
        parts.append(f"reward {np.asarray(rewards).mean():.2f}")
    if lengths is not None:
        tokens = np.asarray(lengths, dtype=float)
        parts.append(f"{tokens.min():,.0f}–{tokens.max():,.0f} tokens, median {np.median(tokens):,.0f}")
    if n_truncated > _MANY_CUT * n_completions:
        parts.append(f"{n_truncated:,} cut off")
    # A line is broken between its parts only.
    return f"{name}   {' · '.join(part.replace(' ', NO_BREAK) for part in parts)}"


def headline_of(name: str, rollouts: Rollouts) -> str:
    """Return the line above the verdicts on these completions."""
    return headline(
        name,
        len(set(rollouts.prompt_id)),
        len(rollouts),
        rewards=rollouts.rewards,
        lengths=rollouts.lengths,
        n_truncated=int(rollouts.truncated.sum()),
    )


def verdicts(
    alpha: Mapping[str, Any] | None,
    compared: Compared | None,
    naming: Naming = as_labelled,
    *,
    batch_sizes: pd.DataFrame | None = None,
) -> list[Verdict]:
    """Return the verdicts of a run.

    Args:
        alpha: what ``AlphaReport.summary()`` returns, and ``alpha.json`` holds.
        compared: what :func:`compared_first` returns.
        naming: what estimators are called.
        batch_sizes: the frame of :func:`gradstats.analyses.batch_size`, which answers how large a batch should be;
            without it there is no verdict on that.
    """
    found = []
    if alpha is not None:
        found += [Verdict("α", alpha_verdict(alpha)), *(one for one in _drawn(alpha) if one.text.startswith("Not "))]
    if compared is not None:
        found += [one for one in (verdict(compared, naming) for verdict in (_best, _avoid, _bias, _open)) if one]
    batch = None if batch_sizes is None else _batch(batch_sizes, naming)
    return found if batch is None else [*found, batch]


def alpha_verdict(alpha: Mapping[str, Any]) -> str:
    """State α with its interval, α within prompts, and which of ½ and 1 they exclude.

    >>> alpha_verdict({"alpha": 0.6, "alpha_low": 0.56, "alpha_high": 0.64, "method": "ols"})
    '0.600 [0.560, 0.640]; not ½, not 1'
    >>> alpha_verdict({"alpha": 0.6, "alpha_low": math.nan, "alpha_high": math.nan, "method": "ols"})
    '0.6; without an interval, for which there are too few prompts'
    """
    found, inner = [_triple(alpha, "alpha")], alpha.get("within_prompt")
    if math.isnan(found[0][0]):
        return "not resolved"
    if inner and alpha.get("method") != "within_prompt":
        found.append(_triple(inner, "alpha"))
    if any(math.isnan(end) for _, *ends in found[:1] for end in ends):
        return f"{number_with_interval(*found[0])}; without an interval, for which there are too few prompts"
    said = []
    for value, name in ((0.5, "½"), (1.0, "1")):  # of token scores that are uncorrelated, and of aligned ones
        inside = any(low <= value <= high for _, low, high in found)
        said.append(f"{name} possible" if inside else f"not {name}")
    return f"{', within prompts '.join(number_with_interval(*one) for one in found)}; {', '.join(said)}"


def alpha_verdicts(alpha: Mapping[str, Any]) -> list[Verdict]:
    """Return α, that of length weights, whether one power law fits, and whether completions were drawn on-policy."""
    found = [Verdict("α", alpha_verdict(alpha))]
    if mean := alpha.get("mean_scaling"):
        fit = number_with_interval(*_triple(mean, "alpha"))
        found.append(Verdict("also", f"for length weights use α = {fit} (fit to the mean)"))
    curvature = alpha.get("curvature")
    if curvature and _number(curvature, "pvalue") < CURVED_BELOW:
        trend = "steepens" if _number(curvature, "curvature") > 0 else "flattens"
        found.append(Verdict("shape", f"the line {trend} with length, so that α is an average over these lengths"))
    return [*found, *_drawn(alpha)]


def _drawn(alpha: Mapping[str, Any]) -> list[Verdict]:
    """Say whether the completions were drawn on-policy: the first sentence on α, without its evidence."""
    sentences = alpha.get("sentences") or []
    return [Verdict("policy", re.split(r" \(|[:.] ", str(one))[0].removesuffix(".")) for one in sentences[:1]]


def _times(one: Noise) -> str:
    return number_with_interval(*one.shown)


def _and_more(names: Sequence[str], most: int) -> str:
    """List names, of many the first ones.

    >>> _and_more(["a", "b", "c"], 1), _and_more(["a", "b"], 2)
    ('a and 2 more', 'a and b')
    """
    shown = list(names[:most]) + ([f"{len(names) - most} more"] if len(names) > most else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _best(compared: Compared, naming: Naming) -> Verdict | None:
    reference = naming(compared.reference)
    if sum(len(one.labels) for one in compared.estimators) < 2:
        return None
    better = [one for one in compared.estimators if one.together[1] < 1.0 - EQUAL]
    if not better:
        return Verdict("best", f"nothing is shown to beat {reference}")
    # The one that is surely good has the lowest upper end.
    best = min(better, key=lambda one: one.together[1])
    text = f"{naming(best.labels[0])}: {_times(best)} times the samples of {reference}"
    others = [naming(one.labels[0]) for one in better if one is not best]
    if others:
        text += f"; {_and_more(others, 1)} {'beats' if len(others) == 1 else 'beat'} it too"
    return Verdict("best", text)


def _avoid(compared: Compared, naming: Naming) -> Verdict | None:
    noisy = [one for one in compared.estimators if one.together[0] >= WORTH_AVOIDING]
    if not noisy:
        return None
    noisy.sort(key=lambda one: -one.together[0])
    text = f"{naming(noisy[0].labels[0])}: {_times(noisy[0])} times the samples for the same noise"
    others = [naming(one.labels[0]) for one in noisy[1:]]
    return Verdict("avoid", text + (f"; also {_and_more(others, 1)}" if others else ""))


def _bias(compared: Compared, naming: Naming) -> Verdict | None:
    biased = [one for one in compared.estimators if one.bias[1] >= WORTH_NAMING]
    if not biased:
        return None
    biased.sort(key=lambda one: -one.bias[1])
    low, high = (100 * end for end in biased[0].bias[1:])
    batch = compared.about.get("prompts_per_batch")
    text = f"{naming(biased[0].labels[0])}: {low:.0f}–{high:.0f} % of the error of a batch of {batch} prompts"
    others = [naming(one.labels[0]) for one in biased[1:]]
    return Verdict("bias", text + (f"; also {_and_more(others, 1)}" if others else ""))


def _open(compared: Compared, naming: Naming) -> Verdict | None:
    """Name the estimators that are not resolved from the reference, and what would resolve them."""
    if not compared.planned:
        return None
    names = _and_more([naming(label) for label in compared.planned], 2)
    known = [number for number in compared.planned.values() if number is not None]
    if len(known) < len(compared.planned):
        return Verdict("open", f"{names}; many more prompts resolve {_them(compared.planned)} (plan --estimator)")
    span = " to ".join(f"{number:,}" for number in dict.fromkeys((min(known), max(known))))
    return Verdict("open", f"{names}; about {span} prompts resolve {_them(compared.planned)} (plan --estimator)")


def _them(names: Mapping[str, object]) -> str:
    return "it" if len(names) == 1 else "them"


def _batch(batch_sizes: pd.DataFrame, naming: Naming) -> Verdict | None:
    reference = str(batch_sizes.attrs.get("reference", "rloo"))
    for row in batch_sizes.to_dict("records"):
        if str(row["estimator"]) == reference:
            critical = _shown(row, "critical_batch", NOT_NEGATIVE)
            if any(map(math.isfinite, critical)):
                number = number_with_interval(*critical)
                return Verdict("batch", f"{number} prompts make signal and noise equal ({naming(reference)})")
    return None


def what_is_open(compared: Compared, naming: Naming = as_labelled) -> list[str]:
    """Name the estimators that have no row, and what would give them one."""
    said = []
    if compared.unresolved:
        names, needed = _and_more([naming(label) for label in compared.unresolved], 3), compared.about.get(NEEDED)
        remedy = "many more prompts" if needed is None else f"about {needed:,} prompts like these"
        said.append(f"not resolved: {names}; that takes {remedy}")
    if compared.silent:
        said.append(f"no row for {_and_more([naming(label) for label in compared.silent], 3)}: the notes say why")
    return said
