"""NumPy, pandas, PyArrow, SciPy, Matplotlib and the types of jaxtyping, imported when a name of theirs is first used.

They take a second to import, and most of what imports them, such as the ``--help`` of a question or the look-up of an
estimator's label, computes nothing. So everything that a question's file imports takes them from here. Annotations are
text until a test checks them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    import seaborn as sns
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
    from jaxtyping import Integer as Integer
    from jaxtyping import Real as Real
    from matplotlib import colors
    from scipy import interpolate, linalg, optimize, sparse, special
else:

    class _Late:
        """Stands for a module, each name of which is looked up once."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            found = self.__dict__[name] = getattr(import_module(self._module), name)
            return found

        def __repr__(self) -> str:
            return f"<{self._module}, imported when used>"

    np, npt = map(_Late, ("numpy", "numpy.typing"))
    pd, pa, pc, pq = map(_Late, ("pandas", "pyarrow", "pyarrow.compute", "pyarrow.parquet"))
    mpl, plt, colors, sns = map(_Late, ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn"))
    interpolate, linalg, optimize, sparse, special = (
        _Late(f"scipy.{name}") for name in ("interpolate", "linalg", "optimize", "sparse", "special")
    )

    class _LateType:
        """Stands for a type of arrays until a shape is asked of it."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getitem__(self, shape: Any) -> Any:
            return getattr(import_module("jaxtyping"), self._name)[shape]

    Bool, Float, Int, Integer, Real = map(_LateType, ("Bool", "Float", "Int", "Integer", "Real"))
