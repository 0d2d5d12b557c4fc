"""The exact optima of baselines, by numerical minimisation over complete enumerations."""

from dataclasses import dataclass

import numpy as np
import pytest
from oracles.optimal_baselines import (
    MixtureOfMeans,
    exact_minimiser,
    exact_optimal_baselines,
    exact_optimal_mixture,
    exact_optimal_shift,
    lowest_on_simplex,
    mixture_form,
)
from scipy import optimize

from gradstats import estimators as est
from gradstats.reference import EnumeratedPolicy


@pytest.fixture(scope="module")
def policy():
    return EnumeratedPolicy(vocabulary=3, max_length=3, dimension=5, n_prompts=3, rng=2)


def softmax(logits):
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


def shifted(at):
    return np.append(softmax(np.append(at[:2], 0.0)), at[2])


def test_no_other_parameters_have_a_lower_variance(policy):
    size = 3
    exponent, shift, mixture = exact_optimal_baselines(policy, size)

    mean = float(policy.probabilities @ policy.rewards)
    for found, family, start in (
        (exponent, lambda at: est.length_weighted(alpha=float(at[0]), loo=True), [0.5]),
        (shift, lambda at: est.asymmetric(delta=float(at[0]), loo=True), [0.0]),
        (mixture, lambda at: MixtureOfMeans(shifted(at), mean), [0.0, 0.0, 0.0]),
    ):
        lowest = optimize.minimize(
            lambda at, family=family: policy.moments(family(at), size).trace_cov,
            start,
            method="Nelder-Mead",
            options={"xatol": 1e-5, "fatol": 1e-9},
        )
        assert found.trace_cov == pytest.approx(lowest.fun, rel=1e-7)
        if len(start) == 1:
            assert next(iter(found.parameters.values())) == pytest.approx(lowest.x[0], abs=1e-4)
    assert sum(mixture.parameters.values()) - mixture.parameters["shift"] == pytest.approx(1.0)
    assert mixture.trace_cov < shift.trace_cov


@dataclass
class OverBatches:
    """The shifted mixture with the mean reward of all other groups of the batch, written out."""

    parameters: np.ndarray
    name = label = "mixture over batches"
    level, needs, across_groups = "sequence", (), True

    def expected_scale(self, group_size):
        return 1.0

    def weights(self, batch):
        sizes = batch.group_sizes[batch.group_index]
        others = np.array([batch.rewards[batch.group_index != own].mean() for own in batch.group_index])
        parts = [est.rloo().weights(batch), est.token_mean(loo=True).weights(batch), (batch.rewards - others) / sizes]
        return self.parameters[:3] @ np.stack(parts) - self.parameters[3] / sizes


@pytest.mark.parametrize(("size", "n_prompts"), [(3, 2), (2, 3)])
def test_the_mean_of_other_prompts_is_that_of_enumerated_batches(size, n_prompts):
    rewards = np.random.default_rng(0).normal(size=100)
    policy = EnumeratedPolicy(
        vocabulary=2, max_length=2, dimension=3, n_prompts=2, rng=1, prompt_probabilities=np.array([0.3, 0.7]),
        reward=lambda prompt, tokens: float(rewards[8 * prompt + sum(2**at * one for at, one in enumerate(tokens))]),
    )  # fmt: skip

    def of_batches(parameters):
        return n_prompts * policy.batch_moments(OverBatches(parameters), size, n_prompts).trace_cov

    best = exact_optimal_mixture(policy, size, n_prompts)
    found = np.array(list(best.parameters.values()))
    assert best.trace_cov == pytest.approx(of_batches(found), rel=1e-10)
    assert best.trace_cov <= min(of_batches(one) for one in np.eye(4)[:3]) + 1e-12
    for one in ([0.0, 0.0, 1.0, 0.0], [0.2, 0.3, 0.5, 0.1], [0.2, 0.3, 0.5, -0.1]):
        nearby = 0.9 * found + 0.1 * np.array(one)
        assert of_batches(nearby) >= best.trace_cov - 1e-12
    endless = exact_optimal_mixture(policy, size)
    assert exact_optimal_mixture(policy, size, 10**9).trace_cov == pytest.approx(endless.trace_cov, rel=1e-6)


def test_the_form_of_a_mixture_is_its_variance(policy):
    form, parameters = mixture_form(policy, 3), np.array([0.5, 0.2, 0.3, -0.1])
    mean = float(policy.probabilities @ policy.rewards)
    direct = policy.moments(MixtureOfMeans(parameters, mean), 3)
    assert parameters @ form @ parameters == pytest.approx(direct.trace_cov, rel=1e-10)
    np.testing.assert_allclose(direct.bias, 0.0, atol=1e-12)
    assert MixtureOfMeans(parameters, mean).expected_scale(3) == 1.0
    assert MixtureOfMeans(parameters, mean).expected_scale(1) is None


def test_lowest_on_a_simplex_is_the_lowest_of_a_grid():
    rng = np.random.default_rng(0)
    steps = np.array([(i, j, 60 - i - j) for i in range(61) for j in range(61 - i)]) / 60
    kinds = set()
    for _ in range(40):
        root = rng.normal(size=(3, 3))
        form = root @ root.T
        found = lowest_on_simplex(form)
        assert (found >= 0).all()
        assert found.sum() == pytest.approx(1.0)
        assert found @ form @ found <= np.einsum("ni,ij,nj->n", steps, form, steps).min() + 1e-12
        kinds.add(tuple(found > 0))
    assert len(kinds) > 2  # corners, edges and the inside occur


def test_the_minimiser_of_a_curve_may_be_an_end_and_of_any_estimator(policy):
    shift = exact_optimal_shift(policy, 3)
    found = exact_minimiser(policy, "asymmetric(loo=True)", "delta", (-1.0, 1.0), 3, n_values=5)
    assert found.label == "asymmetric(loo=True)"
    assert found.parameters["delta"] == pytest.approx(shift.parameters["delta"], abs=1e-5)
    beyond = shift.parameters["delta"] + 0.5
    end = exact_minimiser(policy, est.asymmetric(delta=0, loo=True), "delta", (beyond, beyond + 1.0), 3, n_values=5)
    assert end.parameters["delta"] == beyond
