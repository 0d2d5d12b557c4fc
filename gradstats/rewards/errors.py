"""How scoring a completion fails."""

from __future__ import annotations


class ScoringTimeoutError(TimeoutError):
    """A completion took longer to score than it is given."""


class ReferenceAnswerError(ValueError):
    """The reference answer itself cannot be read by the scorer."""
