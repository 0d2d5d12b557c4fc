"""The command on importance ratios: how far the scored policy is from the sampling policy."""

from __future__ import annotations

from pathlib import Path

from gradstats.cli import terminal
from gradstats.cli.options import AsJson, Level, Overwrite, Partial, Positional
from gradstats.cli.statistics import save_table
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.system.files import to_json


def ratios(
    source: Positional[Path],
    bins: int = 4,
    confidence_level: Level = CONFIDENCE_LEVEL,
    out: Path | None = None,
    partial: Partial = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Report how far the scored policy is from the sampling policy, and how much the clips of the recipes remove.

    Args:
        source: a measurement folder or a run directory, whose sampler recorded log-probabilities.
        bins: number of bins of completion length.
        out: also write the table of ratios as CSV.
    """
    import gradstats
    from gradstats.measurement.storage import read_measurement
    from gradstats.report.ratio_tables import clipping_table, ratio_table
    from gradstats.runs.sources import refuse_foreign_table

    refuse_foreign_table(out, ["ratio", "chi_squared"])
    found = gradstats.ratio_diagnostics(read_measurement(source, partial=partial), n_bins=bins)
    frame, clipping = found.to_frame(confidence_level), found.clipping_frame(confidence_level)
    if as_json:
        print(to_json({"ratios": frame.to_dict("records"), "clipping": clipping.to_dict("records")}))
    else:
        terminal.show_table(ratio_table(frame))
        if len(clipping):
            terminal.show_table(clipping_table(clipping))
    for sentence in found.notes:
        terminal.note(sentence)
    save_table(out, frame, overwrite, quiet=as_json)
