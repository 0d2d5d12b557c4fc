"""Write the generated sections of estimators.md: the tables of estimators and recipes, and the rankings.

Run ``python docs/estimators_page.py`` after a change to an estimator, a recipe or a policy below.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from gradstats import estimators as est
from gradstats.estimators import Recipe, recipes
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.estimators.registry import get_definition
from gradstats.reference import EnumeratedPolicy

PAGE = Path(__file__).with_name("estimators.md")
GROUP_SIZE = 4
#: Parameters that many estimators share, which the page explains once.
SHARED = ("singleton", "off_policy", "eps")


def ends_in_one(prompt: int, tokens: tuple[int, ...]) -> float:
    """Return 1 if the last token before the end is token 1, else 0."""
    return float([token for token in tokens if token][-1:] == [1])


POLICIES: dict[str, Callable[[], EnumeratedPolicy]] = {
    "patient": lambda: EnumeratedPolicy(3, 3, reward=lambda prompt, tokens: float(len(tokens) == 3), rng=3),
    "last word": lambda: EnumeratedPolicy(3, 3, reward=ends_in_one, rng=3),
    "steady": lambda: EnumeratedPolicy(3, 3, reward=lambda prompt, tokens: float(len(tokens) <= 2), rng=6),
}

RANKED: list[est.Estimator | Recipe] = [
    est.reinforce(),
    est.rloo(),
    est.token_mean(loo=True),
    est.length_weighted(alpha=0.8, loo=True),
    est.norm_weighted(loo=True),
    est.otb(loo=True),
    est.causal_optimal(loo=True),
    est.gae(),
    recipes.get("grpo"),
]


def ranking(policy: EnumeratedPolicy) -> pd.DataFrame:
    """Rank every estimator on groups of 4 by its exact relative noise."""
    reference = policy.moments(est.rloo(), GROUP_SIZE)
    rows = []
    for estimator in RANKED:
        moments = policy.moments(estimator, GROUP_SIZE)
        rows.append(
            {
                "estimator": f"`{estimator.label}`",
                "tr Cov / RLOO's": moments.trace_cov / reference.trace_cov,
                "relative noise": moments.matched_trace_cov / reference.trace_cov,
                "noise-to-signal": moments.noise_to_signal,
                "cosine to ∇J": moments.cosine,
            }
        )
    return pd.DataFrame(rows).sort_values("relative noise", kind="stable")


def to_markdown(frame: pd.DataFrame) -> str:
    """Format a frame as a Markdown table, with numbers to three decimals."""
    cells = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    header, *rows = ("| " + " | ".join(row) + " |" for row in (list(frame.columns), *cells))
    return "\n".join([header, "|" + "---|" * frame.shape[1], *rows])


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "\\|")


def parameters_of(name: str) -> str:
    """Format an estimator's own parameters with their defaults, as in a call."""
    declared = list(inspect.signature(get_definition(name).function).parameters.values())[1:]
    shown = [p for p in declared if p.name not in SHARED]
    written = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in shown]
    return f"`{name}({', '.join(written)})`"


def blocks() -> dict[str, str]:
    """Return the generated sections by the names of their markers."""
    family = est.table()
    divided = [f"; divided by the {scale}" if scale[:1].isalpha() else "" for scale in family["scale"]]
    family["baseline"] += divided
    family = family.drop(columns=["scale", "ratio + clip", "aggregation", "needs"])
    rows = recipes.published()
    alone = rows["label"].isin([f"recipe:{name}" for name in family["name"]])
    rows = rows[~alone | rows["components"].str.contains(" · ")]
    rows = rows[rows["label"].str.startswith(PREFIX)][["label", "components", "source"]]
    rows["label"] = [f"`{label}`" for label in rows["label"]]
    rows["components"] = rows["components"].str.replace(" · ", ", ")
    family["name"] = [parameters_of(name) for name in family["name"]]
    policies = {name: make() for name, make in POLICIES.items()}
    rankings = {name: ranking(policy).set_index("estimator") for name, policy in policies.items()}
    return {
        "estimators": to_markdown(family),
        "recipes": to_markdown(rows),
        "ranking": to_markdown(side_by_side(rankings, "relative noise")),
    }


def side_by_side(frames: dict[str, pd.DataFrame], column: str) -> pd.DataFrame:
    """Return one column of each frame, named after it, in the order of the first."""
    return (
        pd.DataFrame({name: frame[column] for name, frame in frames.items()})
        .loc[next(iter(frames.values())).index]
        .reset_index()
    )


def render(page: str) -> str:
    """Return the page with every generated section replaced by its current text."""
    for name, text in blocks().items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", flags=re.DOTALL)
        page, count = pattern.subn(lambda match, text=text: f"{match[1]}\n{text}\n\n{match[2]}", page)
        if count != 1:
            raise ValueError(f"{PAGE.name} must have one pair of markers for {name!r}, found {count}")
    return page


if __name__ == "__main__":
    partial = PAGE.with_suffix(".md.partial")
    partial.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    partial.replace(PAGE)
