"""Small named data sets that ship with the package."""

from gradstats.data.published import load, names

__all__ = ["load", "names"]
