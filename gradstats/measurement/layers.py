"""The number of the layer that a parameter or a block of parameters belongs to."""

from __future__ import annotations

import re

_LAYER = re.compile(r"^(?:.*?\.)?(?:layers|layer|h|blocks|block)\.(\d+)(?:\.(.*))?$")


def split_layer(name: str) -> tuple[int, str] | None:
    """Return the number of a layer and the rest of the name, or None for what is in no layer.

    Example:
        >>> split_layer("model.layers.3.mlp.up_proj.weight")
        (3, 'mlp.up_proj.weight')
        >>> split_layer("layers.3")
        (3, '')
        >>> split_layer("lm_head.weight") is None
        True
    """
    match = _LAYER.match(name)
    return None if match is None else (int(match.group(1)), match.group(2) or "")
