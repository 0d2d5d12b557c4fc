"""Finished statistics → matplotlib axes, at a venue's width."""

# figures
# appearance
from gradstats.plots.appearance import Appearance, estimator_appearance
from gradstats.plots.length_scaling import plot_length_scaling

# files
from gradstats.plots.save import save_figure
from gradstats.plots.style import VENUES, style
from gradstats.plots.variance import plot_variance

__all__ = [
    "VENUES",
    "Appearance",
    "estimator_appearance",
    "plot_length_scaling",
    "plot_variance",
    "save_figure",
    "style",
]
