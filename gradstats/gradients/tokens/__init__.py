"""The scores of single tokens: projections, exact gradients and weights."""
