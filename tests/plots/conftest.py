"""The widths that figures are tested at."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from gradstats.plots import style


@pytest.fixture(autouse=True)
def narrowest():
    """The narrowest width that a figure has; figures are closed afterwards."""
    with mpl.rc_context(style("neurips", "half")):
        yield
    plt.close("all")
