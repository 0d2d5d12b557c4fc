"""Defaults that functions, sections and commands share."""

from __future__ import annotations

#: Dtypes of the weights in which the engines are checked, the widest first.
CHECKED_TYPES = ("float64", "float32", "bfloat16")
#: Default level of intervals.
CONFIDENCE_LEVEL = 0.95
#: Largest number of tokens that pass through the model at once, padding included.
TOKEN_BUDGET = 4096
#: Memory limit, in GiB, for logits and for per-sequence gradients each; on small machines a quarter of the memory.
MOST_MEMORY_GIB = 4.0
#: Largest number of prompts in a batch, for the share of bias and for batch-level estimators.
PROMPTS_PER_BATCH = 128
