"""The table of a comparison: names in words, and bold only where a tie is excluded."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from compared_frames import compared as frame_for_variance_table
from comparison_batches import correlated_batch, quiet_compare, quietly, sized_batch
from saved_runs import save_run

import gradstats as gs
from gradstats.analyses import allocate, critic_quality, registry, variance_by_success
from gradstats.analyses.curve import draw_curve
from gradstats.analyses.length_bins import variance_by_length
from gradstats.analyses.ratios import CLIPPING
from gradstats.analyses.variance import COMPARED_ROWS
from gradstats.estimators import Batch
from gradstats.plots.names import LABELS
from gradstats.report import analysis_tables
from gradstats.report.analysis_tables import frame_in_words, short_table, variance_table
from gradstats.report.figures import sample_size_of_run
from gradstats.report.saved_results import read_results
from tests.off_policy import turned_policy


def table_of(name, frame):
    return analysis_tables.table_of(registry.get(name), frame, in_words=False)


def frame_of(label, parameter, values):
    batch, scores = sized_batch()
    return quietly(gs.variance_curve, batch, label, parameter, values, scores).to_frame()


def test_names_are_those_of_files():
    asked = {"estimator": "recipe:dapo(loo=True)", "values": "clip_width=0.1,0.2"}
    assert registry.get("curve").file_name(asked) == "curve_recipe_dapo_loo_true_clip_width"
    assert registry.get("allocation").file_name({"tokens": 5000}) == "allocation"


def test_group_sizes_are_drawn_at_an_equal_total_of_completions():
    frame = frame_of("rloo", "group_size", [2, 4, 8])
    ax = draw_curve(frame)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), frame["trace_cov"] * frame["value"])
    plt.close("all")


def test_a_figure_names_the_size_of_groups_that_its_numbers_are_of(tmp_path):
    run = read_results(save_run(tmp_path / "run"))  # 15 prompts × 4 completions
    assert sample_size_of_run(run, pd.DataFrame({"group_size": [2.0, 2.0]})).endswith(", in groups of 2")
    assert "groups" not in sample_size_of_run(run, pd.DataFrame({"group_size": [2.0, 4.0]}))


def test_columns_and_what_captions_print_are_named_alike():
    frame = pd.DataFrame({"estimator": ["rloo", "mine:f(x=1)", "otb(loo=True)"], "ratio": [1.0, 2.0, 3.0]})
    frame.attrs = {"reference": "rloo", "best_learned": "otb(loo=True)", "n": 3}
    named = frame_in_words(frame)
    assert named["estimator"].tolist() == ["RLOO", "mine:f(x=1)", "OTB, leave-one-out"]
    assert named.attrs == {"reference": "RLOO", "best_learned": "OTB, leave-one-out", "n": 3}
    assert frame["estimator"][0] == frame.attrs["reference"] == "rloo"
    frame.attrs[LABELS] = {"otb(loo=True)": "ours"}
    assert frame_in_words(frame).attrs["best_learned"] == frame_in_words(frame)["estimator"][2] == "ours"
    assert frame_in_words(pd.DataFrame({"recipe": ["recipe:dapo(loo=True)"]}))["recipe"][0] == "DAPO, leave-one-out"


def test_parameters_are_letters():
    frame = pd.DataFrame({"estimator": ["learned exponent", "rloo"], "parameters": ["alpha 0.43 [-0.07, 0.68]", None]})
    frame.attrs["parameter"] = "alpha"
    named = frame_in_words(frame)
    assert named["parameters"].tolist() == ["α 0.43 [−0.07, 0.68]", ""]
    assert named.attrs["parameter"] == "α"
    frame.attrs["parameter"] = "group_size"
    assert frame_in_words(frame).attrs["parameter"] == "group size"


@pytest.mark.parametrize("column", ["share_of_variance", "scale"])
def test_without_what_ranks_them_rows_keep_their_order(column):
    batch, scores = correlated_batch()
    found = quietly(variance_by_length, batch, ["reinforce", "group_mean"], scores, n_bins=2)
    declared, frame = registry.get("length_bins"), found.to_frame()
    assert {row.names for row in short_table(declared, frame).rows} == {("reinforce",), ("group_mean",)}
    short = short_table(declared, frame.drop(columns=column))
    assert [row.names[0].partition(",")[0] for row in short.rows] == ["reinforce"] * 2 + ["group_mean"] * 2


@pytest.fixture(scope="module")
def found() -> gs.analyses.RatioDiagnostics:
    return gs.ratio_diagnostics(turned_policy().sample(40, 4, rng=0)[0], n_bins=2)


def of_critic():
    rng = np.random.default_rng(0)
    true = rng.choice([0.2, 0.8], 90)
    values, fitted = rng.binomial(4, true)[:, None] / 4, true[:, None]
    batch = Batch(rng.random(90) < true, np.ones(90, dtype=int), np.arange(90), values=values, fitted_values=fitted)
    return critic_quality(batch).to_frame(0.9)


def of_length_bins():
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 100, 400)
    batch = Batch(rng.integers(0, 2, 400), lengths, np.repeat(np.arange(100), 4))
    scores = (rng.normal(size=(400, 8)) + batch.rewards[:, None]) * np.sqrt(lengths)[:, None]
    return variance_by_length(batch, "group_mean", scores, n_bins=2).to_frame(0.9)


def of_success_bins(**given):
    batch, scores = correlated_batch(n_prompts=30, size=8)
    return variance_by_success(batch, ["rloo"], scores, **given).to_frame(0.9)


def of_allocation():
    batch, scores = correlated_batch(n_prompts=30, size=8)
    return allocate(batch, ["rloo"], scores, tokens=10_000, group_sizes=[2, 32]).to_frame().assign(n_prompts=12345.6)


@pytest.mark.parametrize(
    ("name", "frame", "rows", "said"),
    [
        ("critic", of_critic, ["all (n = 90)", "step 0 (n = 90)"], ["90% intervals", "at most 0.25"]),
        (
            "length_bins",
            of_length_bins,
            ["group_mean, 10–57 tokens (n = 198)", "group_mean, 58–99 tokens (n = 202)"],
            ["90% intervals"],
        ),
        (
            "success_bins",
            lambda: of_success_bins(success=[0.5] * 240, bins=1),
            ["rloo, 0.5 (n = 30)"],
            ["(as given), groups of 8 completions"],
        ),
        (
            "success_bins",
            lambda: of_success_bins(bins=2),
            [],
            ["of the other half of the completions), groups of 4 com"],
        ),
        (
            "curve",
            lambda: frame_of("asymmetric(loo=True)", "delta", [-0.5, 0.0, 0.25]),
            ["−0.5", "0", "0.25"],
            ["asymmetric(loo=True) along delta"],
        ),
        (
            "allocation",
            of_allocation,
            ["rloo, 2 × 12,346", "rloo, 32* × 12,346"],
            ["10,000 completion tokens", "relative to rloo with 8 completions per prompt"],
        ),
    ],
)
def test_rows_have_names_and_captions_say_of_what(name, frame, rows, said):
    table = table_of(name, frame())
    assert list(table.rows[: len(rows)]) == rows
    assert [part for part in said if part not in table.caption] == []


@pytest.mark.parametrize("name", ["variance", "length_bins", "optimal_baselines", "variance_by_block", "curve"])
def test_captions_name_the_size_of_groups(name):
    batch, scores = correlated_batch(n_prompts=30, size=8)
    frame = quiet_compare(batch, ["rloo", "grpo"], scores, group_size=4).to_frame()
    assert "groups of 4" in registry.get(name).caption(frame).replace("group of 4", "groups of 4")


@pytest.mark.parametrize("name", ["variance", "group_sizes", "curve"])
def test_captions_name_the_norm_that_gradients_are_clipped_to(name):
    batch, scores = correlated_batch(n_prompts=30, size=8)
    clipped = quiet_compare(batch, ["rloo", "grpo"], scores, max_grad_norm=0.5, prompts_per_batch=6).to_frame()
    said = (
        "Gradients of batches of 6 prompts are clipped to the norm 0.5; ratios are to the reference without clipping."
    )
    assert said in registry.get(name).caption(clipped)
    panels = next(one for one in registry.get("variance").figures if one.name == "variance_bias")
    assert panels.caption_of(clipped).endswith(f"with the lowest at the top. {said}")
    clipped.attrs |= {"order": "listed"}
    assert panels.caption_of(clipped) == f"Relative noise, next to cosine and share of bias. {said}"


def test_rows_of_all_completions_come_first(found: gs.analyses.RatioDiagnostics):
    table = table_of("ratios", found.to_frame(0.9))
    assert table.rows[1:3] == ("completion, all (n = 160)", "geometric mean, all (n = 160)")
    assert table.rows[3].startswith("token, 1–")
    assert table.columns["effective sample size"][1][1:] == pytest.approx(found.confidence_interval(0.9))


def test_one_row_for_each_block_and_estimator():
    batch, scores = correlated_batch(n_prompts=30, size=8)
    found, several = (quiet_compare(batch, ["rloo", "grpo"], scores, group_size=sizes) for sizes in (4, (2, 4)))
    rows = tuple(replace(row, block=block) for block in ("attention", "mlp") for row in found.rows)
    found = replace(found, rows=rows, differences=2 * found.differences, prompt_labels=2 * found.prompt_labels)
    table = table_of("variance_by_block", found.to_frame(0.9))
    assert table.rows == ("attention, rloo", "attention, grpo", "mlp, rloo", "mlp, grpo")
    assert "to that of rloo on the same block, 90% intervals" in table.caption
    several = replace(several, rows=tuple(replace(row, block="mlp") for row in several.rows))
    assert table_of("variance_by_block", several.to_frame()).rows[0] == "mlp, rloo, N = 2"


def test_a_share_that_needs_token_energies_is_explained_in_the_caption(found: gs.analyses.RatioDiagnostics):
    batch = turned_policy().sample(40, 4, rng=0)[0].with_fields(token_energy=None)
    frame = gs.ratio_diagnostics(batch, n_bins=2).clipping_frame()
    unknown = frame["removed_of"] == "unknown"
    assert unknown.any()
    assert frame.loc[unknown, "removed_share"].isna().all()
    said = "Dashes: energies of tokens were not measured (token_probes)"
    assert said in analysis_tables.table_of(CLIPPING, frame).caption
    assert said not in analysis_tables.table_of(CLIPPING, found.clipping_frame()).caption


def bold_rows(table):
    return [line for line in table.to_latex().splitlines() if "textbf" in line]


def corrected(highs, values=(1.0, 1.3, 0.9)):
    """A table of three rows with simultaneous intervals of these upper ends; the first is the reference."""
    table = frame_for_variance_table(list(values), [1.0, 1.1, 0.8], [1.0, 1.5, 1.1])
    return table.assign(matched_ratio_simultaneous_low=[1.0, 1.05, 0.75], matched_ratio_simultaneous_high=highs)


@pytest.mark.parametrize(
    ("highs", "values", "bold", "said"),
    [
        ([1.0, 1.6, 0.98], (1.0, 1.3, 0.9), ["mine"], "Bold: shown to be below 1, corrected for comparing all 3"),
        ([1.0, 1.6, 1.15], (1.0, 1.3, 0.9), [], "No row is shown to be below 1, corrected for comparing all 3"),
        ([1.0, 1.6, np.nan], (1.0, 1.3, np.nan), [], "3 estimators. 1 row is not resolved and may be lower."),
    ],
)
def test_what_is_shown_to_be_below_the_reference_is_bold(highs, values, bold, said):
    found = variance_table(corrected(highs, values).assign(trace_cov=1.0))
    assert [line.split(" &")[0] for line in bold_rows(found)] == bold
    assert said in found.caption


def test_an_estimator_that_is_compared_with_none_is_not_judged():
    found = variance_table(corrected([0.9] * 3).assign(estimator="rloo", group_size=[2, 4, 8]))
    assert not bold_rows(found)
    assert "below 1" not in found.caption


def test_a_column_that_is_asked_for_must_be_there():
    table = frame_for_variance_table([1.0, 1.3, 0.8], [1.0, 1.1, 0.7], [1.0, 1.5, 0.9])
    with pytest.raises(ValueError, match=r"the table lacks the column\(s\) ratio_high"):
        variance_table(table.drop(columns="ratio_high"), columns=["ratio"])


def test_estimators_have_the_names_of_figures_and_the_csv_their_labels(tmp_path):
    table = frame_for_variance_table([1.0, 1.3], [1.0, 1.1], [1.0, 1.5], names=("rloo", "token_mean(loo=True)"))
    found = variance_table(table)
    assert found.rows == ("RLOO", "token mean, leave-one-out")
    assert "ratio to RLOO" in found.columns
    *_, csv = found.save(tmp_path / "variance")
    assert "\ntoken_mean(loo=True)," in csv.read_text()
    table.attrs[LABELS] = {"rloo": "leave one out, $N-1$"}
    chosen = variance_table(table)
    assert "leave one out, $N-1$ & " in chosen.to_latex()
    assert "ratios to leave one out" in chosen.caption


def test_a_caption_counts_the_rows_that_are_compared_and_not_listed():
    table = corrected([1.0, 1.6, 0.98])
    some = table.iloc[:2].copy()
    some.attrs = table.attrs | {COMPARED_ROWS: 3}
    assert "No row is shown to be below 1, corrected for comparing all 3 estimators." in variance_table(some).caption
