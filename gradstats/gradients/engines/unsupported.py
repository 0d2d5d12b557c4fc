"""The error of an engine that cannot differentiate a model."""

from __future__ import annotations

from torch import nn


class UnsupportedModuleError(ValueError):
    """An engine cannot differentiate a module of the model; the message names the module and the remedy."""


def describe(path: str, module: nn.Module) -> str:
    """Return the path and class of a module, for messages."""
    return f"{path or 'the model itself'} ({type(module).__name__})"
