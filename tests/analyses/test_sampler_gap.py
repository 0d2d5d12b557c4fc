"""The gap between sampler and scorer for a bag of tokens, where every distance is known exactly."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.analyses import sampler_gap

LOGITS = np.random.default_rng(9).normal(size=6)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


SCORED = softmax(LOGITS)


def truncated(top_k):
    kept = np.where(np.argsort(np.argsort(-SCORED)) < top_k, SCORED, 0.0)
    return kept / kept.sum()


def drawn(sampled, settings=None, n_prompts=200, per_prompt=4, length=5):
    """Completions of independently sampled tokens, with the sampler's log-probabilities."""
    n = n_prompts * per_prompt
    tokens = list(np.random.default_rng(0).choice(6, size=(n, length), p=sampled))
    rollouts = SimpleNamespace(
        prompt_id=np.repeat(np.arange(n_prompts), per_prompt).astype(str),
        masks=[np.ones(length, dtype=bool) for _ in range(n)],
        metadata={"sampler": {"temperature": 1.0, "top_p": 1.0, "top_k": 0} | (settings or {})},
    )
    scored, old = ([np.log(of[y]) for y in tokens] for of in (SCORED, sampled))
    policy = {"policy": {"temperature": 1.0}}
    return SimpleNamespace(rollouts=rollouts, logprobs=scored, old_logprobs=old, metadata=policy)


def test_the_same_distribution_has_no_gap():
    gap = sampler_gap(drawn(SCORED))
    assert gap.token_kl.value == gap.token_distance.value == gap.sequence_distance.value == 0
    assert gap.mean_token_ratio.value == 1
    assert gap.effective_sample_size == pytest.approx(800)
    assert not gap.off_policy
    assert gap.sentence().startswith("Sampler and scorer agree: ")


CASES = {"temperature": (softmax(LOGITS / 0.7), {"temperature": 0.7}), "top_k": (truncated(4), {"top_k": 4})}


@pytest.mark.parametrize("case", CASES)
def test_distances_are_those_of_the_two_distributions(case):
    sampled, settings = CASES[case]
    gap = sampler_gap(drawn(sampled, settings, n_prompts=4000))
    kept = sampled > 0
    kl = float(np.sum(sampled[kept] * np.log(sampled[kept] / SCORED[kept])))
    distance = 0.5 * float(np.abs(sampled - SCORED).sum())
    for name, exact in (("token_kl", kl), ("token_distance", distance), ("sequence_kl", 5 * kl)):
        estimate = getattr(gap, name)
        low, high = estimate.confidence_interval(0.999)
        assert low - 1e-12 <= exact <= high + 1e-12, name
        assert estimate.value == pytest.approx(exact, rel=0.05), name
    mass = float(SCORED[kept].sum())
    assert gap.mean_token_ratio.value == pytest.approx(mass, abs=0.01)
    # Every product of five tokens, exactly.
    outcomes = np.stack(np.meshgrid(*[np.arange(6)] * 5), -1).reshape(-1, 5)
    of_q, of_pi = sampled[outcomes].prod(axis=1), SCORED[outcomes].prod(axis=1)
    assert gap.sequence_distance.value == pytest.approx(0.5 * np.abs(of_q - of_pi).sum(), abs=0.01)
    drawable = of_q > 0
    share = of_pi[drawable].sum() ** 2 / (of_pi[drawable] ** 2 / of_q[drawable]).sum()
    assert gap.effective_sample_size / 16000 == pytest.approx(share, rel=0.1)


def test_the_sentence_names_settings_bias_and_remedy():
    sampled, settings = CASES["top_k"]
    sentence = sampler_gap(drawn(sampled, settings)).sentence()
    lost = 1 - SCORED[sampled > 0].sum()
    assert sentence.startswith("The samples are off-policy: ")
    for said in (
        "a success rate under the scored distribution may differ from the measured one by up to 0.",
        f"truncation leaves out {lost:.1%} of its mass a token",
        "drawn with top_k=4, which is not scored: draw with top_p=1, top_k=0 at the scorer's temperature",
    ):
        assert said in sentence
    without = sampler_gap(drawn(softmax(LOGITS / 0.7))).sentence()
    assert "the recorded settings do not explain it: check weights, precision and quantisation" in without


def test_tokens_that_the_sampler_does_not_record_are_left_out_and_counted():
    measured = drawn(SCORED, n_prompts=3, per_prompt=2)
    measured.old_logprobs[0][-1] = np.nan  # the end token, which servers leave out
    measured.old_logprobs[1][2] = np.nan
    measured.rollouts.masks[2][0] = False
    gap = sampler_gap(measured)
    assert (gap.n_tokens, gap.n_unknown, gap.n_sequences) == (27, 2, 5)


def test_frames_and_summary():
    gap = sampler_gap(drawn(*CASES["temperature"]))
    frame = gap.to_frame().set_index("quantity")
    assert frame.loc["token_kl", "low"] < frame.loc["token_kl", "estimate"] < frame.loc["token_kl", "high"]
    assert frame.loc["effective_sample_size", "estimate"] == gap.effective_sample_size
    quantiles = gap.quantiles().set_index("level")
    tokens = np.concatenate(gap.gaps)
    assert quantiles.loc[0.5, "token_gap"] == np.median(tokens)
    assert quantiles.loc[1.0, "token_ratio"] == pytest.approx(np.exp(tokens.max()))
    summary = gap.summary()
    assert summary["off_policy"] is True
    assert summary["quantities"][0]["quantity"] == "mean_abs_gap"


@pytest.mark.parametrize("recorded", [None, [np.full(5, np.nan)] * 800])
def test_no_log_probabilities_of_the_sampler_is_an_error(recorded):
    measured = drawn(SCORED)
    measured.old_logprobs = recorded
    with pytest.raises(ValueError, match=r"no log-probabilities of their sampler .*: sample with an engine that"):
        sampler_gap(measured)


def test_a_single_prompt_has_estimates_without_intervals():
    gap = sampler_gap(drawn(SCORED, n_prompts=1))
    assert gap.token_kl.value == 0
    assert np.isnan(gap.token_kl.confidence_interval()).all()
    assert not gap.off_policy
