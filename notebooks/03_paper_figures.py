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
# model. The first cell creates two small runs of the **embedded policy** in a separate process.

# %%
import subprocess
import sys
from pathlib import Path

EXPERIMENT = """
policy: {name: embedded, temperature: %s}
prompts: {source: embedded, n: 8, seed: 3}
sampling: {group_size: 4, max_new_tokens: 192, batch_size: 48}
measurement: {sketch_dim: 512}
figures: {formats: []}  # they are drawn below
variance: {estimators: [reinforce, rloo, group_mean, "length_weighted(alpha=0.8, loo=True)"]}
"""
runs = []
for name, temperature in (("warm", 1.0), ("cool", 0.8)):
    path = Path(f"{name}.yaml")
    path.write_text(EXPERIMENT % temperature)
    runs.append(Path("runs") / name)
    command = ["gradstats", "run", str(path), "--out", str(runs[-1]), "--no-progress"]
    # The kernel's environment may not be on PATH.
    command[0] = str(Path(sys.executable).with_name(command[0]))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
print(*sorted(str(path) for path in runs[0].glob("*")), sep="\n")

# %% [markdown]
# ## A single figure
#
# A style is a dictionary of rcParams; the figure has the exact width of the column and is not cropped.

# %%
import matplotlib as mpl
import matplotlib.pyplot as plt

import gradstats as gs
from gradstats.config.sections import FiguresSection
from gradstats.report.figures import draw_overlay
from gradstats.report.saved_results import read_results

warm, cool = (read_results(path) for path in runs)
with mpl.rc_context(gs.plots.style("neurips", "half")):
    ax = gs.plots.plot_variance(warm.variance, sort=True)
    written = gs.plots.save_figure(ax.figure, "figures/variance", formats=("pdf", "pgf"), source=warm.variance)
    plt.show()
print(*written, sep="\n")

# %% [markdown]
# ## Two runs on the same axes
#
# Equivalent to `gradstats export runs/warm runs/cool --venue icml`. The runs differ in temperature, which the legend
# shows and a warning states.

# %%
paths = draw_overlay([warm, cool], Path("figures/overlay"), FiguresSection(venue="icml", formats=["pdf", "png"]))
print(*paths, sep="\n")

# %% [markdown]
# ## Tables

# %%
from gradstats.tables import alpha_table

print((runs[0] / "tables" / "variance.tex").read_text())
print(alpha_table({"warm": warm.fit, "cool": cool.fit}).to_markdown())

# %% [markdown]
# Drawing does not import torch:

# %%
assert "torch" not in sys.modules
