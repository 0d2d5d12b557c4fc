"""From an experiment file to a run directory, step by step, each of which is taken up where it was left."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gradstats.atomic import atomic_path, remove_partials, write_json
from gradstats.disk import measured_bytes, require_space
from gradstats.experiment import Experiment, FiguresSection
from gradstats.measurement import Measurement, read_measurement
from gradstats.progress import progress_bar
from gradstats.rollouts import Rollouts, read_rollouts
from gradstats.token_measurement import remark_on_precision

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.policy import Policy
    from gradstats.sampling import SamplingPlan

_PACKAGES = ("gradstats", "torch", "transformers", "numpy", "scipy", "pandas", "matplotlib")


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

        Raises:
            ValueError: when the directory was made with other settings (the first is named), or holds something else.
        """
        previous = path / "experiment.yaml"
        # Before the first shard nothing rests on the settings: whoever mends a wrong path may go on in place.
        if previous.exists() and any((path / "rollouts").glob("*.parquet")):
            made = Experiment.model_validate(yaml.safe_load(previous.read_text(encoding="utf-8"))).settled_settings()
            for name, value in experiment.settled_settings().items():
                if made.get(name) != value:
                    raise ValueError(
                        f"the run directory {path} was made with {name}={made.get(name)!r}, not {value!r}: choose "
                        "another directory (--out), or remove it to start anew"
                    )
        elif not previous.exists() and path.is_dir() and any(path.iterdir()):
            raise ValueError(f"the folder {path} is not empty and is no run directory: choose another (--out)")
        run = cls(path, experiment)
        run.rollouts.mkdir(parents=True, exist_ok=True)
        run.measurement.mkdir(parents=True, exist_ok=True)
        for folder in (path, run.rollouts, run.measurement):
            remove_partials(folder)
        run.timings = dict(run.read_manifest().get("timings", {}))
        with atomic_path(previous) as partial:
            partial.write_text(experiment.to_yaml(), encoding="utf-8")
        return run

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

    def write_manifest(self, measured: Measurement, paths: list[Path]) -> None:
        """Record versions, commit, hardware, seeds, timings and results' files."""
        experiment = self.experiment
        write_json(
            self.path / "manifest.json",
            {
                "experiment": experiment.name,
                "policy": measured.metadata["policy"],
                "sampler": measured.rollouts.metadata.get("sampler"),
                "generation_config_not_followed": measured.rollouts.metadata.get("generation_config_not_followed"),
                "engine": measured.metadata["engine"],
                "self_check": measured.metadata["self_check"],
                "n_prompts": len(set(measured.rollouts.prompt_id)),
                "n_sequences": len(measured),
                "n_truncated": int(measured.rollouts.truncated.sum()),
                "not_finite": measured.metadata.get("not_finite", []),
                "mean_reward": float(measured.rollouts.rewards.mean()),
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
    done = run.rollouts / "complete.json"
    if done.exists():
        return
    with run.step("sampling"):
        plan = sampling_plan(run.experiment)
        plan.warn_overridden()
        _hold_to_plan(run, plan)
        shards = [_shard(run.rollouts, batch, ".parquet") for batch in range(plan.n_batches)]
        finished = sum(len(rows) for rows, shard in zip(plan.rows, shards, strict=True) if shard.exists())
        with progress_bar("sampling", plan.n_completions, done=finished, shown=progress) as report:
            for batch, shard in enumerate(shards):
                if not shard.exists():
                    plan.draw(batch, report.tokens).to_parquet(shard)
                    report.advance(len(plan.rows[batch]))
    write_json(done, {"n_shards": plan.n_batches, "n_completions": plan.n_completions})


def _hold_to_plan(run: RunDirectory, plan: SamplingPlan) -> None:
    """Refuse to go on with other problems, or another tokenizer, than those the finished shards were drawn with."""
    path = run.rollouts / "plan.json"
    planned = {"fingerprint": plan.fingerprint(), "n_shards": plan.n_batches}
    if path.exists() and any(run.rollouts.glob("*.parquet")) and json.loads(path.read_text()) != planned:
        raise ValueError(
            f"the problems or the tokenizer have changed since {run.path} was begun: choose another directory (--out), "
            "or remove it to start anew"
        )
    write_json(path, planned)


def sampling_plan(experiment: Experiment) -> SamplingPlan:
    """Load the problems and the policy of an experiment and form its batches."""
    # torch and transformers load here, so that a finished run is redrawn without them.
    from gradstats.prompts import load_prompts
    from gradstats.sampling import SamplerSettings, SamplingPlan

    prompts, section = experiment.prompts, experiment.sampling
    problems = load_prompts(prompts.source, prompts.n, rng=prompts.seed, **prompts.settings)
    policy = experiment_policy(experiment)
    settings = SamplerSettings(
        section.max_new_tokens,
        policy.temperature if section.temperature is None else section.temperature,
        section.top_p,
        section.top_k,
        section.min_p,
        section.repetition_penalty,
    )
    return SamplingPlan.make(
        policy,
        problems,
        settings,
        section.group_size,
        section.seed,
        section.batch_size,
        section.system_prompt,
        section.template_options,
        section.reward,
    )


def experiment_policy(experiment: Experiment) -> Policy:
    """Load the policy of an experiment."""
    from gradstats.policy import load_policy

    return load_policy(experiment.policy.name, **experiment.policy.model_dump(exclude={"name"}))


def measure_shards(run: RunDirectory, progress: bool) -> None:
    """Measure the rollout shards that have not been measured yet."""
    done = run.measurement / "complete.json"
    if done.exists():
        return
    from gradstats.gradients import MeasuringSession

    with run.step("measuring"):
        rollouts = read_rollouts(run.rollouts)
        section = run.experiment.measurement
        sources = sorted(run.rollouts.glob("*.parquet"))
        targets = [_shard(run.measurement, number) for number in range(len(sources))]
        missing = [
            read_rollouts(source) for source, target in zip(sources, targets, strict=True) if not target.exists()
        ]
        require_space(run.measurement, sum(measured_bytes(part, section) for part in missing))
        session = MeasuringSession.open(
            experiment_policy(run.experiment), rollouts, **section.model_dump(exclude={"token_dtype"})
        )
        finished = sum(
            len(read_rollouts(source)) for source, target in zip(sources, targets, strict=True) if target.exists()
        )
        with progress_bar("measuring", len(rollouts), done=finished, shown=progress) as report:

            def count(n_sequences: int, n_tokens: int) -> None:
                report.advance(n_sequences)
                report.tokens(n_tokens)

            for source, target in zip(sources, targets, strict=True):
                if not target.exists():
                    session.measure(read_rollouts(source), count).save(target, section.token_dtype)
    write_json(done, {"n_shards": len(sources)})


@dataclass(frozen=True)
class RunResult:
    """What a run found, and where it wrote it.

    Attributes:
        run: the run directory.
        measured: the measurement.
        alpha: the length-scaling fit with what bears on it, or None where the data allow none (the remarks say why).
        comparison: the variance comparison, or None likewise.
        paths: the files of results, figures and tables.
    """

    run: RunDirectory
    measured: Measurement
    alpha: Any
    comparison: Any
    paths: list[Path]

    @property
    def fit(self) -> Any:
        """The length-scaling fit alone."""
        return None if self.alpha is None else self.alpha.fit


def analyse(run: RunDirectory) -> RunResult:
    """Fit, compare, draw and report from what was measured; needs neither the model nor torch."""
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
        if measured.token_projections is not None:
            _attempt(run, "tokens", lambda: study_tokens(run, measured, paths))
        if paths:
            look = run.experiment.figures
            paths += (
                _attempt(run, "figures", lambda: draw_run(read_results(run.path), run.path / "figures", look)) or []
            )
    run.write_manifest(measured, paths)
    paths.append(run.path / "manifest.json")
    if alpha is not None or comparison is not None:
        paths.append(write_report(run.path))
    return RunResult(run, measured, alpha, comparison, paths)


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


def git_commit() -> str | None:
    """The commit of the source tree this package runs from, with "-dirty" where it has changes; None outside git."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder))
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def hardware() -> dict[str, Any]:
    """The machine, without its name."""
    return {"machine": platform.machine(), "system": platform.system(), "cpu_count": os.cpu_count()}


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
    return read_rollouts(path / "rollouts" if (path / "rollouts").is_dir() else path)


def load_measurement_of(path: Path) -> Measurement:
    """The measurement of a run directory or of a measurement folder."""
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


def redraw(path: Path, **look: Any) -> list[Path]:
    """Draw a run's figures again with another look, from its saved numbers.

    Args:
        path: a run directory.
        **look: entries of the experiment's ``figures`` section.
    """
    from gradstats.drawing import draw_run
    from gradstats.results import read_results

    results = read_results(path)
    return draw_run(results, path / "figures", FiguresSection(**(results.look.model_dump() | look)))


def environment() -> dict[str, Any]:
    """Versions and hardware, as a manifest records them."""
    return {
        "versions": {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "git_commit": git_commit(),
        "hardware": hardware(),
    }
