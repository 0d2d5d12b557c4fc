"""docs/findings.md states what the committed tables give, and nothing that their intervals do not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def claims(docs_module):
    return docs_module("claims_page")


@pytest.fixture
def in_metrics(docs_module):
    return docs_module("claims_metric")


def test_the_page_is_current(claims):
    assert claims.render() == (DOCS / "claims.md").read_text(encoding="utf-8"), "run: python docs/claims_page.py"


def test_the_factors_of_the_standard_deviation_are_those_of_enumeration(claims):
    assert claims.std_factor(0.1) == pytest.approx(claims.std_factor(0.9))
    assert claims.std_factor(0.1) == pytest.approx(2.18, abs=0.005)
    assert claims.std_factor(0.5) == pytest.approx(1.74, abs=0.005)


def test_verdicts_follow_the_intervals(claims, no_figures):
    words = ("lower", "higher", "unresolved")
    assert claims.against_one((0.8, 0.7, 0.9), *words) == "lower"
    assert claims.against_one((1.2, 1.1, 1.3), *words) == "higher"
    assert claims.against_one((1.0, 0.9, 1.1), *words) == "unresolved"
    assert claims.against_one(None, *words) == "Not decided by the committed runs."
    (no_figures / "s").mkdir()
    for values, verdict in (([1.0, 2.0], "rises"), ([2.0, 1.0], "falls"), ([1.0, 1.1], "No difference")):
        frame = pd.DataFrame({"cell": ["a", "b"], "estimator": "rloo", "alpha": values})
        frame.assign(alpha_low=frame["alpha"] - 0.2, alpha_high=frame["alpha"] + 0.2).to_csv(
            no_figures / "s" / "sweep.csv", index=False
        )
        assert verdict in claims.sweep_verdict("s", "alpha", "exponent")
    assert claims.swept("s", "alpha", "α") == "a: α 1 [0.8, 1.2]; b: α 1.1 [0.9, 1.3]"
    assert claims.swept("absent", "alpha", "α") == claims.NOT_RUN


def test_an_exponent_whose_interval_is_cut_is_written_as_such(claims, no_figures):
    assert claims.best_exponent() == claims.NOT_RUN
    table = no_figures / "embedded" / "tables" / "curve_length_weighted_loo_true_alpha.csv"
    table.parent.mkdir(parents=True)
    pd.DataFrame({"value": [0.0, 1.0, 2.0]}).to_csv(table, index=False)
    table.with_suffix(".json").write_text('{"minimiser": 0.43, "minimiser_low": 0.0, "minimiser_high": 0.676}')
    assert claims.best_exponent() == "0.43 [≤ 0, 0.676]"


def test_what_the_metric_changes_follows_its_tables(in_metrics, no_figures):
    assert (in_metrics.by_metric(), in_metrics.metric_sentences()) == (
        in_metrics.NOT_RUN,
        "Not decided by the committed runs.",
    )
    folder, adam = no_figures / "embedded_metric", in_metrics.METRICS[1]
    folder.mkdir()
    blocks = [
        ("euclidean", "head", 0.9),
        ("euclidean", "layers.0", 0.1),
        (adam, "head", 0.2),
        (adam, "layers.0", 0.8),
    ]
    pd.DataFrame(blocks, columns=["measurement.metric", "block", "share_of_sq_norm"]).to_csv(folder / "blocks.csv")
    rows = []
    for metric, alpha, ratio in (("euclidean", 0.5, 0.8), (adam, 0.9, 1.3)):
        for label, matched in (("rloo", 1.0), ("reinforce", ratio), ("grpo", 2.0)):
            entry = {"measurement.metric": metric, "estimator": label}
            for name, value in (("alpha", alpha), ("matched_ratio", matched)):
                entry |= {name: value, f"{name}_low": value - 0.1, f"{name}_high": value + 0.1}
            rows.append(entry)
    rows.append({"measurement.metric": "adam", "estimator": "rloo", "n_effective_prompts": 1.04, "n_prompts": 200})
    pd.DataFrame(rows).to_csv(folder / "sweep.csv")
    assert (
        "ε of 1e-8, the first that was tried, the variance of `rloo` is worth that of 1.0 of 200"
        in in_metrics.by_metric()
    )
    assert (
        "head holds 90% and 20% of Σ‖S‖², the layers 10% and 80%; α 0.5 [0.4, 0.6] and 0.9 [0.8, 1]"
        in in_metrics.by_metric()
    )
    assert in_metrics.metric_sentences() == (
        "On this policy, Adam's division gives the head less of the norm than the Euclidean metric does. The length "
        "exponent is larger in Adam's metric. The verdict against `rloo` turns for `reinforce`."
    )


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


def test_the_page_is_current_of_findings_page(findings):
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    assert findings.render() == page, "run: python docs/findings_page.py"


def test_no_question_is_answered_without_a_run(findings, alpha, runs, no_figures):
    assert " ".join(findings.section_centre().split()).count(runs.NO_RUN) == 3
    assert " ".join(findings.section_exponent().split()).count("not measured in a committed run") == 3
    assert findings.own_sample_included() is None
    assert alpha.blocks_sentence() == alpha.temperatures_sentence() == runs.NO_RUN


def test_policies_are_compared_with_others_only_and_by_their_difference(alpha, runs, no_figures):
    # Each interval holds the other's estimate or touches the other interval; the difference decides.
    points = pd.DataFrame({"prompt_id": [*"aabbccdd"], "length": [10, 20, 15, 40, 12, 60, 30, 90]})
    tables = [points.assign(sq_norm=points["length"] ** slope) for slope in (1.5, 1.0)]
    commit(no_figures, "qwen_mawps", "one", (0.50, 0.41, 0.59))
    commit(no_figures, "qwen_gsm8k", "one", (0.90, 0.70, 1.10), length_scaling=tables[0])
    commit(no_figures, "qwen_1_5b", "three", (0.55, 0.3, 0.8), length_scaling=tables[1])
    commit(no_figures, "smollm2", "two", (0.66, 0.57, 0.75))
    said = alpha.section_alpha()
    assert "α differs in 1 of 6 pairs" in " ".join(said.split())
    assert "| Qwen2.5-Coder-0.5B on MAWPS − SmolLM2-135M on sums | -0.16 [-0.287, -0.0327] |" in said
    assert "| Qwen2.5-Coder-0.5B on GSM8K − Qwen2.5-Coder-1.5B on GSM8K, paired over problems | 0.25" in said
    assert runs.apart((1.0, 0.7, 1.1), (0.0, -0.1, 0.4)) == pytest.approx((1.0, 0.5, 1.0 + 0.2**0.5 * 0.1**0.5))


def test_a_gap_between_blocks_counts_by_simultaneous_intervals(alpha, no_figures):
    # 20 blocks: the half-width of 0.1 becomes 0.154, so that a gap of 0.25 is none and one of 0.35 is.
    for run, gap in (("qwen_mawps", 0.25), ("smollm2", 0.35)):
        alphas = [0.5] * 19 + [0.5 + gap]
        frame = pd.DataFrame({"block": [f"layers.{i}" for i in range(20)], **with_ends("alpha", alphas, 0.1)})
        frame["share_of_sq_norm"] = 0.05
        frame.loc[20] = ["final norm", 0.0, -0.1, 0.1, 1e-4]  # too small to count
        commit(no_figures, run, run, (0.5, 0.4, 0.6), alpha_by_block=frame)
    assert alpha.blocks_sentence().endswith("in SmolLM2-135M on sums.")


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        # The second is lower, but the first is surely below 1.
        ([0.85, 1.0, 0.8], "all δ at once, a shift lowers the variance in SmolLM2-135M on sums."),
        ([0.95, 1.0, 0.8], "all δ at once, no shift lowers the variance."),
    ],
)
def test_a_shift_counts_by_intervals_for_all_values_at_once(findings, no_figures, ratios, verdict):
    commit(no_figures, "smollm2", "two", (0.5, 0.4, 0.6))
    halves = [0.1, 0.0, 0.3]
    ends = {
        f"matched_ratio_simultaneous_{end}": [r + sign * h for r, h in zip(ratios, halves, strict=True)]
        for end, sign in (("low", -1), ("high", 1))
    }
    curve = pd.DataFrame({"value": [-0.5, 0.0, 0.5], "matched_ratio": ratios, **ends})
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
    assert "resolved in Qwen2.5-Coder-0.5B on MAWPS;" in " ".join(said.split())
