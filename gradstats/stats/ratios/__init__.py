"""How far the scored policy is from the one that sampled, and what clipping does about it."""
