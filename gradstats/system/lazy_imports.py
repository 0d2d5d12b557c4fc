"""pandas, PyArrow and Matplotlib, imported when a name of theirs is first used: ``--help`` uses none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    import matplotlib as mpl
    import pandas as pd
    import pyarrow as pa
else:
    mpl, pd, pa = map(lazy_loader.load, ("matplotlib", "pandas", "pyarrow"))
