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
# # Relative noise of each baseline
#
# Which baseline reduces the noise of the policy gradient on this model, these problems and this group size? The
# gradients are measured once; baselines, group sizes and resamples are then linear algebra.
#
# This notebook measures the **embedded policy**, a small word-problem solver that ships with the package. For another
# model, change the two lines that load the policy and the problems.

# %%
import warnings

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import torch

import gradstats as gs
from gradstats import estimators as est

torch.set_num_threads(1)
mpl.rcParams.update(gs.plots.style("icml", "half"))
# The notes of the comparison, printed below, list the quantities that the data do not resolve.
warnings.filterwarnings("ignore", message=".*not resolved")

# %%
policy = gs.load_policy("embedded")
problems = gs.load_prompts("embedded", n=16, rng=1)
rollouts = gs.sample(policy, problems, group_size=8, max_new_tokens=256, rng=0, progress=False)
measured = gs.measure(policy, rollouts, sketch_dim=2048, progress=False)
print(f"{len(measured)} completions, {rollouts.rewards.mean():.0%} right")

# %% [markdown]
# ## One group size
#
# The column `matched_ratio` is the **relative noise**: how many samples a baseline needs for the noise of RLOO.
# `ratio` is the raw variance, which a baseline lowers by including the sample's own reward, since that shrinks the
# gradient by (N−1)/N. The figure also shows the cosine and the bias.

# %%
baselines = ["reinforce", "group_mean", "rloo", est.token_mean(loo=True), est.length_weighted(alpha=0.8, loo=True)]
comparison = gs.compare(measured, baselines, group_size=4)
table = comparison.to_frame()
table[["estimator", "ratio", "ratio_low", "ratio_high", "matched_ratio", "bias_share"]].round(3)

# %%
gs.plots.plot_variance_panels(comparison)
plt.show()
for note in comparison.notes:
    print("-", note)

# %% [markdown]
# ## Within and between prompts
#
# Larger groups average over completions of one prompt and do not reduce the variance between prompts.

# %%
gs.plots.plot_prompt_parts(comparison.variance_components())
plt.show()

# %% [markdown]
# ## Relative noise in groups of several sizes

# %%
sizes = pd.concat([gs.compare(measured, baselines, group_size=size).to_frame() for size in (2, 4, 8)])
gs.plots.plot_group_size(sizes)
plt.show()

# %% [markdown]
# ## Is length correlated with reward among answers to the same prompt?
#
# A length-weighted baseline differs from the mean only if it is.

# %%
correlation = gs.length_reward_correlation(measured)
completions = rollouts.frame[["prompt_id", "reward"]].assign(length=rollouts.lengths)
gs.analyses.plot_length_reward(completions, correlation=correlation)
plt.show()
