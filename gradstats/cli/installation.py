"""The commands about the installation: the check of the engines, versions and hardware, and lists of names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from gradstats.cli import terminal
from gradstats.cli.options import Partial, PolicyName, PolicySettings, Positional, described_by, policy_section
from gradstats.config.defaults import CHECKED_TYPES
from gradstats.config.sections import MeasurementSection, PolicySection, WeightType
from gradstats.system.files import to_json


def check(
    policy: Positional[PolicyName],
    rollouts: Path | None = None,
    dtypes: tuple[WeightType, ...] = CHECKED_TYPES,
    params: Annotated[str | None, described_by(MeasurementSection, "params")] = None,
    device: Annotated[str | None, described_by(PolicySection, "device")] = None,
    policy_settings: PolicySettings = (),
    partial: Partial = False,
) -> None:
    """Check the gradient engines on this model and device; the exit code is 1 when one fails.

    Args:
        rollouts: sequences to check with; three of random tokens by default.
        dtypes: dtypes in which to check the model; deviations between dtypes are relative to the first, the widest.
    """
    import gradstats
    from gradstats.gradients import check_engines
    from gradstats.runs.sources import load_rollouts_of

    model = policy_section(policy, policy_settings, device=device)
    loaded = gradstats.load_policy(model.name, **model.arguments())
    sequences = None if rollouts is None else load_rollouts_of(rollouts, partial=partial)
    frame = check_engines(loaded, sequences, dtypes=dtypes, params=params)
    terminal.show_check(frame, loaded)
    if not frame.attrs["passed"]:
        sys.exit(1)


def list_things(
    what: Positional[
        Literal["experiments", "sweeps", "estimators", "recipes", "data", "rewards", "quantities", "schema"]
    ] = "experiments",
) -> None:
    """List experiments, sweeps, estimators, recipes, data sets, rewards or quantities; or print the schema.

    Args:
        what: the kind of thing; ``quantities`` are the columns of every table, with the files that define them;
            ``schema`` is the JSON schema with which editors complete an experiment file.
    """
    if what == "schema":
        from gradstats.config.experiment import experiment_schema

        print(to_json(experiment_schema()))
    elif what == "quantities":
        terminal.show_quantities()
    else:
        terminal.show_list(what)


def env() -> None:
    """Print versions and hardware, for a bug report."""
    from gradstats.system.environment import environment

    print(to_json(environment()))
