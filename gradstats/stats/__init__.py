"""How the gradient grows with length, and how noisy each estimator is, with intervals."""

from gradstats.stats.length_reward import LengthRewardCorrelation, length_reward_correlation
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.length_scaling.alpha_report import AlphaReport, alpha_report
from gradstats.stats.length_scaling.by_block import fit_energy_scaling, length_scaling_by_block
from gradstats.stats.length_scaling.curvature import CurvatureTest, curvature_test
from gradstats.stats.length_scaling.most_influential_prompt import alpha_without_each_prompt
from gradstats.stats.length_scaling.mundlak import MundlakTest, mundlak_test
from gradstats.stats.on_policy.check import OnPolicyCheck, check_on_policy
from gradstats.stats.on_policy.sampler_gap import SamplerGap, sampler_gap
from gradstats.stats.plans.alpha_plan import AlphaPlan, plan_alpha
from gradstats.stats.plans.ratio_plan import RatioPlan, plan_ratio
from gradstats.stats.plans.signal_plan import SignalPlan, plan_signal
from gradstats.stats.profile import PolicyProfile, profile_policy
from gradstats.stats.ratios.diagnostics import RatioDiagnostics, ratio_diagnostics
from gradstats.stats.tokens.profiles import concentration, drift_along, local_slope, surprise_along, token_correlation
from gradstats.stats.tokens.proxy_quality import ProxyQuality, proxy_quality
from gradstats.stats.tokens.token_profile import TokenProfile
from gradstats.stats.variance.comparison import compare
from gradstats.stats.variance.equivalent_group_size import (
    EquivalentGroupSize,
    equivalent_group_size,
    equivalent_group_sizes,
)
from gradstats.stats.variance.implied_shift import ImpliedShift, implied_shift
from gradstats.stats.variance.length_bins import LengthBins, variance_by_length
from gradstats.stats.variance.variance_comparison import VarianceComparison

__all__ = [
    "AlphaPlan", "AlphaReport", "CurvatureTest", "EquivalentGroupSize", "ImpliedShift", "LengthBins",
    "LengthRewardCorrelation", "LengthScalingFit", "MundlakTest", "OnPolicyCheck", "PolicyProfile", "ProxyQuality",
    "RatioDiagnostics", "RatioPlan", "SamplerGap", "SignalPlan", "TokenProfile", "VarianceComparison", "alpha_report",
    "alpha_without_each_prompt", "check_on_policy", "compare", "concentration", "curvature_test", "drift_along",
    "equivalent_group_size", "equivalent_group_sizes", "fit_energy_scaling", "fit_length_scaling", "implied_shift",
    "length_reward_correlation", "length_scaling_by_block", "local_slope", "mundlak_test", "plan_alpha", "plan_ratio",
    "plan_signal", "profile_policy", "proxy_quality", "ratio_diagnostics", "sampler_gap", "surprise_along",
    "token_correlation", "variance_by_length",
]  # fmt: skip
