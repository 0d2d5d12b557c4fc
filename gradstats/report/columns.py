"""The index of all printed and saved columns: table, meaning, and the file that computes each.

``gradstats list quantities`` prints it. Headings that figures and tables share are read from where they are declared;
a column's ``_low`` and ``_high`` are the ends of its interval and have no entry of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradstats.analyses import registry
from gradstats.analyses.declaration import Analysis, Column
from gradstats.analyses.on_policy import WORDS


@dataclass(frozen=True)
class PrintedColumn:
    """One column, or one row where a table has a row for each quantity."""

    name: str
    meaning: str
    file: str  # that computes it, from the folder of the package


def _of(file: str, **meanings: str) -> tuple[PrintedColumn, ...]:
    """Return columns that one file computes: name → meaning."""
    return tuple(PrintedColumn(name, meaning, file) for name, meaning in meanings.items())


def _own_of(analysis: Analysis, columns: Iterable[Column]) -> tuple[PrintedColumn, ...]:
    """Return columns that an analysis declares."""
    return tuple(PrintedColumn(one.name, one.meaning, one.file or analysis.file) for one in columns)


def _declared(name: str) -> tuple[PrintedColumn, ...]:
    """Return the columns of the table of an analysis."""
    return _own_of(registry.get(name), registry.get(name).columns)


_VARIANCE = "stats/variance"
_RESULT = "analyses/variance.py"
_INPUTS = f"{_VARIANCE}/inputs.py"
_CURVE = "analyses/curve.py"
_LENGTH = "stats/length_scaling"
_DIAGNOSTICS = f"{_LENGTH}/diagnostics.py"

_ROW = _declared("variance")

#: Table → its columns. A file of that name in a run directory holds the table, unless it is printed only.
INDEX: dict[str, tuple[PrintedColumn, ...]] = {
    "curve fits": _of(_CURVE, fit="of an exponent", value="the exponent", ratio_to_lowest="what it costs"),
    "sweep": (
        *_ROW,
        *_of(
            "report/sweeps.py",
            cell="run of the sweep",
            n_prompts="prompts of the run",
            n_completions="completions of the run",
            truncated_share="share of completions that were cut off",
            mean_length="mean over prompts of the mean length",
            mean_reward="mean over prompts of the mean reward",
        ),
        *_of(f"{_LENGTH}/alpha.py", alpha="exponent α of the run"),
    ),
    "cell_differences": _of(
        "report/sweeps.py",
        cell="run of the sweep",
        minus="the run that is subtracted",
        quantity="alpha, mean_length or mean_reward",
        difference="between the two, paired over prompts",
        n_prompts="prompts of both",
    ),
    "variance.json": (
        *_of(
            _RESULT,
            reference="estimator in the denominator of ratios",
            confidence_level="level of the intervals",
            prompts_per_batch="prompts of the batch whose share of bias is stated",
            n_prompts="prompts",
            n_groups="groups",
            n_leftover="completions that no group had room for",
            sketch_dim="dimension of the sketches",
            n_completions="completions in groups",
            notes="what to know when reading the table",
        ),
        *_of("measurement/measurement.py", metric="the metric that gradients were measured in"),
        *_of(_INPUTS, target="the gradient that bias and cosine are judged against"),
        *_of(
            "stats/protocols.py",
            effective_sample_size="completions of equal weight that importance weights are worth",
        ),
    ),
    "alpha.json": (
        *(one for one in _declared("alpha") if one.name not in ("run", "alpha_within")),  # of a row for each run
        *_of(
            "analyses/alpha.py",
            mean_scaling="α of the mean of ‖S‖²",
            within_prompt="α within prompts, that of a group baseline",
            without_truncated="α without completions that were cut off",
            within_between="α within and between prompts",
            token_energy="α of the summed token energies",
            by_block="α of each block of parameters",
            on_policy="the on-policy check",
            most_influential_prompt="whose omission moves α most",
            sentences="what to consider when reading α",
        ),
        *_of("measurement/measurement.py", metric="the metric of the norms"),
        *_of(_DIAGNOSTICS, curvature="whether one power law fits"),
    ),
    "curvature": _of(
        _DIAGNOSTICS, curvature="half the change of the slope per unit of log T", pvalue="of no curvature"
    ),
    "within_between": _of(
        _DIAGNOSTICS,
        alpha_within="α of answers to one prompt",
        alpha_between="α of prompts' means",
        difference="between less within",
        pvalue="of no difference",
    ),
    "alpha difference": _of(
        _DIAGNOSTICS,
        alpha="α of the first sample",
        other_alpha="α of the second",
        difference="first less second, paired over prompts",
        pvalue="of no difference",
        n_prompts="prompts of both",
    ),
    "most_influential_prompt": _of(
        _DIAGNOSTICS,
        prompt="the prompt left out",
        n="its completions",
        alpha="α without it",
        change="of α",
    ),
    "on_policy": _of(
        "analyses/on_policy.py",
        **WORDS,
        quantity="which of the three",
        on_policy_value="what on-policy sampling gives",
        estimate="the estimate",
        low="lower end of its interval",
        high="upper end",
        pvalue="of the on-policy value, adjusted for three tests",
    ),
    "sampler_gap": (
        *_of(
            "analyses/sampler_gap.py",
            mean_abs_gap="mean |log π − log q| of a token, nats",
            token_kl="KL(q‖π) per token, nats",
            token_distance="total variation distance per token",
            mean_token_ratio="mean of π/q over tokens",
            sequence_kl="KL(q‖π) per completion, nats",
            sequence_distance="total variation distance per completion",
            quantity="which of these",
            estimate="the estimate",
            low="lower end of its interval",
            high="upper end",
            n_tokens="tokens whose q is known",
            n_unknown="tokens whose q is not",
            n_sequences="completions that enter",
            level="of the quantiles",
            token_gap="quantile of log π − log q over tokens",
            token_ratio="quantile of π/q over tokens",
            sequence_log_ratio="quantile of its sum over a completion",
            sequence_ratio="quantile of the product of π/q over a completion",
            off_policy="whether the difference is noticeable",
            sentence="the verdict",
            quantities="the table of estimates",
            quantiles="the table of quantiles",
        ),
        *_of(
            "stats/protocols.py",
            effective_sample_size="completions of equal weight that importance weights are worth",
        ),
    ),
    "fitted values": _of(
        "values/fitted.py",
        explained_variance="share of the variance of returns that the values explain, out of fold",
        n_folds="folds of prompts",
        penalty="median ridge penalty",
    ),
    "check": _of(
        "gradients/checks/check_engines.py",
        dtype="of the model",
        check="which comparison",
        engine="which engine",
        deviation="largest relative deviation of ‖S‖²",
        tolerance="that is allowed",
        verdict="ok, fails, not run or unsupported",
        note="why it was not run",
    ),
}

for _one in registry.of_this_version():
    for _table in _one.tables:
        _figures = [figure for figure in _one.figures if (figure.table or _one.name) == _table.name]
        INDEX[_table.name] = _own_of(_one, (*_table.columns, *(one for figure in _figures for one in figure.columns)))
