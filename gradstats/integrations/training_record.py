"""The folder of what was measured during a training run: a sweep whose cells are the measured steps."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.measurement.measurement import Measurement
from gradstats.report.result_values import result_values
from gradstats.report.saved_results import state_of_data
from gradstats.report.sweeps import LISTED, SweepList, read_sweep_list, write_sweep_list
from gradstats.runs.analysis import answer_questions, distance_of_sampler, save_answers
from gradstats.runs.directory import ANALYSIS, RUN_DIRECTORY, RunDirectory
from gradstats.system.files import read_csv, remove_path
from gradstats.system.lock import only_writer
from gradstats.system.outputs import claim

if TYPE_CHECKING:
    from gradstats.analyses import OnPolicyCheck, SamplerGap, VarianceComparison
    from gradstats.analyses.alpha import AlphaReport


@dataclass
class WarnOnce:
    """The reasons that were warned of."""

    _said: set[str] = field(default_factory=set)

    def say(self, what: str, error: BaseException) -> None:
        """Warn of what could not be done and why, unless the reason was given before.

        The warning does not become an error where warnings are errors.
        """
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, SystemExit):  # whose text is a number
            reason = f"{type(error).__name__}: {reason}"
        if reason in self._said:
            return
        self._said.add(reason)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"{what} ({reason}); training continues", RuntimeWarning, stacklevel=2)


#: The setting that varies from one measured step to the next.
_VARIED = "policy.revision"
#: Prompts that the on-policy check needs.
_FEWEST_PROMPTS = 3
#: Steps before that the norm of a step is judged by, at most.
_MOST_OTHERS = 50


@dataclass(frozen=True)
class RecordedStep:
    """The results of one measured step."""

    path: Path
    measured: Measurement
    alpha: AlphaReport | None  # None where the data do not allow one
    variance: pd.DataFrame | None  # one row for each estimator; None as for alpha
    on_policy: OnPolicyCheck | None
    gap: SamplerGap | None
    remarks: list[str]  # why something is missing, and other warnings
    compared: VarianceComparison | None = None  # what ``variance`` is the frame of


@dataclass
class TrainingRecord:
    """A folder to which the measurement of one training step after another is added.

    It is the folder of a sweep over ``policy.revision``, with a run directory for each step (``step-000050``) that
    holds the completions, α, the variance table, the answers to what the experiment asks, and the manifest; why the
    norm jumped is judged by the steps before. :func:`gradstats.read_sweep`, ``gradstats export``
    and ``gradstats report`` read it.
    """

    folder: Path
    experiment: Experiment
    keep_measurements: bool = False  # whether each step also keeps its norms and sketches
    _listed: SweepList | None = None

    def add(self, revision: str, measured: Measurement, remarks: Sequence[str] = ()) -> RecordedStep:
        """Analyse a measurement and write its run directory; only then it is listed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with only_writer(self.folder):
            listed = self._steps_before(revision)
            run = self._opened(revision, self._norms_of(listed.settings))
            run.keep_remarks("measuring", remarks)
            measured.rollouts.to_parquet(run.rollouts / "shard-00000.parquet")
            if self.keep_measurements:
                measured.save(run.measurement / "shard-00000")
            with run.step(ANALYSIS):
                answers, results = answer_questions(run, measured, [*registry.OF_EVERY_RUN, *run.experiment.analyses])
                computed_with = state_of_data(measured.rollouts, run.values)
                paths = save_answers(run, answers, computed_with)
                gap = distance_of_sampler(run, measured)
                alpha = results.get("alpha")
                variance = answers["variance"].frame if "variance" in answers else None
                on_policy = _on_policy(measured) if alpha is None else alpha.on_policy
            run.write_manifest(measured, paths, gap, computed_with)
            listed.settings[revision] = {_VARIED: revision}
            write_sweep_list(self.folder, listed)
            self._listed = listed
        return RecordedStep(run.path, measured, alpha, variance, on_policy, gap, run.remarks, results.get("variance"))

    def _steps_before(self, revision: str) -> SweepList:
        """Return the steps that were recorded before, in an earlier training run up to where this one resumes."""
        if self._listed is not None:
            return self._listed
        earlier = read_sweep_list(self.folder).settings if (self.folder / LISTED).is_file() else {}
        return SweepList(
            self.experiment.name,
            [_VARIED],
            {cell: settings for cell, settings in earlier.items() if cell < revision},
        )

    def _norms_of(self, steps: Iterable[str]) -> list[float]:
        """Return the squared norms of the gradients of steps, as far as the question of the norm was answered."""
        tables = (self.folder / step / "tables" / "spike_batches.csv" for step in steps)
        return [float(norm) for table in tables if table.is_file() for norm in read_csv(table)["squared_norm"]]

    def _opened(self, revision: str, norms: Sequence[float]) -> RunDirectory:
        """Return an empty run directory of a step, in place of one of an earlier training run."""
        path = self.folder / revision
        claim(path, RUN_DIRECTORY)
        remove_path(path)
        policy = self.experiment.policy.model_copy(update={"revision": revision})
        asked: dict[str, Any] = dict(self.experiment.analyses)
        if isinstance(asked.get("spike"), Mapping) and norms:
            asked["spike"] = {**asked["spike"], "others": list(norms)[-_MOST_OTHERS:]}
        return RunDirectory.open(path, self.experiment.model_copy(update={"policy": policy, "analyses": asked}))


def _on_policy(measured: Measurement) -> OnPolicyCheck | None:
    from gradstats.analyses import check_on_policy

    return check_on_policy(measured) if len(set(measured.rollouts.prompt_id)) >= _FEWEST_PROMPTS else None


#: What every key begins with.
PREFIX = "gradstats"
#: What is logged of a measured step unless all is asked for, besides ratios.
_BRIEF = ("alignment", "alignment_low", "alignment_high", "alpha")


def plain_label(label: str) -> str:
    """Return the label of an estimator as it stands in keys: without commas, spaces, parentheses and equals signs.

    >>> plain_label("length_weighted(alpha=0.8, loo=True)"), plain_label("recipe:grpo(ratio=none)")
    ('length_weighted-alpha-0.8-loo', 'recipe:grpo-ratio-none')
    """
    return re.sub(r"[\s,()=]+", "-", re.sub(r"=True\b", "", label)).rstrip("-")


def plain_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return label → :func:`plain_label`, with a number where an earlier one reads the same."""
    found: dict[str, str] = {}
    for label in labels:
        plain = plain_label(label)
        names = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        found[label] = next(name for name in names if name not in found.values())
    return found


def logged_values(
    step: RecordedStep, further: Mapping[str, float], ratios_of: Sequence[str] | None = None
) -> dict[str, float]:
    """Return what to log of a measured step: key → number, as in ``"gradstats/rloo/ratio_low"``.

    Args:
        step: the results.
        further: what else is known of the step: key → number.
        ratios_of: return the ratios of these estimators, ``alpha`` and the alignment alone; by default all
            :func:`gradstats.report.result_values.result_values` of the step and all of ``further``.
    """
    found = result_values(step.measured.rollouts, step.alpha, step.variance, on_policy=step.on_policy, gap=step.gap)
    labels = {} if step.variance is None else plain_labels(step.variance["estimator"])
    parts = {key: key.rpartition("/") for key in found}
    found = {f"{labels.get(of, of)}{slash}{name}": found[key] for key, (of, slash, name) in parts.items()}
    found |= further
    if ratios_of is not None:
        compared = [labels[label] for label in ratios_of if label in labels]
        ratios = (f"{label}/ratio{end}" for label in compared for end in ("", "_low", "_high"))
        found = {key: found[key] for key in (*_BRIEF, *ratios) if key in found}
    return {f"{PREFIX}/{key}": value for key, value in found.items()}
