"""Rewards → weights: baselines, token-level advantages and whole recipes.

Every estimator is a factory of this module, found by name with :func:`get`; :func:`names` has the order of the imports.
"""

# isort: off
# the data that an estimator uses, and finding or registering one
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import Estimator
from gradstats.estimators.registry import names, register, table

# one advantage per completion
from gradstats.estimators.baselines.means import asymmetric, batch_mean, constant, dr_grpo, group_mean, reinforce, rloo
from gradstats.estimators.baselines.means import optimal_constant
from gradstats.estimators.baselines.weighted import length_weighted, norm_weighted, token_mean
from gradstats.estimators.baselines.scaled import grpo, james_stein, kimi, max_rl, pass_at_k
from gradstats.estimators.baselines.scaled import ebpo, gdpo, quantile, reinforce_pp, reinforce_pp_baseline
from gradstats.estimators.baselines.tracked import beta_tracker, kalman, reward_ema

# one advantage per token
from gradstats.estimators.baselines.token_baseline import arca, causal_optimal, discounted, otb, otb_turns, remax
from gradstats.estimators.baselines.value_baseline import gae, vine

# whole policy-gradient estimators
from gradstats.estimators.recipes.recipe import Recipe
from gradstats.estimators.by_label import get
from gradstats.estimators.recipes.weightings import token_weightings

__all__ = [
    "Batch", "Estimator", "Recipe", "arca", "asymmetric", "batch_mean", "beta_tracker", "causal_optimal", "constant",
    "discounted", "dr_grpo", "ebpo", "gae", "gdpo", "get", "group_mean", "grpo", "james_stein", "kalman", "kimi",
    "length_weighted", "max_rl", "names", "norm_weighted", "optimal_constant", "otb", "otb_turns", "pass_at_k",
    "quantile", "recipes", "register", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "remax", "reward_ema",
    "rloo", "table", "token_mean", "token_weightings", "vine",
]  # fmt: skip
