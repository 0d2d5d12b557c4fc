"""The analysis step of a run: fits, comparisons, tables, figures and the report."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradstats.measurement.measurement import Measurement, read_measurement
from gradstats.measurement.token_scores import remark_on_precision
from gradstats.system.files import atomic_path, write_json

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.stats import SamplerGap
from gradstats.runs.directory import RunDirectory


@dataclass(frozen=True)
class RunResult:
    """What a run found, and where it wrote it.

    Attributes:
        run: the run directory.
        measured: the measurement.
        alpha: the length-scaling fit with what bears on it, or None where the data allow none (the remarks say why).
        comparison: the variance comparison, or None likewise.
        paths: the files of results, figures and tables.
        gap: how far the sampler is from the scorer, or None where it recorded no log-probabilities.
    """

    run: RunDirectory
    measured: Measurement
    alpha: Any
    comparison: Any
    paths: list[Path]
    gap: SamplerGap | None = None

    @property
    def fit(self) -> Any:
        """The length-scaling fit alone."""
        return None if self.alpha is None else self.alpha.fit


def analyse(run: RunDirectory) -> RunResult:
    """Fit, compare, draw and report from what was measured; needs neither the model nor torch."""
    from gradstats.report.figures import draw_run_for_report
    from gradstats.report.page import write_report
    from gradstats.report.saved_results import read_results
    from gradstats.runs.breakdowns import variance_breakdowns

    measured = read_measurement(run.measurement)
    paths: list[Path] = []
    with run.step("analysis"):
        scores = measured.token_scores()
        if scores is not None:
            warnings.warn(remark_on_precision(scores), UserWarning, stacklevel=2)
        alpha = _attempt(run, "length scaling", lambda: fit_alpha(run, measured, paths))
        comparison = _attempt(run, "variance", lambda: compare_estimators(run, measured, paths))
        for name, frame in variance_breakdowns(measured, run.experiment.variance).items():
            paths.append(_write_csv(frame, run.path / "tables" / f"{name}.csv"))
        if measured.token_projections is not None:
            _attempt(run, "tokens", lambda: study_tokens(run, measured, paths))
        drawn = None
        if paths:
            look = run.experiment.figures
            drawn = _attempt(
                run, "figures", lambda: draw_run_for_report(read_results(run.path), run.path / "figures", look)
            )
            paths += [] if drawn is None else drawn.paths
        gap = _sampler_gap(run, measured)
    run.write_manifest(measured, paths, gap)
    paths.append(run.path / "manifest.json")
    if alpha is not None or comparison is not None:
        paths.append(write_report(run.path, svgs=None if drawn is None else drawn.svgs))
    return RunResult(run, measured, alpha, comparison, paths, gap)


def _sampler_gap(run: RunDirectory, measured: Measurement) -> SamplerGap | None:
    """Sampler against scorer, which is a remark where it matters."""
    from gradstats.stats import sampler_gap

    if measured.old_logprobs is None:
        return None
    gap = _attempt(run, "sampler against scorer", lambda: sampler_gap(measured))
    if gap is not None and gap.off_policy:
        run.remarks.append(gap.sentence())
    return gap


def fit_alpha(run: RunDirectory, measured: Measurement, paths: list[Path]) -> Any:
    """Write ``alpha.json``, the points behind the fit, and its table."""
    import gradstats
    from gradstats.report.tables import alpha_table
    from gradstats.stats.tokens.profiles import has_token_energies, summed_energy

    level = run.experiment.length_scaling.confidence_level
    report = gradstats.alpha_report(measured, confidence_level=level)
    write_json(run.path / "alpha.json", report.summary())
    points = measured.rollouts.frame[["prompt_id", "sample_id", "reward"]].assign(
        length=measured.lengths, sq_norm=measured.sq_norms, truncated=measured.rollouts.truncated
    )
    if has_token_energies(measured):
        points["energy"] = summed_energy(measured)[0]
    paths += [run.path / "alpha.json", _write_csv(points, run.path / "tables" / "length_scaling.csv")]
    paths += alpha_table({run.experiment.name: report.fit}, confidence_level=level).save(run.path / "tables" / "alpha")
    return report


def compare_estimators(run: RunDirectory, measured: Measurement, paths: list[Path]) -> Any:
    """Write ``variance.csv``, ``variance.json`` (how it was made) and the table."""
    import gradstats
    from gradstats.report.tables import variance_table

    section = run.experiment.variance
    comparison = gradstats.compare(
        measured, section.estimators, group_size=section.group_size, reference=section.reference, rng=section.seed
    )
    run.remarks += comparison.notes
    frame = comparison.to_frame(section.confidence_level)
    paths.append(_write_csv(frame, run.path / "variance.csv"))
    write_json(run.path / "variance.json", {str(name): value for name, value in frame.attrs.items()})
    paths.append(run.path / "variance.json")
    paths += variance_table(frame).save(run.path / "tables" / "variance")
    return comparison


def study_tokens(run: RunDirectory, measured: Measurement, paths: list[Path]) -> None:
    """Write what single tokens show: proxies of their energy, profiles, traces."""
    import gradstats
    from gradstats.report.saved_tokens import save_tokens

    section = run.experiment.variance
    quality = gradstats.proxy_quality(measured, group_size=section.group_size, rng=section.seed)
    run.remarks += quality.notes
    paths += save_tokens(quality, run.path, section.confidence_level)


def _write_csv(frame: pd.DataFrame, path: Path) -> Path:
    with atomic_path(path) as partial:
        frame.to_csv(partial, index=False, lineterminator="\n")
    return path


def _attempt(run: RunDirectory, what: str, action: Any) -> Any:
    """Data that allow no fit must not cost the other results: the reason becomes a remark."""
    try:
        return action()
    except ValueError as error:
        run.remarks.append(f"{what}: {error}")
        return None
