"""Estimators and recipes by their labels, and with one of their parameters at another value."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

from gradstats.config.options import read_label
from gradstats.config.validation import naming
from gradstats.estimators import registry
from gradstats.estimators.batch import COLUMN, Batch
from gradstats.estimators.estimator import Estimator, Weighting, nearest
from gradstats.estimators.recipes import named
from gradstats.estimators.recipes.recipe import PREFIX, Recipe
from gradstats.estimators.recipes.trainers import of_trainer
from gradstats.rollouts.schema import ADAPTER_RESIDUAL

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment

W = TypeVar("W", bound=Weighting)


@overload
def get(name: str, **parameters: object) -> Estimator | Recipe: ...
@overload
def get(name: W, **parameters: object) -> W: ...
def get(name: str | Weighting, **parameters: object) -> Weighting:
    """Find an estimator by its label.

    Args:
        name: a baseline's name or alias ("rloo", "opo"), a published method ("recipe:grpo"), a trainer's setting in its
            own words ("trl:dapo", "verl:grpo"), or a function of your own ("module:function"), each with parameters in
            brackets where it has any, as in ``"length_weighted(alpha=0.8, loo=True)"`` or
            ``"recipe:dapo(loo=True)"``; an estimator or recipe is returned unchanged.
        **parameters: its parameters; unknown ones are refused.

    Returns:
        The estimator, whose ``label`` is the text given; ``advantages(batch)`` gives A, ``weights(batch)`` the
        weights of the scores.

    Raises:
        KeyError: for an unknown name, with the nearest known one.
        TypeError: for unknown or missing parameters, or parameters together with an object.
        ValueError: for parameters outside their range, or a label that cannot be read.
        ImportError: when a function of your own cannot be imported.

    Example:
        >>> from gradstats import estimators
        >>> batch = estimators.Batch(rewards=[1, 0, 0, 1], lengths=[10, 20, 30, 40], groups=["a", "a", "b", "b"])
        >>> estimators.get("rloo").advantages(batch)
        array([ 1., -1., -1.,  1.])
        >>> estimators.get("length_weighted(alpha=0.5)", loo=True)
        length_weighted(alpha=0.5, loo=True)
        >>> estimators.get("recipe:dr_grpo(max_tokens=40)").weights(batch)
        array([ 0.00625, -0.00625, -0.00625,  0.00625])
    """
    if not isinstance(name, str):
        if parameters:
            raise TypeError(f"{name.label} has its parameters already: give {', '.join(parameters)} with a name")
        return name
    base, _ = read_label(name)
    if base.startswith(PREFIX) or of_trainer(base):
        return named.get(name, **parameters)
    if ":" not in base and base not in registry.DEFINITIONS and base not in registry.ALIASES:
        raise KeyError(f"no estimator is called {base!r}: {_hint(base)}")
    return registry.get_estimator(name, **parameters)


def _hint(name: str) -> str:
    """Return the label that a wrong name most likely stands for; recipes are written with their prefix."""
    baselines = [*registry.DEFINITIONS, *registry.ALIASES]
    labels = {recipe: f"{PREFIX}{recipe}" for recipe in named.names() if recipe not in baselines}
    labels |= {label: label for label in baselines}
    near = nearest(name, labels)
    if near is not None:
        return f"did you mean {labels[near]!r}?"
    own = "module:function or path/to/file.py:function"
    return f"`gradstats list estimators` shows all {len(labels)}; write your own as {own}"


def get_all(estimators: Iterable[str | Weighting]) -> list[Weighting]:
    """Find several estimators, in the order given."""
    if isinstance(estimators, str):
        raise TypeError(f"estimators must be a list of labels, got the text {estimators!r}: write [{estimators!r}]")
    return [get(one) for one in estimators]


#: A name that stands for several parameters at once: the width ε of a clip to [1 − ε, 1 + ε].
_TOGETHER = {"clip_width": ("eps_low", "eps_high")}


def with_parameter(estimator: str | Weighting, parameter: str, value: float) -> Weighting:
    """Return an estimator with one parameter set to a value, whatever it was before.

    Example:
        >>> with_parameter("length_weighted(loo=True)", "alpha", 0.5)
        length_weighted(alpha=0.5, loo=True)
        >>> with_parameter("recipe:dapo", "clip_width", 0.1).label
        'recipe:dapo(eps_low=0.1, eps_high=0.1)'
    """
    number = int(value) if float(value).is_integer() else float(value)
    changed: dict[str, object] = dict.fromkeys(_TOGETHER.get(parameter, (parameter,)), number)
    if isinstance(estimator, str):
        return get(estimator, **changed)
    if isinstance(estimator, Estimator):
        return get(estimator.definition.name, **{**estimator.parameters, **changed})
    if isinstance(estimator, Recipe):
        return get(estimator.label, **changed)
    raise TypeError(
        f"{estimator.label} is an object without parameters of its own: give the label of an estimator or a recipe"
    )


def check(experiment: Experiment) -> None:
    """Refuse estimators of a comparison that cannot be found, or whose parameters contradict one another.

    None at all, and one that is named twice, are warned of.
    """
    section = experiment.variance
    if not section.estimators:
        sentence = "variance.estimators is empty, so that nothing is compared: name at least one estimator"
        warnings.warn(sentence, UserWarning, stacklevel=4)
    with naming("variance.estimators"):
        chosen = get_all(section.estimators)
        for place, one in enumerate(chosen):
            _try(one)
            if one in chosen[:place]:
                earlier = chosen[chosen.index(one)].label
                also = "" if earlier == one.label else f", the first time as {earlier}"
                sentence = f"variance.estimators holds {one.label} twice{also}: its rows will be equal; name it once"
                warnings.warn(sentence, UserWarning, stacklevel=4)
    with naming("variance.reference"):
        reference = get(section.reference)
        if reference.across_groups:
            raise ValueError(f"{reference.label} is a batch-level estimator: choose 'rloo', for example")
        _try(reference)


def _try(one: Weighting) -> None:
    """Compute weights on a few made-up completions; what data functions of a user accept is unknown."""
    advantage = one.advantage if isinstance(one, Recipe) else one
    if not isinstance(advantage, Estimator) or not advantage.definition.checked:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch = trial_batch()
            lacking = {
                need.removeprefix(COLUMN) for need in one.needs if need.startswith(COLUMN) and not batch.has(need)
            }
            columns = dict(batch.columns) | dict.fromkeys(lacking, batch.rewards)
            one.weights(batch.with_fields(columns=columns))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{one.label} cannot be computed: {error}") from error


def trial_batch() -> Batch:
    """Return 4 prompts of 4 completions with every field and ratios that vary."""
    rng = np.random.default_rng(0)
    n, width = 16, 6
    groups = np.repeat(np.arange(4), 4)
    logprobs = -rng.uniform(0.1, 1.0, (n, width))
    return Batch(
        rewards=np.tile([0.0, 1.0, 1.0, 0.0], 4),
        lengths=rng.integers(2, width + 1, n),
        groups=groups,
        logprobs=logprobs,
        old_logprobs=logprobs + 0.1 * rng.normal(size=(n, width)),
        ref_logprobs=logprobs + 0.1 * rng.normal(size=(n, width)),
        entropy=rng.uniform(0.1, 1.0, (n, width)),
        sum_pi_squared=rng.uniform(0.2, 0.9, (n, width)),
        values=rng.uniform(0.0, 1.0, (n, width)),
        token_energy=rng.uniform(0.5, 1.5, (n, width)),
        token_cross=rng.uniform(0.5, 1.5, (n, width)),
        importance=rng.uniform(0.8, 1.2, (n, width)),
        greedy_rewards=np.array([0.0, 1.0, 1.0, 0.0])[groups],
        sq_norms=rng.uniform(1.0, 9.0, n),
        truncated=np.arange(n) % 5 == 0,
        columns={
            "history": [[1.0] * (group % 3) for group in groups],
            ADAPTER_RESIDUAL: rng.uniform(0.5, 1.5, (n, width)),
        },
    )
