"""The enumerated policy against finite differences and sampling, and the bias of every estimator against the policy."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax

from gradstats import estimators as est
from gradstats.estimators import Recipe
from gradstats.reference import EnumeratedPolicy
from gradstats.reference.enumerated import multisets, refuse_too_many
from tests.off_policy import TOKEN_RATIOS, ImportanceWeighted, turned_policy

FEATURES = np.random.default_rng(3).normal(size=(2, 40, 3, 4))
THETA = np.array([0.4, -0.3, 0.2, 0.6])
SHARES = np.array([0.3, 0.7])


def features(prompt: int, prefix: tuple[int, ...]) -> np.ndarray:
    return FEATURES[prompt, sum((token + 1) * 3**place for place, token in enumerate(prefix))]


def reward(prompt: int, tokens: tuple[int, ...]) -> float:
    return float((sum(tokens) + prompt) % 2)


@pytest.fixture(scope="module")
def policy() -> EnumeratedPolicy:
    return EnumeratedPolicy(
        3, 3, n_prompts=2, reward=reward, features=features, theta=THETA, prompt_probabilities=SHARES
    )


@pytest.fixture(scope="module")
def two_prompts() -> EnumeratedPolicy:
    return EnumeratedPolicy(2, 2, n_prompts=2, reward=lambda prompt, tokens: float(sum(tokens) > prompt), rng=2)


@pytest.fixture(scope="module")
def turned() -> EnumeratedPolicy:
    return turned_policy()


def expected_reward(theta: np.ndarray) -> float:
    total = 0.0
    for prompt, share in enumerate(SHARES):
        for tokens in itertools.product(range(3), repeat=3):
            ended = tokens[: tokens.index(0) + 1] if 0 in tokens else tokens
            if len(ended) < 3 and any(tokens[len(ended) :]):
                continue  # one stand-in for all continuations past the end
            log_pi = sum(log_softmax(features(prompt, ended[:t]) @ theta)[ended[t]] for t in range(len(ended)))
            total += share * np.exp(log_pi) * reward(prompt, ended)
    return total


def test_gradient_is_that_of_the_expected_reward(policy: EnumeratedPolicy):
    step = 1e-6
    numeric = [
        (expected_reward(THETA + step * axis) - expected_reward(THETA - step * axis)) / (2 * step) for axis in np.eye(4)
    ]
    assert_allclose(policy.gradient, numeric, atol=1e-8)
    assert policy.probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert policy.probabilities @ policy.rewards == pytest.approx(expected_reward(THETA), abs=1e-12)


def test_scores_values_and_entropies_are_those_of_martingales(policy: EnumeratedPolicy):
    p = policy.probabilities
    assert_allclose(p @ policy.sequence_scores, 0, atol=1e-12)
    assert policy.expected_sq_norm == pytest.approx(float(p @ policy.token_energy.sum(axis=1)), rel=1e-12)
    assert_allclose(policy.token_cross.sum(axis=1), policy.sq_norms)
    # V(s_0) = E[R] and E[V(s_1) | s_0] = V(s_0)
    first = policy.prompts == 0
    share = p[first] / p[first].sum()
    assert_allclose(policy.values[first, 0], share @ policy.rewards[first])
    following = np.where(policy.lengths > 1, policy.values[:, 1], policy.rewards)
    assert_allclose(share @ following[first], policy.values[first, 0][0])
    # by the chain rule E[Σ_t H_t] = −E[log π(y)]
    assert p @ policy.entropy.sum(axis=1) == pytest.approx(-p @ policy.logprobs.sum(axis=1), rel=1e-12)
    assert policy.batch(np.arange(2), np.zeros(2)).has("entropy")


@pytest.mark.parametrize("off_policy", [False, True])
def test_moments_against_all_ordered_groups(policy: EnumeratedPolicy, turned: EnumeratedPolicy, off_policy: bool):
    clipped = Recipe("group_mean", scale="group_std", ratio="token_clip", aggregation="sequence_mean")
    policy, estimator = (turned, clipped) if off_policy else (policy, est.token_mean())
    mean, second = np.zeros(4), 0.0
    for prompt, share in enumerate(policy.prompt_probabilities):
        for group in itertools.product(np.flatnonzero(policy.prompts == prompt), repeat=2):
            rows = np.array(group)
            chance = share * np.exp(policy.old_logprobs[rows].sum())
            weights = estimator.weights(policy.batch(rows, np.zeros(2, dtype=int)))
            if weights.ndim == 1:
                weights = np.where(policy.mask[rows], weights[:, None], 0.0)
            gradient = np.einsum("nt,ntd->d", weights, policy.token_scores[rows])
            mean += chance * gradient
            second += chance * gradient @ gradient
    moments = policy.moments(estimator, 2)
    assert_allclose(moments.mean, mean, atol=1e-12)
    assert moments.trace_cov == pytest.approx(second - mean @ mean, rel=1e-10)
    assert moments.trace_cov == pytest.approx(moments.within_prompt + moments.between_prompt)
    assert moments.signal_sq == pytest.approx(mean @ mean)
    along = (mean @ moments.true_gradient) ** 2 / (moments.true_gradient @ moments.true_gradient)
    assert moments.noise_to_signal == pytest.approx(moments.trace_cov / along)


@pytest.mark.parametrize("off_policy", [False, True])
def test_moments_against_sampling(policy: EnumeratedPolicy, turned: EnumeratedPolicy, off_policy: bool):
    drawn = turned if off_policy else policy
    batch, scores, token_scores = drawn.sample(40_000, 3, rng=0)
    assert_allclose(token_scores.sum(axis=1), scores)
    for estimator in (ImportanceWeighted(), TOKEN_RATIOS) if off_policy else (est.rloo(), est.otb()):
        weights = estimator.weights(batch)
        terms = weights[:, None] * scores if weights.ndim == 1 else np.einsum("nt,ntd->nd", weights, token_scores)
        gradients = terms.reshape(-1, 3, scores.shape[1]).sum(axis=1)
        moments = drawn.moments(estimator, 3)
        spread = np.sqrt(moments.trace_cov / len(gradients))
        assert np.linalg.norm(gradients.mean(axis=0) - moments.mean) < 3 * spread
        assert gradients.var(axis=0, ddof=1).sum() == pytest.approx(moments.trace_cov, rel=0.03)


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_multisets_against_ordered_draws(group_size: int):
    shares = np.array([0.0, 0.2, 0.5, 0.3])
    choices = np.array([1, 2, 3])
    expected: dict[tuple[int, ...], float] = {}
    for draw in itertools.product(choices, repeat=group_size):
        key = tuple(sorted(int(member) for member in draw))
        expected[key] = expected.get(key, 0.0) + float(np.prod(shares[list(draw)]))
    with np.errstate(divide="ignore"):
        groups, chances = multisets(choices, np.log(shares), group_size)
    listed = {tuple(group): chance for group, chance in zip(groups.tolist(), chances.tolist(), strict=True)}
    assert listed == pytest.approx(expected)
    assert sum(chances) == pytest.approx(1)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda policy: policy.moments(est.batch_mean(), 2), "batch_mean is a batch-level .*: use batch_moments"),
        (lambda policy: policy.moments(est.rloo(), 12), "groups are too many to enumerate .*smaller group_size"),
        (lambda policy: policy.batch_moments(est.rloo(), 4, 4), "batches are too many"),
        (lambda _: refuse_too_many(500_001, "batches"), "500001 batches are too many to enumerate"),
        (lambda _: EnumeratedPolicy(vocabulary=1), "vocabulary must be at least 2"),
        (lambda _: EnumeratedPolicy(max_length=0), "must be at least 1"),
        (lambda _: EnumeratedPolicy(n_prompts=2, prompt_probabilities=np.full(2, 0.6)), "2 numbers that sum to 1"),
        (
            lambda _: EnumeratedPolicy(theta=np.zeros(4), old_theta=np.zeros(3)),
            r"old_theta has shape \(3,\), but theta has \(4,\)",
        ),
    ],
)
def test_what_cannot_be_enumerated_is_refused(policy: EnumeratedPolicy, ask, message: str):
    with pytest.raises(ValueError, match=message):
        ask(policy)


UNBIASED = [
    est.reinforce(), est.constant(b=0.4), est.rloo(), est.group_mean(loo=True), est.dr_grpo(loo=True),
    est.asymmetric(loo=True), est.token_mean(loo=True), est.length_weighted(0.8, loo=True),
    est.norm_weighted(loo=True), est.kimi(0.5, loo=True), est.remax(), est.gae(), est.vine(),
    est.otb(loo=True), est.otb(loo=True, energy="exact", zero_tail=False), est.otb_turns(loo=True),
    est.causal_optimal(loo=True),
]  # fmt: skip


OWN_MEANS = [est.group_mean(), est.dr_grpo(), est.asymmetric()]


@pytest.mark.parametrize("estimator", UNBIASED + OWN_MEANS, ids=str)
@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_the_stated_scale_is_that_of_the_gradient(policy: EnumeratedPolicy, estimator, group_size: int):
    scale = estimator.expected_scale(group_size)
    if group_size > 1:
        assert scale == ((group_size - 1) / group_size if estimator in OWN_MEANS else 1.0)
    if scale is not None:
        assert_allclose(policy.moments(estimator, group_size).mean, scale * policy.gradient, atol=1e-10)


@pytest.mark.parametrize("group_size", [1, 2, 3])
def test_the_sequence_ratio_is_unbiased(turned: EnumeratedPolicy, group_size: int):
    moments = turned.moments(ImportanceWeighted(), group_size)
    assert_allclose(moments.bias, 0, atol=1e-12)
    assert (moments.cosine, moments.coefficient) == pytest.approx((1, 1))
    assert moments.matched_bias_share(128) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "estimator",
    [est.token_mean(), est.length_weighted(0.8), est.norm_weighted(), est.kimi(0.5), est.otb(), est.otb_turns(),
     est.causal_optimal(), est.grpo(), est.grpo(loo=True), est.max_rl(), est.pass_at_k(),
     Recipe("rloo", aggregation="sequence_mean")],
    ids=str,
)  # fmt: skip
def test_what_shrinks_and_turns_has_no_known_scale(policy: EnumeratedPolicy, estimator):
    moments = policy.moments(estimator, 4)
    assert estimator.expected_scale(4) is None
    assert np.linalg.norm(moments.bias) > 1e-3
    assert moments.cosine < 1 - 1e-6


@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_gradients_of_other_objectives(group_size: int):
    policy = EnumeratedPolicy(rng=5, max_length=3)
    rate = float(policy.probabilities @ policy.rewards)
    for estimator, factor in (
        (est.max_rl(), sum((1 - rate) ** power for power in range(group_size - 1))),
        # E[max] = 1 − (1−p)^N, so its gradient is N(1−p)^{N−1}∇p, and the estimator carries 1/N
        (est.pass_at_k(), (1 - rate) ** (group_size - 1)),
        (Recipe("group_mean", ratio="token_clip", aggregation="constant(max_tokens=8)"), (1 - 1 / group_size) / 8),
    ):
        assert_allclose(policy.moments(estimator, group_size).mean, factor * policy.gradient, atol=1e-12)


@pytest.mark.parametrize(
    "estimator",
    [est.batch_mean(loo=True), est.james_stein(), est.james_stein(shrink_factor=False, eps=1e-6),
     est.token_mean(loo=True, scope="batch"), est.length_weighted(0.8, loo=True, scope="batch"),
     est.norm_weighted(loo=True, scope="batch"), est.causal_optimal(loo=True, scope="batch")],
    ids=str,
)  # fmt: skip
def test_leave_one_out_across_groups_is_unbiased(two_prompts: EnumeratedPolicy, estimator):
    moments = two_prompts.batch_moments(estimator, group_size=2, n_groups=2)
    assert moments.trace_cov > 0
    assert np.linalg.norm(two_prompts.gradient) > 1e-3
    assert_allclose(moments.bias, 0, atol=1e-10)


def test_own_sample_across_groups(two_prompts: EnumeratedPolicy):
    own_mean = two_prompts.batch_moments(est.batch_mean(), group_size=2, n_groups=2)
    assert_allclose(own_mean.mean, 3 / 4 * two_prompts.gradient, atol=1e-12)
    for estimator in (est.constant(), est.reinforce_pp(), est.reinforce_pp_baseline(), est.james_stein(loo=False)):
        assert np.linalg.norm(two_prompts.batch_moments(estimator, 2, 2).bias) > 1e-4


def test_batch_moments_of_a_local_estimator_are_a_share_of_one_groups(two_prompts: EnumeratedPolicy):
    one, three = two_prompts.moments(est.rloo(), 2), two_prompts.batch_moments(est.rloo(), 2, 3)
    assert_allclose(three.mean, one.mean, atol=1e-12)
    assert three.trace_cov == pytest.approx(one.trace_cov / 3)


def test_causal_optimum_beats_every_baseline_of_t_alone(policy: EnumeratedPolicy):
    energy = policy.probabilities @ policy.token_energy
    cross = (policy.probabilities * policy.rewards) @ policy.token_cross
    best = cross / energy
    cumulative = np.cumsum(policy.token_energy, axis=1) * policy.mask
    surrogate = (policy.probabilities * policy.rewards) @ cumulative / (policy.probabilities @ cumulative)
    least = policy.weighted_moments(policy.rewards[:, None] - best).trace_cov
    assert least < policy.weighted_moments(policy.rewards[:, None] - surrogate).trace_cov
    rng = np.random.default_rng(0)
    for _ in range(20):
        moved = best + 0.1 * rng.normal(size=best.size)
        assert policy.weighted_moments(policy.rewards[:, None] - moved).trace_cov > least


def test_the_ratios_are_those_of_two_policies_and_the_gradient_is_that_of_the_scored_one(turned: EnumeratedPolicy):
    old, scored = (
        EnumeratedPolicy(3, 4, n_prompts=2, theta=theta, rng=144) for theta in (turned.old_theta, turned.theta)
    )
    assert old.trajectories == turned.trajectories
    assert_allclose(turned.old_logprobs, old.logprobs, atol=1e-14)
    assert_allclose(turned.sampling_probabilities, old.probabilities, rtol=1e-12)
    assert_allclose(turned.ratios, turned.probabilities / old.probabilities, rtol=1e-12)
    assert turned.sampling_probabilities @ turned.ratios == pytest.approx(1, abs=1e-12)
    expected = float(np.sum(turned.probabilities**2 / turned.sampling_probabilities)) - 1
    assert turned.chi_squared == pytest.approx(expected, rel=1e-12)
    assert turned.chi_squared == pytest.approx(0.154, abs=5e-4)
    assert_allclose(turned.gradient, scored.gradient, atol=1e-14)
    assert not scored.off_policy
    assert scored.chi_squared == pytest.approx(0, abs=1e-12)


def test_the_ranking_that_rloo_as_the_truth_turns_round(turned: EnumeratedPolicy):
    plain, tokens = (turned.moments(estimator, 3) for estimator in (est.rloo(), TOKEN_RATIOS))
    assert plain.cosine == pytest.approx(0.657, abs=1e-3)
    assert tokens.cosine == pytest.approx(0.992, abs=1e-3)
    assert plain.matched_bias_share(128) > tokens.matched_bias_share(128)
    # RLOO as the truth: itself at cosine 1, the token ratios and the unbiased estimator below.
    for moments in (tokens, turned.moments(ImportanceWeighted(), 3)):
        judged = moments.mean @ plain.mean / np.linalg.norm(moments.mean) / np.linalg.norm(plain.mean)
        assert judged < 0.75


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("step", [-1.0, -1e-3, 1e-3, 1.0])
def test_the_best_constant_weights_by_squared_ratios(policy, turned, off_policy: bool, step: float):
    drawn = turned if off_policy else policy

    def second_moment(constant: float) -> float:
        moments = drawn.weighted_moments(drawn.ratios * (drawn.rewards - constant))
        return moments.trace_cov + moments.signal_sq

    cost = second_moment(drawn.optimal_constant + step) - second_moment(drawn.optimal_constant)
    expected = step**2 * (drawn.sampling_probabilities @ (drawn.ratios**2 * drawn.sq_norms))
    assert cost == pytest.approx(expected, rel=1e-6)


def test_scale_does_not_matter_once_matched(turned: EnumeratedPolicy):
    moments = turned.moments(Recipe("rloo", aggregation="constant(max_tokens=8)"), 3)
    plain = turned.moments(est.rloo(), 3)
    assert moments.matched_bias_share(64) == pytest.approx(plain.matched_bias_share(64), rel=1e-12)
    assert moments.matched_trace_cov == pytest.approx(plain.matched_trace_cov, rel=1e-12)
    assert moments.bias_share(64) > plain.bias_share(64)
    # ‖Eĝ/c − ∇J‖² = ‖∇J‖²(1/cos² − 1)
    bias_sq = float(turned.gradient @ turned.gradient) * (1 / plain.cosine**2 - 1)
    variance = plain.matched_trace_cov / 64
    assert plain.matched_bias_share(64) == pytest.approx(bias_sq / (bias_sq + variance), rel=1e-12)
