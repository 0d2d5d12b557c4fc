"""The on-policy check on a softmax policy over tokens, sampled at the scored temperature and at another."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.stats import check_on_policy


def drawn(temperature, n_prompts=150, per_prompt=4, seed=0, energies=True):
    """Completions of a bag-of-tokens policy with logits θ, whose token score is onehot(y) − π."""
    rng = np.random.default_rng(seed)
    logits = np.random.default_rng(9).normal(size=6)

    def softmax(z):
        return np.exp(z) / np.exp(z).sum()

    scored, sampled = softmax(logits), softmax(logits / temperature)
    entropy = -np.sum(scored * np.log(scored))
    n = n_prompts * per_prompt
    lengths = rng.integers(3, 30, n)
    tokens = [rng.choice(6, size=length, p=sampled) for length in lengths]
    token_scores = [np.eye(6)[y] - scored for y in tokens]
    total = np.array([s.sum(axis=0) for s in token_scores])
    return SimpleNamespace(
        rollouts=SimpleNamespace(
            prompt_id=np.repeat(np.arange(n_prompts), per_prompt).astype(str),
            masks=[np.ones(length, dtype=bool) for length in lengths],
            metadata={"sampler": {"temperature": temperature, "top_p": 1.0, "top_k": 0}},
        ),
        logprobs=[np.log(scored)[y] for y in tokens],
        entropy=[np.full(length, entropy) for length in lengths],
        sq_norms=(total**2).sum(axis=1),
        sketches=np.pad(total, ((0, 0), (0, 2042))),
        token_energy=[(s**2).sum(axis=1) for s in token_scores] if energies else None,
        metadata={"policy": {"temperature": 1.0}},
    )


def test_on_policy_samples_pass():
    check = check_on_policy(drawn(1.0))
    assert check.failures() == []
    assert check.verdict().startswith("Consistent with on-policy sampling (surprise over entropy ")
    assert check.energy_ratio.value == pytest.approx(1.0, abs=0.1)


def test_samples_of_another_temperature_fail_by_all_three():
    check = check_on_policy(drawn(0.6))
    assert check.failures() == ["surprise", "mean_score_sq", "energy_ratio"]
    assert check.surprise.value < 0
    assert check.energy_ratio.value > 1.5
    verdict = check.verdict()
    assert verdict.startswith("Not on-policy")
    assert "drawn with temperature=0.6 and scored at temperature 1" in verdict


def test_false_alarms_are_rare():
    alarms = [bool(check_on_policy(drawn(1.0, n_prompts=40, seed=seed)).failures()) for seed in range(100)]
    assert np.mean(alarms) < 0.08


def test_only_counted_tokens_enter():
    measured = drawn(1.0)
    for row in range(10):
        measured.rollouts.masks[row][-1] = False
        measured.logprobs[row][-1] = -1e6
    assert check_on_policy(measured).surprise.value == pytest.approx(
        check_on_policy(drawn(1.0)).surprise.value, abs=0.1
    )


def test_what_was_not_measured_is_nan():
    measured = drawn(1.0, energies=False)
    measured.sketches = None
    check = check_on_policy(measured)
    assert np.isnan(check.energy_ratio.value)
    assert np.isnan(check.mean_score_sq.value)
    assert check.to_frame()["estimate"].isna().tolist() == [False, True, True]
    assert "energy ratio" not in check.verdict()


def test_unexplained_failures_point_elsewhere():
    measured = drawn(0.6)
    measured.rollouts.metadata = {}
    assert "recorded settings do not explain it" in check_on_policy(measured).verdict()


def test_too_few_prompts():
    with pytest.raises(ValueError, match="at least 3 prompts, got 2"):
        check_on_policy(drawn(1.0, n_prompts=2))


def test_an_energy_ratio_of_few_prompts_does_not_count():
    """If one prompt has nearly all the energy, the jackknife interval rests on that prompt."""
    measured = drawn(0.6, n_prompts=60)
    assert check_on_policy(measured).energy_prompts > 30
    measured.token_energy[0] = 1e6 * measured.token_energy[0]
    measured.sq_norms[0] *= 1e6
    check = check_on_policy(measured)
    assert check.energy_prompts < 2
    assert "energy_ratio" not in check.failures()
    assert "the last not counted since it rests on effectively 1.0 prompts" in check.verdict()
