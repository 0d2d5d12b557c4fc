"""The structure of gradients over single tokens."""
