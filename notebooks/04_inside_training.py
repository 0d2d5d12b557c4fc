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
# # Inside training
#
# Two lines attach gradstats to a trainer of TRL (extra `trl`): a monitor that measures the relative noise of each
# baseline on the trainer's own completions, and an estimator in place of the trainer's advantages. Here the
# **embedded policy** trains for a few steps, enough to see what is logged. The second half reads longer training
# runs, which asked whether lower noise trains better.

# %%
import re
import warnings
from pathlib import Path

import datasets
import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
import torch
import transformers
from trl import GRPOConfig, GRPOTrainer

import gradstats as gs
from gradstats.integrations.trl import VarianceMonitor, use_estimator

torch.set_num_threads(1)
mpl.rcParams.update(gs.plots.style("icml", "full"))
warnings.filterwarnings("ignore")

# %%
policy = gs.load_policy("embedded", revision="step-2000", progress=False)


def right(completions, answer, **_):
    """Reward 1 where the last number is the answer."""
    texts = [messages[0]["content"] for messages in completions]
    return [float(re.findall(r"\d+", text)[-1:] == [reference]) for text, reference in zip(texts, answer, strict=True)]


problems = gs.load_prompts("embedded", n=64, rng=0)
rows = [{"prompt": [{"role": "user", "content": problem.prompt}], "answer": problem.answer} for problem in problems]
settings = GRPOConfig(
    output_dir="grpo",
    per_device_train_batch_size=32,
    num_generations=8,
    max_completion_length=96,
    max_steps=3,
    learning_rate=3e-4,
    lr_scheduler_type="constant",
    loss_type="dr_grpo",  # a plain sum over tokens
    scale_rewards="none",
    beta=0.0,
    bf16=False,
    use_cpu=True,
    report_to=[],
    logging_steps=1,
    save_strategy="no",
    disable_tqdm=True,
)
trainer = GRPOTrainer(
    model=policy.model,
    args=settings,
    processing_class=policy.tokenizer,
    reward_funcs=right,
    train_dataset=datasets.Dataset.from_list(rows),
)
trainer.remove_callback(transformers.PrinterCallback)

# %% [markdown]
# ## Two lines

# %%
labels = ["rloo", "reinforce", "length_weighted(alpha=0.8, loo=True)", "asymmetric(delta=-0.1, loo=True)"]
VarianceMonitor(labels, every=1, out="monitor", sketch_dim=2048).attach(trainer)
use_estimator(trainer, "length_weighted(alpha=0.8, loo=True)")
_ = trainer.train()

# %% [markdown]
# What the monitor logs goes through the trainer's own reporters. Four groups a step give wide intervals.

# %%
logged = pd.DataFrame([row for row in trainer.state.log_history if "gradstats/alpha" in row]).set_index("step")
logged = logged.rename(columns=lambda name: name.removeprefix("gradstats/"))
logged[["alpha", "reinforce/ratio", "reinforce/ratio_low", "reinforce/ratio_high"]].round(2)

# %% [markdown]
# ## Its record
#
# The full tables are the folder of a sweep over training steps, which `gradstats report` and `gradstats export` read.

# %%
record = gs.read_sweep("monitor")
gs.plots.plot_sweep(record, "policy.revision")
plt.show()

# %% [markdown]
# ## Does training obey the critical batch?
#
# `experiments/batch_sizes_in_training.py` trained with batches of 2 to 256 prompts; the numbers are in
# `figures/batch_size_training`. The spread is the factor by which steps deviate from one curve for all estimators, with
# batches in prompts or in critical batches. The conclusion is on the page
# [during training](../docs/training.md#does-training-obey-the-critical-batch).

# %%
folder = Path(gs.__file__).parents[1] / "figures" / "batch_size_training"
if folder.is_dir():
    spread = pd.read_csv(folder / "spread.csv")
    print(spread.pivot_table("spread", ["optimizer", "rate"], "unit").round(3))
else:
    print("figures/batch_size_training comes with a clone of the project")
