"""The number of prompts that distinguishes a ratio of variances from 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import require_level
from gradstats.stats.plans.prompt_plan import ASSURANCE, PromptPlan, smallest
from gradstats.stats.variance.n_effective_prompts import FEW
from gradstats.stats.variance.quantities import JUDGED
from gradstats.stats.variance.winner import Comparison

_NODES = 400

#: What can be planned: the ratio of variances, and that at matched signal.
RATIOS = ("ratio", JUDGED.name)


@dataclass(frozen=True, kw_only=True, repr=False)
class RatioPlan(PromptPlan):
    r"""The size of a comparison whose interval of a ratio r excludes 1, :math:`t\,\mathrm{se}_1/\sqrt M < |\log r|`.

    Attributes:
        estimator: label of the estimator in the numerator.
        reference: label of that in the denominator.
        quantity: the name of the ratio, see :data:`RATIOS`.
        ratio: the ratio to distinguish from 1.
        stderr_of_one: standard error of its logarithm times the root of the number of prompts.
        fewest_prompts: below these the interval would cover less than stated, however narrow it were; no size in the
            plan is smaller.
    """

    estimator: str
    reference: str
    quantity: str
    ratio: float
    stderr_of_one: float
    fewest_prompts: int

    def sentence(self) -> str:
        """Put the answer in words, and say where it is not the width that decides."""
        answer = super().sentence()
        if self.n_prompts > self.fewest_prompts:
            return answer
        return (
            f"{answer[:-1]}; fewer would make it narrow enough, but intervals hold from about {FEW} effective prompts "
            f"on, which {self.fewest_prompts:,} prompts are worth."
        )

    def _goal(self) -> str:
        name = self.quantity.replace("_", " ")
        return (
            f"distinguishing a {name} of {self.ratio:.3g} of {self.estimator} to {self.reference} from 1 "
            f"({self.confidence_level:.0%} interval, in {ASSURANCE:.0%} of studies)"
        )


def plan_ratio(
    pilot: Comparison | pd.DataFrame,
    estimator: str,
    ratio: float | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    *,
    quantity: str = "ratio",
    tokens_per_completion: float = math.nan,
) -> RatioPlan:
    r"""Compute how many prompts distinguish a ratio of variances from 1, from a pilot comparison.

    The standard error of the logarithm, from the width of the pilot's interval, falls like one over the root of the
    number of prompts. The interval of a study of M prompts excludes 1 in 80 % of studies where
    :math:`(t + z_{0.8})\,\mathrm{se}_1/\sqrt M \le |\log r|`. The range and the assured size take the squared standard
    error of the pilot as a multiple of χ² with one degree of freedom fewer than its (effective) prompts. No size is
    smaller than the number of prompts that is worth 50 effective ones, at the pilot's share of them: with fewer the
    interval covers less than stated (docs/statistics.md).

    Args:
        pilot: a comparison, or its frame (as in ``variance.csv``, with its ``.attrs``).
        estimator: label of a row, other than the reference.
        ratio: the ratio to distinguish from 1; None for the pilot's.
        confidence_level: of the interval, and of the range of sizes.
        quantity: the name of the ratio, see :data:`RATIOS`.
        tokens_per_completion: for the tokens of the plan; known for the comparison of a measurement.

    Raises:
        ValueError: for an estimator without one row in the pilot, a ratio that is 1 or not positive, or one without an
            interval.

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> pilot = pd.DataFrame({"estimator": ["grpo"], "ratio": [0.87], "ratio_low": [0.7], "ratio_high": [1.08]})
        >>> pilot.attrs = {"n_prompts": 100, "reference": "rloo", "confidence_level": 0.95, "completions_per_prompt": 8}
        >>> plan = gs.plan_ratio(pilot, "grpo")
        >>> plan.n_prompts, plan.n_prompts_low < plan.n_prompts < plan.n_prompts_high
        (485, True)
    """
    level = require_level(confidence_level)
    frame = pilot if isinstance(pilot, pd.DataFrame) else pilot.to_frame(confidence_level)
    if quantity not in RATIOS:
        raise ValueError(f"quantity={quantity!r} is not a ratio to be planned: choose {' or '.join(RATIOS)}")
    rows = frame.loc[frame["estimator"] == estimator]
    if len(rows) != 1:
        raise ValueError(
            f"estimator={estimator!r} has {len(rows)} rows in the pilot and one is needed: compare it at one group size"
        )
    row, about = rows.iloc[0], frame.attrs
    value, low, high = (float(row[f"{quantity}{end}"]) for end in ("", "_low", "_high"))
    n_prompts = int(about["n_prompts"])
    wanted = value if ratio is None else ratio
    if not (0 < low < high < math.inf):
        raise ValueError(
            f"{quantity} of {estimator!r} has no interval of any width in the pilot ([{low:g}, {high:g}]): choose an "
            "estimator that is not a multiple of the reference, or measure more prompts"
        )
    if not wanted > 0 or abs(math.log(wanted)) < 1e-9:
        raise ValueError(f"ratio={wanted:g} must be positive and not 1, for example 0.87")
    width = (math.log(high) - math.log(low)) / 2.0
    of_one = width / float(stats.t.ppf(0.5 + about["confidence_level"] / 2.0, n_prompts - 1)) * math.sqrt(n_prompts)
    effective = min(float(row.get("n_effective_prompts", n_prompts)), n_prompts)
    degrees, fewest = max(effective - 1.0, 1.0), math.ceil(FEW * n_prompts / effective)
    distance = abs(math.log(wanted))

    def enough(n: int, factor: float) -> bool:
        wide = float(stats.t.ppf(0.5 + level / 2.0, n - 1) - stats.norm.ppf(0.5 + level / 2.0))
        return (factor + wide) * of_one / math.sqrt(n) <= distance

    at_80 = float(stats.norm.ppf(0.5 + level / 2.0) + stats.norm.ppf(ASSURANCE))
    shrink, grow = (math.sqrt(degrees / stats.chi2.ppf(0.5 + side * level / 2.0, degrees)) for side in (1.0, -1.0))
    assured = _standard_errors_apart(level, degrees)
    factors = (at_80, at_80 * shrink, at_80 * grow, assured)
    sizes = [smallest(partial(enough, factor=factor), fewest) for factor in factors]
    return RatioPlan(
        estimator=estimator,
        reference=str(about.get("reference", "the reference")),
        quantity=quantity,
        ratio=wanted,
        stderr_of_one=of_one,
        confidence_level=confidence_level,
        fewest_prompts=fewest,
        n_prompts=sizes[0],
        n_prompts_low=sizes[1],
        n_prompts_high=sizes[2],
        n_prompts_assured=sizes[3],
        completions_per_prompt=_completions_per_prompt(about, row),
        tokens_per_completion=tokens_per_completion,
        pilot_n_prompts=n_prompts,
    )


def _standard_errors_apart(level: float, degrees: float) -> float:
    """Find how many of the pilot's standard errors apart an effect is found in 80 % of studies, as they are uncertain.

    The c at which E Φ(c·X − z) is 0.8, with X² a χ² over its degrees of freedom.
    """
    at = (np.arange(_NODES) + 0.5) / _NODES
    spread = np.sqrt(stats.chi2.ppf(at, degrees) / degrees)
    z = float(stats.norm.ppf(0.5 + level / 2.0))
    root = optimize.brentq(lambda c: float(stats.norm.cdf(c * spread - z).mean()) - ASSURANCE, 0.0, 1e3)
    return float(root)  # pyright: ignore[reportArgumentType]  # a pair only with full_output


def _completions_per_prompt(about: dict[Any, Any], row: pd.Series) -> float:
    if "completions_per_prompt" in about:
        return float(about["completions_per_prompt"])
    size = row.get("group_size", about.get("group_size"))
    groups = about.get("n_groups", about["n_prompts"]) / about["n_prompts"]
    return float(size) * groups if size is not None and np.isfinite(float(size)) else 1.0
