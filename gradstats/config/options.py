"""Options that several sections share: their defaults and types, labels ``name(parameter=value)``, and metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from gradstats.config.validation import Section, setting

#: Dtypes of the weights in which the engines are checked, the widest first.
CHECKED_TYPES = ("float64", "float32", "bfloat16")
#: Default level of intervals.
CONFIDENCE_LEVEL = 0.95
#: Largest number of tokens that pass through the model at once, padding included.
TOKEN_BUDGET = 4096
#: Memory limit, in GiB, for logits and for per-sequence gradients each; on small machines a quarter of the memory.
MOST_MEMORY_GIB = 4.0
#: Largest number of prompts in a batch, for the share of bias and for batch-level estimators.
PROMPTS_PER_BATCH = 128


Count = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
#: Logits over a smaller temperature are not finite, and over a larger one all equal.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-4, 1e4
Temperature = Annotated[float, Ge(LEAST_TEMPERATURE), Le(MOST_TEMPERATURE)]
ConfidenceLevel = Annotated[float, Gt(0), Lt(1)]

#: Type of the weights and gradients.
WeightType = Literal["float32", "float64", "bfloat16", "float16"]
#: Fits of the length exponent, and intervals for it.
FitMethod = Literal["ols", "theil_sen", "gamma", "ppml", "gls", "within_prompt", "between_prompt"]
IntervalMethod = Literal["t", "hc3", "cluster", "bootstrap", "rank"]
Target = Literal["auto", "on_policy", "importance"]
#: Whose column widths figures have, their width, look and file formats.
Venue = Literal["icml", "neurips", "iclr", "colm", "acl", "jmlr", "slide"]
ColumnWidth = Literal["half", "full"]
Theme = Literal["light", "dark"]
FigureFormat = Literal["pdf", "svg", "png", "pgf"]
#: Where shards are made.
ExecutorName = Literal["local", "ray"]
#: Libraries that log a run.
Tracker = Literal["none", "trackio", "wandb"]
#: Label of an estimator, or name of a run → what figures call it.
DisplayNames = dict[str, str]
#: Options of something that is chosen by name elsewhere: a data source, a sampler, a chat template.
FreeOptions = dict[str, Any]
#: Question → its settings, true for those that it has by default, or false.
AskedQuestions = dict[str, bool | FreeOptions]
#: One reward, several as "name=weight", several as name → weight, or the problem set's own.
RewardNames = str | list[str] | dict[str, float] | None
#: How squared norms are split: the name of a split, or regular expression → block.
BlockNames = str | dict[str, str]
#: One group size, several, or all completions of each prompt.
GroupSizes = Count | list[Count] | None


def how_to_set(setting: str, value: object) -> str:
    """Return how a setting is given: to a command, in another run directory where this one is settled, and in Python.

    >>> how_to_set("measurement.block_sketches", True)
    '--set measurement.block_sketches=true --out … (in Python block_sketches=True)'
    """
    in_yaml = str(value).lower() if isinstance(value, bool) else value
    elsewhere = "" if setting.startswith("policy.") else " --out …"
    return f"--set {setting}={in_yaml}{elsewhere} (in Python {setting.rpartition('.')[2]}={value!r})"


#: What to do where probes of token scores are missing.
MEASURE_PROBES = f"measure with {how_to_set('measurement.token_probes', 32)}"


def of_type(value: object) -> str:
    """Name the type of a value, for a message.

    >>> of_type(3), of_type("3")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def counted(number: int, what: str) -> str:
    """Write a number of things.

    >>> counted(1, "prompt"), counted(1200, "prompt")
    ('1 prompt', '1,200 prompts')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def read_label(label: str) -> tuple[str, dict[str, Any]]:
    """Read a name with parameters in brackets.

    Example:
        >>> read_label("kimi(tau=0.5)")
        ('kimi', {'tau': 0.5})
    """
    name, bracket, inside = label.partition("(")
    if not bracket:
        return label, {}
    try:
        call = ast.parse(f"f({inside}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        parameters = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg}
        if len(parameters) < len(call.keywords):  # a repeated parameter, or **mapping
            raise ValueError
    except (SyntaxError, TypeError, ValueError):
        raise ValueError(f"cannot read {label!r}: write it as name(parameter=value, …)") from None
    return name.strip(), parameters


def read_display_names(words: Iterable[str]) -> dict[str, str]:
    """Read names that are given as ``label=name``; the label ends at the first ``=`` outside its brackets.

    Example:
        >>> read_display_names(["length_weighted(alpha=0.8)=ours, at $x = 1$"])
        {'length_weighted(alpha=0.8)': 'ours, at $x = 1$'}
    """
    found = {}
    for word in words:
        depth, at = 0, -1
        for place, character in enumerate(word):
            depth += {"(": 1, ")": -1}.get(character, 0)
            if character == "=" and depth == 0:
                at = place
                break
        label, name = word[: max(at, 0)].strip(), word[at + 1 :].strip()
        if at < 0 or not label or not name:
            raise ValueError(f"cannot read {word!r}: write it as label=name, as in 'rloo=leave-one-out'")
        found[label] = name
    return found


def _literal(node: ast.expr) -> Any:
    """Return a number, True, False or None, a quoted string, or a bare word or a call, which are read as strings."""
    if _is_hyphenated(node):
        return ast.unparse(node).replace(" ", "")
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Call) else ast.literal_eval(node)


def _is_hyphenated(node: ast.expr) -> bool:
    """Return whether a node is bare words joined by hyphens, as in ``token-mean``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or not isinstance(node.right, ast.Name):
        return False
    return isinstance(node.left, ast.Name) or _is_hyphenated(node.left)


def written(value: object) -> str:
    """Write a parameter's value for a label: numbers to six digits, texts without quotes where that is clear."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        try:
            same = read_label(f"f(x={value})")[1]["x"] == value
        except ValueError:
            same = False
        return value if same else repr(value)
    return str(value)


#: What estimates the second moments from the rollouts themselves.
ESTIMATE = "estimate"
_ADAM = "adam"
#: The label of the Euclidean metric.
EUCLIDEAN = "euclidean"


class AdamSection(Section):
    """Arguments of :class:`gradstats.AdamMetric`; None where the file of second moments may state the value."""

    title: ClassVar[str] = "the metric"

    eps: Annotated[float, Ge(0)] | None = setting(None, "ε; that of the file, or 1e-8.", "measurements")
    power: Annotated[float, Ge(0)] = setting(0.5, "the power of the second moments.", "measurements")
    step: Annotated[int, Ge(1)] | None = setting(
        None, "steps after which uncorrected moments were taken; that of the file, or none.", "measurements"
    )
    beta2: Annotated[float, Gt(0), Lt(1)] | None = setting(None, "β₂; that of the file, or 0.999.", "measurements")


class EstimateSection(Section):
    """How second moments are estimated: arguments of :func:`gradstats.estimate_second_moments`, and which prompts."""

    title: ClassVar[str] = "the estimate of second moments"

    estimator: str = setting("rloo", "label of the estimator whose batch gradients are squared.", "measurements")
    prompts_per_batch: Annotated[int, Ge(1)] = setting(16, "prompts of a batch.", "measurements")
    share: Annotated[float, Gt(0), Lt(1)] = setting(
        0.25, "share of the prompts that are set aside for the estimate, and not measured.", "measurements, no argument"
    )


def adam_section(metric: str | None) -> AdamSection | None:
    """Return the options of a label such as ``"adam(eps=1e-6)"``; None for the Euclidean metric, named or by default.

    >>> adam_section("adam(power=0.25)").power
    0.25
    >>> adam_section("euclidean") is adam_section(None) is None
    True
    """
    if metric in (None, EUCLIDEAN):
        return None
    name, options = read_label(metric)
    if name != _ADAM:
        raise ValueError(f"the metric {name!r} is unknown: choose euclidean, or adam, as in adam(eps=1e-8)")
    return AdamSection(**options)


def refuse_correction(adam: AdamSection) -> None:
    """Refuse a number of steps for second moments that are estimated, which start from no moments of 0."""
    if adam.step is not None:
        raise ValueError(
            f"step of the metric is {adam.step}, and second moments that are estimated need no correction: leave step "
            "out"
        )


def estimate_section(second_moments: str | None) -> EstimateSection | None:
    """Return the options of ``"estimate(…)"``; None where the second moments come from a file.

    >>> estimate_section("estimate(prompts_per_batch=4)").prompts_per_batch
    4
    >>> estimate_section("checkpoint/optimizer.pt") is None
    True
    """
    if second_moments is None or second_moments.partition("(")[0].strip() != ESTIMATE:
        return None
    return EstimateSection(**read_label(second_moments)[1])
