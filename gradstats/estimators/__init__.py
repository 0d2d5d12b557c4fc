"""Rewards → weights: baselines, token-level advantages, and the recipes they are part of.

Every estimator is a factory of this module (``estimators.rloo()``), found by name with :func:`get`. The order
of the imports is the order of :func:`names` and of :func:`table`.
"""

# the data an estimator sees, lookup, and your own
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Estimator
from gradstats.estimators.registry import get, names, register, table

# isort: split
# one advantage a completion
from gradstats.estimators.means import asymmetric, batch_mean, constant, dr_grpo, group_mean, reinforce, rloo

# isort: split
from gradstats.estimators.weighted import length_weighted, norm_weighted, token_mean
from gradstats.estimators.weighted_mean import optimal_constant

# isort: split
from gradstats.estimators.group_std import grpo

# isort: split
from gradstats.estimators.best_of_group import pass_at_k
from gradstats.estimators.log_mean_exp import kimi
from gradstats.estimators.maximum_likelihood import max_rl
from gradstats.estimators.shrinkage import james_stein
from gradstats.estimators.whitening import reinforce_pp, reinforce_pp_baseline

# isort: split
# one advantage a token
from gradstats.estimators.greedy import remax
from gradstats.estimators.token_baseline import causal_optimal, otb, otb_turns
from gradstats.estimators.value_baseline import gae, vine

# isort: split
# whole policy-gradient estimators
from gradstats.estimators import recipes
from gradstats.estimators.recipe import Recipe

__all__ = [
    "Batch",
    "Estimator",
    "Recipe",
    "asymmetric",
    "batch_mean",
    "causal_optimal",
    "constant",
    "dr_grpo",
    "gae",
    "get",
    "group_mean",
    "grpo",
    "james_stein",
    "kimi",
    "length_weighted",
    "max_rl",
    "names",
    "norm_weighted",
    "optimal_constant",
    "otb",
    "otb_turns",
    "pass_at_k",
    "recipes",
    "register",
    "reinforce",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "rloo",
    "table",
    "token_mean",
    "vine",
]
