from .system.environment import __version__ as __version__

# problems, policies and rollouts
from .policy import Policy as Policy
from .policy import load_policy as load_policy
from .prompts import Problem as Problem
from .prompts import load_prompts as load_prompts
from .rollouts import Rollouts as Rollouts
from .rollouts import read_rollouts as read_rollouts
from .rollouts import read_trl_completions as read_trl_completions
from .rollouts import read_verl_rollouts as read_verl_rollouts
from .sampling import sample as sample

# gradients
from .gradients import AdamMetric as AdamMetric
from .gradients import measure as measure
from .measurement import Measurement as Measurement
from .measurement import read_measurement as read_measurement

# estimators and statistics
from . import estimators as estimators
from .analyses import Allocation as Allocation
from .analyses import CriticQuality as CriticQuality
from .analyses import OptimalBaselines as OptimalBaselines
from .analyses import SuccessBins as SuccessBins
from .analyses import VarianceCurve as VarianceCurve
from .analyses import allocate as allocate
from .analyses import critic_quality as critic_quality
from .analyses import optimal_baselines as optimal_baselines
from .analyses import variance_by_success as variance_by_success
from .analyses import variance_curve as variance_curve
from .estimators import recipes as recipes
from .stats import AlphaDifference as AlphaDifference
from .stats import AlphaPlan as AlphaPlan
from .stats import AlphaReport as AlphaReport
from .stats import CurvatureTest as CurvatureTest
from .stats import EquivalentGroupSize as EquivalentGroupSize
from .stats import ImpliedShift as ImpliedShift
from .stats import LengthBins as LengthBins
from .stats import LengthRewardCorrelation as LengthRewardCorrelation
from .stats import LengthScalingFit as LengthScalingFit
from .stats import MundlakTest as MundlakTest
from .stats import OnPolicyCheck as OnPolicyCheck
from .stats import PolicyProfile as PolicyProfile
from .stats import ProxyQuality as ProxyQuality
from .stats import RatioDiagnostics as RatioDiagnostics
from .stats import TokenProfile as TokenProfile
from .stats import RatioPlan as RatioPlan
from .stats import SamplerGap as SamplerGap
from .stats import SignalPlan as SignalPlan
from .stats import VarianceComparison as VarianceComparison
from .stats import alpha_difference as alpha_difference
from .stats import alpha_report as alpha_report
from .stats import alpha_without_each_prompt as alpha_without_each_prompt
from .stats import check_on_policy as check_on_policy
from .stats import compare as compare
from .stats import concentration as concentration
from .stats import curvature_test as curvature_test
from .stats import drift_along as drift_along
from .stats import equivalent_group_size as equivalent_group_size
from .stats import equivalent_group_sizes as equivalent_group_sizes
from .stats import fit_energy_scaling as fit_energy_scaling
from .stats import fit_length_scaling as fit_length_scaling
from .stats import implied_shift as implied_shift
from .stats import length_reward_correlation as length_reward_correlation
from .stats import length_scaling_by_block as length_scaling_by_block
from .stats import local_slope as local_slope
from .stats import mundlak_test as mundlak_test
from .stats import plan_alpha as plan_alpha
from .stats import plan_ratio as plan_ratio
from .stats import plan_signal as plan_signal
from .stats import profile_policy as profile_policy
from .stats import sampler_gap as sampler_gap
from .stats import variance_by_length as variance_by_length
from .stats import variances_by_length as variances_by_length
from .stats import proxy_quality as proxy_quality
from .stats import ratio_diagnostics as ratio_diagnostics
from .stats import surprise_along as surprise_along
from .stats import token_correlation as token_correlation

# state values
from .values import monte_carlo_values as monte_carlo_values
from .values import FittedValues as FittedValues
from .values import fit_values as fit_values

# figures, tables, reports
from . import analyses as analyses
from . import plots as plots
from . import tables as tables
from .plots import plot_length_scaling as plot_length_scaling
from .plots import plot_variance as plot_variance
from .report import SweepResult as SweepResult
from .report import read_sweep as read_sweep
from .report import write_report as write_report
from .runs.second_moments import estimate_second_moments as estimate_second_moments
from .runs.sweep import run_sweep as run_sweep

# named data sets and oracles
from . import data as data
from . import reference as reference
