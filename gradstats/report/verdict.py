"""The answer first: what a run says about α, which estimator to use or avoid, and how large a batch should be.

The terminal and the page of a report begin with these verdicts, from the numbers as they are saved. An estimator is
judged by its relative noise: how many samples it takes for the same noise at the same signal, where the reference
takes one.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradstats.analyses.allocation import BEST_SIZE, completions_in_words
from gradstats.analyses.alpha import CURVED_BELOW
from gradstats.analyses.numbers import ROUNDING, Triple, format_estimate, percentage
from gradstats.analyses.plan import prompts_to_distinguish
from gradstats.analyses.printed import triples_of
from gradstats.analyses.variance import ANALYSIS as VARIANCE
from gradstats.analyses.variance import NEEDED, VarianceComparison
from gradstats.answers import Answer
from gradstats.estimators.by_label import get
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.report.analysis_tables import joined_name, short_table
from gradstats.stats.variance.quantities import JUDGED, NOT_NEGATIVE, limits_of, shown_below
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from gradstats.rollouts.table import Rollouts

#: An estimator is one to avoid where it takes at least this many times the samples of the reference, beyond doubt.
_WORTH_AVOIDING = 1.1
#: The output head or the embedding is named where it holds more than this share of ‖S‖²: the rest is then mostly of it.
_DOMINANT = 0.5
#: Bias is a verdict where it makes at least this share of the error of a batch, beyond doubt.
_WORTH_NAMING = 0.1

NO_BREAK = "\u00a0"
_UNKNOWN: Triple = (math.nan, math.nan, math.nan)
_BIAS = "matched_bias_share"

# Share of completions above which a headline says that they were cut off.
_MANY_CUT = 0.01

#: What a reader sees of an estimator instead of its label.
Naming = Callable[[str], str]


def _as_labelled(label: str) -> str:
    """Return the label itself, as the terminal shows it."""
    return label


@dataclass(frozen=True)
class Verdict:
    """One line of the answer.

    Attributes:
        topic: what it is about, in a word or two: reward, α, best, avoid, bias, open, where, batch, advice, left out.
        text: the verdict, in sentences.
    """

    topic: str
    text: str


@dataclass(frozen=True)
class NoiseRow:
    """Estimators whose gradients are equal up to their scale: one row of the relative noise.

    Attributes:
        labels: of the estimators.
        scale: of the first one's gradient over that of the others.
        shown: relative noise as readers see it, NaN for what is not known.
        together: the ends of its interval that hold for all rows at once, where the comparison has them.
        bias: share of bias in the error of a batch, with its interval; NaN where it is not resolved.
        is_reference: whether the reference is among them.
    """

    labels: tuple[str, ...]
    scale: float
    shown: Triple
    together: tuple[float, float]
    bias: Triple
    is_reference: bool

    def name(self, width: int = 80) -> str:
        """Name the row in at most so many letters."""
        return joined_name(self.labels, self.scale, width)

    def text(self) -> str:
        """Write the relative noise with its interval."""
        return format_estimate(*self.shown)

    def bias_text(self) -> str:
        """Write the interval of the share of bias in per cent where it is resolved, else nothing."""
        _, low, high = self.bias
        if math.isnan(low):
            return ""
        if math.isnan(high):  # 1, which says nothing
            return f"≥ {100 * low:.0f} %"
        if high < 0.01:
            return "< 1 %"
        return f"{100 * low:.0f}–{100 * high:.0f} %" if low >= 0.01 else f"≤ {100 * high:.0f} %"


#: Entry of what a comparison is about: estimators whose relative noise is not resolved from 1, with the prompts that
#: would resolve it, or None where that cannot be said.
PLANNED = "prompts_to_distinguish"


def with_plans(comparison: Answer, pilot: VarianceComparison | None = None) -> Answer:
    """Return a comparison that states the prompts that would resolve what is open.

    Args:
        comparison: of estimators.
        pilot: what it was made of, where it was not read from a file: it plans closer.
    """
    known = {"n_prompts", "confidence_level"} <= set(comparison.about)
    planned = prompts_to_distinguish(of_first_size(comparison)[0], pilot) if known else {}
    return replace(comparison, about={**comparison.about, PLANNED: planned})


def of_first_size(comparison: Answer) -> tuple[pd.DataFrame, float | None]:
    """Return the rows of the first group size, and that size unless it is that of all completions of a prompt."""
    frame, about = comparison.frame, comparison.about
    sizes = list(dict.fromkeys(frame["group_size"].dropna())) if "group_size" in frame else []
    if len(sizes) < 2:
        in_parts = about.get("n_groups", 0) > about.get("n_prompts", np.inf) or about.get("n_leftover", 0) > 0
        return frame, float(sizes[0]) if sizes and in_parts else None
    return frame.loc[frame["group_size"] == sizes[0]].reset_index(drop=True), float(sizes[0])


def noise_of(comparison: Answer) -> list[NoiseRow]:
    """Return the estimators with a relative noise, those that are equal by construction in one row, the best first."""
    frame, _ = of_first_size(comparison)
    shown, biases = (triples_of(frame, name, limits_of(name)) for name in (JUDGED.name, _BIAS))
    at_once, reference = triples_of(frame, f"{JUDGED.name}_simultaneous"), comparison.about.get("reference")
    found = []
    for row in short_table(VARIANCE, frame).rows:
        own, (_, low, high) = shown[row.at], at_once[row.at]
        if any(map(math.isfinite, own)):
            together = (own[1] if math.isnan(low) else low, own[2] if math.isnan(high) else high)
            bias = biases[row.at] if biases[row.at][1] > ROUNDING else _UNKNOWN
            found.append(NoiseRow(row.names, row.scale, own, together, bias, reference in row.names))
    return found


def _number(row: Mapping[Any, Any], name: str) -> float:
    value = row.get(name)
    return math.nan if value is None else float(value)


def _triple(row: Mapping[Any, Any], name: str) -> Triple:
    return _number(row, name), _number(row, f"{name}_low"), _number(row, f"{name}_high")


def headline(
    name: str,
    n_prompts: int,
    n_completions: int,
    *,
    rewards: npt.ArrayLike | None = None,
    lengths: npt.ArrayLike | None = None,
    n_truncated: float = 0,
    params: object = None,
) -> str:
    """Return the line above the verdicts: what was measured, of all parameters unless ``params`` selects some.

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
    if params:
        parts.append(f"params={params}")
    # A line is broken between its parts only.
    return f"{name}   {' · '.join(part.replace(' ', NO_BREAK) for part in parts)}"


def headline_of(name: str, rollouts: Rollouts, params: object) -> str:
    """Return the line above the verdicts on these completions."""
    return headline(
        name,
        len(set(rollouts.prompt_id)),
        len(rollouts),
        rewards=rollouts.rewards,
        lengths=rollouts.lengths,
        n_truncated=int(rollouts.truncated.sum()),
        params=params,
    )


def verdicts(
    alpha: Answer | None,
    comparison: Answer | None,
    naming: Naming = _as_labelled,
    *,
    blocks: Answer | None = None,
    batch_sizes: Answer | None = None,
    allocation: Answer | None = None,
) -> list[Verdict]:
    """Return the verdicts of a run, and at the end what to change in training.

    Args:
        alpha: the answer on α.
        comparison: that on estimators.
        naming: what estimators are called.
        blocks: that on α by block of parameters; without it none is named.
        batch_sizes: that of :func:`gradstats.analyses.batch_size`, on how large a batch should be; without it there is
            no verdict on that.
        allocation: that of :func:`gradstats.allocate`, on how many completions of a prompt to draw; likewise.
    """
    found = []
    if alpha is not None:
        drawn = _drawn(alpha.about)
        found += [Verdict("α", _alpha_verdict(alpha.about)), *(one for one in drawn if one.text.startswith("Not "))]
    if comparison is not None:
        found += [*_calibrated(comparison, naming), *_on_estimators(comparison, naming)]
    where = None if blocks is None else _where(blocks)
    size = None if comparison is None else of_first_size(comparison)[1]
    batch = None if batch_sizes is None else _batch(batch_sizes, naming, size)
    advice = None if comparison is None else _advice(comparison, naming, batch_sizes, allocation)
    return [*found, *(one for one in (where, batch, advice) if one is not None)]


def without_signal(completions: pd.DataFrame, run: str) -> list[Verdict]:
    """Return why no estimator has a gradient, where rewards are equal, with the remedy; nothing where they differ.

    Args:
        completions: of a run, with the columns ``prompt_id``, ``reward`` and, where it is known, ``truncated``.
        run: its folder.
    """
    rewards = completions["reward"].to_numpy(dtype=float)
    if not len(rewards) or (completions.groupby("prompt_id")["reward"].nunique() > 1).to_numpy().any():
        return []
    nothing = "no group has a gradient, and no estimator can be judged"
    if np.ptp(rewards) > 0:
        found = f"The completions of each prompt all have the same reward: {nothing}."
        return [
            Verdict("reward", found),
            Verdict("advice", "Draw more completions of each prompt, or choose problems that are solved sometimes."),
        ]
    found = [Verdict("reward", f"Every reward is {rewards[0]:g}: {nothing}.")]
    if rewards[0] > 0:
        return [*found, Verdict("advice", "Choose harder problems, which are solved sometimes and not always.")]
    read = f"Read some completions (gradstats report {shlex.quote(run)}), then correct what they show:"
    cut = "" if "truncated" not in completions else f", where {completions['truncated'].mean():.0%} were cut off"
    causes = f"the reward function, the answer format, the system prompt, or sampling.max_new_tokens{cut}."
    return [*found, Verdict("advice", f"{read} {causes}")]


#: Beginning of the remark of a run on a question that its data or settings allow no answer to.
#: The question of a log → what its verdict is about; where an answer states ``log``, it is of one.
_OF_LOGS = {
    "silent_groups": "silent",
    "log_noise": "noise",
    "log_lengths": "length",
    "mismatch": "ratios",
    "drift": "drift",
    "spike": "norm",
}
#: Entry of what an answer to a question of a log is about: what the log holds, in words.
LOG = "log"


def log_verdicts(answers: Mapping[str, Answer]) -> list[Verdict]:
    """Return the sentences of the answers to a log."""
    return [Verdict(topic, answers[name].sentence) for name, topic in _OF_LOGS.items() if name in answers]


LEFT_OUT = "left out: "


def left_out(remarks: Iterable[str]) -> list[Verdict]:
    """Return a line for each question that a run has no answer to, with the reason."""
    return [Verdict(LEFT_OUT, one.removeprefix(LEFT_OUT)) for one in remarks if one.startswith(LEFT_OUT)]


def _on_estimators(comparison: Answer, naming: Naming) -> list[Verdict]:
    rows, about = noise_of(comparison), comparison.about
    planned = about[PLANNED] if PLANNED in about else with_plans(comparison).about[PLANNED]
    reference, (_, size) = naming(str(about.get("reference", ""))), of_first_size(comparison)
    reference += "" if size is None else f" in groups of {size:g}"
    best = _best(rows, reference, _n_unresolved(comparison), naming)
    found = (best, _avoid(rows, reference, naming))
    found = (*found, _bias(rows, about.get("prompts_per_batch"), naming), _open(planned, naming))
    return [one for one in found if one is not None]


def _calibrated(comparison: Answer, naming: Naming) -> list[Verdict]:
    """State the least and greatest relative noise that proxies of all prompts shorten; nothing where none is known.

    A calibrated ratio of variances is one at equal signal where a rule gives the scale of the mean, on-policy.
    """
    table, reference = comparison.further.get("variance_calibrated"), str(comparison.about.get("reference", ""))
    if table is None or comparison.about.get("target") == "importance":
        return []
    several, known = len(set(table.frame["group_size"])) > 1, []
    for row in table.frame.to_dict("records"):
        label, size = str(row["estimator"]), row["group_size"]
        if row["factor"] > 1.0 and np.isfinite(size):
            scale, of_reference = (get(one).expected_scale(int(size)) for one in (label, reference))
            if scale and of_reference:
                noise = tuple(end * (of_reference / scale) ** 2 for end in _triple(row, "ratio"))
                known.append((*noise, f"{naming(label)}{f' in groups of {size:g}' if several else ''}", row["factor"]))
    if not known:
        return []
    said = [
        f"{name} {format_estimate(value, low, high, limits=NOT_NEGATIVE)} (prompts × {factor:.1f})"
        for value, low, high, name, factor in dict.fromkeys((min(known), max(known)))
    ]
    about, proxy = table.about, next(filter(None, map(str, table.frame["proxy"])))
    counts = f"Of {about['n_prompts']:,} prompts, {about['n_measured']:,} measured"
    return [
        Verdict("noise", f"{counts}, relative noise calibrated by {proxy}, {naming(reference)} 1: {', '.join(said)}.")
    ]


def sentence_of(answer: Answer, naming: Naming = _as_labelled) -> str:
    """Return the sentence that answers, with estimators named; of α and of a comparison from its verdicts."""
    if answer.question == "alpha":
        first, *others = (one.text for one in alpha_verdicts(answer.about))
        return " ".join([f"α = {first}" if first[:1].isdigit() else first.replace("It", "α", 1), *others])
    if answer.question == "variance":
        said = {one.topic: one.text for one in _on_estimators(answer, naming)}
        opened = (f"{text[:1].upper()}{text[1:]}." for text in what_is_open(answer, naming))
        leading = [one.text for one in _calibrated(answer, naming)]
        return " ".join(filter(None, [*leading, said.get("best", " ".join(opened)), said.get("avoid", "")]))
    return answer.sentence


# What α says, by whether its interval lies below, around or above ½ (token scores are uncorrelated) and 1 (aligned).
_GROWTH = {
    ("below", "below"): "gradients grow more slowly than √length",
    ("around", "below"): "gradients may grow like √length, but not like length",
    ("above", "below"): "gradients outgrow √length, but not length",
    ("above", "around"): "gradients outgrow √length, and may grow like length",
    ("around", "around"): "gradients may grow like √length or like length",
    ("above", "above"): "gradients outgrow length",
}


def _growth(alpha: Triple) -> str:
    """Say how gradients grow with length, as far as the interval of α decides it."""
    _, low, high = alpha
    below, above = ("below" if high < one else "above" if low > one else "around" for one in (0.5, 1.0))
    return _GROWTH[below, above]


def _alpha_verdict(alpha: Mapping[str, Any]) -> str:
    """State α with its interval and what it says of growth, and α within prompts where that says something else.

    >>> _alpha_verdict({"alpha": 0.6, "alpha_low": 0.56, "alpha_high": 0.64, "method": "ols"})
    '0.600 [0.560, 0.640]: gradients outgrow √length, but not length.'
    >>> _alpha_verdict({"alpha": 0.6, "alpha_low": math.nan, "alpha_high": math.nan, "method": "ols"})
    '0.6, without an interval, for which there are too few prompts.'
    """
    found, inner = _triple(alpha, "alpha"), _within_prompts(alpha)
    if math.isnan(found[0]):
        return "It is not resolved."
    if any(map(math.isnan, found)):
        return f"{format_estimate(*found)}, without an interval, for which there are too few prompts."
    said = f"{format_estimate(*found)}: {_growth(found)}"
    if inner is not None and _growth(inner) != _growth(found):
        said += f"; within prompts {format_estimate(*inner)}: {_growth(inner)}"
    return f"{said}."


def _within_prompts(alpha: Mapping[str, Any]) -> Triple | None:
    """Return α of answers to one prompt, where it is known beside that of all completions."""
    inner = alpha.get("within_prompt")
    found = _triple(inner, "alpha") if inner and alpha.get("method") != "within_prompt" else _UNKNOWN
    return None if any(map(math.isnan, found)) else found


def alpha_verdicts(alpha: Mapping[str, Any]) -> list[Verdict]:
    """Return α, that of length weights, whether one power law fits, and whether completions were drawn on-policy."""
    found, inner = [Verdict("α", _alpha_verdict(alpha))], _within_prompts(alpha)
    if inner is not None:
        found.append(Verdict("within", f"Among answers to one prompt, α = {format_estimate(*inner)}."))
    if mean := alpha.get("mean_scaling"):
        fit = format_estimate(*_triple(mean, "alpha"))
        found.append(Verdict("also", f"For length weights, use α = {fit}, fitted to the mean."))
    curvature = alpha.get("curvature")
    if curvature and _number(curvature, "pvalue") < CURVED_BELOW:
        trend = "steepens" if _number(curvature, "curvature") > 0 else "flattens"
        found.append(Verdict("shape", f"The line {trend} with length: α is an average over these lengths."))
    return [*found, *_drawn(alpha)]


def _drawn(alpha: Mapping[str, Any]) -> list[Verdict]:
    """Say whether the completions were drawn on-policy: the first sentence on α, without its evidence."""
    sentences = alpha.get("sentences") or []
    said = (re.split(r" \(|[:.] ", str(one))[0].removesuffix(".") for one in sentences[:1])
    return [Verdict("policy", f"{one}.") for one in said]


def _and_more(names: Sequence[str], most: int) -> str:
    """List names, of many the first ones.

    >>> _and_more(["a", "b", "c"], 1), _and_more(["a", "b"], 2)
    ('a and 2 more', 'a and b')
    """
    shown = list(names[:most]) + ([f"{len(names) - most} more"] if len(names) > most else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _n_unresolved(comparison: Answer) -> int:
    """Return how many rows with a gradient have no relative noise, and none that is shown to be above the reference."""
    frame, _ = of_first_size(comparison)
    together = f"{JUDGED.name}_simultaneous_low"
    names = "trace_cov", JUDGED.name, together if together in frame else f"{JUDGED.name}_low"
    noise, value, low = frame[list(names)].to_numpy(dtype=float).T
    return int(np.sum(np.isfinite(noise) & np.isnan(value) & ~(low >= 1.0)))


def _best(rows: Sequence[NoiseRow], reference: str, n_unresolved: int, naming: Naming) -> Verdict | None:
    if sum(len(one.labels) for one in rows) < 2 and not n_unresolved:
        return None
    not_judged = (
        f" {n_unresolved} {'row is' if n_unresolved == 1 else 'rows are'} not resolved." if n_unresolved else ""
    )
    better = _better(rows)
    if not better:
        nothing = "No estimator that could be judged" if n_unresolved else "No estimator"
        text = f"{nothing} is shown to beat {reference}"
        if alone := [naming(one.labels[0]) for one in rows if shown_below(*one.shown[1:])]:
            whose = f"interval{'' if len(alone) == 1 else 's'} of {_and_more(alone, 2)}"
            text += f", corrected for comparing all rows, which the {whose} {'is' if len(alone) == 1 else 'are'} not"
        return Verdict("best", f"{text}.{not_judged}")
    best = better[0]
    text = f"{naming(best.labels[0])} needs {best.text()} times the samples of {reference}"
    if others := [naming(one.labels[0]) for one in rows if one in better[1:]]:
        text += f"; {_and_more(others, 1)} {'beats' if len(others) == 1 else 'beat'} it too"
    return Verdict("best", f"{text}.{not_judged}")


def _better(rows: Iterable[NoiseRow]) -> list[NoiseRow]:
    """Return the rows that are shown to beat the reference, the one that is surely good first."""
    return sorted((one for one in rows if shown_below(*one.together)), key=lambda one: one.together[1])


def _avoid(rows: Sequence[NoiseRow], reference: str, naming: Naming) -> Verdict | None:
    noisy = sorted((one for one in rows if one.together[0] >= _WORTH_AVOIDING), key=lambda one: -one.together[0])
    if not noisy:
        return None
    text = f"{naming(noisy[0].labels[0])} needs {noisy[0].text()} times the samples of {reference}"
    if others := [naming(one.labels[0]) for one in noisy[1:]]:
        text += f"; {_and_more(others, 1)} {'needs' if len(others) == 1 else 'need'} more too"
    return Verdict("avoid", f"{text}.")


def _bias(rows: Sequence[NoiseRow], batch: object, naming: Naming) -> Verdict | None:
    biased = sorted((one for one in rows if one.bias[1] >= _WORTH_NAMING), key=lambda one: -one.bias[1])
    if not biased:
        return None
    share, other = biased[0].bias_text(), [naming(one.labels[0]) for one in biased[1:]]
    also = f"; much of that of {_and_more(other, 1)} too" if other else ""
    return Verdict(
        "bias", f"{share} of the error of {naming(biased[0].labels[0])} in a batch of {batch} prompts is bias{also}."
    )


def _open(planned: Mapping[str, int | None], naming: Naming) -> Verdict | None:
    """Name the estimators that are not resolved from the reference, and how many prompts would resolve them."""
    if not planned:
        return None
    names, known = (
        _and_more([naming(label) for label in planned], 2),
        [one for one in planned.values() if one is not None],
    )
    span = " to ".join(f"{number:,}" for number in dict.fromkeys((min(known), max(known)))) if known else ""
    needed = f"about {span} prompts" if len(known) == len(planned) else "many more prompts"
    return Verdict("open", f"Measure {needed} to judge {names}.")


def _where(blocks: Answer) -> Verdict | None:
    """Name the block outside the layers that holds most of ‖S‖²: what is said of all parameters is mostly of it."""
    shares = dict(zip(blocks.frame["block"], blocks.frame["share_of_sq_norm"], strict=True))
    block, share = max(((one, shares.get(one, 0.0)) for one in ("embedding", "head")), key=lambda pair: pair[1])
    if not share > _DOMINANT:
        return None
    remedy = "for the layers alone --set measurement.params=layers"
    return Verdict("where", f"All this is mostly of the {block}, which holds {share:.0%} of ‖S‖²; {remedy}.")


def _critical_batch(batch_sizes: Answer, labels: Sequence[str]) -> tuple[Triple, float] | None:
    """Return the critical batch of estimators that share it, as readers see it, and its group size; None if unknown."""
    frame = batch_sizes.frame
    sizes = frame["group_size"] if "group_size" in frame else [math.nan] * len(frame)
    criticals = triples_of(frame, "critical_batch", NOT_NEGATIVE)
    for label, size, critical in zip(frame["estimator"], sizes, criticals, strict=True):
        if label in labels and any(map(math.isfinite, critical)):
            return critical, float(size)
    return None


def _batch(batch_sizes: Answer, naming: Naming, compared_size: float | None) -> Verdict | None:
    reference = str(batch_sizes.about.get("reference", "rloo"))
    if (found := _critical_batch(batch_sizes, [reference])) is None:
        return None
    (critical, size), whose = found, naming(reference)
    whose += _in_other_groups(size, compared_size)
    prompts = re.sub("^≥", "at least", format_estimate(*critical))
    return Verdict("batch", f"The noise of {whose} equals its signal in a step of {prompts} prompts.")


def _in_other_groups(size: float, compared: float | None) -> str:
    """Name the size of groups where it is not that of the comparison."""
    return f" in groups of {size:g}" if compared is not None and math.isfinite(size) and size != compared else ""


def _advice(
    comparison: Answer, naming: Naming, batch_sizes: Answer | None, allocation: Answer | None
) -> Verdict | None:
    """Say what to change in training, as far as it is resolved; None where nothing was compared."""
    rows, reference = noise_of(comparison), str(comparison.about.get("reference", ""))
    if not len(comparison.frame) or not comparison.frame["trace_cov"].notna().to_numpy().any():
        return None
    frame, compared_size = of_first_size(comparison)
    of_reference = frame.loc[frame["estimator"] == reference, "trace_cov"]
    if len(of_reference) and of_reference.isna().to_numpy().all():
        return Verdict("advice", f"Choose another reference: {naming(reference)} has no gradient; the notes say why.")
    if not any(one.is_reference for one in rows):
        return Verdict("advice", f"Measure more prompts: the noise of {naming(reference)} is not resolved.")
    if len(rows) == 1 and len(comparison.frame) > len(rows[0].labels):
        return Verdict("advice", f"Measure more prompts: nothing could be compared with {naming(reference)}.")
    better = [one for one in _better(rows) if not one.bias[1] >= _WORTH_NAMING]
    usable = next((one for one in better if not _missing_in_training(one.labels[0])), None)
    said = [f"keep {naming(reference)}"]
    if usable is not None:
        fewer = [1.0 - one for one in (usable.shown[0], usable.shown[2], usable.shown[1])]
        saving = f", for {percentage(*fewer)} fewer samples" if all(map(math.isfinite, fewer)) else ""
        said = [f"use {naming(usable.labels[0])} in place of {naming(reference)}{saving}"]
    elif better:
        needed = _missing_in_training(better[0].labels[0])
        said[0] += f" unless you can afford the {needed} that {naming(better[0].labels[0])} needs"
    whose = "" if reference == "rloo" and usable is None else f" ({naming('rloo')})"
    best = None if allocation is None else allocation.about.get(BEST_SIZE)
    if best is not None and (drawn := completions_in_words(*best)):
        said.append(f"draw {drawn} of each prompt{whose}")
    advised = (reference,) if usable is None else usable.labels
    if batch_sizes is not None and (found := _critical_batch(batch_sizes, advised)) is not None:
        (_, low, high), size = found
        if math.isfinite(low):  # of a bound alone the number that another line states
            least = max(low, 1.0)
            bound = f"≥ {least:.0f}" if math.isfinite(high) else format_estimate(math.nan, least, math.inf)
            groups = _in_other_groups(size, compared_size)
            said.append(f"train on {bound.replace('≥', 'at least')} prompts per step{groups}")
    text = "; ".join(said)
    return Verdict("advice", f"{text[:1].upper()}{text[1:]}.")


# What training does not know by itself, and an estimator may need.
_NOT_IN_TRAINING = {"sq_norms": "gradient norms", "values": "state values"}


def _missing_in_training(label: str) -> str:
    """Return what an estimator needs that training does not know by itself; "" for nothing."""
    if ":" in label.removeprefix(PREFIX):  # a function of somebody else, which is not imported here
        return ""
    try:
        needs = get(label).needs
    except KeyError:  # registered by another process
        return ""
    return next((words for name, words in _NOT_IN_TRAINING.items() if name in needs), "")


def what_is_open(comparison: Answer, naming: Naming = _as_labelled) -> list[str]:
    """Name the estimators that have no row, and what would give them one."""
    frame, _ = of_first_size(comparison)
    # The reference first.
    of_reference = frame["estimator"] == comparison.about.get("reference")
    frame = pd.concat([frame.loc[of_reference], frame.loc[~of_reference]])
    shown, has_gradient = triples_of(frame, JUDGED.name, JUDGED.limits), frame["trace_cov"].notna()
    without = [
        (naming(str(label)), known)
        for label, known, triple in zip(frame["estimator"], has_gradient, shown, strict=True)
        if not any(map(math.isfinite, triple))
    ]
    unresolved, silent = ([name for name, known in without if known == wanted] for wanted in (True, False))
    said = []
    if unresolved:
        needed = comparison.about.get(NEEDED)
        remedy = "many more prompts" if needed is None else f"about {needed:,} prompts like these"
        said.append(f"not resolved: {_and_more(unresolved, 3)}; a first estimate takes {remedy}")
    if silent:
        said.append(f"no row for {_and_more(silent, 3)}: the notes say why")
    return said
