"""Each printed and saved column has an entry in the index, whose file exists and names it."""

import ast
import csv
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import tiny_model
from probed_policies import MANY_DIRECTIONS, probed

import gradstats as gs
from gradstats.analyses import registry
from gradstats.analyses.results import RemarkedResult, Result, ScalarResult
from gradstats.gradients import check_engines
from gradstats.report.columns import INDEX
from gradstats.report.saved_results import SavedResults
from gradstats.report.sweeps import SweepResult, paired_differences
from gradstats.stats.jackknife import NOT_ESTIMATED
from gradstats.values.fitted import FittedValues

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gradstats"

registry.all_analyses()  # imports all of them
RESULTS = [one for base in (Result, RemarkedResult, ScalarResult) for one in base.__subclasses__()]
#: Result class → the tables that its frames are: of every question, and those that answer a part of one.
TABLES_OF = {
    **{one.__name__: one.question for one in RESULTS if one.question and not one.__subclasses__()},
    "AlphaDifference": "alpha difference",
    "CurvatureTest": "curvature",
    "EquivalentGroupSize": "equivalent_group_size",
    "FittedValues": "fitted values",
    "LengthScalingFit": "alpha",
    "MundlakTest": "within_between",
    "OnPolicyCheck": "on_policy",
    "PromptPlan": "plan",
    "SamplerGap": "sampler_gap",
    "TokenProfile": "token_profiles",
    "VarianceByBlock": "variance_by_block",
}


def measured_completions():
    """A measurement with everything: two blocks, sketches, token probes, and eight completions per prompt."""
    batch, _, scores = MANY_DIRECTIONS.sample(20, 8, 0)
    measured = probed(batch, scores, 8, 2, np.random.default_rng(0))
    blocks = pd.DataFrame({"layer 0": 0.3 * measured.sq_norms, "layer 1": 0.7 * measured.sq_norms})
    return replace(measured, sq_norms_by_block=blocks)


def sampler_gap():
    likely = np.random.default_rng(0).random((40, 8)) < 0.9
    drawn, scored = np.log(np.where(likely, 0.9, 0.1)), np.log(np.where(likely, 0.8, 0.2))
    rollouts = gs.Rollouts.from_sequences(
        [[5]] * 40, likely.astype(int).tolist(), rewards=[1.0] * 40, prompt_ids=np.arange(40) // 4,
        sampler_logprobs=list(drawn),
    )  # fmt: skip
    nothing = [np.zeros(8)] * 40
    norms = pd.DataFrame({"all": np.ones(40)})
    return gs.sampler_gap(gs.Measurement(rollouts, norms, None, list(scored), nothing, nothing, nothing))


#: Tables whose columns the index writes itself, and those of logs; of others each question's test walks the columns.
WRITTEN = sorted(
    INDEX.keys()
    - {table.name for one in registry.all_analyses() for table in one.tables}
    - {table.name for one in registry.of_this_version() for table in one.tables if one.name not in registry.OF_LOGS}
)


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, set[str]]:
    """Table → the names of its columns, or of its rows where a row is a quantity."""
    measured, folder = measured_completions(), tmp_path_factory.mktemp("sweep")
    with warnings.catch_warnings():  # the data are few
        warnings.simplefilter("ignore")
        comparison, report, gap = gs.compare(measured, ["rloo", "reinforce"]), gs.alpha_report(measured), sampler_gap()
        curve = gs.variance_curve(measured, "length_weighted(loo=True)", "alpha", [0.0, 1.0])
        engines = check_engines(tiny_model("qwen2"), dtypes=["float64"])
    points = pd.DataFrame(
        {"prompt_id": measured.rollouts.prompt_id, "length": measured.lengths, "sq_norm": measured.sq_norms}
    )
    run = SavedResults(folder, "c", {}, {}, {"variance": registry.get("variance").answer_of(comparison, 0.95)})
    on_policy, gaps = report.on_policy.to_frame(), gap.to_frame()
    found = {
        "curve fits": set(curve.fits_frame().columns),
        "variance.json": set(comparison.to_frame().attrs),
        "alpha.json": set(report.summary()),
        "curvature": set(report.curvature.to_frame().columns),
        "within_between": set(report.within_between.to_frame().columns),
        "most_influential_prompt": set(report.influence.columns),
        "on_policy": {*on_policy.columns, *on_policy["quantity"]},
        "sampler_gap": {*gap.summary(), *gap.quantiles().columns, *gaps.columns, *gaps["quantity"]},
        "fitted values": set(FittedValues([], NOT_ESTIMATED, (1.0,), 2).to_frame().columns),
        "check": set(engines.columns),
        "alpha difference": set(gs.stats.alpha_difference(points, points[::2]).to_frame().columns),
        "cell_differences": set(paired_differences({}).columns),
        "sweep": set(SweepResult(folder, "s", ["x"], {"c": {"x": 1}}, {"c": run}).to_frame()) - {"x"},
    }
    columns = {
        "step": [1, 1, 2, 2],
        "prompt": 0,
        "group": [0, 0, 1, 1],
        "reward": [1.0, 0.0, 1.0, 1.0],
        "n_ratios": 9.0,
    }
    ratios_of_tokens = dict.fromkeys(("log_ratio", "abs_gap", "n_capped", "n_outside"), 0.1)
    log = gs.rollouts.Log(pd.DataFrame(columns | ratios_of_tokens | {"length": 9.0}), "log")
    for name in registry.OF_LOGS:
        answer = registry.get(name).answer_of(registry.get(name)(log), 0.95)
        found |= {one.question: set(one.frame.columns) for one in (answer, *answer.further.values())}
    return found


def columns_of(path: Path) -> set[str]:
    with path.open(encoding="utf-8") as file:
        return set(next(csv.reader(file)))


#: The costs of token scores share the name of a question, and are no table of it.
COSTS = ROOT / "figures" / "tokens" / "tokens.csv"
SAVED = [path for path in sorted((ROOT / "figures").rglob("*.csv")) if path.stem in INDEX and path != COSTS]


def named(columns: set[str]) -> set[str]:
    return {column.removesuffix("_low").removesuffix("_high") for column in columns}


@pytest.mark.parametrize("table", WRITTEN)
def test_each_printed_column_has_an_entry_and_each_entry_a_column(printed, table):
    indexed = {column.name for column in INDEX[table]}
    assert named(printed[table]) == indexed, "print it only with an entry in report/columns.py"


def test_each_saved_column_has_an_entry():
    drawn = {figure.name: figure.table for one in registry.all_analyses() for figure in one.figures if figure.table}
    assert len(SAVED) > 50
    for path in SAVED:
        # The settings that a sweep varies are named as in its file: "sampling.temperature".
        of_sweep = (path.parent / "sweep.csv").exists()
        saved = {column for column in columns_of(path) if not (of_sweep and "." in column)}
        if of_sweep and path.stem != "sweep":
            saved -= {"cell"}
        assert named(saved) <= {column.name for column in INDEX[drawn.get(path.stem, path.stem)]}, path


def test_points_are_indexed_as_they_are_saved():
    saved = columns_of(ROOT / "figures" / "embedded_tokens" / "tables" / "length_scaling.csv")
    assert saved == {column.name for column in INDEX["length_scaling"]}


def test_every_entry_names_a_file_that_holds_its_name():
    wrong = []
    for table, columns in INDEX.items():
        for column in columns:
            path, name = PACKAGE / column.file, column.name.split("_at_")[0].removesuffix("_simultaneous")
            assert column.meaning
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            if path.stem != name and not re.search(rf"\b{name}s?(_low)?\b", text):
                wrong.append(f"{table}: {column.name} is not in {column.file}")
    assert not wrong, "\n".join(wrong)


def test_a_table_has_each_name_once():
    for table, columns in INDEX.items():
        names = [column.name for column in columns]
        assert len(names) == len(set(names)), table


def test_every_result_with_a_frame_is_indexed():
    found, framing = set(), {"Answer", "RemarkedResult", "Result", "ScalarResult", "TestResult"}
    for path in PACKAGE.glob("[asv]*/**/*.py"):
        classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
        bases = {node.name: {getattr(base, "id", "") for base in node.bases} for node in classes}
        own = {node.name for node in classes if "to_frame" in {getattr(entry, "name", "") for entry in node.body}}
        results = {name for name in bases if name in own or bases[name] & own or bases[name] & framing}
        framed = {name for name in results if "Protocol" not in bases[name]} - framing
        found |= framed - set().union(*bases.values())  # what others in the file inherit from is not a result
    assert found == set(TABLES_OF)
    assert set(TABLES_OF.values()) <= set(INDEX)
