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
# # The length exponent α: of R1-Distill where its weights are, else of the embedded policy
#
# How does the gradient of a trace grow with its length, ‖∇ log π(y|x)‖ ∝ T^α? The published "α ≈ 0.79" was obtained for
# DeepSeek-R1-Distill-Qwen-1.5B on 30 word problems. This notebook refits the published points and then measures α.
#
# R1-Distill is measured if its weights are in the local cache and a GPU is available. Otherwise, as in these outputs,
# the small **embedded policy is used as a stand-in**; its α says nothing about R1-Distill.

# %%
import matplotlib as mpl
import matplotlib.pyplot as plt

import gradstats as gs

mpl.rcParams.update(gs.plots.style("icml", "half"))

# %% [markdown]
# ## The published points
#
# The fit requires only lengths and squared norms, no model.

# %%
points = gs.data.load("gloeckle2026")
published = gs.fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"])
low, high = published.confidence_interval(0.95)
print(f"published points: α = {published.alpha:.3f} [{low:.3f}, {high:.3f}], n = {published.n}")
print("excludes 1/2 (uncorrelated tokens):", low > 0.5, "– excludes 1 (fully correlated):", high < 1.0)

# %% [markdown]
# ## Measurement

# %%
import torch
from huggingface_hub import try_to_load_from_cache

torch.set_num_threads(1)
R1_DISTILL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
real = isinstance(try_to_load_from_cache(R1_DISTILL, "config.json"), str) and torch.cuda.is_available()
label = "R1-Distill-1.5B" if real else "embedded policy (stand-in)"
print("measured model:", label)

# %%
policy = gs.load_policy(R1_DISTILL if real else "embedded")
if real:
    # Solutions are free text; those without a number cannot be scored, and are left out.
    problems = gs.load_prompts("microsoft/orca-math-word-problems-200k", n=30, rng=0, skip_unparsable=True)
else:
    problems = gs.load_prompts("embedded", n=30, rng=0)
rollouts = gs.sample(policy, problems, group_size=1, max_new_tokens=1500 if real else 256, rng=0, progress=False)
measured = gs.measure(policy, rollouts, sketch_dim=2048, progress=False)
print(f"{len(measured)} completions, lengths {rollouts.lengths.min()}–{rollouts.lengths.max()}")

# %% [markdown]
# Samples must come from the distribution that is differentiated: at another temperature they bias α. Read the on-policy
# check first.

# %%
report = gs.alpha_report(measured)
low, high = report.confidence_interval()
print(f"{label}: α = {report.fit.alpha:.3f} [{low:.3f}, {high:.3f}]")
for sentence in report.sentences():
    print("-", sentence)

# %%
ax = gs.plot_length_scaling(report.fit, label=label, published="gloeckle2026")
plt.show()

# %% [markdown]
# How many sequences would be needed for α ± 0.05?

# %%
gs.plan_alpha(report.fit, 0.05)
