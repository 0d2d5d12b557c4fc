"""Whole policy-gradient estimators: advantage, scale, ratio, aggregation, KL and filter together."""

from gradstats.estimators.recipes.named import get, names, published, table

__all__ = ["get", "names", "published", "table"]
