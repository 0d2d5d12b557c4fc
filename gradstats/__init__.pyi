# problems, policies and rollouts
from .policy import Policy as Policy
from .policy import load_policy as load_policy
from .prompts import Problem as Problem
from .prompts import load_prompts as load_prompts
from .rollouts import Rollouts as Rollouts
from .rollouts import read_rollouts as read_rollouts
from .sampling import sample as sample

# gradients
from .gradients import measure as measure
from .measurement import Measurement as Measurement
from .measurement import read_measurement as read_measurement

# estimators and statistics
from . import estimators as estimators
from .estimators import recipes as recipes
from .stats import LengthScalingFit as LengthScalingFit
from .stats import VarianceComparison as VarianceComparison
from .stats import compare as compare
from .stats import fit_length_scaling as fit_length_scaling

# figures
from . import plots as plots
from .plots import plot_length_scaling as plot_length_scaling
from .plots import plot_variance as plot_variance

# named data sets and oracles
from . import data as data
from . import reference as reference
