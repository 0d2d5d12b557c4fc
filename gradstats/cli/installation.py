"""The commands on the installation: the check of the engines, versions and hardware, and lists of names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from gradstats.cli import terminal
from gradstats.cli.options import Positional
from gradstats.system.files import to_json


def check(
    policy: Positional[str],
    rollouts: Path | None = None,
    dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16"),
    params: str | None = None,
    device: str = "auto",
) -> None:
    """Check the gradient engines on this model and device; the exit code is 1 when one fails.

    Args:
        policy: "embedded", a local folder, a .gguf file or a hub id.
        rollouts: sequences to check with; three of random tokens by default.
        dtypes: dtypes to check the model in; deviations between dtypes are from the first, the widest.
        params: regular expression of the parameters to differentiate.
        device: "auto", "cpu", "cuda" or "mps".
    """
    import gradstats
    from gradstats.gradients import check_engines
    from gradstats.runs.sources import load_rollouts_of

    loaded = gradstats.load_policy(policy, dtype="float32", device=device)
    sequences = None if rollouts is None else load_rollouts_of(rollouts)
    frame = check_engines(loaded, sequences, dtypes=dtypes, params=params)
    terminal.show_check(frame, loaded)
    if not frame.attrs["passed"]:
        sys.exit(1)


def list_things(
    what: Positional[Literal["experiments", "estimators", "data", "rewards", "schema"]] = "experiments",
) -> None:
    """List by name: experiments, estimators, data sets or rewards; or print the experiment files' schema.

    Args:
        what: the kind of thing; schema is the JSON schema by which editors complete an experiment file.
    """
    if what == "schema":
        from gradstats.config.experiment import experiment_schema

        print(to_json(experiment_schema()))
    else:
        terminal.show_list(what)


def env() -> None:
    """Print versions and hardware, for a bug report."""
    from gradstats.system.environment import environment

    print(to_json(environment()))
