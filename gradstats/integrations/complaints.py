"""Warnings inside somebody else's training run: once for each reason, and never an error."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field


@dataclass
class Complaints:
    """The reasons that were warned of."""

    _said: set[str] = field(default_factory=set)

    def say(self, what: str, error: Exception) -> None:
        """Warn of what could not be done and why, unless the reason was given before.

        The warning does not become an error where warnings are errors.

        Args:
            what: what happened instead.
            error: why; the first line of its message is shown.
        """
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if reason in self._said:
            return
        self._said.add(reason)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"{what} ({reason}); training continues", RuntimeWarning, stacklevel=2)
