"""Variance, bias and cosine of each estimator, with intervals."""
