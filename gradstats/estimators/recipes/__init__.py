"""Whole policy-gradient estimators: advantage, scale, ratio, aggregation, KL and filter together."""

from gradstats.estimators.recipes.lookup import get, names, table

__all__ = ["get", "names", "table"]
