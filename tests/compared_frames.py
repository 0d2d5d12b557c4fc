"""Frames of comparisons, made up."""

import pandas as pd


def compared(matched, low, high, reference="rloo", names=("rloo", "reinforce", "mine")):
    table = pd.DataFrame({"estimator": names[: len(matched)], "group_size": 4})
    for column in ("trace_cov", "ratio", "matched_ratio", "cosine", "matched_bias_share", "kept_share"):
        table[column], table[f"{column}_low"], table[f"{column}_high"] = matched, low, high
    table.attrs |= {
        "reference": reference,
        "confidence_level": 0.9,
        "n_prompts": 30,
        "n_groups": 60,
        "prompts_per_batch": 128,
    }
    return table
