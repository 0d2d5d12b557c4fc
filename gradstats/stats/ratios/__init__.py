"""Importance ratios of the scored to the sampling policy, and the effect of clipping them."""
