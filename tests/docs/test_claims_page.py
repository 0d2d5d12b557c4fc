"""docs/claims.md states what the committed tables and the enumeration give."""

from __future__ import annotations

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
