"""How the gradient grows with length, and how noisy each estimator is, with intervals."""

from gradstats.stats.alpha_report import AlphaReport, alpha_report
from gradstats.stats.block_scaling import fit_energy_scaling, length_scaling_by_block
from gradstats.stats.group_size import EquivalentGroupSize, equivalent_group_size, equivalent_group_sizes
from gradstats.stats.implied_shift import ImpliedShift, implied_shift
from gradstats.stats.length_bins import LengthBins, variance_by_length
from gradstats.stats.length_diagnostics import CurvatureTest, alpha_without_each_prompt, curvature_test
from gradstats.stats.length_reward import LengthRewardCorrelation, length_reward_correlation
from gradstats.stats.length_scaling import LengthScalingFit, fit_length_scaling
from gradstats.stats.on_policy import OnPolicyCheck, check_on_policy
from gradstats.stats.planning import AlphaPlan, plan_alpha
from gradstats.stats.proxy_quality import ProxyQuality, proxy_quality
from gradstats.stats.sampler_gap import SamplerGap, sampler_gap
from gradstats.stats.token_profile import TokenProfile
from gradstats.stats.token_structure import (
    concentration,
    drift_along,
    local_slope,
    surprise_along,
    token_correlation,
)
from gradstats.stats.variance import VarianceComparison, compare

__all__ = [
    "AlphaPlan",
    "AlphaReport",
    "CurvatureTest",
    "EquivalentGroupSize",
    "ImpliedShift",
    "LengthBins",
    "LengthRewardCorrelation",
    "LengthScalingFit",
    "OnPolicyCheck",
    "ProxyQuality",
    "SamplerGap",
    "TokenProfile",
    "VarianceComparison",
    "alpha_report",
    "alpha_without_each_prompt",
    "check_on_policy",
    "compare",
    "concentration",
    "curvature_test",
    "drift_along",
    "equivalent_group_size",
    "equivalent_group_sizes",
    "fit_energy_scaling",
    "fit_length_scaling",
    "implied_shift",
    "length_reward_correlation",
    "length_scaling_by_block",
    "local_slope",
    "plan_alpha",
    "proxy_quality",
    "sampler_gap",
    "surprise_along",
    "token_correlation",
    "variance_by_length",
]
