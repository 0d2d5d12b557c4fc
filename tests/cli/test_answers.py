"""The first screens, on every committed run: short, narrow, and with no number that a reader cannot believe."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from command_line import run
from printed_numbers import NUMBER, as_number

from gradstats.analyses import registry
from gradstats.analyses.plan import plan_ratio
from gradstats.answers import Answer
from gradstats.cli.answers import LINES, WIDTH, answer_screen, first_screen, noise_table
from gradstats.report.analysis_tables import ShortRow, ShortTable, short_table
from gradstats.report.saved_results import read_results
from gradstats.report.verdict import (
    PLANNED,
    NoiseRow,
    Verdict,
    alpha_verdicts,
    headline,
    noise_of,
    verdicts,
    with_plans,
    without_signal,
)

FIGURES = Path(__file__).parents[2] / "figures"
RUNS = sorted(path.parent for path in FIGURES.glob("*/variance.csv"))
# A number with its interval, and a bound, as they are printed.
_WITH_INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")
# Labels of estimators, which are written as one types them.
_LABEL = re.compile(r"[a-z_:]+\([^()]*\)")
# What no screen shows: powers of ten as programs write them, bare infinities, minus signs of programs, whole names cut.
_NOT_FOR_READERS = re.compile(r"\d[eE][+-]?\d|∞|\bnan\b|[\s\[(]-\d|=-\d|similar to th|at matched signal|over RLOO")


def screen_of(folder):
    run = read_results(folder)
    opening, comparison = run.name, run.answers.get("variance")
    if run.points is not None:
        cut = 0 if "truncated" not in run.points else int(run.points["truncated"].sum())
        n_prompts = run.points["prompt_id"].nunique()
        opening = headline(
            run.name, n_prompts, len(run.points), rewards=run.points.get("reward"), lengths=run.points["length"],
            n_truncated=cut,
        )  # fmt: skip
    closing = [
        f"  runs/{run.name}/report.html   figures and tables",
        "  7 notes: --notes    all rows and columns: --all",
    ]
    further = {name: run.answers.get(of) for name, of in (("blocks", "alpha_by_block"), ("batch_sizes", "batch_size"))}
    said = verdicts(run.answers.get("alpha"), comparison, **further)
    return run, first_screen(opening, said, comparison, closing)


def assert_believable(text):
    assert not _NOT_FOR_READERS.search(_LABEL.sub("", text)), text
    for number, low, high in _WITH_INTERVAL.findall(text):
        assert as_number(low) <= as_number(number) <= as_number(high), text


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_the_first_screen_of_every_committed_run_is_short_and_believable(folder):
    assert len(RUNS) >= 11
    run, lines = screen_of(folder)
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= LINES
    assert_believable("\n".join(lines))
    assert run.alpha is None or any(line.startswith("  α ") for line in lines)
    assert "samples for equal noise" in "\n".join(lines)
    further = first_screen(run.name, alpha_verdicts(run.alpha or {"alpha": math.nan}))
    assert max(map(len, further)) <= WIDTH
    assert_believable("\n".join(further))


#: Of each question that a bare measurement answers the words behind it.
ESTIMATORS = ["rloo", "grpo", "reinforce", "token_mean(loo=True)", "norm_weighted(loo=True)", "dr_grpo"]
QUESTIONS = {
    "variance": [],
    "alpha": [],
    "alpha_by_block": [],
    "group_sizes": ESTIMATORS,
    "allocation": [*ESTIMATORS, "--tokens", "5000"],
    "batch_size": ESTIMATORS,
    "spike": ["--prompts-per-batch", "8"],
    "length_bins": ESTIMATORS,
    "success_bins": ESTIMATORS,
    "curve": ["length_weighted(loo=True)", "alpha=0:1:21"],
    "optimal_baselines": ["--n-resamples", "8"],
    "shift": ["length_weighted(alpha=0.8)"],
    "length_reward": [],
    "profile": [],
    "plan": [],
}
_ONE_POINT = re.compile(rf"\[({NUMBER})%?, \1%?\]")


def assert_is_a_screen(out):
    assert max(map(len, out.splitlines())) <= WIDTH
    assert len(out.splitlines()) <= LINES
    assert_believable(re.sub(r"\w+\([^()]*\)", "", out))  # without labels, which are as they are typed
    assert not _ONE_POINT.search(out)
    opening = out.partition("\n\n")[0]
    assert len(opening.splitlines()) <= 3 + opening.endswith("intervals."), opening  # of a level that is not usual


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_screens_of_every_question_are_short_and_state_the_level_of_their_intervals(answered, question, measured):
    words = ("ask", measured, question, *QUESTIONS[question], "--confidence-level", 0.5)
    out = answered(*words)
    assert_is_a_screen(out)
    assert question == "variance" or "…)" not in out  # names of rows are folded; beside the axis they are cut
    assert registry.get(question).question not in out  # an answer, and not the question again
    assert " ".join(out.split()).count("50% interval") == 1
    out = answered(*words, "--all", "--notes")
    assert "\n  50% intervals\n" not in out  # which sentences and captions state
    assert "50% interval" in " ".join(out.split())
    assert "95%" not in out
    assert "significant" not in out
    assert_believable(re.sub(r"\w+\([^()]*\)", "", out))


#: The questions whose rows are of estimators.
RANKED = ("allocation", "batch_size", "group_sizes", "length_bins", "success_bins")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("question", RANKED)
def test_equal_estimators_share_rows_and_the_best_comes_first(question, measured, monkeypatch, capsys):
    analysis = registry.get(question)
    found = analysis.call_with_source(analysis.source(measured), estimators=ESTIMATORS)
    declared = next(one for one in analysis.tables if one.ranking is not None)
    answer = analysis.answer_of(found, 0.95)
    frame = answer.frame if declared is analysis else answer.further[declared.name].frame
    table = short_table(declared, frame)
    assert all(set(column) != {"–"} for column in zip(*(row.cells for row in table.rows), strict=True))
    names = [row.names for row in table.rows]
    assert ("rloo", "dr_grpo") in names
    assert ("dr_grpo",) not in names
    assert len(names) == len(frame) - (frame["estimator"] == "dr_grpo").sum()
    if declared.ranking.in_blocks:
        assert names[0] == ("rloo", "dr_grpo")
        assert all(row.scale > 1.0 for row in table.rows[:2])
        assert [row.block for row in table.rows] == sorted(row.block for row in table.rows)
    else:
        column = table.headings.index(declared.headings_of(frame)[declared.ranking.column])
        shown = [re.search(NUMBER, row.cells[column]) for row in table.rows]
        values = [as_number(one[0]) for one in shown if one]
        assert len(values) > 3
        assert values == sorted(values, reverse=declared.ranking.most_first)
    _, out, _ = run(monkeypatch, capsys, "ask", measured, question, *QUESTIONS[question])
    assert "  rloo = dr_grpo" in out


def test_only_what_needs_more_than_a_measurement_is_not_walked():
    # values, log-probabilities, probes, proxies, sketches by block
    needed = {"critic", "ratios", "tokens", "proxies", "variance_by_block"}
    assert set(registry.names()) - set(QUESTIONS) == needed


@pytest.mark.parametrize(
    ("names", "shown", "left"),
    [
        ([f"−{100 - at}" for at in range(41)], [f"−{100 - at}" for at in range(0, 41, 3)], "… 27 rows between: --all"),
        (["−1", "0", "1"], ["−1", "0", "1"], None),
        ([f"layers.{at}" for at in range(41)], [f"layers.{at}" for at in range(19)], "… 22 more rows: --all"),
        ([str(41 - at) for at in range(41)], [str(41 - at) for at in range(19)], "… 22 more rows: --all"),  # ranked
    ],
)
def test_of_values_along_a_range_rows_between_are_left_out(names, shown, left):
    rows = tuple(ShortRow((name,), 1.0, "", ("0.5",)) for name in names)
    _, _, _, *lines = answer_screen("An answer.", ShortTable("row", ("noise",), rows))
    assert [line.split()[0] for line in lines[: len(shown)]] == shown
    assert [line.strip() for line in lines[len(shown) :]] == ([] if left is None else [left])


def comparison_of(*rows, **about):
    """A comparison: estimator, value, low, high, and other columns."""
    frame = pd.DataFrame(
        [
            {
                "estimator": label, "group_size": 8, "trace_cov": 1.0, "ratio": numbers.get("ratio", 1.0),
                "matched_ratio": value, "matched_ratio_low": low, "matched_ratio_high": high,
                "matched_bias_share": 0.0, "matched_bias_share_low": 0.0, "matched_bias_share_high": 0.1,
            } | {name: number for name, number in numbers.items() if name != "ratio"}
            for label, value, low, high, numbers in rows
        ]
    )  # fmt: skip
    return Answer("variance", frame, {"reference": "rloo", "prompts_per_batch": 128, "n_prompts": 96} | about)


RLOO = ("rloo", 1.0, 1.0, 1.0, {})
NAN = math.nan


def test_an_estimate_of_a_variance_may_be_negative():
    rows = [(label, NAN, NAN, NAN, {"ratio": -1.5}) for label in ("causal_optimal", "mine")]
    assert "not resolved: causal_optimal and mine;" in "\n".join(noise_table(comparison_of(RLOO, *rows), most=5))


def test_rows_of_noise_leave_room_for_what_follows():
    rows = [(f"mine_{at}", 1.0 + at / 10, 0.9 + at / 10, 1.1 + at / 10, {}) for at in range(1, 41)]
    assert 20 < len(first_screen("a run", [], comparison_of(RLOO, *rows), ["what follows"] * 5)) <= LINES


@pytest.mark.parametrize("most", [-1, 0, 1, 2, 3, 5])
def test_rows_that_are_left_out_for_want_of_room_are_counted(most):
    rows = [(f"mine_{at}", 1.0 + at / 10, 0.9 + at / 10, 1.1 + at / 10, {}) for at in range(1, 8)]
    lines = noise_table(comparison_of(RLOO, *rows), most=most)
    (left_out,) = (int(one.split()[1]) for one in lines if "more" in one)
    assert left_out + sum(one.startswith(("  mine", "  rloo")) for one in lines) == 8


def test_group_sizes_that_are_not_shown_are_named():
    rows = [("rloo", 1.0, 1.0, 1.0, {"group_size": size}) for size in (2, 4, 8)]
    assert noise_table(comparison_of(*rows), most=5)[-1] == "  groups of 4, 8: --all"
    assert "groups of" not in noise_table(comparison_of(RLOO), most=5)[-1]
    halves = {"n_groups": 192, "n_completions": 1536}  # of 16 completions, in two groups
    assert noise_table(comparison_of(RLOO, **halves), most=5)[0].startswith(
        "  samples for equal noise, rloo = 1, groups of 8"
    )
    assert said(RLOO, ("grpo", 0.8, 0.7, 0.9, {}), **halves)["best"].endswith("samples of rloo in groups of 8.")
    assert said(*rows, ("grpo", 0.8, 0.7, 0.9, {"group_size": 2}))["best"].endswith("samples of rloo in groups of 2.")


def said(*rows, **about):
    return {one.topic: one.text for one in verdicts(None, with_plans(comparison_of(*rows, **about)))}


@pytest.mark.parametrize(
    ("critical", "sizes", "said"),
    [
        ([62, 36, 114], {}, ["The noise of rloo equals its signal in a step of 62 [36, 114] prompts."]),
        (
            [62, 36, 114],
            {"group_size": 8},
            ["The noise of rloo in groups of 8 equals its signal in a step of 62 "],
        ),
        ([math.nan, 36, math.inf], {}, ["The noise of rloo equals its signal in a step of at least 36 prompts."]),
        ([math.nan] * 3, {}, []),
    ],
)
def test_the_critical_batch_is_that_of_the_reference_and_of_the_question_that_asks_for_it(critical, sizes, said):
    frame = pd.DataFrame({"estimator": ["reinforce", "rloo"]})
    for name, value in zip(("", "_low", "_high"), critical, strict=True):
        frame[f"critical_batch{name}"] = [132, value]
    answer = Answer("batch_size", frame.assign(**sizes), {"reference": "rloo"})
    compared = comparison_of(*(("rloo", 1.0, 1.0, 1.0, {"group_size": size}) for size in (2, 4))) if sizes else None
    found = [one.text for one in verdicts(None, compared, batch_sizes=answer) if one.topic == "batch"]
    assert [text[: len(part)] for text, part in zip(found, said, strict=True)] == said


def test_estimators_share_a_row_where_they_are_equal_by_construction_and_not_where_they_look_alike():
    shrunken = {"ratio": (7 / 8) ** 2}
    alike = [("close", 0.981, 0.96, 1.0, {}), ("closer", 0.98, 0.96, 1.0, {"matched_bias_share_low": 0.02})]
    rows = noise_of(
        comparison_of(("group_mean", 1.0, 1.0, 1.0, shrunken), RLOO, ("dr_grpo", 1.0, 1.0, 1.0, shrunken), *alike)
    )
    assert [row.name() for row in rows] == ["closer", "close", "rloo = group_mean = dr_grpo at 8/7"]
    assert [row.is_reference for row in rows] == [False, False, True]
    assert rows[2].name(width=20) == "rloo and 2 equal"
    assert [row.bias_text() for row in rows] == ["2–10 %", "", ""]


def test_a_head_that_holds_most_of_the_squared_norm_is_named():
    qwen, embedded = (
        [one.text for one in verdicts(None, None, blocks=Answer.read(FIGURES / run / "tables" / "alpha_by_block"))]
        for run in ("qwen_mawps", "embedded")
    )
    assert qwen == []  # its head holds 13 %
    (text,) = embedded
    assert text.startswith("All this is mostly of the head, which holds 86% of ‖S‖²;")


BETTER, WORSE, UNKNOWN = (
    ("grpo", 0.8, 0.7, 0.9, {}),
    ("reinforce", 2.12, 1.78, 2.53, {}),
    ("otb", NAN, 0.0, math.inf, {}),
)
WORST, FAR = ("constant", 3.5, 3.0, 4.0, {}), ("gspo", 3.0, 2.5, 3.4, {})
ABOVE = ("dapo", NAN, 1.2, math.inf, {})  # whatever it is, it is not lower
BIASED = {"matched_bias_share_low": 0.66, "matched_bias_share_high": 0.776}
OPEN_ABOVE = {"matched_bias_share": NAN, "matched_bias_share_low": 0.66, "matched_bias_share_high": 1.0}
AT_ONCE = {"matched_ratio_simultaneous_low": 0.6, "matched_ratio_simultaneous_high": 1.1}
WIDE = {"matched_ratio_simultaneous_low": 1.05, "matched_ratio_simultaneous_high": 4.0}
CORRECTED = "No estimator is shown to beat rloo, corrected for comparing all rows, which the"
_OF_A_BATCH = "of the error of gspo in a batch of 128 prompts is bias."


@pytest.mark.parametrize(
    ("rows", "topic", "text"),
    [
        ([BETTER, WORSE], "best", "grpo needs 0.80 [0.70, 0.90] times the samples of rloo."),
        ([BETTER, WORSE], "avoid", "reinforce needs 2.12 [1.78, 2.53] times the samples of rloo."),
        (
            [WORSE, WORST, FAR],
            "avoid",
            "constant needs 3.50 [3.00, 4.00] times the samples of rloo; gspo and 1 more need more too.",
        ),
        ([(*BETTER[:4], AT_ONCE), (*WORSE[:4], WIDE)], "best", f"{CORRECTED} interval of grpo is not."),
        ([(*BETTER[:4], AT_ONCE), (*WORSE[:4], WIDE)], "avoid", None),
        (
            [(*BETTER[:4], AT_ONCE), ("gspo", 0.9, 0.85, 0.95, AT_ONCE)],
            "best",
            f"{CORRECTED} intervals of grpo and gspo are not.",
        ),
        ([UNKNOWN], "best", "No estimator that could be judged is shown to beat rloo. 1 row is not resolved."),
        (
            [BETTER, UNKNOWN, UNKNOWN],
            "best",
            "grpo needs 0.80 [0.70, 0.90] times the samples of rloo. 2 rows are not resolved.",
        ),
        ([ABOVE], "best", "No estimator is shown to beat rloo."),
        ([("grpo", 0.87, 0.1, 0.9985, {})], "best", "No estimator is shown to beat rloo."),  # [0.10, 1.00]
        ([("gspo", 1.2, 0.9, 1.6, BIASED)], "bias", f"66–78 % {_OF_A_BATCH}"),
        ([("gspo", 1.2, 0.9, 1.6, OPEN_ABOVE)], "bias", f"≥ 66 % {_OF_A_BATCH}"),
    ],
)
def test_what_is_best_what_to_avoid_and_what_is_biased_holds_for_all_rows_at_once(rows, topic, text):
    assert said(RLOO, *rows).get(topic) == text


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        (("grpo", 0.99, 0.9, 1.1, {}), "Keep rloo"),
        (BETTER, "Use grpo in place of rloo, for 20% [10, 30] fewer samples"),
        (("gspo", 0.8, 0.7, 0.9, BIASED), "Keep rloo"),
        (
            ("norm_weighted(loo=True)", 0.8, 0.7, 0.9, {}),
            "Keep rloo unless you can afford the gradient norms that norm_weighted(loo=True) needs",
        ),
        (("mine:estimator", 0.8, 0.7, 0.9, {}), "Use mine:estimator in place of rloo, for 20% [10, 30] fewer samples"),
        (UNKNOWN, "Measure more prompts: nothing could be compared with rloo"),
    ],
)
def test_the_advice_is_what_is_resolved(row, advice):
    assert said(RLOO, row)["advice"] == f"{advice}."


def test_where_the_reference_has_no_gradient_the_advice_is_another_one():
    silent = ("rloo", NAN, NAN, NAN, {"trace_cov": NAN})
    of_four = ("rloo", 1.0, 1.0, 1.0, {"group_size": 4})
    in_ones = ("rloo", NAN, NAN, NAN, {"trace_cov": NAN, "group_size": 1})
    assert (
        said(in_ones, of_four)["advice"]
        == said(silent, UNKNOWN)["advice"]
        == ("Choose another reference: rloo has no gradient; the notes say why.")
    )


@pytest.mark.parametrize(
    ("best", "critical", "advice"),
    [
        ([13.2, 9.4, 20.1], [62.0, 36.6, 115.0], "draw 13 [9, 21] completions of each prompt"),
        ([NAN, 9.4, math.inf], [NAN, 37.6, math.inf], "draw at least 9 completions of each prompt"),
        ([NAN, 2.0, math.inf], [NAN, 0.0, math.inf], ""),
        (None, None, ""),
    ],
)  # fmt: skip
def test_the_advice_names_completions_and_prompts_as_far_as_they_are_known(best, critical, advice):
    about = {} if best is None else {"best_size": best}
    columns = dict(
        zip(("critical_batch", "critical_batch_low", "critical_batch_high"), critical or [NAN] * 3, strict=True)
    )
    given = {"allocation": Answer("allocation", pd.DataFrame(), about)}
    given["batch_sizes"] = Answer("batch_size", pd.DataFrame([{"estimator": "rloo"} | columns]), {"reference": "rloo"})
    text = verdicts(None, comparison_of(RLOO, ("grpo", 0.99, 0.9, 1.1, {})), **given)[-1].text
    train = "train on at least 37 prompts per step" if critical and critical[1] else ""
    assert text == "; ".join(filter(None, ["Keep rloo", advice, train])) + "."


def test_a_bound_on_the_batch_is_one_number_in_both_lines():
    columns = {"estimator": "rloo", "critical_batch": NAN, "critical_batch_low": 269.3, "critical_batch_high": math.inf}
    answer = Answer("batch_size", pd.DataFrame([columns]), {"reference": "rloo"})
    texts = {one.topic: one.text for one in verdicts(None, comparison_of(RLOO), batch_sizes=answer)}
    assert "at least 260 prompts" in texts["batch"]
    assert "at least 260 prompts" in texts["advice"]


@pytest.mark.parametrize(("row", "prompts"), [(BETTER, 21), (("grpo", 0.99, 0.9, 1.1, {}), 37)])
def test_the_batch_of_the_advice_is_that_of_the_estimator_that_it_names(row, prompts):
    frame = pd.DataFrame({"estimator": ["rloo", "grpo"], "critical_batch": [62.0, 40.0]})
    frame = frame.assign(critical_batch_low=[36.6, 20.8], critical_batch_high=[115.0, 80.0])
    answer = Answer("batch_size", frame, {"reference": "rloo"})
    text = verdicts(None, comparison_of(RLOO, row), batch_sizes=answer)[-1].text
    assert text.endswith(f"; train on at least {prompts} prompts per step.")
    answer = Answer("batch_size", frame.assign(group_size=8), {"reference": "rloo"})
    in_parts = {"n_groups": 400, "n_prompts": 100}
    halves = [(*one[:4], {**one[4], "group_size": 4}) for one in (RLOO, row)]
    text = verdicts(None, comparison_of(*halves, **in_parts), batch_sizes=answer)[-1].text
    assert text.endswith(f"; train on at least {prompts} prompts per step in groups of 8.")


@pytest.mark.parametrize(
    ("rewards", "reward", "advice"),
    [
        ([0, 0, 0, 0], "Every reward is 0: no group ", "Read some completions (gradstats report 'a run'), "),
        ([1, 1, 1, 1], "Every reward is 1: ", "Choose harder problems"),
        ([1, 1, 0, 0], "The completions of each prompt all have the same reward: ", "Draw more completions"),
    ],
)  # fmt: skip
def test_rewards_that_are_all_equal_are_line_one_with_the_remedy(rewards, reward, advice):
    completions = pd.DataFrame({"prompt_id": ["a", "a", "b", "b"], "reward": rewards, "truncated": [True, False] * 2})
    first, second = without_signal(completions, "a run")
    assert (first.topic, second.topic) == ("reward", "advice")
    assert first.text.startswith(reward)
    assert second.text.startswith(advice)
    assert ("where 50% were cut off" in second.text) == (rewards == [0, 0, 0, 0])
    assert without_signal(completions.assign(reward=[1, 0, 1, 1]), "a run") == []


@pytest.mark.parametrize(
    ("low", "high", "growth"),
    [
        (0.3, 0.4, "gradients grow more slowly than √length"),
        (0.4, 0.6, "gradients may grow like √length, but not like length"),
        (0.6, 0.9, "gradients outgrow √length, but not length"),
        (0.6, 1.1, "gradients outgrow √length, and may grow like length"),
        (0.4, 1.1, "gradients may grow like √length or like length"),
        (1.1, 1.3, "gradients outgrow length"),
    ],
)
def test_what_alpha_says_of_growth_is_what_its_interval_decides(low, high, growth):
    alpha = {"alpha": (low + high) / 2, "alpha_low": low, "alpha_high": high}
    (verdict,) = alpha_verdicts(alpha)
    assert verdict.text.endswith(f"]: {growth}.")
    inner = {"alpha": 2.0, "alpha_low": 1.9, "alpha_high": 2.1}
    first, within = alpha_verdicts(alpha | {"within_prompt": inner})
    assert within.text == "Among answers to one prompt, α = 2.00 [1.90, 2.10]."
    assert ("within prompts" in first.text) == (growth != "gradients outgrow length")


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0, 0.004, "< 1 %"), (0.0, 0.03, "≤ 3 %"), (0.02, 0.05, "2–5 %"), (0.6, NAN, "≥ 60 %"), (NAN, NAN, ""),
    ],
)  # fmt: skip
def test_a_share_of_bias_is_said_as_far_as_it_is_known(low, high, text):
    row = NoiseRow(("grpo",), 1.0, (1.0, 0.9, 1.1), (0.9, 1.1), (NAN, low, high), False)
    assert row.bias_text() == text


def test_what_is_not_resolved_from_the_reference_says_how_many_prompts_resolve_it():
    open_, near = ("constant(b=optimal)", 0.77, 0.53, 1.03, {}), ("grpo", 1.002, 0.93, 1.08, {})
    rows = (RLOO, open_, near, ("reinforce", 2.12, 1.78, 2.53, {}))
    frame = comparison_of(*rows, confidence_level=0.95).frame
    planned = plan_ratio(frame, "constant(b=optimal)", quantity="matched_ratio").n_prompts_assured
    found = said(*rows, confidence_level=0.95)
    assert found["open"] == f"Measure about {planned:,} prompts to judge constant(b=optimal)."
    unbounded = ("gspo", 1.3, 0.0, math.inf, {})
    found = said(RLOO, open_, unbounded, confidence_level=0.95)
    assert found["open"] == "Measure many more prompts to judge constant(b=optimal) and gspo."
    assert "open" not in said(RLOO, near, confidence_level=0.95)  # equal as far as anyone can tell
    # What a run has planned is said again.
    recorded = comparison_of(*rows, **{PLANNED: {"constant(b=optimal)": 17}})
    assert any("about 17 prompts" in one.text for one in verdicts(None, recorded))


def test_what_is_open_says_what_would_resolve_it_once():
    open_ = [(label, NAN, 0.0, math.inf, {}) for label in ("grpo", "constant(b=optimal)")]
    silent = ("pass_at_k", NAN, NAN, NAN, {"trace_cov": NAN})
    lines = noise_table(comparison_of(RLOO, *open_, silent, prompts_to_resolve=1234), most=9)
    assert " ".join(" ".join(lines[2:]).split()) == (
        "not resolved: grpo and constant(b=optimal); a first estimate takes about 1,234 prompts like these no "
        "row for pass_at_k: the notes say why"
    )


def test_of_many_rows_the_outermost_and_the_reference_stay():
    rows = [(f"e{at}", 0.5 + at / 10, 0.4 + at / 10, 0.6 + at / 10, {}) for at in range(20)]
    lines = noise_table(comparison_of(RLOO, *rows), most=8)
    shown = [line.split()[0] for line in lines[1:]]
    assert shown == ["e0", "e1", "e2", "rloo", "…", "e17", "e18", "e19"]


def test_the_axis_is_common_logarithmic_and_cut_with_an_arrow():
    lines = noise_table(comparison_of(RLOO, ("a", 0.5, 0.25, 1.0, {}), ("b", 2.0, 1.0, 40.0, {})), most=8)
    a, rloo, b = lines[1:]
    one = rloo.index("●")
    assert a.index("●") - a.index("─") == pytest.approx(one - a.index("●"), abs=1)
    assert b.rstrip().endswith("›")
    assert lines[0].index("1", 36) == one


def test_a_headline_breaks_between_its_parts():
    opening = headline("a_run_with_a_long_name", 240, 1920, rewards=[1.0], lengths=[26, 400], n_truncated=100)
    lines = first_screen(opening, [Verdict("α", "x")])
    assert lines[0] == "a_run_with_a_long_name   240 prompts × 8 completions · reward 1.00 ·"
    assert lines[1] == "  26–400 tokens, median 213 · 100 cut off"
