"""State values V(s), fitted or from continuations of prefixes."""

from gradstats.values.fitted import FittedValues, fit_values
from gradstats.values.monte_carlo import monte_carlo_values

__all__ = ["FittedValues", "fit_values", "monte_carlo_values"]
