# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Figures and tables for a paper
#
# The figures of a finished run can be redrawn from its saved numbers, at a venue's width and in any format, without the
# model. The first cell creates two small runs of the **embedded policy** by the command `gradstats run`.

# %%
import subprocess
import sys
from pathlib import Path


def gradstats(*arguments):
    """Run a command of gradstats, which may not be on PATH."""
    command = [str(Path(sys.executable).with_name("gradstats")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


EXPERIMENT = """
policy: {name: embedded, temperature: %s}
prompts: {source: embedded, n: 8, seed: 3}
sampling: {group_size: 4, max_new_tokens: 192, batch_size: 48}
measurement: {sketch_dim: 512}
figures: {formats: []}  # they are drawn below
variance: {estimators: [reinforce, rloo, group_mean, "length_weighted(alpha=0.8, loo=True)"]}
"""
for name, temperature in (("warm", 1.0), ("cool", 0.8)):
    Path(f"{name}.yaml").write_text(EXPERIMENT % temperature)
    gradstats("run", f"{name}.yaml", "--out", f"runs/{name}", "--no-progress")
print(*sorted(str(path) for path in Path("runs/warm").glob("*")), sep="\n")

# %% [markdown]
# ## A single figure
#
# A style is a dictionary of rcParams; the figure has the exact width of the column and is not cropped.

# %%
import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

import gradstats as gs

table = pd.read_csv("runs/warm/variance.csv")
table.attrs["reference"] = "rloo"
with mpl.rc_context(gs.plots.style("neurips", "half")):
    ax = gs.plots.plot_variance(table, sort=True)
    written = gs.plots.save_figure(ax.figure, "figures/variance", formats=("pdf", "pgf"), source=table)
    plt.show()
print(*written, sep="\n")

# %% [markdown]
# ## Two runs on the same axes
#
# The runs differ in temperature, which the legend shows and a warning states.

# %%
gradstats("export", "runs/warm", "runs/cool", "--venue", "icml", "--formats", "pdf", "png", "--out", "overlay")
print(*sorted(str(path) for path in Path("overlay").rglob("*.*")), sep="\n")

# %% [markdown]
# ## Tables

# %%
fits = {}
for name in ("warm", "cool"):
    points = pd.read_csv(f"runs/{name}/tables/length_scaling.csv")
    fits[name] = gs.fit_length_scaling(
        lengths=points["length"], sq_norms=points["sq_norm"], groups=points["prompt_id"], truncated=points["truncated"]
    )
print(Path("runs/warm/tables/variance.tex").read_text())
print(gs.tables.alpha_table(fits).to_markdown())

# %% [markdown]
# Drawing does not import torch:

# %%
assert "torch" not in sys.modules
