"""pandas, PyArrow, SciPy and Matplotlib, imported when a name of theirs is first used.

They take a second to import, and most of what imports them, such as the ``--help`` of a question or the look-up of an
estimator's label, computes nothing. So everything that a question's file imports takes them from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    import seaborn as sns
    from matplotlib import colors
    from scipy import interpolate, linalg, optimize, sparse, special
else:

    class _Late:
        """Stands for a module until, and while, its names are asked for."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._module), name)

        def __repr__(self) -> str:
            return f"<{self._module}, imported when used>"

    pd, pa, pc, pq = map(_Late, ("pandas", "pyarrow", "pyarrow.compute", "pyarrow.parquet"))
    mpl, plt, colors, sns = map(_Late, ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn"))
    interpolate, linalg, optimize, sparse, special = (
        _Late(f"scipy.{name}") for name in ("interpolate", "linalg", "optimize", "sparse", "special")
    )
