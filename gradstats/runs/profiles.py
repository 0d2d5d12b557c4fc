"""The profile of a policy, from an existing measurement or after sampling and measuring."""

from __future__ import annotations

from pathlib import Path

from gradstats.config.sections import PolicySection, PromptsSection, SamplingSection
from gradstats.measurement.measurement import Measurement, read_measurement


def measured_source(source: str) -> bool:
    """Return whether a source is a run directory or a measurement folder, and not a policy."""
    path = Path(source)
    return (path / "measurement").is_dir() or bool(
        list(path.glob("measurement.json")) + list(path.glob("*/measurement.json"))
    )


def measurement_for_profile(
    source: str,
    policy: PolicySection,
    prompts: PromptsSection,
    sampling: SamplingSection,
    *,
    partial: bool = False,
    progress: bool = True,
) -> Measurement:
    """Return the measurement of a run, or draw completions from a policy and measure them in all parameters."""
    if measured_source(source):
        return read_measurement(Path(source), partial=partial)
    # torch and transformers are imported here: profiles of measured runs need neither.
    from gradstats.gradients import measure
    from gradstats.policy import load_policy
    from gradstats.prompts import load_prompts
    from gradstats.sampling import sample

    loaded = load_policy(policy.name, **policy.arguments(), progress=progress)
    problems = load_prompts(prompts.source, prompts.n, rng=prompts.seed, **prompts.settings)
    rollouts = sample(loaded, problems, **sampling.arguments(), progress=progress)
    return measure(loaded, rollouts, progress=progress)
