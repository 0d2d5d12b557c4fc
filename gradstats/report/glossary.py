"""The words of terminal, report and tables, each in a sentence or two for someone who reads them for the first time.

``gradstats list terms``, the report and docs/read_results.md show them.
"""

from __future__ import annotations

from gradstats.stats.variance.quantities import QUANTITIES

#: Word → what it means; in the order of the alphabet.
TERMS: dict[str, str] = {
    "baseline": (
        "What is subtracted from the reward of a completion, such as the mean reward of its group. If it does not "
        "depend on the completion itself, it changes the noise of the gradient and not its expectation."
    ),
    "batch-level estimator": (
        "An estimator that uses other prompts of its batch as well. It is measured on batches that are formed by "
        "shuffling the measured prompts."
    ),
    "best set": (
        "The estimators that may have the lowest relative noise, given these data: the truly best one is among them "
        "at the stated level."
    ),
    "bias, matched bias": (
        "Share of a batch's squared error that comes from a wrong expected gradient; matched: after scaling it, so "
        "that only its direction counts."
    ),
    "clustered interval": (
        "An interval with the prompt as the sampling unit: 96 prompts with 8 completions count as 96 observations, "
        "not as 768."
    ),
    "cosine": "Cosine of the angle between the expected gradient of an estimator and the true gradient.",
    "critical batch, noise-to-signal": (
        "Number of prompts in a batch at which noise and signal are equal: the variance of one group's gradient, at "
        "the scale of the true gradient, over the squared norm of that."
    ),
    "effective prompts": (
        "Number of equally noisy prompts with the same information. Where few prompts have much larger gradients, "
        "it is much smaller than the number of prompts, and intervals may be too narrow."
    ),
    "effective sample size": (
        "Number of completions of the scored policy that are as informative as those drawn from another policy and "
        "weighted by importance ratios."
    ),
    "energy of a token": "Squared norm of the gradient of one token's log-probability.",
    "estimator": (
        "A way to turn rewards into a policy gradient: a baseline such as rloo, or a published method such as "
        "recipe:dapo."
    ),
    "group": "The completions of one prompt that share a baseline; their number is the group size N.",
    "importance ratio": (
        "Probability of a token or completion under the scored policy over that under the policy that sampled it."
    ),
    "kept share": "Share of groups that have any gradient. Groups whose rewards are all equal mostly have none.",
    "leave-one-out": (
        "A baseline computed without the completion that it is subtracted from. It keeps the expected gradient exact."
    ),
    "not resolved": (
        "The interval is too wide to answer the question with these data. More prompts may; it does not mean that "
        "an effect is absent."
    ),
    "off-policy": (
        "Completions were sampled from another distribution than the one whose gradient is taken: an older "
        "checkpoint, another temperature, a server in lower precision."
    ),
    "oracle": (
        "An estimator that uses what training does not know, such as the norms of the gradients that it is compared "
        "on. It is no bound: other baselines may be less noisy."
    ),
    "own-sample": (
        "A baseline that includes the reward of the completion that it is subtracted from. It shrinks the gradient, "
        "the mean by (N − 1)/N."
    ),
    "probe": (
        "A random direction along which the gradient of every token is measured. Its error is part of every interval."
    ),
    "ratio": (
        "Variance of an estimator's gradient over that of the reference, RLOO by default, before their signals are "
        "matched."
    ),
    "ratios of all rows": (
        "Intervals that hold for all rows of a table at once. They are wider than those beside single rows: use "
        "them to compare rows with one another."
    ),
    "relative noise, matched ratio": (
        "Variance relative to the reference, RLOO by default, after both have the same expected gradient along the "
        "reference's: the samples needed for equal noise. An estimator that only shrinks the gradient gains nothing "
        "here; rank estimators by it."
    ),
    "score": "Gradient of a completion's log-probability with respect to the parameters, written S; of one token, s.",
    "signal, ‖E ĝ‖²": (
        "Squared norm of the expected gradient. Its estimate has no bias and may be negative; it is resolved where "
        "its interval lies above 0."
    ),
    "sketch": (
        "A random projection of a gradient to a few thousand numbers that keeps inner products on average. Its "
        "error is part of every interval."
    ),
    "squared mean score": (
        "Squared norm of the mean score, which is 0 on-policy. Its estimate has no bias and may be negative."
    ),
    "surprise minus entropy": (
        "Sum over a completion's tokens of −log π less the entropy, in nats. It is 0 on average on-policy, and "
        "negative if tokens were drawn at a lower temperature."
    ),
    "tr Cov": (
        "Trace of the covariance of one group's gradient: the expected squared distance from its mean. This is the "
        "noise."
    ),
    "within and between prompts": (
        "Within: answers to one prompt are compared. Between: averages of prompts are compared. A baseline of the "
        "group uses what varies within prompts."
    ),
    "α within prompts": "α among answers to the same prompt, which a group baseline compares.",
    "α, length exponent": (
        "How the gradient of a completion grows with its number of tokens T: ‖S‖ is proportional to T^α on average."
    ),
    "χ² of the ratios": (
        "Variance of the importance ratios. Up to 0.01, sampler and scorer count as one policy; above, bias is "
        "judged with importance weights."
    ),
}


def meaning_of(column: str, declared: str = "") -> str:
    """Return what a column means: a word of the glossary, or else what its quantity or the column itself declares.

    A column that declares another meaning than its quantity, as the calibrated variance of a log, keeps it.
    """
    if column.endswith("_simultaneous"):
        return TERMS["ratios of all rows"]
    if column == "in_best_set":
        return TERMS["best set"]
    if column not in QUANTITIES:
        return TERMS.get(column, declared)
    term, meaning = QUANTITIES[column].term, QUANTITIES[column].meaning
    if declared not in ("", meaning):
        return declared
    return TERMS.get(term, f"{meaning[:1].upper()}{meaning[1:]}.")
