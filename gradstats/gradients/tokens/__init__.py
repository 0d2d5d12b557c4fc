"""The scores of single tokens: projections on random directions, exact gradients, weights."""
