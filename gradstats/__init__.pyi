from .system.environment import __version__ as __version__

# problems, a policy, its completions
from .prompts import Problem as Problem
from .prompts import load_prompts as load_prompts
from .policy import Policy as Policy
from .policy import load_policy as load_policy
from .sampling import sample as sample
from .rollouts import Rollouts as Rollouts
from .rollouts import read_rollouts as read_rollouts
from .rollouts import read_log as read_log

# their gradients
from .gradients import measure as measure
from .gradients import AdamMetric as AdamMetric
from .gradients.second_moments import estimate_second_moments as estimate_second_moments
from .measurement import Measurement as Measurement
from .measurement import read_measurement as read_measurement

# how gradients grow with length, and which estimator takes the fewest samples
from . import estimators as estimators
from .estimators import recipes as recipes
from .stats import fit_length_scaling as fit_length_scaling
from .analyses import alpha_report as alpha_report
from .analyses import compare as compare

# further questions
from . import analyses as analyses
from .analyses import allocate as allocate
from .analyses import optimal_baselines as optimal_baselines
from .analyses import variance_by_success as variance_by_success
from .analyses import variance_curve as variance_curve
from .analyses import check_on_policy as check_on_policy
from .analyses import equivalent_group_size as equivalent_group_size
from .analyses import implied_shift as implied_shift
from .analyses import length_reward_correlation as length_reward_correlation
from .analyses import plan_alpha as plan_alpha
from .analyses import plan_ratio as plan_ratio
from .analyses import plan_signal as plan_signal
from .analyses import proxy_quality as proxy_quality
from .analyses import ratio_diagnostics as ratio_diagnostics
from .analyses import sampler_gap as sampler_gap
from .analyses import variance_by_length as variance_by_length

# figures, tables, reports
from . import plots as plots
from . import tables as tables
from .plots import plot_length_scaling as plot_length_scaling
from .plots import plot_variance as plot_variance
from .report import write_report as write_report
from .report import read_sweep as read_sweep
from .runs.sweep import run_sweep as run_sweep

# the rest, by package
from . import data as data
from . import reference as reference
from . import stats as stats
from . import values as values
