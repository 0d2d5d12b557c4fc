"""The words of terminal, report and tables, each in a sentence or two for someone who reads them for the first time.

``gradstats list terms``, the report and docs/glossary.md show them.
"""

from __future__ import annotations

#: Word → what it means; in the order of the alphabet.
TERMS: dict[str, str] = {
    "baseline": (
        "What is subtracted from the reward before it weights the score of a completion, such as the mean reward "
        "of the group. It changes the noise of the gradient; if it does not depend on the completion itself, it "
        "does not change the expected gradient."
    ),
    "batch-level estimator": (
        "An estimator that uses other prompts of its batch as well, such as a baseline that is one number for the "
        "whole batch. It is measured on batches of prompts, formed from the measured prompts by shuffling them many "
        "times."
    ),
    "best set": (
        "The estimators that may have the lowest relative noise of all, given these data: at the stated level the "
        "truly best one is among them. An estimator outside the set is shown to be noisier than another one."
    ),
    "bias": (
        "What is wrong with the direction of an estimator's expected gradient, after it is scaled onto the true one, "
        "as a share of the mean square error of a batch. In files matched_bias_share; bias_share counts the scale too."
    ),
    "clustered interval": (
        "An interval that treats the completions of one prompt as dependent, so that 96 prompts with 8 "
        "completions count as 96 observations, not as 768."
    ),
    "cosine": (
        "The cosine of the angle between the expected gradient of an estimator and the true gradient; 1 is the "
        "right direction."
    ),
    "critical batch": (
        "The number of prompts in a batch at which the noise of its gradient equals the signal: the variance of one "
        "group's gradient over the squared norm of its expectation. Larger batches gain little. In files "
        "noise_to_signal."
    ),
    "effective prompts": (
        "The number of equally noisy prompts that would carry the same information. Where a few prompts have much "
        "larger gradients than the others, it is much smaller than the number of prompts, and intervals may be "
        "too narrow."
    ),
    "effective sample size": (
        "The number of completions of the scored policy that would be as informative as the completions drawn from "
        "another policy once they are weighted by importance ratios."
    ),
    "energy of a token": ("The squared norm of the gradient of one token's log-probability."),
    "estimator": (
        "A way to turn the rewards of sampled completions into a policy gradient: a baseline such as rloo, or a "
        "published method such as recipe:dapo."
    ),
    "group": ("The completions of one prompt that share a baseline; their number is the group size N."),
    "importance ratio": (
        "The probability of a token or a completion under the policy that is scored, divided by that under the "
        "policy that sampled it."
    ),
    "kept share": (
        "The share of groups that have any gradient. A group whose rewards are all equal has none under most baselines."
    ),
    "leave-one-out": (
        "A baseline computed without the completion that it is subtracted from. It keeps the expected gradient "
        "exact; a baseline that includes the completion's own reward shrinks it by (N − 1)/N."
    ),
    "not resolved": (
        "The interval is too wide to answer the question with these data. It is no statement that an effect is "
        "absent; more prompts may resolve it."
    ),
    "off-policy": (
        "The completions were sampled from another distribution than the one whose gradient is taken: an older "
        "checkpoint, another temperature, a server in lower precision."
    ),
    "oracle": (
        "An estimator that uses what is not known during training, such as gradient norms; it shows what could be "
        "gained at most."
    ),
    "own-sample": ("A baseline that includes the reward of the completion that it is subtracted from."),
    "probe": (
        "A random direction along which the gradient of every token is measured, since whole gradients of single "
        "tokens would be too large to keep. Its error is part of every interval."
    ),
    "ratio": (
        "The variance of an estimator's gradient divided by that of the reference (RLOO by default), on the same "
        "completions."
    ),
    "ratios of all rows": (
        "Intervals of the ratio, or of the relative noise, that hold for all rows of a table at once with the stated "
        "probability. They are wider than the intervals beside single ratios; use them where rows are compared with "
        "one another."
    ),
    "relative noise": (
        "How many samples an estimator takes for the same noise at the same signal, where the reference takes one: the "
        "ratio of variances after both are scaled to the same expected gradient along the true one. Estimators are "
        "ranked by it; one that only shrinks the gradient gains nothing. In files matched_ratio."
    ),
    "score": (
        "The gradient of a completion's log-probability with respect to the parameters, written S; of one token, s."
    ),
    "signal, ‖E ĝ‖²": (
        "The squared norm of the expected gradient. Its estimate has no bias, and may be negative where the data are "
        "too few; it is resolved where its interval lies above 0."
    ),
    "sketch": (
        "A random projection of a gradient to a few thousand numbers that keeps inner products on average. Its "
        "error is part of every interval."
    ),
    "squared mean score": (
        "The squared norm of the mean score, which is 0 if the samples are on-policy. Its estimate has no bias, and "
        "may be negative."
    ),
    "surprise minus entropy": (
        "The sum over a completion's tokens of −log π less the entropy, in nats: how much less likely the sampled "
        "tokens are than the scored policy expects. It is 0 on average if the samples are on-policy, and negative if "
        "they were drawn at a lower temperature."
    ),
    "tr Cov": (
        "The trace of the covariance of one group's gradient: the expected squared distance from its mean, summed "
        "over all parameters. This is the noise of the gradient."
    ),
    "within and between prompts": (
        "Within: answers to the same prompt are compared with one another. Between: averages of different prompts "
        "are compared. A baseline of the group uses what varies within prompts."
    ),
    "α": (
        "The length exponent, with which the gradient of a completion grows with its number of tokens T: ‖S‖ is "
        "proportional to T^α on average. It is ½ where the gradients of tokens are uncorrelated, and 1 where they are "
        "all the same."
    ),
    "α within prompts": (
        "The exponent among answers to the same prompt, which a baseline of the group compares. It differs from α "
        "where prompts with longer answers also have larger gradients for other reasons."
    ),
    "χ² of the ratios": (
        "The variance of the importance ratios. Near 0, sampler and scorer count as one policy; above 0.01, bias "
        "is judged with importance weights."
    ),
}

#: Column of the variance table, as it is saved → the word that defines it.
TERM_OF_COLUMN: dict[str, str] = {
    "estimator": "estimator",
    "matched_ratio": "relative noise",
    "matched_ratio_simultaneous": "ratios of all rows",
    "in_best_set": "best set",
    "trace_cov": "tr Cov",
    "signal_sq": "signal, ‖E ĝ‖²",
    "noise_to_signal": "critical batch",
    "ratio": "ratio",
    "ratio_simultaneous": "ratios of all rows",
    "cosine": "cosine",
    "bias_share": "bias",
    "matched_bias_share": "bias",
    "kept_share": "kept share",
}
