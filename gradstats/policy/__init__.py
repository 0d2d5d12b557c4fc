"""A causal language model, its tokenizer and its checkpoint."""

from gradstats.policy.policy import Policy, as_policy, load_policy

__all__ = ["Policy", "as_policy", "load_policy"]
