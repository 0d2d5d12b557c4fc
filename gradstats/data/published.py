"""Published numbers that ship with the package, by name."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def _gloeckle2026() -> pd.DataFrame:
    import pandas as pd  # names() needs none

    frame = pd.read_csv(str(files("gradstats.data") / "gloeckle2026_alpha_points.csv"))
    frame.attrs["source"] = (
        "Gloeckle, 'Length-controlled Baselines in RL with Language Models', 27 March 2026: 29 points read "
        "off the figure. DeepSeek-R1-Distill-Qwen-1.5B, 30 problems of orca-math-word-problems-200k, one "
        "rollout per problem of at most 1500 tokens, full-model gradient; sampler temperature, top-p and dtype "
        "not stated."
    )
    frame.attrs["label"] = "Gloeckle (2026)"
    return frame


_LOADERS: dict[str, Callable[[], pd.DataFrame]] = {"gloeckle2026": _gloeckle2026}


def names() -> list[str]:
    """Return the names of the data sets, in alphabetical order.

    Example:
        >>> from gradstats import data
        >>> data.names()
        ['gloeckle2026']
    """
    return sorted(_LOADERS)


def load(name: str) -> pd.DataFrame:
    r"""Read a data set that ships with the package.

    Args:
        name: ``"gloeckle2026"``: the published points behind the length exponent :math:`\alpha`, columns
            ``length`` (completion tokens) and ``sq_norm`` (squared norm of the score of the
            completion, :math:`\lVert S\rVert^2`).

    Returns:
        A frame; ``.attrs["source"]`` states the origin of its numbers, and ``.attrs["label"]`` is a short label
        for legends.

    Raises:
        KeyError: for an unknown name.

    Example:
        >>> from gradstats import data
        >>> points = data.load("gloeckle2026")
        >>> points.shape, list(points)
        ((29, 2), ['length', 'sq_norm'])
        >>> points.attrs["label"]
        'Gloeckle (2026)'
    """
    if name not in _LOADERS:
        near = get_close_matches(name, _LOADERS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise KeyError(f"no data set is named {name!r}: {hint}known names are {', '.join(names())}")
    return _LOADERS[name]()
