"""The readers of trainers' dumps by name."""

from __future__ import annotations

from collections.abc import Callable

from gradstats.rollouts.table import Rollouts
from gradstats.rollouts.trl import read_trl_completions
from gradstats.rollouts.verl import read_verl_rollouts

#: Format → reader, as ``gradstats measure --rollouts-format`` names them.
READERS: dict[str, Callable[..., Rollouts]] = {"trl": read_trl_completions, "verl": read_verl_rollouts}
