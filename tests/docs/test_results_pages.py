"""docs/findings.md states what the committed tables give, and nothing that their intervals do not hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gradstats as gs
from gradstats.config.experiment import find_experiment, load_experiment
from gradstats.values.monte_carlo import step_starts

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def claims(docs_module):
    return docs_module("claims_page")


@pytest.fixture
def mismatch(docs_module):
    return docs_module("findings_mismatch")


def test_the_page_is_current(claims):
    assert claims.render() == (DOCS / "claims.md").read_text(encoding="utf-8"), "run: python docs/claims_page.py"


def test_the_factors_of_the_standard_deviation_are_those_of_enumeration(claims):
    assert claims.std_factor(0.1) == pytest.approx(claims.std_factor(0.9))
    assert claims.std_factor(0.1) == pytest.approx(2.18, abs=0.005)
    assert claims.std_factor(0.5) == pytest.approx(1.74, abs=0.005)


def test_verdicts_follow_the_intervals(claims, no_figures):
    assert claims.below_one((0.8, 0.7, 0.9)) == "holds"
    assert claims.below_one((1.2, 1.1, 1.3)) == "fails"
    assert claims.below_one((1.0, 0.9, 1.1)) == claims.below_one(None) == "not resolved"
    (no_figures / "s").mkdir()
    for values, rises, stays in (
        ([1.0, 2.0], "holds", "fails"),
        ([2.0, 1.0], "fails", "fails"),
        ([1.0, 1.1], "not resolved", "not resolved"),
    ):
        frame = pd.DataFrame({"cell": ["a", "b"], "estimator": "rloo", **with_ends("alpha", values, 0.2)})
        frame.to_csv(no_figures / "s" / "sweep.csv", index=False)
        assert claims.of_sweep("s", "alpha", 1, "α")[0] == rises
        assert claims.of_sweep("s", "alpha", 0, "α")[0] == stays
    assert claims.of_sweep("s", "alpha", 0, "α")[1] == "α 1.00 [0.80, 1.20] at a; 1.10 [0.90, 1.30] at b"
    assert claims.of_sweep("absent", "alpha", 0, "α") == ("not resolved", "not run")


def test_nothing_is_claimed_without_a_run(claims, no_figures):
    exact = claims.of_standardising
    for one in claims.CLAIMS:
        verdict, number = one.found()
        assert one.found is exact or (verdict.startswith("not resolved") and "not run" in number), one.claim


def commit_metrics(folder: Path, alphas: tuple[float, float], ratios: tuple[float, float], prompts: float) -> None:
    """Write a sweep over both metrics; in Adam's so many prompts carry the variance."""
    rows, blocks = [], []
    for metric, alpha, ratio, effective in zip(
        ("euclidean", "adam(eps=1e-5)"), alphas, ratios, (90.0, prompts), strict=True
    ):
        for label, matched in (("rloo", 1.0), ("reinforce", ratio), ("grpo", 2.0)):
            entry = {"measurement.metric": metric, "estimator": label, "n_effective_prompts": effective}
            entry |= {"n_prompts": 9, "n_completions": 72}
            entry |= {"noise_to_signal": np.nan, "noise_to_signal_low": 40.4, "noise_to_signal_high": np.inf}
            for name, value in (("alpha", alpha), ("matched_ratio", matched)):
                entry |= {name: value, f"{name}_low": value - 0.1, f"{name}_high": value + 0.1}
            rows.append(entry)
        for block, share, shift in (("layers.0", 0.2, 0.0), ("layers.1", 0.3, 0.04), ("head", 0.5, 1.0)):
            entry = {"measurement.metric": metric, "block": block, "share_of_sq_norm": share}
            blocks.append(entry | {name: ends[0] for name, ends in with_ends("alpha", [alpha + shift], 0.1).items()})
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "sweep.csv")
    pd.DataFrame(blocks).to_csv(folder / "blocks.csv")


def test_what_the_metric_changes_follows_its_tables(claims, alpha, no_figures):
    commit_metrics(no_figures / "embedded_metric", (0.5, 0.9), (0.8, 1.3), 90.0)
    verdict, number = claims.of_metric()
    assert verdict == "fails"
    assert number == (
        "α in `adam(eps=1e-5)` minus Euclidean: 0.40 [0.26, 0.54] (embedded, 9 × 8); the ranking turns for reinforce"
    )
    said = " ".join(alpha.section_metric().split())
    assert said.startswith("**Yes: α in Adam's minus α in the Euclidean is 0.40 [0.26, 0.54] in embedded.**")
    assert "The ranking turns for reinforce (embedded)." in said
    assert "| embedded | Adam, ε = 1e-5 | 0.90 [0.80, 1.00] | 0.92 (0.90–0.94) | 50% | ≥ 40 |" in said
    assert "; α differs in 2 of 2 layers of embedded." in said


@pytest.mark.parametrize("low", [-0.1, 0.1])
def test_two_runs_of_the_same_completions_are_compared_in_pairs(claims, alpha, findings, no_figures, low):
    commit_metrics(no_figures / "embedded_metric", (0.5, 0.9), (0.8, 1.3), 90.0)
    noise = {"n_effective_prompts": 90.0, "noise_to_signal": 50.0, "noise_to_signal_low": 40.0}
    noise |= {"noise_to_signal_high": 60.0, "group_size": 8}
    blocks = pd.DataFrame(
        {"block": ["layers.0", "head"], "share_of_sq_norm": [0.3, 0.7], **with_ends("alpha", [0.6, 0.6], 0.1)}
    )
    for run, ratio in (("qwen_mawps", 2.0), ("qwen_adam", 0.5)):
        variance = pd.DataFrame(
            {"estimator": ["rloo", "reinforce", "grpo"], **noise, **with_ends("matched_ratio", [1.0, ratio, 1.0], 0.1)}
        )
        tables = {"variance": variance, "alpha_by_block": blocks}
        commit(no_figures, run, "one", (0.6, 0.4, 0.9), **tables, metric={"source": "means of squares"})
    assert alpha.by_metric("qwen_adam") == {}  # their difference is not on file
    paired = pd.DataFrame({"block": ["layers.0", "layers.1", "total", "total, within prompts"], "difference": 0.2})
    paired = paired.assign(difference_low=[0.1, 0.1, low, 0.15], difference_high=0.3)
    paired = paired.assign(difference_simultaneous_low=[0.01, -0.01, low, 0.0], difference_simultaneous_high=0.4)
    (no_figures / "varied_metric").mkdir()
    paired.to_csv(no_figures / "varied_metric" / "differences.csv", index=False)
    found = alpha.by_metric("qwen_adam")
    assert (found["euclidean"].name, found["euclidean"].alpha) == ("Qwen-0.5B on MAWPS, 4 × 2", (0.6, 0.4, 0.9))
    said = " ".join(alpha.section_metric().split())
    name = "Qwen-0.5B on MAWPS"
    assert f"| {name} | Euclidean | 0.60 [0.40, 0.90] | 0.60 (0.60–0.60) | 30% | 50 [40, 60] |" in said
    assert f"| {name} | Adam, ε = 1e-5 |" in said
    assert "| embedded | Euclidean |" in said
    assert "Completions: 4 × 2 or 9 × 8." in said
    assert "Repeat: `gradstats run qwen_adam`, `gradstats run embedded_metric`." in said
    # Of two layers only the first differs by the intervals for both at once.
    within = "(together, within prompts, by 0.200 [0.150, 0.300])"
    assert f"; α differs in 1 of 1 layers of {name} {within}, 2 of 2 layers of embedded." in said
    assert f"The ranking turns for reinforce ({name}), reinforce (embedded)." in said
    # Neither interval of α excludes the other: the pairs decide.
    of_total = "0.20 [0.10, 0.30]"
    if low > 0:
        assert f"is {of_total} in layers of {name}, 0.40 [0.26, 0.54] in embedded.**" in said
        assert claims.of_metric()[1].startswith(f"α in `adam(eps=1e-5)` minus Euclidean: {of_total} ({name}, 4 × 2);")
    else:
        assert f"is 0.40 [0.26, 0.54] in embedded; not resolved in {name}.**" in said
    # The noise in this metric is a column of the first table, and of no verdict.
    said = " ".join(findings.section_noise().split())
    assert f"| relative noise | {name} | Qwen-0.5B's layers, Adam's metric |" in said
    assert "| REINFORCE | 2.00 [1.90, 2.10] | 0.50 [0.40, 0.60] |" in said
    assert f"REINFORCE is noisier in {name}." in said
    (no_figures / "embedded_metric" / "sweep.csv").unlink()
    said = claims.of_metric()
    assert said[0] == "fails"  # the ranking turns
    assert f"({name}, 4 × 2); the ranking turns for reinforce" in said[1]


def test_what_another_epsilon_and_other_second_moments_change_is_said(alpha, no_figures):
    assert alpha.moments_sentence() == ""
    (no_figures / "qwen_adam").mkdir()
    (no_figures / "qwen_adam" / "manifest.json").write_text(json.dumps({"metric": {"source": "the mean square of 5"}}))
    own = " In Qwen-0.5B, of which layers alone are measured, it is the mean square of 5, none measured"
    assert alpha.moments_sentence() == f"{own}."
    folder = no_figures / "varied_metric"
    folder.mkdir()
    parts = ["layers", "lm_head.weight"]
    pd.DataFrame({"part": parts, "below_1e-05": [0.002, 0.96]}).to_csv(folder / "moments.csv", index=False)
    draws = np.random.default_rng(0)
    points = pd.DataFrame({"prompt_id": np.repeat(range(5), 8), "length": draws.integers(20, 400, 40)})
    points["sq_norm"] = np.exp(1.2 * np.log(points["length"]) + draws.normal(size=40))
    slopes = {"of the run": 0.0, "other metric": 0.02, "other second moments": 0.1}
    varied = [
        points.assign(metric=name, sq_norm=points["sq_norm"] * points["length"] ** slope)
        for name, slope in slopes.items()
    ]
    pd.concat(varied).to_csv(folder / "points.csv", index=False)
    metrics = {"other metric": {"eps": 1e-8}, "other second moments": {"source": "AdamW after 3 steps"}}
    (folder / "manifest.json").write_text(json.dumps({"metrics": metrics}))
    said = alpha.moments_sentence()
    assert said.startswith(f"{own}: √v̂ exceeds 1e-5 in 99.8% of coordinates of layers, 4% of the head. In 5 ")
    # What multiplies the squared norm by T^c raises α by c/2, the same in every prompt.
    assert said.endswith("prompts, paired, α changes by 0.01 with ε = 1e-8, by 0.05 with v̂ of AdamW after 3 steps.")
    # What differs from the run by noise alone is not resolved.
    frame = pd.read_csv(folder / "points.csv")
    frame.loc[frame["metric"] == "other metric", "sq_norm"] = np.exp(
        1.2 * np.log(points["length"]) + draws.normal(size=40)
    ).to_numpy()
    frame.to_csv(folder / "points.csv", index=False)
    assert alpha.moments_sentence().count("with ε = 1e-8 (not resolved), by 0.05 with v̂") == 1


def test_where_one_prompt_carries_the_variance_no_ranking_turns(claims, alpha, no_figures):
    commit_metrics(no_figures / "embedded_metric", (0.5, 0.6), (0.8, 1.3), 1.0)
    assert claims.of_metric()[0] == "not resolved"
    assert claims.of_metric()[1].endswith("0.10 [−0.04, 0.24] (embedded, 9 × 8); no estimator is shown to cross RLOO")
    said = " ".join(alpha.section_metric().split())
    assert said.startswith("**Not measurably.**")
    assert "No estimator is shown to cross RLOO." in said
    assert "| Adam, ε = 1e-5 | 0.60 [0.50, 0.70] | 0.62 (0.60–0.64) | 50% | not resolved |" in said
    assert "α of no layer is shown to differ." in said


@pytest.mark.parametrize(
    ("ratios", "verdict"), [((0.8, 0.7), "holds"), ((0.8, 1.0), "not resolved"), ((1.2, 1.3), "fails")]
)
def test_a_correction_is_judged_by_every_cell(claims, mismatch, no_figures, ratios, verdict):
    commit_mismatches(no_figures, mismatch, ratios)
    assert claims.of_correction()[0] == verdict


def commit_mismatches(figures, mismatch, ratios, effective=90.0, bias=0.3):
    """Cells of a sweep, each with a ratio for TIS whose interval for all rows is wider, and a bias without it."""
    frames, cells = [], {}
    names = ("dtype=bfloat16", "revision=step-5492", "name=models_embedded-int8")
    for number, (cell, ratio) in enumerate(zip(names, ratios, strict=False)):
        labels = ["recipe:tis", "rloo", "recipe:rloo_is"]
        frame = pd.DataFrame({"estimator": labels, **with_ends("matched_ratio", [ratio, 1.0, 1.0], 0.1), "cell": cell})
        frame["matched_ratio_simultaneous_low"] = frame["matched_ratio"] - 0.15
        frame["matched_ratio_simultaneous_high"] = frame["matched_ratio"] + 0.15
        frame = frame.assign(n_effective_prompts=effective, **with_ends("matched_bias_share", [0.1, bias, 0.0], 0.2))
        frames.append(frame)
        cells[cell] = sampler_gap(1.5 + number)
    (figures / mismatch.SWEEP).mkdir(exist_ok=True)
    pd.concat(frames).to_csv(figures / mismatch.SWEEP / "sweep.csv", index=False)
    (figures / mismatch.SWEEP / "manifest.json").write_text(json.dumps({"cells": cells}))


def sampler_gap(largest):
    quantities = [{"quantity": "effective_sample_size", "estimate": 36.0}]
    quantiles = [{"token_ratio": 0.4}, {"token_ratio": largest}]
    return {"sampler_gap": {"quantities": quantities, "quantiles": quantiles}, "n_sequences": 40, "n_prompts": 10}


def test_the_section_on_mismatches_follows_its_tables(claims, mismatch, no_figures):
    commit_mismatches(no_figures, mismatch, (0.8, 1.3, 1.02))
    said = " ".join(mismatch.section_mismatch().split())
    assert said.startswith(
        "**In part: over that of the ratio of whole completions, the noise is 1.30 [1.15, 1.45] with TIS and 1.00 "
        "[0.85, 1.15] without a correction (8 steps earlier).** By intervals for all rows of a mismatch, TIS ("
    )
    assert (
        "TIS (bfloat16) below that ratio, which is unbiased; TIS (8 steps earlier) above; biased: no correction."
    ) in said
    assert "| effective completions | 90% | 90% |" in said
    assert "With INT8 weights estimates lie within 0.02 of 1. The table's intervals hold for one row." in said
    assert "TIS truncates ratios of tokens at 2, which these reach in INT8 weights and 8 steps earlier only." in said
    assert "no ratio is capped" not in claims.of_correction()[1]
    path = no_figures / mismatch.SWEEP / "manifest.json"
    mild = dict.fromkeys(json.loads(path.read_text())["cells"], sampler_gap(1.5))
    path.write_text(json.dumps({"cells": mild}))
    assert claims.of_correction()[1].endswith("; no ratio is capped")
    assert "Larger models are not measured." in said


def test_of_many_corrections_one_counts_by_intervals_for_all_of_them(mismatch, no_figures):
    """Each of these differs by an interval of its own."""
    commit_mismatches(no_figures, mismatch, (0.88, 1.11), bias=0.22)
    said = " ".join(mismatch.section_mismatch().split())
    measured = "over that of the ratio of whole completions, the noise is 0.88 [0.73, 1.03] with TIS and 1.00"
    assert said.startswith(f"**Not measurably: {measured} [0.85, 1.15] without a correction (bfloat16).**")
    assert "nothing is below that ratio, which is unbiased; nothing above; no bias is resolved (≤ 0.42 of the" in said
    assert "(≤ 0.42 of the squared error without a correction)." in said
    commit_mismatches(no_figures, mismatch, (0.88, 1.11), bias=-0.1)
    said = " ".join(mismatch.section_mismatch().split())
    assert "(≤ 0.1 of the squared error without a correction, ≤ 0.31 with TIS)." in said


def test_mismatches_of_a_larger_model_are_compared_with_no_correction(mismatch, no_figures):
    labels = ["rloo", "recipe:tis", "recipe:geo_rs", "recipe:rloo_is"]
    frame = pd.DataFrame({"estimator": labels, **with_ends("ratio", [1.0, 0.9, 1.0, 3.0], 0.1)})
    frame.loc[2, ["ratio_low", "ratio_high"]] = [0.2, 2.1]
    for run, carrying in (("qwen_mismatch", 2.9), ("qwen_stale", 4.6)):
        (no_figures / run).mkdir()
        rows = frame.assign(n_effective_prompts=[9.0, 8.0, 9.0, carrying])
        rows.to_csv(no_figures / run / "variance.csv", index=False)
        (no_figures / run / "manifest.json").write_text(json.dumps(sampler_gap(3.0)))
    size = "(9 effective prompts, 90% of completions effective)"
    assert mismatch.on_a_larger_model() == (
        f"In Qwen-0.5B on MAWPS, raw variance over no correction: FP8 weights {size}: the plain ratio not compared (3 "
        "effective prompts), TIS 0.90 [0.80, 1.00], Geometric rejection too wide to state (`gradstats run "
        f"qwen_mismatch`); 4 steps of AdamW at a rate of 1e-6 {size}: TIS 0.90 [0.80, 1.00], the plain ratio 3.00 "
        "[2.90, 3.10], Geometric rejection too wide to state (`gradstats run qwen_stale`)."
    )


def test_where_one_prompt_carries_the_ratio_nothing_is_compared(claims, mismatch, no_figures):
    commit_mismatches(no_figures, mismatch, (0.8, 0.8), effective=1.2)
    assert claims.of_correction() == ("not resolved", "not run")
    said = " ".join(mismatch.section_mismatch().split())
    assert "| TIS | not resolved | not resolved |" in said
    assert "one prompt carries the ratio of completions (bfloat16)" in said


@pytest.mark.parametrize(
    ("worth", "verdict"),
    [((4.0, 3.5, 5.0), "fails"), ((40.0, 33.0, 50.0), "holds"), ((20.0, 4.0, 40.0), "not resolved")],
)
def test_the_token_baseline_is_judged_by_the_size_that_it_is_worth(claims, no_figures, worth, verdict):
    (no_figures / "embedded_zoo").mkdir()
    ends = (f"equivalent_group_size{end}" for end in ("", "_low", "_high"))
    row = {"estimator": "otb(loo=True)", "group_size": 4} | dict(zip(ends, worth, strict=True))
    pd.DataFrame([row]).to_csv(no_figures / "embedded_zoo" / "equivalent_group_size.csv", index=False)
    assert claims.of_token_baseline()[0] == verdict


@pytest.mark.parametrize(
    ("noise", "verdict"),
    [((1.0 + 1e-12,) * 3, "holds"), ((1.0003, 0.99, 1.01), "not resolved"), ((1.2, 1.1, 1.3), "fails")],
)
def test_the_own_sample_is_a_scale_where_it_leaves_the_noise_as_it_is(claims, no_figures, noise, verdict):
    (no_figures / "embedded_resolved").mkdir()
    ends = (f"matched_ratio{end}" for end in ("", "_low", "_high"))
    row = {"estimator": "group_mean", "group_size": 8} | dict(zip(ends, noise, strict=True))
    row |= dict.fromkeys(("ratio", "ratio_low", "ratio_high"), 0.766)
    pd.DataFrame([row]).to_csv(no_figures / "embedded_resolved" / "variance.csv", index=False)
    found, number = claims.of_own_sample()
    assert found == verdict
    assert number.startswith("raw variance 0.766 of RLOO's; noise 1")


@pytest.mark.parametrize(("long", "verdict"), [(80.0, "not resolved"), (120.0, "holds"), (40.0, "fails")])
def test_the_horizon_is_judged_where_few_completions_are_cut_off(claims, no_figures, long, verdict):
    (no_figures / "embedded_cap").mkdir()
    frame = pd.DataFrame({"estimator": "rloo", "sampling.max_new_tokens": [50, 100, 400]})
    frame = frame.assign(
        truncated_share=[0.7, 0.08, 0.0],
        mean_length=[48.2, 63.5, 66.6],
        **with_ends("trace_cov", [10.0, 75.0, long], 10.0),
    )
    frame.to_csv(no_figures / "embedded_cap" / "sweep.csv", index=False)
    found, number = claims.of_horizon()
    assert found == verdict
    assert number.startswith("tr Cov 75 [65, 85] at a cap of 100 tokens (mean 64), ")


@pytest.mark.parametrize(
    ("triple", "text"),
    [
        ((0.574, 0.473, 0.676), "0.57 [0.47, 0.68]"),
        ((170.2, 160.4, 181.3), "170 [160, 181]"),
        ((0.3621, -0.0019, 0.727), "0.36 [0.00, 0.73]"),
        ((10.3, 3.86, float("inf")), "10.3 [≥ 3.9]"),
        ((0.766, 0.766, 0.766), "0.766"),
        (None, "not run"),
    ],
)
def test_two_digits_of_the_half_width_decide(docs_module, triple, text):
    assert docs_module("committed_numbers").shown(triple) == text


def test_bounds_are_rounded_down_and_what_is_printed_decides(docs_module, runs):
    bound = docs_module("committed_numbers").lower_bound
    assert [bound(low) for low in (295.7, 183.0, 2.39, 0.0)] == ["≥ 290", "≥ 180", "≥ 2.3", "≥ 0"]
    assert runs.is_below((0.973, 0.948, 0.9949))
    assert not runs.is_below((0.973, 0.948, 0.9998))
    assert not runs.is_below((1.0, 1.0, 1.0))


@pytest.fixture
def findings(docs_module):
    return docs_module("findings_page")


@pytest.fixture
def alpha(docs_module):
    return docs_module("findings_alpha")


@pytest.fixture
def runs(docs_module):
    return docs_module("findings_runs")


def commit(
    folder: Path,
    run: str,
    policy: str,
    alpha: tuple[float, float, float],
    metric: dict[str, str] | None = None,
    **tables: pd.DataFrame,
) -> None:
    """Write the files of a run that the page reads."""
    (folder / run / "tables").mkdir(parents=True)
    ends = dict(zip(("alpha", "alpha_low", "alpha_high"), alpha, strict=True))
    (folder / run / "alpha.json").write_text(json.dumps(ends))
    manifest = {"policy": {"name": policy, "n_parameters": 10**6}, "n_prompts": 4, "n_sequences": 8, "metric": metric}
    (folder / run / "manifest.json").write_text(json.dumps(manifest))
    for name, frame in tables.items():
        frame.to_csv(folder / run / f"{name}.csv", index=False)


def with_ends(column: str, values: list[float], half: float) -> dict[str, list[float]]:
    return {
        column: values,
        f"{column}_low": [value - half for value in values],
        f"{column}_high": [value + half for value in values],
    }


def commit_values(folder, noise, alone=None):
    """Write the variance table of a run with values: of each estimator its noise, with ends for all rows and alone."""
    ends = ("", "_simultaneous_low", "_simultaneous_high", "_low", "_high")
    rows = {
        label: {f"matched_ratio{end}": value for end, value in zip(ends, (*one, *(alone or one[1:])), strict=True)}
        for label, one in noise.items()
    }
    folder.mkdir()
    pd.DataFrame(rows).T.rename_axis("estimator").assign(group_size=8).to_csv(folder / "variance.csv")


def test_the_pages_of_findings_are_current(findings):
    for page, rendered in ((findings.PAGE, findings.render()), (findings.DETAILS, findings.render_details())):
        assert rendered == page.read_text(encoding="utf-8"), "run: python docs/findings_page.py"


def test_sections_of_findings_have_one_table_and_one_figure(findings):
    for _, section in findings.SECTIONS:
        blocks = section().split("\n\n")
        assert sum(block.startswith("|") for block in blocks) == 1
        assert sum(block.startswith("![") for block in blocks) <= 1
        assert blocks[0].startswith("**"), blocks[0]  # the answer comes first


def test_the_page_begins_with_the_answer_of_each_section(findings, monkeypatch):
    sections = (("Is α, of a group's?", lambda: "**Yes: 3\nof 4.** More."), ("Open?", lambda: "No run.\n\n| a |"))
    monkeypatch.setattr(findings, "SECTIONS", sections)
    short, first, second, _ = findings.render().split("\n## ")
    assert short.endswith("- [Is α, of a group's?](#is-α-of-a-groups) Yes: 3 of 4.\n- [Open?](#open) No run.\n")
    assert first == "Is α, of a group's?\n\n**Yes: 3\nof 4.** More.\n"
    assert second == "Open?\n\nNo run.\n\n| a |\n"


def test_what_lies_below_rloo_does_so_by_the_wider_interval(findings, no_figures):
    columns = {
        "estimator": [
            "rloo",
            "reinforce",
            "james_stein",
            "recipe:gspo",
            "batch_mean(loo=True)",
            "token_mean(loo=True)",
        ],
        "group_size": 8,
    }
    ratios = with_ends("matched_ratio", [1.0, 2.0, 0.8, 0.9, 0.7, 0.95], 0.05)
    for run, high in (("qwen_mawps", 1.01), ("embedded_resolved", 0.99)):
        highs = [1.0, 2.2, high, 0.99, 1.2, high - 0.01]
        wide = {"matched_ratio_simultaneous_low": 0.6, "matched_ratio_simultaneous_high": highs}
        commit(no_figures, run, "one", (0.6, 0.55, 0.65), variance=pd.DataFrame({**columns, **ratios, **wide}))
    (no_figures / "qwen_mawps" / "variance.json").write_text(json.dumps({"prompts_to_resolve": 1706}))
    said = " ".join(findings.section_noise().split())
    assert said.startswith(
        "**Of baselines without learning or values James–Stein lies below RLOO in embedded-2000: its noise is 0.80 "
        "[0.60, 0.99].** Also below RLOO by intervals for all rows of a run: token mean, "
        "leave-one-out 0.95 [0.60, 0.98] in embedded-2000. REINFORCE is noisier in all 2 runs."
    )
    assert "Values for all rows of Qwen-0.5B on MAWPS take an estimated 1,706 prompts." in said
    assert "| GRPO, GSPO | 0.900 [0.850, 0.950] | 0.900 [0.850, 0.950] |" in said
    wide["matched_ratio_simultaneous_high"] = [1.0, 2.2, 1.01, 0.99, 1.2, 0.97]
    pd.DataFrame({**columns, **ratios, **wide}).to_csv(no_figures / "qwen_mawps" / "variance.csv", index=False)
    said = " ".join(findings.section_noise().split())
    assert said.startswith(
        "**Of baselines without learning or values token mean, leave-one-out alone lies below RLOO in all 2 runs: its "
        "noise is 0.95 [0.60, 0.97] in Qwen-0.5B on MAWPS.** Also below RLOO by intervals for all rows of a run: "
        "James–Stein 0.80 [0.60, 0.99] in embedded-2000. REINFORCE"
    )


def test_hours_of_a_run_are_a_lower_bound_where_a_step_left_no_record(runs):
    parts = [{"timings": {"sampling": 1800.0, "measuring": 3600.0}}, {"timings": {"measuring": 4500.0}}]
    assert runs.hours_of({"parts": parts, "timings": {}}) == "≥ 1.50"
    assert runs.hours_of({"timings": {"sampling": 900.0, "measuring": 900.0, "analysis": 9.0}}) == "0.50"
    # Of a run that grew, the parts are those of its last calls.
    parts = [{"timings": {"sampling": 900.0, "measuring": 900.0}}, {"timings": {"sampling": 800.0, "measuring": 700.0}}]
    grown = {"parts": parts, "rounds": [{}, {}]}
    assert runs.hours_of({**grown, "timings": {"sampling": 3500.0, "measuring": 3400.0}}) == "≥ 1.00"
    assert runs.hours_of({"rounds": [{}, {}], "timings": {"sampling": 1800.0, "measuring": 3600.0}}) == "1.50"


@pytest.mark.parametrize(
    ("high", "verdict"),
    [(2.0, "at most 50.0 % in SmolLM2 on sums"), (1.0, "20 [1, 33] % in SmolLM2 on sums")],
)
def test_what_is_left_to_gain_is_relative_to_rloo(docs_module, no_figures, high, verdict):
    """The verdict is that of the first run, with a bound for all."""
    commit(no_figures, "smollm2", "two", (0.5, 0.4, 0.6))
    rows = pd.DataFrame({"estimator": ["learned shift", "rloo"], "kind": ["learned", "published"]})
    low, most = (0.9, 2.0) if high == 2.0 else (1.01, 1.5)
    for end, value in zip(("", "_simultaneous_low", "_simultaneous_high"), (1.25, low, most), strict=True):
        rows[f"ratio_to_learned{end}"] = [1.0, value]
        rows[f"ratio{end}"] = [9.0, value]
    rows.to_csv(no_figures / "smollm2" / "tables" / "optimal_baselines.csv", index=False)
    said = " ".join(docs_module("findings_gain").section_left().split())
    learned = "Baselines learned on other prompts, without values of states, "
    learned += "are not shown to lower the noise:" if high == 2.0 else "lower the noise by"
    assert said.startswith(f"**{learned} {verdict}.**")
    noise = "0.80 [0.50, 1.11]" if high == 2.0 else "0.80 [0.67, 0.99]"
    assert f"| SmolLM2 on sums | shift | {noise} | {noise} | {verdict.removesuffix(' in SmolLM2 on sums')} |" in said
    commit(no_figures, "embedded", "one", (0.5, 0.4, 0.6))
    rows[["ratio_to_learned_simultaneous_low", "ratio_to_learned_simultaneous_high"]] = [[1.0, 1.0], [1.2, 4.0]]
    rows.to_csv(no_figures / "embedded" / "tables" / "optimal_baselines.csv", index=False)
    said = " ".join(docs_module("findings_gain").section_left().split())
    assert said.startswith(f"**{learned} {verdict}, at most 75.0 % in any run.**")


def test_values_of_prefixes_are_said_with_what_their_completions_cost(docs_module, no_figures):
    gain = docs_module("findings_gain")
    values = {"gae": (0.8, 0.7, 0.9), "recipe:ppo": (0.7, 0.5, 0.9), "vine(k=4)": (0.5, 0.4, 0.6)}
    commit_values(no_figures / "embedded_zoo", values)
    said = " ".join(gain.section_values().split())
    assert "have a noise of 0.50 [0.40, 0.60], but their completions, four of each, take an expected 5.6 times" in said
    assert "at equal tokens drawn it is 3.30 [2.64, 3.96]." in said
    assert "| embedded-240 | 0.80 [0.70, 0.90] | 0.70 [0.50, 0.90] | 0.50 [0.40, 0.60] |" in said
    assert "single comparison" not in said


@pytest.mark.parametrize("alone", [(1.05, 1.35), (0.95, 1.45)])
def test_a_head_that_only_its_own_interval_resolves_is_said_with_both(docs_module, no_figures, alone):
    commit_values(no_figures / "qwen_mawps", {"gae": (1.2, 0.9, 1.6)}, alone=alone)
    said = " ".join(docs_module("findings_gain").section_values().split())
    assert "1.20 [0.90, 1.60] in Qwen-0.5B on MAWPS (not resolved).**" in said
    if alone[0] > 1.0:
        assert "By a single comparison it is 1.20 [1.05, 1.35] in Qwen-0.5B on MAWPS." in said
    else:
        assert "single comparison" not in said


def test_the_claim_on_lengths_is_that_of_lengths_alone(claims, no_figures):
    assert claims.of_lengths() == ("not resolved", "not run")
    labels = [claims.BY_LENGTH, "recipe:gspo"]
    frame = pd.DataFrame({"estimator": labels, "group_size": 8, **with_ends("matched_ratio", [0.9, 0.8], 0.1)})
    (no_figures / "embedded_resolved").mkdir()
    for low, verdict in ((0.03, "holds"), (0.0, "not resolved")):
        share = {"matched_bias_share": [0.04, 0.05], "matched_bias_share_low": low, "matched_bias_share_high": 0.06}
        cosine = with_ends("cosine", [0.98, 0.97], 0.01)
        frame.assign(**share, **cosine).to_csv(no_figures / "embedded_resolved" / "variance.csv", index=False)
        found, number = claims.of_lengths()
        assert found == verdict
        assert number.startswith(f"bias 0.040 [{low:.3f}, 0.060] of the squared error, cosine 0.980 [0.970, 0.990]; ")


@pytest.mark.slow  # a minute
def test_the_tokens_behind_values_of_prefixes_are_those_of_the_run_s_settings(docs_module):
    chosen = load_experiment(find_experiment("embedded_zoo"))
    problems = gs.load_prompts("embedded", chosen.prompts.n, rng=chosen.prompts.seed)[:40]
    policy = gs.load_policy("embedded")
    tokens = gs.sample(policy, problems, **chosen.sampling.arguments(), progress=False).tokens("completion_tokens")
    starts = [step_starts(policy, row.tolist(), chosen.values.steps)[1:] for row in tokens]
    left = sum(len(row) - start for row, of_row in zip(tokens, starts, strict=True) for start in of_row)
    total = sum(map(len, tokens))
    times = chosen.values.monte_carlo * (left / total + 1 / chosen.sampling.group_size)
    assert pytest.approx(times, rel=0.1) == docs_module("findings_gain").TOKENS_OF_VALUES


def test_no_question_is_answered_without_a_run(findings, alpha, runs, no_figures):
    for _, section in findings.SECTIONS:
        said = " ".join(section().split())
        assert runs.NO_RUN in said or "not measured in a committed run" in said, said
    assert alpha.differing_blocks() == []
    assert alpha.temperatures_sentence() == runs.NO_RUN


def test_policies_are_compared_with_others_only_and_by_their_difference(alpha, runs, no_figures):
    # Each interval holds the other's estimate or touches the other interval; the difference decides.
    points = pd.DataFrame({"prompt_id": [*"aabbccdd"], "length": [10, 20, 15, 40, 12, 60, 30, 90]})
    tables = [points.assign(sq_norm=points["length"] ** slope) for slope in (1.5, 1.0)]
    commit(no_figures, "qwen_mawps", "one", (0.50, 0.41, 0.59))
    commit(no_figures, "qwen_gsm8k", "one", (0.90, 0.70, 1.10), length_scaling=tables[0])
    commit(no_figures, "qwen_1_5b", "three", (0.55, 0.3, 0.8), length_scaling=tables[1])
    commit(no_figures, "smollm2", "two", (0.66, 0.57, 0.75))
    said = alpha.details_of_alpha()
    assert "α differs in 1 of 6 pairs" in " ".join(said.split())
    assert "| Qwen-0.5B on MAWPS − SmolLM2 on sums | −0.16 [−0.29, −0.03] |" in said
    assert "| Qwen-0.5B on GSM8K − Qwen-1.5B on GSM8K, paired | 0.25" in said
    assert runs.apart((1.0, 0.7, 1.1), (0.0, -0.1, 0.4)) == pytest.approx((1.0, 0.5, 1.0 + 0.2**0.5 * 0.1**0.5))


def test_a_gap_between_blocks_counts_by_simultaneous_intervals(alpha, no_figures):
    # 20 blocks: the half-width of 0.1 becomes 0.154, so that a gap of 0.25 is none and one of 0.35 is.
    for run, gap in (("qwen_mawps", 0.25), ("smollm2", 0.35)):
        alphas = [0.5] * 19 + [0.5 + gap]
        frame = pd.DataFrame({"block": [f"layers.{i}" for i in range(20)], **with_ends("alpha", alphas, 0.1)})
        frame["share_of_sq_norm"] = 0.05
        frame.loc[20] = ["final norm", 0.0, -0.1, 0.1, 1e-4]  # too small to count
        commit(no_figures, run, run, (0.5, 0.4, 0.6), alpha_by_block=frame)
    assert alpha.differing_blocks() == [
        "in SmolLM2 on sums it is 0.50 [0.40, 0.60] in `layers.0` and 0.85 [0.75, 0.95] in `layers.19`"
    ]


def test_alpha_along_long_traces_is_stated_as_its_table_gives_it(alpha, no_figures):
    assert alpha.lengths_sentence().endswith("it says nothing of other lengths.")
    folder = no_figures / "alpha_over_lengths"
    folder.mkdir()
    pd.DataFrame({"prompt_id": ["a", "a", "b"], "length": [256, 8192, 256]}).to_csv(folder / "along_traces.csv")
    fits = {"fit": ["pooled", "within traces", "from 256 to 1,024", "from 1,024 to 8,192"]}
    pd.DataFrame(fits | with_ends("alpha", [0.9, 0.6, 0.5, 0.7], 0.1)).to_csv(folder / "fits.csv")
    assert alpha.lengths_sentence().endswith(
        " of Qwen-0.5B, 1 of them of 8,192 tokens, it is 0.60 [0.50, 0.70], in segments 0.50 to 0.70."
    )


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        # The second is lower, but the first is surely below 1.
        ([0.85, 1.0, 0.8], "**Nearly: with a shift δ its noise is 0.85 [0.75, 0.95] at δ = −0.5 in SmolLM2 on sums.**"),
        ([0.95, 1.0, 0.8], "**Yes, as far as is resolved.**"),
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
    assert "0.05 [≤ −0.5, 0.2]" in said
    assert "the best δ is not shown to differ from 0." in said


def test_each_divisor_that_biases_is_named_and_what_it_costs(findings, no_figures):
    labels = ["grpo", "recipe:gspo"]
    frame = pd.DataFrame({"estimator": labels, "group_size": 8, "cosine": float("nan")})
    frame = frame.assign(
        **with_ends("matched_ratio", [1.0, 0.9], 0.05), **with_ends("matched_bias_share", [0.2, 0.1], 0.05)
    )
    commit(no_figures, "smollm2", "two", (0.5, 0.4, 0.6), variance=frame)
    said = " ".join(findings.section_division().split())
    assert said.startswith(
        "**Some do; bias is this share of the squared error of 128 prompts: the standard deviation of the group 0.200 "
        "[0.150, 0.250] in SmolLM2 on sums.** Also deviation and length (GRPO, GSPO) 0.100 [0.050, 0.150] in SmolLM2 "
        "on sums. Not resolved: none."
    )
    assert "In SmolLM2 on sums, bias included, the squared error of GRPO, GSPO is 1.00 (0.89 to 1.12) of" in said


def test_a_bias_that_may_be_zero_is_a_bound(findings, no_figures):
    row = {"estimator": ["grpo"], "group_size": [8], "cosine": [float("nan")]}
    row |= with_ends("matched_ratio", [1.0], 0.1) | {"matched_bias_share": [-0.004]}
    for run, low in (("smollm2", 0.0), ("qwen_mawps", 0.001)):
        frame = pd.DataFrame(row | {"matched_bias_share_low": [low], "matched_bias_share_high": [0.006]})
        commit(no_figures, run, run, (0.5, 0.4, 0.6), variance=frame)
    said = " ".join(findings.section_division().split())
    assert "| the standard deviation of the group | SmolLM2 on sums | not resolved | ≤ 0.006 |" in said
    assert said.startswith(
        "**Some do; bias is this share of the squared error of 128 prompts: the standard deviation of the group "
        "−0.0040 [0.0010, 0.0060] in Qwen-0.5B on MAWPS.** Not resolved: none."
    )


def test_a_row_that_was_not_compared_is_not_called_unresolved(findings, runs, no_figures):
    unresolved = {"matched_ratio": [float("nan")], "matched_ratio_low": [0.1], "matched_ratio_high": [float("inf")]}
    commit(
        no_figures,
        "smollm2",
        "two",
        (0.5, 0.4, 0.6),
        variance=pd.DataFrame({"estimator": ["reinforce"], "group_size": [8]} | unresolved),
    )
    said = findings.section_noise()
    assert "| REINFORCE | not resolved |" in said
    assert "| GRPO advantage | — |" in said
    assert "REINFORCE is noisier in none" in " ".join(said.split())


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([(0.8, 0.7, 0.9), (1.2, 1.1, 1.3)], "lower the noise in a, and raise the noise in b"),
        ([(0.8, 0.7, 0.9), None], "lower the noise in a, and change nothing that is resolved in b"),
        ([None], "change nothing that is resolved in a"),
        ([None, (1.0, 0.9, 1.1)], "change nothing that is resolved in any of 2 runs"),
        ([], "are not measured in a committed run"),
    ],
)
def test_verdicts_name_the_runs(runs, ratios, verdict):
    assert runs.verdict_of(list(zip("ab", ratios, strict=False))) == verdict


def test_runs_are_named_or_counted(runs):
    assert runs.one_of(["a", "b"], 4) == "a and b"
    assert runs.one_of(["a", "b", "c"], 4) == "3 of 4 runs"
    assert runs.one_of(["a", "b"], 2) == "all 2 runs"


@pytest.mark.parametrize(
    ("low", "published", "said"),
    [
        (0.9, 1.0, "**Yes: the noise is 0.900 [0.800, 0.990] at α = 0.5 in SmolLM2"),
        (0.96, 1.0, "**Hardly: the noise is 0.960 [0.920, 0.990] at α = 0.5 in SmolLM2"),
        (1.0, 1.0, "**Not measurably.**"),
        (
            1.0,
            1.2,
            "**Not measurably.** Without the own sample, the published 0.8 raises it, to 1.20 [1.10, 1.30] in SmolLM2 "
            "on sums.",
        ),
        (
            1.0,
            0.8,
            "**Not measurably.** Without the own sample, the published 0.8 lowers it, to 0.80 [0.70, 0.90] in SmolLM2 "
            "on sums.",
        ),
    ],
)
def test_whether_the_exponent_helps_follows_the_interval(findings, no_figures, low, published, said):
    frame = pd.DataFrame(
        {"estimator": [findings.WEIGHTED], "group_size": [4], **with_ends("matched_ratio", [published], 0.1)}
    )
    commit(no_figures, "smollm2", "two", (0.5, 0.4, 0.6), variance=frame)
    # The second is lower, but the first is surely below 1.
    ends = {
        "matched_ratio_simultaneous_low": [1.0, 0.8 if low == 0.9 else 0.92, 0.2],
        "matched_ratio_simultaneous_high": [1.0, 0.99 if low < 1.0 else 1.09, 1.4],
    }
    curve = pd.DataFrame({"value": [0.0, 0.5, 1.0], "matched_ratio": [1.0, low, 0.8], **ends})
    path = no_figures / "smollm2" / "tables" / findings.EXPONENT
    curve.to_csv(path.with_suffix(".csv"), index=False)
    path.with_suffix(".json").write_text(json.dumps({"minimiser": 1.0, "minimiser_low": 0.0, "minimiser_high": 1.0}))
    found = " ".join(findings.section_exponent().split("\n\n")[0].split())
    assert found.removesuffix(" on sums, by intervals for all exponents.**") == said


def test_the_batch_at_which_a_bias_outweighs_less_noise(findings):
    """With noise n and bias b², both of RLOO's variance of one prompt: n/B + b² = 1/B at B = (1 − n)/b²."""
    noise, squared = 0.9, 1e-3
    share = squared / (squared + noise / 128)
    assert findings.equal_error(noise, share) == pytest.approx((1.0 - noise) / squared)
    said = findings.cost_of_bias("one", (0.9, 0.8, 0.95), (0.1, 0.05, 0.2))
    assert said == (
        "In one, bias included, the squared error of GRPO, GSPO is 1.00 (0.84 to 1.19) of RLOO's at 128 prompts; the "
        "two are equal at 128 prompts (27 to 608), by the ends of both intervals. "
    )
    for noise in ((0.9, 0.8, 1.05), (0.9, 0.0, 0.95)):
        assert "are equal" not in findings.cost_of_bias("one", noise, (0.1, 0.05, 0.2))


def test_the_number_of_completions_is_judged_at_equal_tokens(findings, no_figures):
    variance = pd.DataFrame({"estimator": ["rloo"], "group_size": [8], **with_ends("matched_ratio", [1.0], 0.0)})
    for run, noise in (("smollm2", [1.6, 1.2, 1.0, 0.9, 0.7]), ("qwen_mawps", [1.8, 1.05, 1.0, 0.9, 1.0])):
        sizes = {"estimator": "rloo", "group_size": [2, 4, 8, 16, 32]}
        frame = pd.DataFrame(sizes | with_ends("relative_noise", noise, 0.1))
        commit(no_figures, run, run, (0.5, 0.4, 0.6), variance=variance, allocation=frame)
    said = " ".join(findings.section_completions().split())
    assert said.startswith(
        "**8 or more: at equal tokens, in all 2 runs, 2 have 1.60 to 1.80 times their noise.** By single comparisons, "
        "4 have 1.20 [1.10, 1.30] in SmolLM2 on sums; 16 differ measurably in no run; 32 have 0.70 [0.60, 0.80] in "
        "SmolLM2 on sums."
    )
    assert "| SmolLM2 on sums | 1.60 [1.50, 1.70] | 1.20 [1.10, 1.30] | 0.90 [0.80, 1.00] | 0.70 [0.60, 0.80] |" in said


def test_what_changes_along_training_follows_the_intervals(findings, no_figures):
    assert findings.section_training() == findings.NO_RUN
    (no_figures / "embedded_reinforced").mkdir()
    rows, cells = [], ["name=checkpoint-0", "name=checkpoint-40"]
    for cell, reward, alpha, noise, critical in zip(
        cells, (0.5, 0.9), (0.5, 0.6), (1.5, 4.0), ((60.0, 50.0, 70.0), (np.nan, 223.6, np.inf)), strict=True
    ):
        for label in ("reinforce", "rloo", "grpo"):
            values = {"mean_reward": reward, "alpha": alpha, "matched_ratio": noise if label == "reinforce" else 1.0}
            variance = 9.0 if cell == cells[0] else 5.0
            entry = {"cell": cell, "estimator": label, "trace_cov": variance}
            entry |= {"trace_cov_low": variance - 1.0, "trace_cov_high": variance + 1.0}
            for name, value in values.items():
                entry |= {name: value, f"{name}_low": value - 0.2, f"{name}_high": value + 0.2}
            both = {"grpo": (1.1, 1.3)}.get(label, (0.9, 1.1)) if cell == cells[1] else (0.9, 1.1)
            entry |= dict(zip(("matched_ratio_simultaneous_low", "matched_ratio_simultaneous_high"), both, strict=True))
            ends = ("noise_to_signal", "noise_to_signal_low", "noise_to_signal_high")
            rows.append(entry | dict(zip(ends, critical, strict=True)))
    pd.DataFrame(rows).to_csv(no_figures / "embedded_reinforced" / "sweep.csv", index=False)
    paired = {"quantity": ["alpha", "mean_reward"], **with_ends("difference", [0.1, 0.4], 0.11)}
    differences = pd.DataFrame({"cell": cells[1], "minus": cells[0], **paired})
    differences.to_csv(no_figures / "embedded_reinforced" / "cell_differences.csv", index=False)
    said = " ".join(findings.section_training().split())
    # The paired difference of α holds 0; a critical batch without an upper end is above another one by its lower end.
    assert said.startswith(
        "**Yes: noise of REINFORCE from 1.50 to 4.00, variance of RLOO from 9.0 to 5.0, critical batch from 60 to ≥ "
        "220.** The embedded"
    )
    assert "for 40 steps. Below RLOO: nothing. Above it, by intervals" in said
    assert "of a step at once: GRPO advantage (step 40)." in said
    assert "| 40 | 0.90 [0.70, 1.10] | 0.60 [0.40, 0.80] | 4.00 [3.80, 4.20] | 5.0 [4.0, 6.0] | ≥ 220 |" in said
