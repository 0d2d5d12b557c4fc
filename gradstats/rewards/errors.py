"""The errors of scoring a completion."""

from __future__ import annotations


class ScoringTimeoutError(TimeoutError):
    """Scoring a completion exceeded its time limit."""


class ReferenceAnswerError(ValueError):
    """The scorer cannot parse the reference answer."""
