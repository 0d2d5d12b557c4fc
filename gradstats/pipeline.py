"""From an experiment file to a run directory, step by step, each of which is taken up where it was left."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gradstats.atomic import atomic_path, remove_partials, remove_path, write_json
from gradstats.disk import measured_bytes, require_space
from gradstats.environment import environment
from gradstats.experiment import Experiment
from gradstats.growth import grown_plan, may_grow, read_plan, rounds_of, size_of
from gradstats.interrupts import finishing_in_hand
from gradstats.loading import experiment_policy, experiment_problems, sampling_plan
from gradstats.measurement import Measurement, read_measurement
from gradstats.progress import progress_bar
from gradstats.regrading import finish_regrading, read_regradings, refuse_half_regraded, regrade_shards
from gradstats.revisions import resolve_revisions
from gradstats.rollouts import Rollouts, read_rollouts, token_sources
from gradstats.tally import warn_ungraded
from gradstats.token_measurement import remark_on_precision

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.stats import SamplerGap

_INSTEAD = {
    "prompts.n": "a run can grow and not shrink, so choose another directory (--out)",
    "sampling.group_size": "a run can grow and not shrink, so choose another directory (--out)",
    "sampling.reward": "score its completions anew with `gradstats regrade`, or choose another directory (--out)",
}


@dataclass
class RunDirectory:
    """The files of one run.

    Attributes:
        path: the folder; made when it is opened.
        experiment: the resolved experiment.
        timings: seconds spent in each step, summed over all the calls that worked on it.
        remarks: sentences that steps gave as warnings, in order.
    """

    path: Path
    experiment: Experiment
    timings: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, experiment: Experiment) -> RunDirectory:
        """Make a run directory, or take up one that was made with the same settings.

        The number of prompts and the size of their groups may have grown: the run is then extended.

        Raises:
            ValueError: when the directory was made with other settings (the first is named), or holds something else.
        """
        previous = path / "experiment.yaml"
        finish_regrading(path)
        grows = False
        # Before the first shard nothing rests on the settings: whoever mends a wrong path may go on in place.
        if previous.exists() and any((path / "rollouts").glob("*.parquet")):
            made = Experiment.model_validate(yaml.safe_load(previous.read_text(encoding="utf-8"))).settled_settings()
            for name, value in experiment.settled_settings().items():
                if made.get(name) == value:
                    continue
                if not may_grow(name, made.get(name), value):
                    raise ValueError(
                        f"the run directory {path} was made with {name}={made.get(name)!r}, not {value!r}: "
                        f"{_INSTEAD.get(name, 'choose another directory (--out), or remove it to start anew')}"
                    )
                grows = True
        elif not previous.exists() and path.is_dir() and any(path.iterdir()):
            raise ValueError(f"the folder {path} is not empty and is no run directory: choose another (--out)")
        run = cls(path, experiment)
        run.rollouts.mkdir(parents=True, exist_ok=True)
        run.measurement.mkdir(parents=True, exist_ok=True)
        for folder in (path, run.rollouts, run.measurement):
            remove_partials(folder)
        run.timings = dict(run.read_manifest().get("timings", {}))
        if not grows:  # else once the larger run is known to hold the smaller one
            run.write_experiment()
        return run

    def write_experiment(self) -> None:
        """Record the resolved experiment."""
        with atomic_path(self.path / "experiment.yaml") as partial:
            partial.write_text(self.experiment.to_yaml(), encoding="utf-8")

    @property
    def rollouts(self) -> Path:
        """Folder of the rollout shards."""
        return self.path / "rollouts"

    @property
    def measurement(self) -> Path:
        """Folder of the measured shards."""
        return self.path / "measurement"

    def read_manifest(self) -> dict[str, Any]:
        """The manifest so far; empty before the first is written."""
        manifest = self.path / "manifest.json"
        return yaml.safe_load(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step and keep its warnings as remarks."""
        start = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                self.timings[name] = round(self.timings.get(name, 0.0) + time.monotonic() - start, 2)
                self.remarks += [str(item.message) for item in caught if item.category in (UserWarning, RuntimeWarning)]

    def write_manifest(self, measured: Measurement, paths: list[Path], gap: SamplerGap | None) -> None:
        """Record versions, commit, hardware, seeds, timings and results' files."""
        experiment = self.experiment
        write_json(
            self.path / "manifest.json",
            {
                "experiment": experiment.name,
                "policy": measured.metadata["policy"],
                "prompts": {
                    "source": experiment.prompts.source,
                    "revision": read_plan(self.rollouts).get("revisions", {}).get("prompts"),
                },
                "sampler": measured.rollouts.metadata.get("sampler"),
                "generation_config_not_followed": measured.rollouts.metadata.get("generation_config_not_followed"),
                "engine": measured.metadata["engine"],
                "self_check": measured.metadata["self_check"],
                "n_prompts": len(set(measured.rollouts.prompt_id)),
                "n_sequences": len(measured),
                "n_truncated": int(measured.rollouts.truncated.sum()),
                "token_sources": token_sources(measured.rollouts),
                "sampler_gap": None if gap is None else gap.summary(),
                "not_finite": measured.metadata.get("not_finite", []),
                "mean_reward": float(measured.rollouts.rewards.mean()),
                "reward": measured.rollouts.metadata.get("reward"),
                "grading": measured.rollouts.metadata.get("grading"),
                "regraded": read_regradings(self.path),
                "rounds": [
                    {"n_prompts": len(made.prompt_ids), "group_size": made.group_size, "n_drawn": sum(made.batches)}
                    for made in rounds_of(self.rollouts)
                ],
                "seeds": {
                    "prompts": experiment.prompts.seed,
                    "sampling": experiment.sampling.seed,
                    "sketch": experiment.measurement.sketch_seed,
                    "variance": experiment.variance.seed,
                },
                **environment(),
                "timings": self.timings,
                "remarks": list(dict.fromkeys(self.remarks)),
                "files": [str(path.relative_to(self.path)) for path in paths],
            },
        )


def run_experiment(experiment: Experiment, path: Path, *, progress: bool = True) -> RunResult:
    """Sample, measure, fit, compare and draw; what was done before is not done again.

    Rollouts and measurements are written shard by shard, each whole or not at all. A run that was interrupted, at
    whatever moment, goes on from its finished shards and ends with the same numbers as one that was not.

    Args:
        experiment: what to do.
        path: the run directory.
        progress: show progress bars.

    Returns:
        The results and the paths of what was written.
    """
    run = RunDirectory.open(path, experiment)
    sample_shards(run, progress)
    measure_shards(run, progress)
    return analyse(run)


def sample_shards(run: RunDirectory, progress: bool) -> None:
    """Draw the batches that have no shard yet."""
    done, size = run.rollouts / "complete.json", size_of(run.experiment)
    if done.exists() and json.loads(done.read_text()).items() >= size.items():
        return
    with run.step("sampling"):
        from gradstats.sampling import warn_of_rollouts

        # What the hub's names stood for when the run began is what it goes on with.
        revisions = read_plan(run.rollouts).get("revisions") or resolve_revisions(run.experiment)
        plan = sampling_plan(run.experiment, revisions)
        plan.warn_overridden()
        plan = grown_plan(plan, run.rollouts, revisions)
        run.write_experiment()
        shards = [_shard(run.rollouts, batch, ".parquet") for batch in range(plan.n_batches)]
        finished = [read_rollouts(shard) for shard in shards if shard.exists()]
        with (
            progress_bar("sampling", plan.n_completions, done=sum(map(len, finished)), shown=progress) as report,
            finishing_in_hand(report.say) as stop_if_asked,
        ):
            for part in finished:
                report.completions(part.rewards, part.lengths, before=True)
            for batch, shard in enumerate(shards):
                if not shard.exists():
                    part = plan.draw(batch, report.tokens)
                    part.to_parquet(shard)
                    report.completions(part.rewards, part.lengths)
                    stop_if_asked()
        warn_of_rollouts(read_rollouts(run.rollouts))
    write_json(done, {"n_shards": plan.n_batches, "n_completions": plan.n_completions, **size})


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    done = run.measurement / "complete.json"
    sources = sorted(run.rollouts.glob("*.parquet"))
    if done.exists() and json.loads(done.read_text())["n_shards"] == len(sources):
        return
    from gradstats.gradients import MeasuringSession

    with run.step("measuring"):
        rollouts = read_rollouts(run.rollouts)
        section = run.experiment.measurement
        targets = [_shard(run.measurement, number) for number in range(len(sources))]
        missing = [
            read_rollouts(source) for source, target in zip(sources, targets, strict=True) if not target.exists()
        ]
        require_space(run.measurement, sum(measured_bytes(part, section) for part in missing))
        session = MeasuringSession.open(
            experiment_policy(run.experiment, read_plan(run.rollouts).get("revisions", {})),
            rollouts,
            **section.model_dump(exclude={"token_dtype"}),
        )
        finished = sum(
            len(read_rollouts(source)) for source, target in zip(sources, targets, strict=True) if target.exists()
        )
        with (
            progress_bar("measuring", len(rollouts), done=finished, shown=progress) as report,
            finishing_in_hand(report.say) as stop_if_asked,
        ):

            def count(n_sequences: int, n_tokens: int) -> None:
                report.advance(n_sequences)
                report.tokens(n_tokens)

            for source, target in zip(sources, targets, strict=True):
                if not target.exists():
                    session.measure(read_rollouts(source), count).save(target, section.token_dtype)
                    stop_if_asked()
    write_json(done, {"n_shards": len(sources)})


def regrade_run(
    path: Path, reward: str | list[str] | dict[str, float] | None = None, *, progress: bool = True
) -> RunResult | None:
    """Score a run's stored completions anew, without sampling or measuring again, and analyse it again.

    The rewards that they had go into ``regraded/`` in the run directory. Interrupted, it changes nothing, or is
    finished by whatever next works on the run.

    Args:
        path: a run directory.
        reward: as in an experiment file; what the run was scored with when None.
        progress: show a progress bar.

    Returns:
        The results, or None where the run has not been measured yet.

    Raises:
        FileNotFoundError: when there is no run, or it holds no rollouts.
        ValueError: when its problems no longer hold one of its prompts, or a reward cannot be used.
    """
    previous = path / "experiment.yaml"
    if not previous.exists():
        raise FileNotFoundError(f"{path} is no run directory: it holds no experiment.yaml")
    finish_regrading(path)
    experiment = Experiment.model_validate(yaml.safe_load(previous.read_text(encoding="utf-8")))
    settled = experiment.sampling.model_copy(update={} if reward is None else {"reward": reward})
    run = RunDirectory(path, experiment.model_copy(update={"sampling": settled}))
    run.timings = dict(run.read_manifest().get("timings", {}))
    with run.step("regrading"):
        problems = experiment_problems(experiment, read_plan(run.rollouts).get("revisions", {}))
        regrade_shards(path, problems, settled.reward, progress)
        warn_ungraded(read_rollouts(run.rollouts).metadata.get("grading"))
    # Results of the old rewards, of which the new ones may allow fewer.
    for name in ("alpha.json", "variance.csv", "variance.json", "tables", "figures", "report.html"):
        remove_path(path / name)
    if not any(run.measurement.glob("*/measurement.json")):
        return None
    return analyse(run)


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
    from gradstats.breakdowns import variance_breakdowns
    from gradstats.drawing import draw_run
    from gradstats.report import write_report
    from gradstats.results import read_results

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
        if paths:
            look = run.experiment.figures
            paths += (
                _attempt(run, "figures", lambda: draw_run(read_results(run.path), run.path / "figures", look)) or []
            )
        gap = _sampler_gap(run, measured)
    run.write_manifest(measured, paths, gap)
    paths.append(run.path / "manifest.json")
    if alpha is not None or comparison is not None:
        paths.append(write_report(run.path))
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
    from gradstats.stats.token_structure import has_token_energies, summed_energy
    from gradstats.tables import alpha_table

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
    from gradstats.tables import clear_winner, lowest, variance_table

    section = run.experiment.variance

    def compared(reference: str) -> Any:
        return gradstats.compare(
            measured, section.estimators, group_size=section.group_size, reference=reference, rng=section.seed
        )

    comparison = compared(section.reference)
    run.remarks += comparison.notes
    frame = comparison.to_frame(section.confidence_level)
    paths.append(_write_csv(frame, run.path / "variance.csv"))
    best, paired = lowest(frame), None
    # Whether the lowest is lowest beyond doubt takes intervals paired with it, not with the reference.
    if best not in (None, comparison.reference) and not gradstats.estimators.get(best).across_groups:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            paired = compared(best).to_frame(section.confidence_level)
    winner = clear_winner(frame, paired)
    frame.attrs["lowest_beyond_doubt"] = None if winner is None else frame["estimator"].iloc[winner]
    write_json(run.path / "variance.json", frame.attrs)
    paths.append(run.path / "variance.json")
    paths += variance_table(frame, paired=paired).save(run.path / "tables" / "variance")
    return comparison


def study_tokens(run: RunDirectory, measured: Measurement, paths: list[Path]) -> None:
    """Write what single tokens show: proxies of their energy, profiles, traces."""
    import gradstats
    from gradstats.token_results import save_tokens

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


def _shard(folder: Path, number: int, suffix: str = "") -> Path:
    return folder / f"shard-{number:05d}{suffix}"


def load_rollouts_of(path: Path) -> Rollouts:
    """The rollouts of a run directory, of a folder of shards, or of a file."""
    refuse_half_regraded(path)
    return read_rollouts(path / "rollouts" if (path / "rollouts").is_dir() else path)


def load_measurement_of(path: Path) -> Measurement:
    """The measurement of a run directory or of a measurement folder."""
    refuse_half_regraded(path)
    return read_measurement(path / "measurement" if (path / "measurement").is_dir() else path)


def load_points(path: Path) -> dict[str, Any]:
    """What a length-scaling fit needs, from a CSV file or from what was measured.

    Returns:
        Arguments of :func:`gradstats.fit_length_scaling`: ``measured``, or ``lengths``, ``sq_norms``, ``groups`` and,
        where the CSV has them, ``truncated``.

    Raises:
        FileNotFoundError: when nothing is there.
        ValueError: when the CSV cannot be read or lacks a column.
    """
    if path.is_dir():
        return {"measured": load_measurement_of(path)}
    import pandas as pd

    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give a CSV file, a measurement folder or a run directory")
    try:
        frame = pd.read_csv(path, dtype={"prompt_id": str})
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error
    for column in ("length", "sq_norm"):
        if column not in frame:
            raise ValueError(f"{path} has no column {column!r} (it has {', '.join(map(str, frame))})")
        if not pd.api.types.is_numeric_dtype(frame[column]):
            raise ValueError(f"the column {column!r} of {path} holds something that is no number")
    groups = frame["prompt_id"].to_numpy() if "prompt_id" in frame else None
    points = {"lengths": frame["length"].to_numpy(), "sq_norms": frame["sq_norm"].to_numpy(), "groups": groups}
    return points | ({"truncated": frame["truncated"].to_numpy(dtype=bool)} if "truncated" in frame else {})
