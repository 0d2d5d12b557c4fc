"""The estimators of this package in verl: importing this module registers them with verl's advantage estimators.

verl imports it by itself (entry point ``verl.plugins``), in every process that imports verl. Choose one with
``algorithm.adv_estimator=gradstats/rloo``, or any label with parameters by ``algorithm.adv_estimator=gradstats`` and
the environment variable ``GRADSTATS_ESTIMATOR="length_weighted(alpha=0.8, loo=True)"``.
"""

from __future__ import annotations

from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from gradstats.integrations.verl_advantages import advantage_functions

#: The names that were registered.
_REGISTERED: list[str] = []

for _name, _function in advantage_functions().items():
    if _name not in ADV_ESTIMATOR_REGISTRY:
        register_adv_est(_name)(_function)
    _REGISTERED.append(_name)
