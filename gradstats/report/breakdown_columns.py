"""What the columns of the tables that split and allocate a gradient mean."""

from __future__ import annotations

#: Of bins of success rates.
SUCCESS_BINS = {
    "success": "range of success rates",
    "n_prompts": "prompts of these rates",
    "group_size": "completions per group",
    "scale": "factor of the prompts' expected gradient on that of the target",
    "kept_scale": "the same of groups with any non-zero weight",
    "kept_share": "share of groups with any non-zero weight",
    "spread_share": "share of groups whose rewards are not all equal",
}

#: Of any bins.
SHARES = {
    "share_of_gradient": "share of the expected gradient that the bin makes up",
    "share_of_variance": "share of tr Cov: the covariance of the bin's part with the whole",
}

#: Of batches of an equal number of tokens.
ALLOCATION = {
    "group_size": "completions of a prompt",
    "n_prompts": "prompts that the tokens pay for",
    "extrapolated": "whether no groups of this size were measured",
    "noise_to_signal": "variance of the batch gradient at the target's scale, over ‖∇J‖²",
    "relative_noise": "the variance over that of rloo at the largest measured size",
    "tokens_saved": "share of tokens saved at equal noise",
    "within_prompt": "variance between groups of one prompt",
    "between_prompt": "variance between the expected gradients of prompts",
}

#: Of the group size at which RLOO is as noisy.
EQUIVALENT_GROUP_SIZE = {
    "group_size": "completions per group",
    "n_prompts": "prompts",
    "same_prompts_group_size": "group size at which RLOO is as noisy at the same number of prompts",
    "tokens_saved": "share of tokens saved at equal noise, against RLOO in groups of the same size",
}

ALPHA_DIFFERENCE = {
    "alpha": "α of the first sample",
    "other_alpha": "α of the second",
    "difference": "first less second, paired over prompts",
    "pvalue": "of no difference",
    "n_prompts": "prompts of both",
}

CELL_DIFFERENCES = {
    "cell": "run of the sweep",
    "minus": "the run that is subtracted",
    "quantity": "alpha, mean_length or mean_reward",
    "difference": "between the two, paired over prompts",
    "n_prompts": "prompts of both",
}
