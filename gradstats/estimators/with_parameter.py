"""An estimator at another value of one of its parameters."""

from __future__ import annotations

from gradstats.estimators.by_label import get
from gradstats.estimators.estimator import Estimator, Weighting
from gradstats.estimators.recipes.recipe import Recipe

#: A name that stands for several parameters at once: the width ε of a clip to [1 − ε, 1 + ε].
TOGETHER = {"clip_width": ("eps_low", "eps_high")}


def with_parameter(estimator: str | Weighting, parameter: str, value: float) -> Weighting:
    """Return an estimator with one parameter set to a value, whatever it was before.

    Args:
        estimator: a label, in which the parameter may be missing even where it has no default, or an estimator or
            recipe found by name.
        parameter: its name, or ``"clip_width"`` for ``eps_low`` and ``eps_high`` at once.
        value: the value; whole numbers are passed as integers, which parameters that count something require.

    Raises:
        TypeError: for an estimator without such a parameter, or an object that has no parameters.
        KeyError, ValueError, ImportError: as :func:`gradstats.estimators.get`.

    Example:
        >>> with_parameter("length_weighted(loo=True)", "alpha", 0.5)
        length_weighted(alpha=0.5, loo=True)
        >>> with_parameter("recipe:dapo", "clip_width", 0.1).label
        'recipe:dapo(eps_low=0.1, eps_high=0.1)'
    """
    number = int(value) if float(value).is_integer() else float(value)
    changed: dict[str, object] = dict.fromkeys(TOGETHER.get(parameter, (parameter,)), number)
    if isinstance(estimator, str):
        return get(estimator, **changed)
    if isinstance(estimator, Estimator):
        return get(estimator.definition.name, **{**estimator.parameters, **changed})
    if isinstance(estimator, Recipe):
        return get(estimator.label, **changed)
    raise TypeError(
        f"{estimator.label} is an object without parameters of its own: give the label of an estimator or a recipe"
    )
