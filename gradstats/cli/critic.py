"""The command on state values: a fitted head against Monte-Carlo values."""

from __future__ import annotations

from pathlib import Path

from gradstats.cli import terminal
from gradstats.cli.added_results import refuse_foreign_result, save_result
from gradstats.cli.options import AsJson, Level, Overwrite, Partial, Positional
from gradstats.config.defaults import CONFIDENCE_LEVEL


def critic(
    source: Positional[Path],
    last_step: int = 5,
    low: float = 0.25,
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    as_json: AsJson = False,
    partial: Partial = False,
    overwrite: Overwrite = False,
) -> None:
    """Compare the values of a fitted head with Monte-Carlo values: bias and explained variance by step.

    Table and figure are written to the run directory, or to --out. The run needs values.fitted and values.monte_carlo.

    Args:
        source: a run directory.
        last_step: the last step with a row of its own together with all later ones, from 0.
        low: Monte-Carlo value at or below which a step counts as wrong.
        out: folder for table and figure; the run directory by default.
    """
    import gradstats
    from gradstats.measurement.storage import read_measurement
    from gradstats.report.critic_table import critic_table
    from gradstats.report.saved_frames import CRITIC
    from gradstats.runs.sources import folder_of_results

    with folder_of_results(source, out, partial=partial) as folder:
        refuse_foreign_result(folder, CRITIC, ["states", "monte_carlo"])
        found = gradstats.critic_quality(read_measurement(source, partial=partial), last_step=last_step, low=low)
        frame = found.to_frame(confidence_level)
        if as_json:
            terminal.print_json(frame, found.notes)
        else:
            terminal.show_table(critic_table(frame))
        for sentence in found.notes:
            terminal.note(sentence)
        save_result(frame, folder, CRITIC, overwrite, uses_values=True)
