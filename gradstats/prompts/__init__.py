"""Where problems come from: the embedded set, files, the hub, reasoning-gym's tasks."""

from gradstats.prompts.load import load_prompts
from gradstats.prompts.problem import Problem

__all__ = ["Problem", "load_prompts"]
