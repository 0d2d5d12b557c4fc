"""The table of completions, its file, and readers of trainers' dumps."""

from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.rollouts.trainer_dumps import read_trl_completions, read_verl_rollouts

__all__ = ["Rollouts", "read_rollouts", "read_trl_completions", "read_verl_rollouts"]
