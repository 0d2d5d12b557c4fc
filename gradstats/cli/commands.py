"""The commands. Each calls the public API; imports happen inside, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gradstats.cli import terminal
from gradstats.system.files import to_json

_SUMMARY = "Measure the variance of policy gradients of reasoning language models."

Positional = tyro.conf.Positional


def run(
    experiment: Positional[str],
    out: Path | None = None,
    dry_run: bool = False,
    overrides: Annotated[tuple[str, ...], tyro.conf.arg(name="set")] = (),
    progress: bool = True,
) -> None:
    """Run an experiment: sample, measure, fit α, compare estimators, draw. An interrupted run is taken up again.

    Args:
        experiment: an experiment file (YAML), or the name of one that comes with the project (`gradstats list`).
        out: the run directory; runs/NAME by default.
        dry_run: only print what would be sampled and measured, with upper bounds of time, memory and disk.
        overrides: settings of the experiment to change, as in prompts.n=60 sampling.temperature=0.6.
        progress: show progress bars.
    """
    from gradstats.config.experiment import load_experiment

    loaded = load_experiment(experiment, overrides)
    if dry_run:
        from gradstats.runs.cost import estimate_cost

        terminal.show_cost(loaded, estimate_cost(loaded))
        return
    from gradstats.runs.pipeline import run_experiment

    result = run_experiment(loaded, out or Path("runs") / loaded.name, progress=progress)
    terminal.show_run(result)


def sample(
    policy: Positional[str],
    prompts: str,
    out: Path,
    n: int | None = None,
    group_size: int = 8,
    max_new_tokens: int = 1500,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    reward: tuple[str, ...] = (),
    system_prompt: str | None = None,
    template_options: tuple[str, ...] = (),
    prompt_settings: tuple[str, ...] = (),
    policy_settings: tuple[str, ...] = (),
    dtype: str = "float32",
    batch_size: int = 64,
    sampler: str = "transformers",
    base_url: str | None = None,
    sampler_options: tuple[str, ...] = (),
    greedy: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> None:
    """Sample rollouts and write them to a Parquet file. What an interrupted call has finished is kept in OUT.parts.

    Args:
        policy: "embedded", a local folder, a .gguf file or a hub id.
        prompts: "embedded", a .jsonl, .csv or .parquet file, reasoning-gym/TASK or a hub data set.
        out: the file to write.
        n: number of prompts.
        group_size: completions of each prompt.
        max_new_tokens: cap on a completion's tokens.
        temperature: the sampler's temperature.
        top_p: nucleus mass; 1 keeps every token.
        top_k: number of tokens kept; 0 keeps all.
        min_p: least share of the likeliest token's probability; 0 keeps all.
        repetition_penalty: 1 leaves the logits alone.
        reward: name of the reward, or module:function, or several as name=weight; the problem set's own by default.
        system_prompt: a system message for the chat template.
        template_options: variables of the chat template, as in enable_thinking=false.
        prompt_settings: options of the problems, as in prompt_column=question answer_format=hashes.
        policy_settings: options of the policy, as in revision=main adapter=./lora allow_pickle=true.
        dtype: float32, float64, bfloat16 or float16.
        batch_size: completions drawn together.
        sampler: the engine: transformers, continuous, vllm, or openai for a server of that API.
        base_url: the server's address, as in http://localhost:8000/v1.
        sampler_options: options of the engine, as in model=NAME concurrency=16 timeout_seconds=60.
        greedy: also draw one greedy completion of each prompt, whose reward is ReMax's baseline.
        seed: seed of problems and sampler.
        progress: show a progress bar.
    """
    import gradstats
    from gradstats.config.experiment import with_settings
    from gradstats.system.shards import parts_folder, remove_parts

    rollouts = gradstats.sample(
        gradstats.load_policy(policy, dtype=dtype, **with_settings({}, policy_settings)),
        gradstats.load_prompts(prompts, n, rng=seed, **with_settings({}, prompt_settings)),
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        reward=reward or None,
        system_prompt=system_prompt,
        template_options=with_settings({}, template_options),
        rng=seed,
        batch_size=batch_size,
        sampler=sampler,
        base_url=base_url,
        sampler_options=with_settings({}, sampler_options),
        greedy=greedy,
        keep_in=parts_folder(out),
        progress=progress,
    )
    rollouts.to_parquet(out)
    remove_parts(out)
    terminal.show_rollouts(rollouts, out)


def regrade(
    run: Positional[Path],
    reward: tuple[str, ...] = (),
    progress: bool = True,
) -> None:
    """Score a run's stored completions anew, without sampling or measuring again, and analyse it again.

    Args:
        run: a run directory.
        reward: name of the reward, or module:function, or several as name=weight; what the run was scored with by
            default, for a reward or answers that were mended.
        progress: show a progress bar.
    """
    from gradstats.runs.pipeline import regrade_run

    single = reward[0] if len(reward) == 1 else list(reward) or None
    result = regrade_run(run, single, progress=progress)
    terminal.show_regrading(run)
    if result is not None:
        terminal.show_run(result)


def measure(
    policy: Positional[str],
    rollouts: Path,
    out: Path,
    rollouts_format: Literal["gradstats", "trl", "verl"] = "gradstats",
    rollouts_options: tuple[str, ...] = (),
    engine: Literal["auto", "ghost", "vmap", "loop"] = "auto",
    temperature: float = 1.0,
    params: str | None = None,
    blocks: str = "layer",
    sketch_dim: int | None = 16384,
    token_probes: int = 0,
    token_exact: int | float = 0,
    token_seed: int = 0,
    token_dtype: Literal["float32", "float16"] = "float32",
    dtype: str = "float32",
    policy_settings: tuple[str, ...] = (),
    progress: bool = True,
) -> None:
    """Measure the gradients of rollouts and write them to a folder. What was finished is kept in OUT.parts.

    Args:
        policy: "embedded", a local folder, a .gguf file or a hub id.
        rollouts: a rollouts file, or a run directory; or what a trainer wrote, a file or a folder of them.
        out: the folder to write.
        rollouts_format: gradstats, trl (the Parquet files of log_completions) or verl (the JSONL files of
            trainer.rollout_data_dir), whose texts are tokenised with the policy's tokenizer.
        rollouts_options: options of the trainer's reader, as in reward=accuracy_reward max_completion_length=256.
        engine: how gradients are computed.
        temperature: temperature of the distribution whose log-probability is differentiated.
        params: regular expression of the parameters to differentiate.
        blocks: how squared norms are split: layer, kind or parameter.
        sketch_dim: dimension of the random projections.
        token_probes: random directions that every token's gradient is projected on; 0 for none.
        token_exact: tokens of each sequence measured exactly, the heaviest by the forward-only proxy: their number, or
            the share of the proxy that they hold.
        token_seed: seed of the random directions.
        token_dtype: type in which token projections are saved.
        dtype: float32, float64, bfloat16 or float16.
        policy_settings: options of the policy, as for `gradstats sample`.
        progress: show a progress bar.
    """
    import gradstats
    from gradstats.config.experiment import MeasurementSection, with_settings
    from gradstats.measurement.disk_size import measured_bytes, require_space
    from gradstats.measurement.token_scores import remark_on_precision
    from gradstats.runs.sources import load_rollouts_of
    from gradstats.system.shards import parts_folder, remove_parts

    loaded = gradstats.load_policy(policy, dtype=dtype, temperature=temperature, **with_settings({}, policy_settings))
    if rollouts_format == "gradstats":
        table = load_rollouts_of(rollouts)
    else:
        from gradstats.rollouts.readers import READERS

        table = READERS[rollouts_format](rollouts, loaded.tokenizer, **with_settings({}, rollouts_options))
    section = MeasurementSection(
        sketch_dim=sketch_dim, token_probes=token_probes, token_exact=token_exact, token_dtype=token_dtype
    )
    require_space(out, measured_bytes(table, section))
    measured = gradstats.measure(
        loaded,
        table,
        engine=engine,
        params=params,
        blocks=blocks,
        sketch_dim=sketch_dim,
        token_probes=token_probes,
        token_exact=token_exact,
        token_seed=token_seed,
        keep_in=parts_folder(out),
        progress=progress,
    )
    measured.save(out, token_dtype)
    remove_parts(out)
    terminal.console.print(f"{len(measured)} sequences measured with {measured.metadata['engine']} → {out}")
    if measured.old_logprobs is not None:
        terminal.console.print(gradstats.sampler_gap(measured).sentence(), markup=False)
    scores = measured.token_scores()
    if scores is not None:
        terminal.note(remark_on_precision(scores))


def alpha(
    source: Positional[Path],
    method: Literal["ols", "theil_sen", "ppml", "within_prompt", "between_prompt"] = "ols",
    interval: Literal["t", "hc3", "cluster", "bootstrap", "rank"] | None = None,
    confidence_level: float = 0.95,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Fit the length-scaling exponent α of ‖S‖² ∝ T^(2α), with its interval and what bears on believing it.

    Args:
        source: a CSV file with the columns length, sq_norm and, where prompts repeat, prompt_id; a measurement folder
            or a run directory.
        method: least squares in logarithms, the median of pairwise slopes, the scaling of the mean of ‖S‖² (Poisson
            pseudo-likelihood), that among answers to one prompt, or that between prompts.
        interval: kind of interval; Student's t for one completion a prompt, cluster-robust by prompt otherwise.
        confidence_level: level of the interval.
        as_json: print JSON.
    """
    import gradstats
    from gradstats.runs.sources import load_points

    report = gradstats.alpha_report(
        **load_points(source), method=method, interval=interval, confidence_level=confidence_level
    )
    if as_json:
        print(to_json(report.summary()))
    else:
        terminal.show_alpha_report(report)


def variance(
    source: Positional[Path],
    estimators: tuple[str, ...] = (),
    group_size: tuple[int, ...] = (),
    reference: str = "rloo",
    confidence_level: float = 0.95,
    out: Path | None = None,
    seed: int = 0,
) -> None:
    """Compare the variance of policy-gradient estimators on what was measured.

    Args:
        source: a measurement folder or a run directory.
        estimators: names, with parameters as in "length_weighted(alpha=0.8, loo=True)"; a standard list by default.
        group_size: completions per group, one size or several; all of a prompt by default.
        reference: estimator that ratios are taken to.
        confidence_level: level of the intervals.
        out: also write the table as CSV.
        seed: seed of resamples.
    """
    import gradstats
    from gradstats.config.experiment import DEFAULT_ESTIMATORS
    from gradstats.runs.sources import load_measurement_of

    measured = load_measurement_of(source)
    with warnings.catch_warnings():  # its notes say the same, and more
        warnings.simplefilter("ignore")
        comparison = gradstats.compare(
            measured,
            list(estimators or DEFAULT_ESTIMATORS),
            group_size=group_size or None,
            reference=reference,
            rng=seed,
        )
    frame = comparison.to_frame(confidence_level)
    terminal.show_variance(frame)
    for sentence in comparison.notes:
        terminal.note(sentence)
    if out is not None:
        from gradstats.system.files import atomic_path

        with atomic_path(out) as partial:
            frame.to_csv(partial, index=False, lineterminator="\n")
        terminal.console.print(f"→ {out}")


def tokens(
    source: Positional[Path],
    group_size: int | None = None,
    confidence_level: float = 0.95,
    out: Path | None = None,
    seed: int = 0,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """What single tokens show: how well proxies tell their energy, how concentrated and correlated it is.

    Numbers and figures are written to the run directory, or where --out says.

    Args:
        source: a measurement folder or a run directory, measured with token probes.
        group_size: completions per group, for what a proxy costs the optimal token baseline; all by default.
        confidence_level: level of the intervals.
        out: folder for numbers and figures; the run directory by default, none for a bare measurement.
        seed: seed of the comparison.
        as_json: print JSON.
    """
    import gradstats
    from gradstats.runs.sources import load_measurement_of

    quality = gradstats.proxy_quality(load_measurement_of(source), group_size=group_size, rng=seed)
    if as_json:
        print(to_json(quality.summary(confidence_level)))
    else:
        terminal.show_tokens(quality, confidence_level)
    folder = source if out is None and (source / "measurement").is_dir() else out
    if folder is not None:
        from gradstats.report.figures import draw_run
        from gradstats.report.saved_results import read_results
        from gradstats.report.saved_tokens import save_tokens

        save_tokens(quality, folder, confidence_level)
        results = read_results(folder)
        for path in draw_run(results, folder / "figures", results.look):
            terminal.note(f"→ {path}")


def plan(
    pilot: Positional[Path | None] = None,
    half_width: float = 0.05,
    noise: float | None = None,
    length_spread: float | None = None,
    confidence_level: float = 0.95,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """How many sequences give α ± a half-width? From a pilot measurement, or from noise and spread of lengths.

    Args:
        pilot: a CSV file, a measurement folder or a run directory, as for `gradstats alpha`.
        half_width: wanted half-width of the interval of α.
        noise: standard deviation of log‖S‖² about the line, instead of a pilot.
        length_spread: standard deviation of log T, instead of a pilot.
        confidence_level: level of the interval.
        as_json: print JSON.
    """
    import gradstats
    from gradstats.runs.sources import load_points

    fit = None if pilot is None else gradstats.fit_length_scaling(**load_points(pilot))
    terminal.show_answer(
        gradstats.plan_alpha(fit, half_width, confidence_level, noise=noise, length_spread=length_spread),
        as_json,
    )


def group_size(
    source: Positional[Path],
    estimator: Positional[str],
    group_size: int = 4,
    confidence_level: float = 0.95,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """What group size of RLOO equals an estimator at N completions, at equal completions in all?

    Args:
        source: a measurement folder or a run directory, with 2N completions a prompt.
        estimator: its name, with parameters as in "length_weighted(alpha=0.8, loo=True)".
        group_size: N.
        confidence_level: level of the interval.
        as_json: print JSON.
    """
    import gradstats
    from gradstats.runs.sources import load_measurement_of

    answer = gradstats.equivalent_group_size(load_measurement_of(source), estimator, group_size)
    terminal.show_answer(answer, as_json, confidence_level)


def shift(
    source: Positional[Path],
    estimator: Positional[str],
    confidence_level: float = 0.95,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """What shift δ of Asymmetric REINFORCE does a baseline amount to on these rollouts?

    Args:
        source: a measurement folder or a run directory.
        estimator: its name, with parameters as in "length_weighted(alpha=0.8)".
        confidence_level: level of the interval.
        as_json: print JSON.
    """
    import gradstats
    from gradstats.runs.sources import load_measurement_of

    answer = gradstats.implied_shift(load_measurement_of(source), estimator)
    terminal.show_answer(answer, as_json, confidence_level)


def length_reward(
    source: Positional[Path],
    confidence_level: float = 0.95,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Does length go with reward among answers to the same prompt?

    Args:
        source: a rollouts file or a run directory.
        confidence_level: level of the interval.
        as_json: print JSON.
    """
    import gradstats
    from gradstats.runs.sources import load_rollouts_of

    answer = gradstats.length_reward_correlation(load_rollouts_of(source))
    terminal.show_answer(answer, as_json, confidence_level)


def figures(
    runs: Positional[tuple[Path, ...]],
    venue: str = "icml",
    column: Literal["half", "full"] | None = None,
    theme: Literal["light", "dark"] = "light",
    formats: tuple[str, ...] = ("pdf", "png"),
    out: Path | None = None,
) -> None:
    """Draw the figures of a run again, or several runs on the same axes, from saved numbers and without the model.

    Args:
        runs: run directories; several are laid over each other, labelled, with a warning where their settings differ.
        venue: whose column widths to use: icml, neurips, iclr, colm, acl, jmlr, slide.
        column: half or full width; one column of the venue by default.
        theme: light, or dark for slides.
        formats: pdf, svg, png, pgf.
        out: the folder; by default that of the run, or figures/NAME+NAME for several.
    """
    from gradstats.config.experiment import FiguresSection
    from gradstats.report.figures import draw_run
    from gradstats.report.overlay import draw_overlay
    from gradstats.report.saved_results import read_results

    if not runs:
        raise ValueError("name at least one run directory: gradstats figures RUN")
    look = FiguresSection(venue=venue, column=column, theme=theme, formats=list(formats))
    results = [read_results(run) for run in runs]
    if len(results) == 1:
        paths = draw_run(results[0], out or runs[0] / "figures", look)
    else:
        paths = draw_overlay(results, out or Path("figures") / "+".join(run.resolve().name for run in runs), look)
    for path in paths:
        terminal.console.print(str(path))


def report(run: Positional[Path], out: Path | None = None) -> None:
    """Write one self-contained HTML page on a run: verdict, α, variance table, figures, commands, manifest.

    Args:
        run: a run directory.
        out: the file; RUN/report.html by default.
    """
    from gradstats.report.page import write_report

    terminal.console.print(str(write_report(run, out)))


def check(
    policy: Positional[str],
    rollouts: Path | None = None,
    dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16"),
    params: str | None = None,
    device: str = "auto",
) -> None:
    """Check the gradient engines on this model and device; the exit code is 1 when one fails.

    Args:
        policy: "embedded", a local folder, a .gguf file or a hub id.
        rollouts: sequences to check with; three of random tokens by default.
        dtypes: dtypes to check the model in; deviations between dtypes are from the first, the widest.
        params: regular expression of the parameters to differentiate.
        device: "auto", "cpu", "cuda" or "mps".
    """
    import gradstats
    from gradstats.gradients import check_engines
    from gradstats.runs.sources import load_rollouts_of

    loaded = gradstats.load_policy(policy, dtype="float32", device=device)
    sequences = None if rollouts is None else load_rollouts_of(rollouts)
    frame = check_engines(loaded, sequences, dtypes=dtypes, params=params)
    terminal.show_check(frame, loaded)
    if not frame.attrs["passed"]:
        sys.exit(1)


def list_things(
    what: Positional[Literal["experiments", "estimators", "data", "rewards"]] = "experiments",
) -> None:
    """List what there is by name: experiments, estimators, data sets or rewards.

    Args:
        what: the kind of thing.
    """
    terminal.show_list(what)


def env() -> None:
    """Print versions and hardware, for a bug report."""
    from gradstats.system.environment import environment

    print(to_json(environment()))


COMMANDS: dict[str, Any] = {
    "run": run,
    "sample": sample,
    "regrade": regrade,
    "measure": measure,
    "alpha": alpha,
    "variance": variance,
    "tokens": tokens,
    "plan": plan,
    "group-size": group_size,
    "shift": shift,
    "length-reward": length_reward,
    "figures": figures,
    "report": report,
    "check": check,
    "list": list_things,
    "env": env,
}


def main() -> None:
    """Entry point of the ``gradstats`` command.

    What a user can mend (bad settings, missing files, a full disk) ends in one sentence and exit code 1; set
    GRADSTATS_TRACEBACK=1 to see where it came from.
    """
    from gradstats.cli.errors import EXPECTED

    try:
        with terminal.warnings_as_notes():
            tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="gradstats", description=_SUMMARY)
    except KeyboardInterrupt:
        terminal.fail("interrupted; what was finished is kept, and the same command goes on from there")
        sys.exit(130)
    except EXPECTED as error:
        if os.environ.get("GRADSTATS_TRACEBACK"):
            raise
        terminal.fail(str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error))
        sys.exit(1)
