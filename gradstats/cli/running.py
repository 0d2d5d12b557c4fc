"""The commands that sample, score and measure."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gradstats.cli import terminal
from gradstats.cli.code_of_run import code_of_run, with_code_of_run
from gradstats.cli.options import (
    Address,
    Executor,
    GpusPerWorker,
    OptionsOf,
    Overwrite,
    Partial,
    PolicyDevice,
    PolicyDtype,
    PolicyName,
    PolicySettings,
    PolicyTemperature,
    Positional,
    Progress,
    PromptCount,
    PromptSettings,
    PromptSource,
    RanksPerWorker,
    SettingWords,
    Threads,
    Workers,
    described_by,
    policy_section,
    prompts_section,
    with_execution,
)
from gradstats.config.experiment import with_settings
from gradstats.config.measurement import MeasurementSection
from gradstats.config.option_types import RewardNames
from gradstats.config.sections import SamplingSection

if TYPE_CHECKING:
    from gradstats.runs.pipeline import PartResult

#: Exit code of a part whose shards are drawn but not measured: EX_TEMPFAIL, after which launchers try again.
UNFINISHED = 75


def run(
    experiment: Positional[str],
    out: Path | None = None,
    dry_run: bool = False,
    overrides: Annotated[SettingWords, tyro.conf.arg(name="set")] = (),
    trust: bool = False,
    part: str | None = None,
    executor: Executor = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    ranks_per_worker: RanksPerWorker = None,
    threads: Threads = None,
    address: Address = None,
    progress: Progress = True,
) -> None:
    """Run an experiment: sample, measure, fit α, compare estimators, draw. The same command resumes an interrupted run.

    Args:
        experiment: an experiment file (YAML), or the name of one that comes with the project (``gradstats list``).
        out: the run directory; runs/NAME by default.
        dry_run: only print what would be sampled and measured, with upper bounds of time and disk and an
            estimate of memory.
        overrides: settings of the experiment to change, as in prompts.n=60 sampling.temperature=0.6.
        trust: run code that a run directory's own experiment.yaml names, also from the folder that the run records as
            its experiment file's, and model code or pickles that a file allows.
        part: k/n, for the k-th of n processes that make the run together in a shared directory (--out); run the
            experiment once more without it to analyse.
    """
    overrides = with_execution(
        overrides,
        executor=executor,
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        ranks_per_worker=ranks_per_worker,
        threads=threads,
        address=address,
    )
    with code_of_run(Path(experiment).parent, trust):
        _run(experiment, out, dry_run, overrides, trust, progress, part)


def _run(
    experiment: str,
    out: Path | None,
    dry_run: bool,
    overrides: SettingWords,
    trust: bool,
    progress: bool,
    part: str | None,
) -> None:
    from gradstats.config.experiment import load_experiment
    from gradstats.runs.parts import RunPart
    from gradstats.runs.validate import check_names
    from gradstats.system.user_code import code_beside

    loaded = load_experiment(experiment, overrides, trust=trust)
    with code_beside(loaded.folder), warnings.catch_warnings():
        # Checked before torch is imported, which takes longer; the steps themselves check again, and warn.
        warnings.simplefilter("ignore")
        check_names(loaded)
    if dry_run:
        from gradstats.runs.cost import estimate_cost

        n_workers = loaded.execution.workers if part is None else RunPart.of(part).n_parts
        terminal.show_cost(loaded, estimate_cost(loaded, progress=progress), n_workers)
        return
    from gradstats.runs.pipeline import run_experiment, run_part

    path = out or Path("runs") / loaded.name
    if part is not None:
        show_part(run_part(loaded, path, RunPart.of(part), progress=progress))
        return
    terminal.show_run(run_experiment(loaded, path, progress=progress))


def show_part(result: PartResult) -> None:
    """Print what a part of a run has made, and what comes next.

    Raises:
        SystemExit: with ``UNFINISHED`` when its shards could not be measured yet, so that launchers repeat it.
    """
    if result.n_awaited:
        what = (
            f"its {result.n_shards} shards are drawn; they are measured when all parts have drawn theirs, and "
            f"{result.n_awaited} shards are missing: repeat this command then"
        )
    else:
        what = (
            f"its {result.n_shards} shards are drawn and measured → {result.path}; when all parts have ended, the same "
            "command without --part analyses the run"
        )
    terminal.console.print(terminal.escape(f"part {result.part}: {what}"))
    for remark in dict.fromkeys(result.remarks):
        terminal.note(remark)
    if result.n_awaited:
        sys.exit(UNFINISHED)


def sample(
    policy: Positional[PolicyName],
    prompts: PromptSource,
    out: Path,
    settings: OptionsOf[SamplingSection],
    n: PromptCount = None,
    prompt_settings: PromptSettings = (),
    policy_settings: PolicySettings = (),
    dtype: PolicyDtype = None,
    device: PolicyDevice = None,
    progress: Progress = True,
    overwrite: Overwrite = False,
) -> None:
    """Sample rollouts and write them to a Parquet file. The finished part of an interrupted call is kept in OUT.parts.

    Args:
        out: the file to write.
    """
    import gradstats
    from gradstats.report.run_folder import refuse_inside_run, writing_into
    from gradstats.rollouts.table import is_rollouts_file, refuse_to_replace_rollouts
    from gradstats.sampling.plan import SamplingPlan
    from gradstats.system.outputs import refuse_foreign
    from gradstats.system.shards import remove_shards, shards_folder

    refuse_foreign(out, "a rollouts file", is_rollouts_file)
    refuse_inside_run(out)
    model = policy_section(policy, policy_settings, dtype=dtype, device=device)
    source = prompts_section(prompts, n, settings.seed, prompt_settings)
    loaded = gradstats.load_policy(model.name, **model.arguments(), progress=progress)
    problems = gradstats.load_prompts(source.source, source.n, rng=source.seed, **source.settings)
    if out.exists():
        planned = SamplingPlan.make(loaded, problems, settings)
        refuse_to_replace_rollouts(out, planned.metadata, {one.prompt_id for one in problems}, overwrite)
    rollouts = gradstats.sample(
        loaded,
        problems,
        **settings.arguments(),
        keep_in=shards_folder(out),
        progress=progress,
    )
    with writing_into(out):
        rollouts.to_parquet(out, overwrite=True)
    remove_shards(out)
    terminal.show_rollouts(rollouts, out)


@with_code_of_run
def regrade(
    run: Positional[Path],
    reward: Annotated[RewardNames, described_by(SamplingSection, "reward", by_default="that of the run")] = None,
    trust: bool = False,
    progress: Progress = True,
) -> None:
    """Score a run's stored completions again, without sampling or measuring, and repeat the analysis.

    By default the run's own reward is applied again, for when the reward or an answer was corrected.

    Args:
        run: a run directory.
        trust: run code that the run directory's own experiment.yaml names, also from the folder that the run records
            as its experiment file's.
    """
    from gradstats.runs.pipeline import regrade_run

    single = reward[0] if isinstance(reward, list) and len(reward) == 1 else reward
    result = regrade_run(run, single, trust=trust, progress=progress)
    terminal.show_regrading(run)
    if result is not None:
        terminal.show_run(result)


def measure(
    policy: Positional[PolicyName],
    rollouts: Path,
    out: Path,
    settings: OptionsOf[MeasurementSection],
    rollouts_format: Literal["gradstats", "trl", "verl"] = "gradstats",
    rollouts_options: SettingWords = (),
    temperature: PolicyTemperature = None,
    dtype: PolicyDtype = None,
    device: PolicyDevice = None,
    policy_settings: PolicySettings = (),
    allow_policy_mismatch: bool = False,
    progress: Progress = True,
    partial: Partial = False,
    overwrite: Overwrite = False,
) -> None:
    """Measure the gradients of rollouts and write them to a folder. Finished work is kept in OUT.parts if interrupted.

    Args:
        rollouts: a rollouts file or a run directory; or a file, or a folder of files, that a trainer wrote.
        out: the folder to write.
        rollouts_format: gradstats, trl (the Parquet files of log_completions) or verl (the JSONL files of
            trainer.rollout_data_dir), whose texts are tokenised with the policy's tokenizer.
        rollouts_options: options of the trainer's reader, as in reward=accuracy_reward max_completion_length=256.
        allow_policy_mismatch: measure rollouts that were drawn with other weights, another adapter or another
            tokenizer.
    """
    import gradstats
    from gradstats.gradients.blocks import n_block_sketches
    from gradstats.measurement.disk_size import measured_bytes, require_space
    from gradstats.measurement.storage import is_measurement_folder, refuse_to_replace_measurement
    from gradstats.measurement.token_scores import remark_on_precision
    from gradstats.report.run_folder import refuse_inside_run, writing_into
    from gradstats.rollouts.table import read_rollouts
    from gradstats.runs.second_moments import metric_and_rest
    from gradstats.system.outputs import refuse_foreign
    from gradstats.system.shards import remove_shards, shards_folder

    refuse_foreign(out, "a measurement", is_measurement_folder)
    refuse_inside_run(out)
    model = policy_section(policy, policy_settings, temperature=temperature, dtype=dtype, device=device)
    loaded = gradstats.load_policy(model.name, **model.arguments(), progress=progress)
    if rollouts_format == "gradstats":
        table = read_rollouts(rollouts, partial=partial)
    else:
        from gradstats.rollouts.readers import READERS

        table = READERS[rollouts_format](rollouts, loaded.tokenizer, **with_settings({}, rollouts_options))
    metric, table = metric_and_rest(loaded, table, settings, progress)
    if out.exists():
        compared = {"params", "sketch_dim", "sketch_seed", "token_probes", "token_exact", "token_seed"}
        described = {"policy": loaded.describe(), "metric": None if metric is None else metric.describe()}
        described["block_sketches"] = settings.block_sketches or None
        known = {**described, **settings.model_dump(include=compared)}
        refuse_to_replace_measurement(out, known, table, overwrite)
    require_space(out, measured_bytes(table, settings, n_block_sketches(loaded, settings)))
    measured = gradstats.measure(
        loaded,
        table,
        **settings.arguments(metric=metric, second_moments=None),
        keep_in=shards_folder(out),
        allow_policy_mismatch=allow_policy_mismatch,
        progress=progress,
    )
    with writing_into(out):
        measured.save(out, settings.token_dtype, overwrite=True)
    remove_shards(out)
    terminal.console.print(f"{len(measured)} sequences measured with {measured.metadata['engine']} → {out}")
    if measured.old_logprobs is not None:
        terminal.console.print(gradstats.sampler_gap(measured).sentence(), markup=False)
    scores = measured.token_scores()
    if scores is not None:
        terminal.note(remark_on_precision(scores))
