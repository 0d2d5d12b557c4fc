"""Finished statistics → matplotlib axes, at a venue's width."""

from gradstats.plots.group_size import plot_group_size, plot_prompt_parts
from gradstats.plots.length_scaling import plot_length_bins, plot_length_scaling
from gradstats.plots.names import Appearance, estimator_appearance, estimator_unit
from gradstats.plots.save import save_figure, write_sample_size
from gradstats.plots.shares import plot_shares
from gradstats.plots.style import VENUES, style
from gradstats.plots.sweep import plot_sweep, varying_settings
from gradstats.plots.tokens import (
    plot_concentration,
    plot_proxy,
    plot_token_correlation,
    plot_token_energy,
    plot_token_energy_panels,
)
from gradstats.plots.variance import plot_variance, plot_variance_of_runs, plot_variance_panels

__all__ = [
    "VENUES", "Appearance", "estimator_appearance", "estimator_unit",
    "plot_concentration", "plot_group_size",
    "plot_length_bins", "plot_length_scaling", "plot_prompt_parts",
    "plot_proxy", "plot_shares", "plot_sweep", "plot_token_correlation", "plot_token_energy",
    "plot_token_energy_panels", "plot_variance",
    "plot_variance_of_runs", "plot_variance_panels", "save_figure", "style", "varying_settings",
    "write_sample_size",
]  # fmt: skip
