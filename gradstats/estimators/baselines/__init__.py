"""Rewards → advantages: one family of baselines a file."""
