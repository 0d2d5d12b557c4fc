"""The analysis step of a run: fits, comparisons, tables, figures and the report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gradstats.measurement.measurement import Measurement
from gradstats.measurement.state_values import digest_of_state_values
from gradstats.measurement.storage import read_measurement
from gradstats.measurement.token_scores import remark_on_precision
from gradstats.report.recorded_tables import listed_additions, refuse_changed_tables
from gradstats.report.saved_frames import STATE_VALUES
from gradstats.runs.directory import ANALYSIS, RunDirectory, remove_listed_results
from gradstats.runs.regrading import read_regradings
from gradstats.system.files import read_json, write_csv, write_json
from gradstats.system.progress import ProgressReport, progress_bar

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.stats import AlphaReport, LengthScalingFit, SamplerGap, VarianceComparison

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunResult:
    """The results of a run, and where they are written.

    Attributes:
        run: the run directory.
        measured: the measurement.
        alpha: the length-scaling fit with its diagnostics, or None where the data do not allow one (the notes state
            why).
        comparison: the variance comparison; None as for ``alpha``.
        paths: the files of results, figures and tables.
        gap: the distance of sampler and scorer, or None where the sampler recorded no log-probabilities.
    """

    run: RunDirectory
    measured: Measurement
    alpha: AlphaReport | None
    comparison: VarianceComparison | None
    paths: list[Path]
    gap: SamplerGap | None = None

    @property
    def fit(self) -> LengthScalingFit | None:
        """The length-scaling fit, without its diagnostics."""
        return None if self.alpha is None else self.alpha.fit


def analyse(run: RunDirectory, progress: bool = False) -> RunResult:
    """Fit, compare, draw and report from the measurement; needs neither the model nor torch.

    Args:
        run: the run directory, with its measurement.
        progress: show a progress bar, which names the current step.
    """
    from gradstats.report.page import refuse_foreign_page
    from gradstats.runs.breakdowns import BREAKDOWNS

    refuse_foreign_page(run.path)  # before the work, and before the manifest tells another version
    with run.step(ANALYSIS):
        measured = read_measurement(run.measurement)
    asked = (measured.old_logprobs is not None, measured.token_projections is not None)
    # α, the comparison, its breakdowns, ratios and tokens where there are any, figures, the page.
    n_steps = 2 + len(BREAKDOWNS) + sum(asked) + 2
    with progress_bar("analysing", n_steps, shown=progress) as report:
        result = _analyse(run, measured, report)
        report.doing("")
    return result


def _analyse(run: RunDirectory, measured: Measurement, report: ProgressReport) -> RunResult:
    from gradstats.report.figures import draw_run_for_report
    from gradstats.report.page import remove_page, remove_unmarked_page, write_page_of_run
    from gradstats.report.saved_results import read_results
    from gradstats.runs.breakdowns import variance_breakdowns
    from gradstats.stats.variance.reduced_coordinates import rotated_once

    paths: list[Path] = []
    with run.step(ANALYSIS):
        added = kept_additions(run, len(measured))
        # Of an earlier analysis, which this one may not replace.
        remove_listed_results(run.path, "", "tables", keep=added)
        scores = measured.token_scores()
        if scores is not None:
            warnings.warn(remark_on_precision(scores), UserWarning, stacklevel=2)
        report.doing("length scaling")
        alpha = attempt(run, "length scaling", lambda: fit_alpha(run, measured, paths))
        with rotated_once():
            report.doing("variance")
            comparison = attempt(run, "variance", lambda: compare_estimators(run, measured, paths))
            breakdowns = variance_breakdowns(
                measured, run.experiment.variance, lambda name: report.doing(name.replace("_", " "))
            )
        for name, frame in breakdowns.items():
            path = run.path / "tables" / f"{name}.csv"
            write_csv(path, frame)
            paths.append(path)
        if measured.old_logprobs is not None:
            report.doing("ratios")
            attempt(run, "ratios", lambda: describe_ratios(run, measured, paths))
        if measured.token_projections is not None:
            report.doing("tokens")
            attempt(run, "tokens", lambda: study_tokens(run, measured, paths))
        report.doing("figures")
        drawn = None
        remove_listed_results(run.path, "figures")
        if not (alpha is None and comparison is None):
            style = run.experiment.figures
            drawn = attempt(
                run,
                "figures",
                lambda: draw_run_for_report(read_results(run.path, checked=False), run.path / "figures", style),
            )
            paths += [] if drawn is None else drawn.paths
        gap = distance_of_sampler(run, measured)
    report.doing("report")
    remove_unmarked_page(run.path)
    paths += added
    run.write_manifest(measured, paths, gap)
    paths.append(run.path / "manifest.json")
    if alpha is not None or comparison is not None:
        paths.append(write_page_of_run(run.path, None if drawn is None else drawn.svgs))
    else:
        remove_page(run.path)
    return RunResult(run, measured, alpha, comparison, paths, gap)


def kept_additions(run: RunDirectory, n_sequences: int) -> list[Path]:
    """Return the files of the tables that commands added and that still hold; remove those of other data.

    An addition holds while the run has the completions and rewards that its manifest states and, where it was made
    from state values, these values.

    Args:
        run: the run directory.
        n_sequences: completions that it has now.

    Raises:
        ValueError: when a table has changed since it was written.
    """
    manifest = run.read_manifest()
    if (manifest.get("n_sequences"), manifest.get("regraded", [])) != (n_sequences, read_regradings(run.path)):
        remove_additions(run)
        return []
    additions = listed_additions(run.path)
    refuse_changed_tables(run.path, additions)
    values = digest_of_state_values(run.values)
    made_from = {path.stem: read_json(path).get(STATE_VALUES) for path in additions if path.suffix == ".json"}
    stale = [path for path in additions if made_from.get(path.stem) not in (None, values)]
    _remove(run, stale, "state values")
    return [path for path in additions if path not in stale]


def remove_additions(run: RunDirectory) -> None:
    """Remove the tables that commands added to a run whose completions or rewards have changed, with a remark."""
    _remove(run, listed_additions(run.path), "completions or rewards")


def _remove(run: RunDirectory, additions: list[Path], other: str) -> None:
    for path in additions:
        path.unlink()
    if additions:
        names = ", ".join(dict.fromkeys(path.stem for path in additions))
        run.remarks.append(f"{names}: removed, since the run had other {other} then; repeat the command that made it")


def distance_of_sampler(run: RunDirectory, measured: Measurement) -> SamplerGap | None:
    """Return the distance between sampler and scorer, with a remark where the samples are off-policy."""
    from gradstats.stats import sampler_gap

    if measured.old_logprobs is None:
        return None
    gap = attempt(run, "sampler against scorer", lambda: sampler_gap(measured))
    if gap is not None and gap.off_policy:
        run.remarks.append(gap.sentence())
    return gap


def fit_alpha(run: RunDirectory, measured: Measurement, paths: list[Path]) -> AlphaReport:
    """Write ``alpha.json``, the points behind the fit, and its table."""
    from gradstats.report.latex_layout import layout_of
    from gradstats.report.tables import alpha_table
    from gradstats.stats import alpha_report
    from gradstats.stats.tokens.token_sums import has_token_energies, summed_energy

    section = run.experiment.length_scaling
    report = alpha_report(measured, **section.arguments())
    write_json(run.path / "alpha.json", report.summary())
    points = measured.rollouts.frame[["prompt_id", "sample_id", "reward"]].assign(
        length=measured.lengths, sq_norm=measured.sq_norms, truncated=measured.rollouts.truncated
    )
    if has_token_energies(measured):
        points["energy"] = summed_energy(measured)[0]
    write_csv(run.path / "tables" / "length_scaling.csv", points)
    paths += [run.path / "alpha.json", run.path / "tables" / "length_scaling.csv"]
    paths += alpha_table({run.experiment.name: report.fit}, confidence_level=report.confidence_level).save(
        run.path / "tables" / "alpha", layout=layout_of(run.experiment.figures)
    )
    return report


def compare_estimators(run: RunDirectory, measured: Measurement, paths: list[Path]) -> VarianceComparison:
    """Write ``variance.csv``, ``variance.json`` (its settings and notes) and the table."""
    from gradstats.stats.variance.available import compare_available

    section = run.experiment.variance
    comparison = compare_available(measured, **section.arguments())
    save_comparison(run, comparison, paths)
    return comparison


def save_comparison(run: RunDirectory, comparison: VarianceComparison, paths: list[Path]) -> pd.DataFrame:
    """Write the files of a comparison, and return its frame."""
    from gradstats.plots.names import LABELS
    from gradstats.report.latex_layout import layout_of
    from gradstats.report.variance_table import variance_table

    run.remarks += comparison.notes
    frame = comparison.to_frame(run.experiment.variance.confidence_level)
    write_csv(run.path / "variance.csv", frame)
    write_json(run.path / "variance.json", {str(name): value for name, value in frame.attrs.items()})
    paths += [run.path / "variance.csv", run.path / "variance.json"]
    figures = run.experiment.figures
    named = frame.copy()
    named.attrs = frame.attrs | {LABELS: figures.labels}
    paths += variance_table(named).save(run.path / "tables" / "variance", layout=layout_of(figures))
    return frame


def describe_ratios(run: RunDirectory, measured: Measurement, paths: list[Path]) -> None:
    """Write the importance ratios of the scored policy to the sampler, and how much of them recipes clip."""
    from gradstats.report.latex_layout import layout_of
    from gradstats.report.ratio_tables import clipping_table, ratio_table
    from gradstats.stats import ratio_diagnostics

    level = run.experiment.variance.confidence_level
    found = ratio_diagnostics(measured)
    frames = {"ratios": found.to_frame(level), "ratio_clipping": found.clipping_frame(level)}
    for name, make in (("ratios", ratio_table), ("ratio_clipping", clipping_table)):
        if len(frames[name]):
            paths += make(frames[name]).save(run.path / "tables" / name, layout=layout_of(run.experiment.figures))


def study_tokens(run: RunDirectory, measured: Measurement, paths: list[Path]) -> None:
    """Write the token-level results: proxies of token energies, profiles, traces."""
    from gradstats.report.saved_tokens import save_tokens
    from gradstats.stats import proxy_quality

    section = run.experiment.variance
    quality = proxy_quality(measured, group_size=section.first_group_size, rng=section.seed)
    run.remarks += quality.notes
    paths += save_tokens(quality, run.path, section.confidence_level)


def attempt(run: RunDirectory, what: str, action: Callable[[], Result]) -> Result | None:
    """Return the result of an action; None, with the reason as a note, where the data do not allow it."""
    try:
        return action()
    except (ValueError, ArithmeticError) as error:  # the latter: a division 0/0 or a number out of range
        run.remarks.append(f"{what}: {error}")
        return None
