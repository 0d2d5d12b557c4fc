"""What answers say of themselves: the settings that an experiment file asked with, in each text that people read."""

from __future__ import annotations

import html
import json
import re
import shutil

import pandas as pd
import pytest
from command_line import run

EXPERIMENT = """\
name: asked
policy: {name: embedded, dtype: float32, temperature: 1.0}
prompts: {source: embedded, n: 12, seed: 0}
sampling: {group_size: 4, max_new_tokens: 200, batch_size: 48, seed: 0}
measurement: {sketch_dim: 512, params: layers}
length_scaling: {confidence_level: 0.5}
variance: {estimators: [reinforce, rloo, "token_mean(loo=True)"], prompts_per_batch: 6}
analyses:
  group_sizes: {reference: reinforce, group_sizes: [2, 4]}
  allocation: {tokens: 5000}
  batch_size: false
  length_bins: {n_bins: 2}
  success_bins: false
figures: {formats: []}
"""


class Unread:
    """Stands for capsys in a fixture of the module: what is printed here is not what is tested."""

    def readouterr(self):
        return "", ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with its page, its tables as LaTeX, and its fit together with that of a copy."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "asked.yaml").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert run(patched, Unread(), "run", "asked.yaml", "--out", "run", "--no-progress")[0] == 0
        left_out = shutil.ignore_patterns("measurement", "rollouts", "report.html")
        shutil.copytree("run", "copy", ignore=left_out)
        tables, figures = ["--only", "tables", "--columns", "ratio", "matched_ratio"], ["--only", "figures"]
        assert run(patched, Unread(), "export", "run", "--only", "tables")[0] == 0
        assert run(patched, Unread(), "export", "run", *tables, "--out", "tables")[0] == 0
        together = ["--formats", "svg", "--out", "together"]
        assert run(patched, Unread(), "export", "run", "copy", *figures, *together)[0] == 0
    return folder


@pytest.fixture(scope="module")
def page(folder):
    """The text of the page, with that of its figures, which matplotlib writes into comments of the SVG."""
    return html.unescape((folder / "run" / "report.html").read_text())


@pytest.fixture(scope="module")
def alpha(folder):
    return json.loads((folder / "run" / "alpha.json").read_text())


def latex(folder, name, table="tables"):
    """The words of a table in LaTeX."""
    text = (folder / table / f"{name}.tex").read_text()
    return text.replace("~", " ").replace("\\%", "%")


def words_of(svg):
    return re.findall(r"<!-- (.*?) -->", svg, re.DOTALL)


def test_ratios_name_the_reference_that_the_question_asked_for(folder, page):
    caption = latex(folder, "group_sizes")
    assert "ratios to REINFORCE are paired" in caption
    assert "RLOO are paired" not in caption
    heading = " ".join(caption.replace(r"\\", " ").split())  # written in several lines
    assert "ratio to REINFORCE" in heading
    assert "ratio to RLOO" not in heading
    assert set(re.findall(r"for equal noise, where (\S+) in groups of", page)) == {"REINFORCE"}
    assert "relative to REINFORCE" in " ".join(words_of(page))
    # The comparison itself has another.
    assert "ratios to RLOO are paired" in latex(folder, "variance")


def test_an_allocation_states_the_tokens_that_were_asked_for(folder, page):
    assert "a gradient of 5,000 completion tokens" in latex(folder, "allocation")
    assert "a gradient of 5,000 completion tokens" in page
    assert set(re.findall(r"([\d,]+) completion tokens", page)) == {"5,000"}
    frame = pd.read_csv(folder / "run" / "tables" / "allocation.csv")
    completions = frame["n_prompts"].to_numpy() * frame["group_size"].to_numpy()
    assert completions.max() < 5000 / 20  # of at least 20 tokens each: the rows are those of 5,000


def test_alpha_has_one_level_in_table_and_figure(folder, page, alpha):
    assert alpha["confidence_level"] == 0.5
    exported = latex(folder, "alpha")
    assert "with 50% intervals" in exported
    assert "95%" not in exported
    own = latex(folder, "alpha", "run/tables")
    rows = [re.findall(r"^asked &.*$", text, re.MULTILINE) for text in (own, exported)]
    assert rows[0] == rows[1] != []
    interval = f"= {alpha['alpha']:.2f} [{alpha['alpha_low']:.2f}, {alpha['alpha_high']:.2f}]"
    assert any(interval in text for text in words_of(page))


def test_several_runs_are_drawn_at_the_level_of_each(folder, alpha):
    interval = f"= {alpha['alpha']:.2f} [{alpha['alpha_low']:.2f}, {alpha['alpha_high']:.2f}]"
    texts = words_of((folder / "together" / "length_scaling.svg").read_text())
    assert sum(interval in text for text in texts) == 2


def test_a_figure_of_one_size_counts_the_groups_of_that_size(folder, page):
    stated = "12 prompts × 4 completions, in groups of 2"
    assert stated in words_of(page)
    # Groups of 2 and of 4 share completions: 24 + 12 groups of 2 would be 6 completions of each prompt.
    assert "× 6 completions" not in page


def test_a_table_of_several_sizes_counts_completions(folder, page):
    assert "n = 12 prompts (48 completions);" in latex(folder, "group_sizes")
    assert "n = 12 prompts (12 groups of 4);" in latex(folder, "variance")
    for text in (page, latex(folder, "group_sizes")):
        assert "36 groups" not in text


def test_commands_on_the_page_ask_at_the_level_of_the_answer(page):
    assert "gradstats alpha run --confidence-level 0.5" in page
    assert "gradstats ask run group_sizes --group-sizes 2 4 --reference reinforce" in page
    assert "reinforce --confidence-level" not in page  # whose level is the usual one


def test_the_share_of_bias_is_that_of_a_batch_of_the_run(folder):
    for name in ("variance", "group_sizes", "length_bins"):
        state = json.loads(next(folder.glob(f"run/**/{name}.json")).read_text())
        assert state["prompts_per_batch"] == 6, name
    assert "The share of bias is that of a batch of 6 prompts, or" in latex(folder, "group_sizes", "run/tables")


def test_the_parameters_stand_beside_every_table_and_on_the_first_line(folder, page):
    said = "Gradients are with respect to the parameters that match 'layers' only."
    tables = {path.name: path.read_text() for path in (folder / "run" / "tables").glob("*.tex")}
    assert {"alpha.tex", "variance.tex", "group_sizes.tex"} <= set(tables)
    assert [name for name, text in tables.items() if said not in text.replace("\n", " ")] == []
    assert said in page
    assert "params=layers" in page.replace("\u00a0", " ")
