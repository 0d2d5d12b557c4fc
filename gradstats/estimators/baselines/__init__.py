"""Rewards → advantages: one family of baselines per file."""
