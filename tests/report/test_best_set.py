"""With a weak signal the best estimator may be one that is not judged, and what readers see says so."""

import numpy as np
import pytest

import gradstats as gs
from gradstats.analyses.variance import ANALYSIS
from gradstats.report.analysis_tables import variance_table
from gradstats.report.verdict import sentence_of

LABELS = ["rloo", "reinforce", "grpo", "token_mean", "recipe:dapo"]


def drawn(seed, n_prompts=200):
    """Prompts that are hard, middling and easy; the gradient of the extreme ones counts most, which helps ``grpo``.

    Of a large sample the critical batch of rloo is 380 and the relative noise of grpo 0.92, the lowest of the five.
    """
    rng = np.random.default_rng([7, seed])
    rate = rng.choice([0.1, 0.5, 0.9], (n_prompts, 1))
    rewards = (rng.random((n_prompts, 8)) < rate).astype(float)
    lengths = np.ceil(np.exp(rng.normal(3.0, 0.5, rewards.shape)) * (1.3 - 0.6 * rewards)).astype(int)
    scores = rng.normal(size=(n_prompts, 8, 16))
    scores[:, :, 0] += 0.03 * (rewards - rate) / (rate * (1.0 - rate))
    return gs.estimators.Batch(rewards.ravel(), lengths.ravel(), np.arange(8 * n_prompts) // 8), scores.reshape(-1, 16)


@pytest.mark.filterwarnings("ignore")
def test_the_best_is_in_the_set_or_among_those_that_are_said_not_to_be_judged():
    excluded = unjudged = 0
    for seed in range(40):
        batch, scores = drawn(seed)
        answer = ANALYSIS.answer_of(gs.compare(batch, LABELS, scores), 0.95)
        inside = answer.frame.set_index("estimator")["in_best_set"]
        excluded += inside["grpo"] is False
        if (n := int(inside.isna().sum())) and inside["grpo"] is None:
            unjudged += 1
            rows = "1 row is" if n == 1 else f"{n} rows are"
            assert f" {rows} not resolved and may be lower." in variance_table(answer.frame).caption
            said = sentence_of(answer)
            assert f"{rows} not resolved" in said
            assert "No estimator is shown to beat" not in said
    assert excluded <= 2
    assert unjudged >= 20
