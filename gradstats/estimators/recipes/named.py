"""The named recipes, as data: one row per recipe, one entry per component; components left out do nothing."""

from __future__ import annotations

RECIPES: dict[str, dict[str, str]] = {
    "reinforce": {
        "advantage": "reinforce",
        "bias": "E[ĝ] = ∇J",
        "source": "Williams 1992",
    },
    "rloo": {
        "advantage": "rloo",
        "bias": "E[ĝ] = ∇J",
        "source": "Ahmadian et al. 2024, 2402.14740",
    },
    "rloo_is": {
        "advantage": "rloo(off_policy=True)",
        "ratio": "sequence_product",
        "bias": "E[ĝ] = ∇J, off-policy as well",
        "source": "importance sampling: Precup et al. 2000",
    },
    "ppo": {
        "advantage": "gae",
        "ratio": "token_clip",
        "aggregation": "token_mean",
        "bias": "biased: all tokens share one average",
        "source": "Schulman et al. 2017, 1707.06347",
    },
    "grpo": {
        "advantage": "group_mean",
        "scale": "group_std",
        "ratio": "token_clip",
        "aggregation": "sequence_mean",
        "bias": "biased: by group spread and 1/T",
        "source": "Shao et al. 2024, 2402.03300",
    },
    "dr_grpo": {
        "advantage": "group_mean",
        "ratio": "token_clip",
        "aggregation": "constant",
        "bias": "on-policy (N−1)/(N·L)·∇J",
        "source": "Liu et al. 2025, 2503.20783",
    },
    "dapo": {
        "advantage": "group_mean",
        "scale": "group_std",
        "ratio": "token_clip(eps_high=0.28)",
        "aggregation": "token_mean",
        "filter": "dynamic_sampling",
        "bias": "biased: by group spread and 1/ΣT",
        "source": "Yu et al. 2025, 2503.14476",
    },
    "gspo": {
        "advantage": "group_mean",
        "scale": "group_std",
        "ratio": "sequence_clip",
        "aggregation": "sequence_mean",
        "bias": "biased: by group spread and 1/T",
        "source": "Zheng et al. 2025, 2507.18071",
    },
    "cispo": {
        "advantage": "group_mean",
        "scale": "group_std",
        "ratio": "clipped_weight",
        "aggregation": "token_mean",
        "bias": "biased: by group spread and 1/ΣT",
        "source": "MiniMax 2025, 2506.13585",
    },
    "kimi_k15": {
        "advantage": "kimi",
        "ratio": "log_ratio_penalty",
        "bias": "biased: own-sample soft maximum, and the penalty off-policy",
        "source": "Kimi Team 2025, 2501.12599",
    },
    "opo": {
        "advantage": "token_mean",
        "bias": "biased in scale and direction (own sample)",
        "source": "Hao et al. 2025, 2505.23585",
    },
}
