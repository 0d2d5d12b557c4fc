"""Each printed and saved column has an entry in the index, whose file exists and names it."""

from __future__ import annotations

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
from measured_by_hand import breakdowns
from probed_policies import MANY_DIRECTIONS, probed

import gradstats as gs
from gradstats.analyses import registry
from gradstats.analyses.results import RemarkedResult, Result, ScalarResult
from gradstats.config.sections import VarianceSection
from gradstats.gradients import check_engines
from gradstats.measurement.scored import FORWARD
from gradstats.report.analysis_tables import alpha_table
from gradstats.report.columns import INDEX
from gradstats.report.saved_results import SavedResults
from gradstats.report.sweeps import SweepResult, paired_differences
from gradstats.stats.intervals import FiellerRatio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate
from gradstats.stats.variance.alignment import CriticalBatch
from gradstats.values.fitted import FittedValues
from tests.off_policy import turned_policy

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
#: Entries of what only a figure's table or a run with every option holds.
NOT_DRAWN_HERE = {
    "ratios": {"effective_share", "estimator"},
    "curve": {"per_completion"},
    "plan": {"n_measured", "n_sampled"},  # of partly measured runs
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


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, set[str]]:
    """Table → the names of its columns, or of its rows where a row is a quantity."""
    folder = tmp_path_factory.mktemp("tokens")
    measured = measured_completions()
    with warnings.catch_warnings():  # the data are few
        warnings.simplefilter("ignore")
        comparison = gs.compare(measured, ["rloo", "reinforce"])
        section = VarianceSection(estimators=["reinforce", "length_weighted(alpha=0.8, loo=True)"])
        report, gap, profile = gs.alpha_report(measured), sampler_gap(), gs.analyses.profile_policy(measured)
        curve = gs.variance_curve(measured, "length_weighted(loo=True)", "alpha", [0.0, 1.0])
        baselines = gs.optimal_baselines(measured, published=["rloo"])
        known = [np.full(length, 0.5) for length in measured.lengths]
        critic = gs.analyses.critic_quality(measured, values=known, fitted_values=known)
        ratios = gs.ratio_diagnostics(turned_policy().sample(40, 4, rng=0)[0], n_bins=2)
        quality = gs.proxy_quality(measured)
        tokens = registry.get("tokens").answer_of(quality, 0.95).further
        resolved = Estimate(2.0, 0.2, "log", 199.0)
        critical = CriticalBatch(FiellerRatio(8.0, 0.25, 0.02, 0.0, 0.0, 199.0), 0.0, resolved)
        plans = [
            gs.plan_alpha(report.fit),
            gs.plan_ratio(comparison, "reinforce", ratio=1.2),
            gs.plan_signal(comparison, "rloo"),
            gs.analyses.plan_critical_batch(critical, estimator="rloo"),
        ]
        frames = {
            name: answer.frame
            for name, answer in breakdowns(measured, section).items()
            if name not in ("variance", "alpha", "alpha_by_block", "tokens")
        }
        by_block = np.stack([0.3 * measured.sketches, 0.7 * measured.sketches], axis=1)
        in_blocks = replace(measured, sketches_by_block=by_block)
        frames["variance_by_block"] = gs.analyses.variance_by_block(in_blocks, section.estimators).to_frame()
        drawn = measured.rollouts.frame[["prompt_id", "sample_id", "reward"]].assign(length=measured.lengths)
        scored = replace(measured, scored=drawn.assign(**dict.fromkeys(FORWARD, measured.lengths)))
        calibrated = registry.get("variance").ask(scored, ["reinforce"])
        frames |= {
            name: one.frame for name, one in registry.get("variance").answer_of(calibrated, 0.95).further.items()
        }
        frames["proxies"] = gs.analyses.proxies_by_block(measured).to_frame()
        engines = check_engines(tiny_model("qwen2"), dtypes=["float64"])
    report_points = pd.DataFrame(
        {"prompt_id": measured.rollouts.prompt_id, "length": measured.lengths, "sq_norm": measured.sq_norms}
    )
    run = SavedResults(folder, "c", {}, {}, {"variance": registry.get("variance").answer_of(comparison, 0.95)})
    found = {name: set(frame.columns) for name, frame in frames.items()}
    assert {"group_sizes", "equivalent_group_size", "allocation", "length_bins", "success_bins"} <= set(found)
    assert report.curvature is not None
    assert report.within_between is not None
    on_policy, gaps = report.on_policy.to_frame(), gap.to_frame()
    profiles = tokens["token_profiles"].frame
    rows = profile.to_frame()
    found |= {
        "plan": {column for plan in plans for column in plan.to_frame()},
        "variance": set(comparison.to_frame().columns),
        "curve": set(curve.to_frame().columns),
        "critic": set(critic.to_frame().columns),
        "optimal_baselines": set(baselines.to_frame().columns),
        "curve fits": set(curve.fits_frame().columns),
        "variance.json": set(comparison.to_frame().attrs),
        "ratios": set(ratios.to_frame().columns),
        "ratio_clipping": set(ratios.clipping_frame().columns),
        "alpha": set(alpha_table({"mine": report.fit}).source.columns),
        "alpha_by_block": set(report.by_block.columns),
        "alpha.json": set(report.summary()),
        "curvature": set(report.curvature.to_frame().columns),
        "within_between": set(report.within_between.to_frame().columns),
        "most_influential_prompt": set(report.influence.columns),
        "on_policy": {*on_policy.columns, *on_policy["quantity"]},
        "sampler_gap": {*gap.summary(), *gap.quantiles().columns, *gaps.columns, *gaps["quantity"]},
        "token_profiles": set(profiles.columns),
        "profile": {*rows.columns, *(name.split(" of ")[0] for name in rows["quantity"])},
        "shift": set(gs.implied_shift(measured, "token_mean").to_frame().columns),
        "length_reward": set(gs.length_reward_correlation(measured).to_frame().columns),
        "fitted values": set(FittedValues([], NOT_ESTIMATED, (1.0,), 2).to_frame().columns),
        "check": set(engines.columns),
        "alpha difference": set(gs.stats.alpha_difference(report_points, report_points[::2]).to_frame().columns),
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
    found["tokens"] = set(quality.to_frame().columns)
    found |= {name: set(tokens[name].frame.columns) for name in ("token_traces", "token_sample")}
    return found


def columns_of(path: Path) -> set[str]:
    with path.open(encoding="utf-8") as file:
        return set(next(csv.reader(file)))


#: The costs of token scores share the name of a question, and are no table of it.
COSTS = ROOT / "figures" / "tokens" / "tokens.csv"
SAVED = [path for path in sorted((ROOT / "figures").rglob("*.csv")) if path.stem in INDEX and path != COSTS]


def named(columns: set[str]) -> set[str]:
    return {column.removesuffix("_low").removesuffix("_high") for column in columns}


@pytest.mark.parametrize("table", [name for name in INDEX if name != "length_scaling"])
def test_each_printed_column_has_an_entry_and_each_entry_a_column(printed, table):
    indexed = {column.name for column in INDEX[table]}
    assert named(printed[table]) - indexed == set(), "print it only with an entry in report/columns.py"
    assert indexed - named(printed[table]) <= NOT_DRAWN_HERE.get(table, set())


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
