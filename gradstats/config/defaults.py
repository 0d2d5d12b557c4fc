"""Defaults that functions, sections and commands share."""

from __future__ import annotations

#: Types of the weights in which the engines are checked, the widest first.
CHECKED_TYPES = ("float64", "float32", "bfloat16")
#: Level of an interval where none is asked for.
CONFIDENCE_LEVEL = 0.95
#: Most tokens that go through the model at once, padding included.
TOKEN_BUDGET = 4096
#: Most memory, in GiB, for logits and for per-sequence gradients each; on small machines a quarter of the memory.
MOST_MEMORY_GIB = 4.0
#: Most prompts of a batch, for the share of bias and for batch-level estimators.
PROMPTS_PER_BATCH = 128
