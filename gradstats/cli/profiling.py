"""The command that profiles policies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gradstats.cli import terminal
from gradstats.cli.options import (
    AsJson,
    Level,
    OptionsOf,
    Overwrite,
    Partial,
    PolicySettings,
    Positional,
    Progress,
    PromptCount,
    PromptSettings,
    PromptSource,
    one_or_more,
    policy_section,
    prompts_section,
)
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.sections import SamplingSection
from gradstats.system.files import to_json


def profile(
    sources: Positional[Annotated[tuple[str, ...], one_or_more("RUN_OR_POLICY")]],
    settings: OptionsOf[SamplingSection],
    prompts: PromptSource = "embedded",
    n: PromptCount = None,
    prompt_settings: PromptSettings = (),
    policy_settings: PolicySettings = (),
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    as_json: AsJson = False,
    progress: Progress = True,
    partial: Partial = False,
    overwrite: Overwrite = False,
) -> None:
    """Profile policies side by side: entropy, spread of ‖S‖², α, effect of the reward, variance of a few estimators.

    Args:
        sources: run directories or measurement folders; or policies (as for ``gradstats sample``), from which
            completions are drawn and measured with the options below.
        out: also write the table, as OUT.tex, OUT.md and OUT.csv.
    """
    from gradstats.report.run_folder import refuse_inside_run, writing_into
    from gradstats.report.tables import profile_table, refuse_foreign_tables, table_paths
    from gradstats.runs.profiles import measurement_for_profile
    from gradstats.stats import profile_policy

    if not sources:
        raise ValueError("name at least one run directory or policy: gradstats profile RUN_OR_POLICY …")
    if out is not None:
        refuse_foreign_tables(out)
        for path in table_paths(out):
            refuse_inside_run(path)
    source = prompts_section(prompts, n, settings.seed, prompt_settings)
    names = [Path(name).name for name in sources]
    if len(set(names)) < len(names):  # folders of the same name: only the whole path distinguishes them
        names = list(sources)
    profiles = {}
    for heading, name in zip(names, sources, strict=True):
        policy = policy_section(name, policy_settings)
        measured = measurement_for_profile(name, policy, source, settings, partial=partial, progress=progress)
        profiles[heading] = profile_policy(measured)
    table = profile_table(profiles, confidence_level=confidence_level)
    if as_json:
        print(to_json({"rows": table.source.to_dict("records")}))
    else:
        terminal.show_table(table)
    if out is not None:
        with writing_into(out):
            paths = table.save(out, overwrite=overwrite)
        for path in paths:
            terminal.console.print(f"→ {path}")
