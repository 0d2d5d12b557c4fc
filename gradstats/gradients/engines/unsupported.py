"""The error of an engine that cannot differentiate a model."""

from __future__ import annotations


class UnsupportedModuleError(ValueError):
    """An engine cannot differentiate a module of the model; the message names the module and the remedy."""
