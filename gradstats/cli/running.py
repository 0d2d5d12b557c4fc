"""The commands that run: run, sample, measure, regrade, and init, which writes an experiment file."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tyro
from rich import box
from rich.prompt import Prompt
from rich.table import Table

from gradstats.cli import terminal
from gradstats.cli.options import (
    Advanced,
    All,
    AsJson,
    Execution,
    Notes,
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
    SettingWords,
    code_of_run,
    described_by,
    policy_section,
    prompts_section,
    with_execution,
)
from gradstats.config.options import RewardNames
from gradstats.config.sections import MeasurementSection, PolicySection, PromptsSection, SamplingSection
from gradstats.config.validation import Section, WrongSettingsError

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.config.experiment import Experiment
    from gradstats.report.sweeps import SweepResult
    from gradstats.runs.analysis import RunResult


_BY_DEFAULT = Execution()


#: Option of a new experiment → the setting that it is, and what is written where it is not given.
_NEW = {
    "policy": ("policy.name", "embedded"),
    "prompts": ("prompts.source", "embedded"),
    "n": ("prompts.n", "32"),
    "group_size": ("sampling.group_size", str(SamplingSection().group_size)),
    "max_new_tokens": ("sampling.max_new_tokens", "400"),
    "reward": ("sampling.reward", "null"),
}
_NewN = Annotated[int | None, described_by(PromptsSection, "n", by_default=_NEW["n"][1])]
_NewGroupSize = Annotated[int | None, described_by(SamplingSection, "group_size")]
_NewCap = Annotated[int | None, described_by(SamplingSection, "max_new_tokens", by_default=_NEW["max_new_tokens"][1])]
_NewReward = Annotated[RewardNames, described_by(SamplingSection, "reward")]


def run(
    experiment: Annotated[Positional[str | None], tyro.conf.arg(metavar="[FILE]")] = None,
    policy: Annotated[str | None, described_by(PolicySection, "name", by_default="that of FILE")] = None,
    prompts: Annotated[str | None, described_by(PromptsSection, "source", by_default="those of FILE")] = None,
    n: _NewN = None,
    group_size: _NewGroupSize = None,
    max_new_tokens: _NewCap = None,
    reward: _NewReward = None,
    out: Path | None = None,
    dry_run: bool = False,
    overrides: Annotated[SettingWords, tyro.conf.arg(name="set")] = (),
    progress: Progress = True,
    everything: All = False,
    notes: Notes = False,
    as_json: AsJson = False,
    execution: Advanced[OptionsOf[Execution]] = _BY_DEFAULT,
) -> None:
    """Run an experiment: sample, measure, fit α, compare estimators, draw. The same command resumes an interrupted run,
    and shares the work where it is started several times.

    Without a file, --policy and --prompts say what is measured, as in the file that ``gradstats init`` writes with the
    same options. A file with ``vary`` is a sweep: it is run once for each cell, and what the cells found is joined.

    Args:
        experiment: an experiment file (YAML), or the name of one that comes with the project (``gradstats list``).
        out: the run directory, or the folder of those of a sweep; by default runs/NAME, where NAME is that of the file,
            or POLICY_PROMPTS.
        dry_run: only print what would be sampled and measured, for each cell of a sweep, with upper bounds of time and
            disk and an estimate of memory.
        overrides: settings of the experiment to change, as in prompts.n=60 sampling.temperature=0.6.
        execution: where the work is done.
    """
    given = asdict(execution)
    trust = given.pop("trust")
    overrides = with_execution(overrides, **given)
    chosen = _chosen(
        policy=policy, prompts=prompts, n=n, group_size=group_size, max_new_tokens=max_new_tokens, reward=reward
    )
    from gradstats.config.sweep import varies

    if experiment is None:
        loaded = _without_file(chosen, overrides, trust)
        out = out or Path("runs") / loaded.name
        if not dry_run:
            terminal.note(
                f"{loaded.prompts.n} prompts × {loaded.sampling.group_size} completions of at most "
                f"{loaded.sampling.max_new_tokens} tokens → {out}; the same command resumes"
            )
    elif chosen:
        settings = " ".join(f"{_NEW[option][0]}={value}" for option, value in chosen.items())
        raise ValueError(
            f"{experiment} and {', '.join(map(_option, chosen))} are given, and a file has these settings: give the "
            f"options without a file, or change the file's settings with --set {settings}"
        )
    elif varies(experiment):
        _run_sweep(experiment, out, dry_run, overrides, trust, progress, as_json)
        return
    else:
        from gradstats.config.experiment import load_experiment

        loaded = load_experiment(experiment, overrides, trust=trust)
    with code_of_run(None if experiment is None else Path(experiment).parent, trust):
        result = _run(loaded, out, dry_run, progress)
    if result is not None and as_json:
        terminal.print_json(terminal.run_as_json(result))
    elif result is not None:
        terminal.show_run(result, everything, notes)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _chosen(reward: RewardNames = None, **options: object) -> dict[str, str]:
    """Return the options of a new experiment that were given, with their values as YAML."""
    from gradstats.config.experiment import as_yaml

    options["reward"] = reward[0] if isinstance(reward, list) and len(reward) == 1 else reward
    return {option: as_yaml(value) for option, value in options.items() if value is not None}


def _new_experiment(name: str, chosen: Mapping[str, str], overrides: SettingWords) -> tuple[Experiment, dict[str, Any]]:
    """Return a new experiment, as validated and as the settings that are chosen.

    Raises:
        WrongSettingsError: for wrong settings, with the options that give them.
    """
    from gradstats.config.experiment import Experiment, with_settings

    words = [f"{setting}={chosen.get(option) or otherwise}" for option, (setting, otherwise) in _NEW.items()]
    settings = with_settings({}, [*words, *overrides])
    options = {setting: _option(option) for option, (setting, _) in _NEW.items()}
    try:
        return Experiment(**{"name": name, **settings}), settings
    except WrongSettingsError as error:
        named = [
            replace(one, path=(f"{'.'.join(one.path)} ({option})",))
            if (option := options.get(".".join(one.path)))
            else one
            for one in error.wrong
        ]
        raise WrongSettingsError(named, Experiment.title) from error


def _without_file(chosen: Mapping[str, str], overrides: SettingWords, trust: bool) -> Experiment:
    """Return the experiment of ``gradstats run --policy … --prompts …``, named for the two."""
    from gradstats.config.experiment import in_its_folder, read_yaml

    missing = [option for option in ("policy", "prompts") if option not in chosen]
    if missing:
        raise ValueError(
            f"{' and '.join(map(_option, missing))} and FILE are missing: name an experiment file, or what is "
            "measured, as in gradstats run --policy Qwen/Qwen2.5-0.5B-Instruct --prompts problems.jsonl"
        )
    name = "_".join(_short(str(read_yaml(chosen[option]))) for option in ("policy", "prompts"))
    experiment, _ = _new_experiment(name, chosen, overrides)
    return in_its_folder(experiment, Path(f"{name}.yaml"), trust)  # modules lie where the command is given


def _short(source: str) -> str:
    """Return what a run calls a policy or a problem set.

    >>> _short("Qwen/Qwen2.5-0.5B-Instruct"), _short("data/problems.jsonl"), _short("parts/mine.py:problems")
    ('Qwen2.5-0.5B-Instruct', 'problems', 'mine-problems')
    """
    path = Path(source)
    name = (path.resolve() if path.is_dir() else path).name
    return re.sub(r"[^\w.-]+", "-", re.sub(r"\.(jsonl|csv|parquet|gguf|py)(?=:|$)", "", name)).strip(".")


def _run(loaded: Experiment, out: Path | None, dry_run: bool, progress: bool) -> RunResult | None:
    from gradstats.runs.validate import check_names
    from gradstats.system.user_code import code_beside

    with code_beside(loaded.folder), warnings.catch_warnings():
        # Checked before torch is imported, which takes longer; the steps themselves check again, and warn.
        warnings.simplefilter("ignore")
        check_names(loaded)
    if dry_run:
        from gradstats.runs.cost import estimate_cost

        terminal.show_cost(loaded, estimate_cost(loaded, progress=progress), loaded.execution.workers)
        return None
    from gradstats.runs.pipeline import run_experiment
    from gradstats.runs.ranks import is_first

    path = out or Path("runs") / loaded.name
    result = run_experiment(loaded, path, progress=progress)
    if result is None and is_first():
        terminal.note(f"nothing is missing in {path}: another process analyses the run, or has just done so")
    return result


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
    from gradstats.report.saved_results import refuse_inside_run, writing_into
    from gradstats.rollouts.table import ROLLOUTS_FILE, claim_rollouts
    from gradstats.sampling.plan import SamplingPlan
    from gradstats.system.outputs import claim
    from gradstats.system.shards import remove_shards, shards_folder

    claim(out, ROLLOUTS_FILE)
    refuse_inside_run(out)
    model = policy_section(policy, policy_settings, dtype=dtype, device=device)
    source = prompts_section(prompts, n, settings.seed, prompt_settings)
    problems = gradstats.load_prompts(source.source, source.n, rng=source.seed, **source.settings)
    loaded = gradstats.load_policy(model.name, **model.arguments(), progress=progress)
    if out.exists():
        planned = SamplingPlan.make(loaded, problems, settings)
        claim_rollouts(out, planned.metadata, {one.prompt_id for one in problems}, overwrite)
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


def regrade(
    run: Positional[Path],
    reward: Annotated[RewardNames, described_by(SamplingSection, "reward", by_default="that of the run")] = None,
    trust: Advanced[bool] = False,
    progress: Progress = True,
    everything: All = False,
    notes: Notes = False,
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
    with code_of_run(run, trust):
        result = regrade_run(run, single, trust=trust, progress=progress)
    terminal.show_regrading(run)
    if result is not None:
        terminal.show_run(result, everything, notes)


def measure(
    policy: Positional[PolicyName],
    rollouts: Path,
    out: Path,
    settings: OptionsOf[MeasurementSection],
    rollouts_format: Literal["gradstats", "trl", "verl"] = "gradstats",
    rollouts_options: Advanced[SettingWords] = (),
    temperature: PolicyTemperature = None,
    dtype: PolicyDtype = None,
    device: PolicyDevice = None,
    policy_settings: PolicySettings = (),
    allow_policy_mismatch: Advanced[bool] = False,
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
    from gradstats.gradients.parameters import n_block_sketches
    from gradstats.gradients.second_moments import metric_and_rest
    from gradstats.measurement.disk_size import measured_bytes, require_space
    from gradstats.measurement.measurement import MEASUREMENT, claim_measurement
    from gradstats.measurement.token_scores import remark_on_precision
    from gradstats.report.saved_results import refuse_inside_run, writing_into
    from gradstats.rollouts.table import read_rollouts
    from gradstats.system.outputs import claim
    from gradstats.system.shards import remove_shards, shards_folder

    claim(out, MEASUREMENT)
    refuse_inside_run(out)
    model = policy_section(policy, policy_settings, temperature=temperature, dtype=dtype, device=device)
    table = read_rollouts(rollouts, partial=partial) if rollouts_format == "gradstats" else None
    loaded = gradstats.load_policy(model.name, **model.arguments(), progress=progress)
    if table is None:
        from gradstats.config.experiment import with_settings
        from gradstats.rollouts.trainer_dumps import READERS

        of_model = {"eos_token_ids": getattr(loaded.model.generation_config, "eos_token_id", None)}
        options = with_settings(of_model, rollouts_options)
        table = READERS[rollouts_format](rollouts, loaded.tokenizer, **options)
    metric, table = metric_and_rest(loaded, table, settings, progress)
    if out.exists():
        known = {"policy": loaded.describe(), "metric": None if metric is None else metric.describe()}
        known |= settings.recorded()
        claim_measurement(out, known, table, overwrite)
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
        terminal.show_sentence(gradstats.sampler_gap(measured).sentence())
    scores = measured.token_scores()
    if scores is not None:
        terminal.note(remark_on_precision(scores))


# Of at most this many cells every pair is printed.
_FEW = 4


def _run_sweep(
    experiment: str,
    out: Path | None,
    dry_run: bool,
    overrides: SettingWords,
    trust: bool,
    progress: bool,
    as_json: bool,
) -> None:
    """Run an experiment file with ``vary`` once for each cell, and join what the cells found."""
    from gradstats.config.sweep import load_sweep
    from gradstats.runs.sweep import check_cells, draws_alike, run_sweep

    loaded = load_sweep(experiment, overrides, trust=trust)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_cells(loaded)
    if dry_run:
        from gradstats.runs.cost import estimate_cost

        for at, cell in enumerate(loaded.cells):
            earlier = [one.name for one in loaded.cells[:at] if draws_alike(one.experiment, cell.experiment)]
            cost = estimate_cost(cell.experiment, progress=progress)
            terminal.show_cost(cell.experiment, cost, cell.experiment.execution.workers)
            if earlier:
                terminal.note(f"{cell.name} takes the completions of {earlier[0]}: it samples nothing")
        return
    result = run_sweep(experiment, overrides, out=out, trust=trust, progress=progress)
    if result is None:
        terminal.note("another process of the sweep still works on it, and joins what the cells found")
    elif as_json:
        tables = {"rows": result.to_frame(), "differences": result.differences()}
        entries = {name: frame.to_dict("records") for name, frame in tables.items()}
        terminal.print_json(entries | {"missing": list(result.missing)})
    else:
        show_sweep(result)


def show_sweep(result: SweepResult) -> None:
    """Print what the cells of a sweep found, and which have no results."""
    from gradstats.report.sweeps import DIFFERENCES, TABLE
    from gradstats.stats.variance.quantities import JUDGED, filled_in

    frame = result.to_frame()
    for columns, rows in (
        (("alpha", "mean_length", "mean_reward"), frame.drop_duplicates("cell")),
        ((JUDGED.name,), frame.dropna(subset="estimator") if JUDGED.name in frame else frame.iloc[:0]),
    ):
        if not len(rows):
            continue
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        of_estimators = columns == (JUDGED.name,)
        names = ["cell", "estimator"] if of_estimators else ["cell"]
        for name in names:
            table.add_column(name, overflow="fold")
        for name in columns:
            heading = filled_in(JUDGED.heading, frame.attrs) if of_estimators else _heading(name)
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows.to_dict("records"):
            table.add_row(
                *(_folded(row[name]) for name in names),
                *(terminal.with_interval(row, name) for name in columns),
            )
        terminal.console.print(table)
    differences = result.differences()
    _show_differences(differences)
    for cell in result.missing:
        terminal.note(f"{cell} has no results yet: the same command runs it")
    tables = TABLE if differences.empty else f"{TABLE}, {DIFFERENCES}"
    terminal.console.print(f"written: {terminal.escape(str(result.path))}: {tables}, and a run directory for each cell")


def _heading(quantity: str) -> str:
    return "α" if quantity == "alpha" else quantity.replace("_", " ")


def _folded(name: object) -> str:
    """Return a name for a cell of a printed table, broken after its first comma."""
    return terminal.escape(str(name)).replace(",", ",\n", 1)


def _show_differences(differences: pd.DataFrame) -> None:
    """Print how far cells with the same prompts lie apart; of many cells, only from the first one."""
    if differences.empty:
        return
    cells = list(dict.fromkeys([*differences["minus"], *differences["cell"]]))
    kept = differences["minus"].isin(cells if len(cells) <= _FEW else cells[:1])
    table = Table(title="differences, paired over prompts", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("cell", "minus", "of"):
        table.add_column(heading, overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    for row in differences.loc[kept].to_dict("records"):
        names = (_folded(row["cell"]), _folded(row["minus"]), _heading(row["quantity"]))
        table.add_row(*names, terminal.with_interval(row, "difference"))
    terminal.console.print(table)


def init(
    name: Positional[str] = "experiment",
    policy: Annotated[str | None, described_by(PolicySection, "name", by_default=_NEW["policy"][1])] = None,
    prompts: Annotated[str | None, described_by(PromptsSection, "source", by_default=_NEW["prompts"][1])] = None,
    n: _NewN = None,
    group_size: _NewGroupSize = None,
    max_new_tokens: _NewCap = None,
    reward: _NewReward = None,
    overrides: Annotated[SettingWords, tyro.conf.arg(name="set")] = (),
    ask: bool = True,
) -> None:
    """Write a new experiment file that explains every setting, and the schema with which editors complete it.

    Args:
        name: the file to write, with or without ``.yaml``.
        overrides: further settings, as in sampling.temperature=0.6 measurement.engine=ghost.
        ask: in a terminal, ask for what was not given as an option.
    """
    from gradstats.config.experiment import SCHEMA_FILE, experiment_schema, experiment_text
    from gradstats.runs.validate import check_names
    from gradstats.system.files import atomic_path, to_json
    from gradstats.system.user_code import code_beside

    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if path.exists():
        raise FileExistsError(f"{path} exists and is not replaced: choose another name")
    chosen = _chosen(
        policy=policy, prompts=prompts, n=n, group_size=group_size, max_new_tokens=max_new_tokens, reward=reward
    )
    if ask and _is_terminal():
        chosen = {option: chosen.get(option) or _asked(option) for option in _NEW}
    experiment, settings = _new_experiment(path.stem, chosen, overrides)
    text = experiment_text(path.name, settings)
    with code_beside(path.resolve().parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_names(experiment)
        except ValueError as error:
            if not isinstance(error.__cause__, ImportError):
                raise
            # The function may be written after the file that names it.
            terminal.note(f"{error}; write it before the run")
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")
    schema = to_json(experiment_schema()) + "\n"
    beside = path.parent / SCHEMA_FILE
    if not beside.exists():
        with atomic_path(beside) as partial:
            partial.write_text(schema, encoding="utf-8")
    elif beside.read_text(encoding="utf-8", errors="replace") != schema:
        terminal.note(f"{beside} is not the schema of this version and was left: remove it to have it written anew")
    terminal.console.print(f"→ {path}", markup=False)
    terminal.console.print(f"next: gradstats run {path} --dry-run, then gradstats run {path}", markup=False)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asked(option: str) -> str:
    """Ask for an option of a new experiment that was not given."""
    from gradstats.config.experiment import Experiment

    setting, otherwise = _NEW[option]
    section, _, name = setting.partition(".")
    field = cast("type[Section]", Experiment.model_fields[section].annotation).model_fields[name]
    meaning = (field.description or "").removesuffix(".")
    return Prompt.ask(
        f"{terminal.escape(option.replace('_', ' '))} ({terminal.escape(meaning)})",
        default="" if otherwise == "null" else otherwise,
    )
