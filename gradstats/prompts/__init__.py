"""Where problems come from: the embedded set, files, the hub, and the tasks of reasoning-gym."""

from gradstats.prompts.load import load_prompts
from gradstats.prompts.problem import Problem

__all__ = ["Problem", "load_prompts"]
