"""docs/findings.md states what the committed tables give, and nothing that their intervals do not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def findings(docs_module):
    return docs_module("findings_page")


@pytest.fixture
def alpha(docs_module):
    return docs_module("findings_alpha")


@pytest.fixture
def runs(docs_module):
    return docs_module("findings_runs")


def commit(folder: Path, run: str, policy: str, alpha: tuple[float, float, float], **tables: pd.DataFrame) -> None:
    """Write the files of a run that the page reads."""
    (folder / run / "tables").mkdir(parents=True)
    ends = dict(zip(("alpha", "alpha_low", "alpha_high"), alpha, strict=True))
    (folder / run / "alpha.json").write_text(json.dumps(ends))
    manifest = {"policy": {"name": policy, "n_parameters": 10**6}, "n_prompts": 4, "n_sequences": 8}
    (folder / run / "manifest.json").write_text(json.dumps(manifest))
    for name, frame in tables.items():
        frame.to_csv(folder / run / f"{name}.csv", index=False)


def with_ends(column: str, values: list[float], half: float) -> dict[str, list[float]]:
    return {
        column: values,
        f"{column}_low": [value - half for value in values],
        f"{column}_high": [value + half for value in values],
    }


def test_the_page_is_current(findings):
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert findings.render() == page, "run: python docs/findings_page.py"


def test_no_question_is_answered_without_a_run(findings, alpha, runs, no_figures):
    assert findings.section_centre().count(runs.NO_RUN) == 2
    assert findings.section_exponent().count("not measured in a committed run") == 2
    assert alpha.blocks_sentence() == alpha.temperatures_sentence() == runs.NO_RUN
    assert [command for command, _, _ in findings.PLANNED if command not in findings.not_run()] == []


def test_policies_are_compared_with_others_only_and_by_their_difference(alpha, runs, no_figures):
    # Each interval holds the other's estimate or touches the other interval; the difference decides.
    commit(no_figures, "qwen_mawps", "one", (0.50, 0.41, 0.59))
    commit(no_figures, "qwen_gsm8k", "one", (0.90, 0.89, 0.91))
    commit(no_figures, "smollm2", "two", (0.66, 0.57, 0.75))
    said = alpha.section_alpha()
    assert "α differs in 2 of 2 pairs" in said
    assert "Qwen2.5-Coder-0.5B on MAWPS − SmolLM2-135M on sums -0.16 [-0.287, -0.0327]" in " ".join(said.split())
    assert runs.apart((1.0, 0.7, 1.1), (0.0, -0.1, 0.4)) == pytest.approx((1.0, 0.5, 1.0 + 0.2**0.5 * 0.1**0.5))


def test_a_gap_between_blocks_counts_by_simultaneous_intervals(alpha, no_figures):
    # 20 blocks: the half-width of 0.1 becomes 0.154, so that a gap of 0.25 is none and one of 0.35 is.
    for run, gap in (("qwen_mawps", 0.25), ("smollm2", 0.35)):
        alphas = [0.5] * 19 + [0.5 + gap]
        frame = pd.DataFrame({"block": [f"layers.{i}" for i in range(20)], **with_ends("alpha", alphas, 0.1)})
        commit(no_figures, run, run, (0.5, 0.4, 0.6), alpha_by_block=frame)
    assert alpha.blocks_sentence().endswith("in SmolLM2-135M on sums.")


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (0.8, "lower the variance in SmolLM2-135M on sums"),
        (1.3, "raise the variance in"),
        (1.05, "make no difference that is"),
    ],
)
def test_a_ratio_is_a_verdict_only_beside_one(findings, no_figures, ratio, verdict):
    commit(no_figures, "smollm2", "two", (0.5, 0.4, 0.6))
    # Of a value chosen along the curve, the interval for all values at once decides.
    single, together = with_ends("matched_ratio", [2.0, ratio, 2.0], 0.01), with_ends("", [2.0, ratio, 2.0], 0.1)
    ends = {f"matched_ratio_simultaneous{end}": together[end] for end in ("_low", "_high")}
    curve = pd.DataFrame({"value": [-0.5, 0.0, 0.5], **single, **ends})
    path = no_figures / "smollm2" / "tables" / "curve_asymmetric_loo_true_delta"
    curve.to_csv(path.with_suffix(".csv"), index=False)
    lowest = {"minimiser": 0.05, "minimiser_low": -0.5, "minimiser_high": 0.2}
    path.with_suffix(".json").write_text(json.dumps(lowest))
    said = " ".join(findings.section_centre().split())
    assert verdict in said
    assert "0.05 [≤ -0.5, 0.2]" in said
    assert "off the mean of the group is not resolved" in said


def test_a_share_of_bias_that_may_be_zero_is_a_bound(findings, no_figures):
    row = {"estimator": ["grpo"], "group_size": [8], "cosine": [float("nan")]}
    row |= with_ends("matched_ratio", [1.0], 0.1) | {"matched_bias_share": [-0.004]}
    for run, low in (("smollm2", 0.0), ("qwen_mawps", 0.001)):
        frame = pd.DataFrame(row | {"matched_bias_share_low": [low], "matched_bias_share_high": [0.006]})
        commit(no_figures, run, run, (0.5, 0.4, 0.6), variance=frame)
    said = findings.section_standardising()
    assert "| SmolLM2-135M on sums | 8 | not resolved | at most 0.006 |" in said
    assert "resolved in Qwen2.5-Coder-0.5B on MAWPS." in " ".join(said.split())
