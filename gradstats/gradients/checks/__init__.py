"""Engines against plain backward passes: before every run, and on request."""
