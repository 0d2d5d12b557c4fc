"""The command that profiles policies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from gradstats.cli import terminal
from gradstats.cli.options import OptionsOf, Positional, SettingWords, described_by, policy_section
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.experiment import with_settings
from gradstats.config.sections import PromptsSection, SamplingSection
from gradstats.system.files import to_json


def profile(
    sources: Positional[tuple[str, ...]],
    settings: OptionsOf[SamplingSection],
    prompts: Annotated[str, described_by(PromptsSection, "source")] = "embedded",
    n: Annotated[int | None, described_by(PromptsSection, "n")] = None,
    prompt_settings: Annotated[SettingWords, described_by(PromptsSection, "settings")] = (),
    policy_settings: SettingWords = (),
    confidence_level: float = CONFIDENCE_LEVEL,
    out: Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    progress: bool = True,
) -> None:
    """Profile policies side by side: entropy, spread of ‖S‖², α, effect of the reward, variance of a few estimators.

    Args:
        sources: run directories or measurement folders; or policies (as for `gradstats sample`), whose completions are
            then drawn and measured with the options below.
        settings: how completions are drawn and scored.
        prompts: where the problems come from.
        n: number of prompts.
        prompt_settings: options of the problems.
        policy_settings: options of the policies, as in temperature=0.6.
        confidence_level: level of the intervals.
        out: also write the table, as OUT.tex, OUT.md and OUT.csv.
        as_json: print JSON.
        progress: show progress bars.
    """
    from gradstats.report.tables import profile_table
    from gradstats.runs.profiles import measurement_for_profile
    from gradstats.stats import profile_policy

    if not sources:
        raise ValueError("name at least one run directory or policy: gradstats profile RUN_OR_POLICY …")
    source = PromptsSection(source=prompts, n=n, seed=settings.seed, settings=with_settings({}, prompt_settings))
    names = [Path(name).name for name in sources]
    if len(set(names)) < len(names):  # folders of the same name: only the whole path distinguishes them
        names = list(sources)
    profiles = {}
    for heading, name in zip(names, sources, strict=True):
        policy = policy_section(name, policy_settings)
        measured = measurement_for_profile(name, policy, source, settings, progress=progress)
        profiles[heading] = profile_policy(measured)
    table = profile_table(profiles, confidence_level=confidence_level)
    if as_json:
        print(to_json({"rows": table.source.to_dict("records")}))
    else:
        terminal.show_table(table)
    if out is not None:
        for path in table.save(out):
            terminal.console.print(f"→ {path}")
