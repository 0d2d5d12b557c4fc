"""The commands. Each calls the public API; imports happen inside, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gradstats import terminal
from gradstats.atomic import to_json

_SUMMARY = "Measure the variance of policy gradients of reasoning language models."

Positional = tyro.conf.Positional


def run(
    experiment: Positional[str],
    out: Path | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> None:
    """Run an experiment: sample, measure, fit α, compare estimators, draw. An interrupted run is taken up again.

    Args:
        experiment: an experiment file (YAML), or the name of one that comes with the project (`gradstats list`).
        out: the run directory; runs/NAME by default.
        dry_run: only print what would be sampled and measured, with upper bounds of time, memory and disk.
        progress: show progress bars.
    """
    from gradstats.experiment import load_experiment

    loaded = load_experiment(experiment)
    if dry_run:
        from gradstats.cost import estimate_cost

        terminal.show_cost(loaded, estimate_cost(loaded))
        return
    from gradstats.pipeline import run_experiment

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
    reward: str | None = None,
    dtype: str = "float32",
    batch_size: int = 64,
    seed: int = 0,
    progress: bool = True,
) -> None:
    """Sample rollouts and write them to a Parquet file.

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
        reward: name of the reward, or module:function; the problem set's own by default.
        dtype: float32, float64, bfloat16 or float16.
        batch_size: completions drawn together.
        seed: seed of problems and sampler.
        progress: show a progress bar.
    """
    import gradstats

    rollouts = gradstats.sample(
        gradstats.load_policy(policy, dtype=dtype),
        gradstats.load_prompts(prompts, n, rng=seed),
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        reward=reward,
        rng=seed,
        batch_size=batch_size,
        progress=progress,
    )
    rollouts.to_parquet(out)
    terminal.show_rollouts(rollouts, out)


def measure(
    policy: Positional[str],
    rollouts: Path,
    out: Path,
    engine: Literal["auto", "vmap", "loop"] = "auto",
    temperature: float = 1.0,
    params: str | None = None,
    blocks: str = "layer",
    sketch_dim: int | None = 16384,
    dtype: str = "float32",
    progress: bool = True,
) -> None:
    """Measure the gradients of rollouts and write the measurement to a folder.

    Args:
        policy: "embedded", a local folder, a .gguf file or a hub id.
        rollouts: a rollouts file, or a run directory.
        out: the folder to write.
        engine: how gradients are computed.
        temperature: temperature of the distribution whose log-probability is differentiated.
        params: regular expression of the parameters to differentiate.
        blocks: how squared norms are split: layer, kind or parameter.
        sketch_dim: dimension of the random projections.
        dtype: float32, float64, bfloat16 or float16.
        progress: show a progress bar.
    """
    import gradstats
    from gradstats.pipeline import load_rollouts_of

    measured = gradstats.measure(
        gradstats.load_policy(policy, dtype=dtype, temperature=temperature),
        load_rollouts_of(rollouts),
        engine=engine,
        params=params,
        blocks=blocks,
        sketch_dim=sketch_dim,
        progress=progress,
    )
    measured.save(out)
    terminal.console.print(f"{len(measured)} sequences measured with {measured.metadata['engine']} → {out}")


def alpha(
    source: Positional[Path],
    confidence_level: float = 0.95,
    method: Literal["t", "hc3", "cluster", "bootstrap"] | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> None:
    """Fit the length-scaling exponent α of ‖S‖² ∝ T^(2α), with its confidence interval.

    Args:
        source: a CSV file with the columns length, sq_norm and, where prompts repeat, prompt_id; a measurement folder
            or a run directory.
        confidence_level: level of the interval.
        method: kind of interval; Student's t for one completion a prompt, cluster-robust by prompt otherwise.
        as_json: print JSON.
    """
    import gradstats
    from gradstats.pipeline import load_points

    fit = gradstats.fit_length_scaling(**load_points(source))
    low, high = fit.confidence_interval(confidence_level, method=method)
    if as_json:
        summary = fit.to_frame(confidence_level).iloc[0].to_dict()
        summary |= {"alpha_low": low, "alpha_high": high, "interval": method or fit.interval}
        print(to_json(summary))
    else:
        terminal.show_alpha(fit, low, high, confidence_level)


def variance(
    source: Positional[Path],
    estimators: tuple[str, ...] = (),
    group_size: int | None = None,
    reference: str = "rloo",
    confidence_level: float = 0.95,
    out: Path | None = None,
    seed: int = 0,
) -> None:
    """Compare the variance of policy-gradient estimators on what was measured.

    Args:
        source: a measurement folder or a run directory.
        estimators: names, with parameters as in "length_weighted(alpha=0.8, loo=True)"; a standard list by default.
        group_size: completions per group; all of a prompt by default.
        reference: estimator that ratios are taken to.
        confidence_level: level of the intervals.
        out: also write the table as CSV.
        seed: seed of resamples.
    """
    import gradstats
    from gradstats.experiment import DEFAULT_ESTIMATORS
    from gradstats.pipeline import load_measurement_of

    measured = load_measurement_of(source)
    with warnings.catch_warnings():  # its notes say the same, and more
        warnings.simplefilter("ignore")
        comparison = gradstats.compare(
            measured, list(estimators or DEFAULT_ESTIMATORS), group_size=group_size, reference=reference, rng=seed
        )
    frame = comparison.to_frame(confidence_level)
    terminal.show_variance(frame)
    for sentence in comparison.notes:
        terminal.note(sentence)
    if out is not None:
        from gradstats.atomic import atomic_path

        with atomic_path(out) as partial:
            frame.to_csv(partial, index=False, lineterminator="\n")
        terminal.console.print(f"→ {out}")


def figures(
    run: Positional[Path],
    venue: str = "icml",
    column: Literal["half", "full"] | None = None,
    formats: tuple[str, ...] = ("pdf", "png"),
) -> None:
    """Draw the figures of a run again, from its saved numbers and at another width, without touching the model.

    Args:
        run: a run directory.
        venue: whose column widths to use (icml, neurips, iclr, …).
        column: half or full width; one column of the venue by default.
        formats: pdf, png, svg.
    """
    from gradstats.pipeline import redraw

    for path in redraw(run, venue=venue, column=column, formats=list(formats)):
        terminal.console.print(str(path))


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
    from gradstats.pipeline import environment

    print(to_json(environment()))


COMMANDS: dict[str, Any] = {
    "run": run,
    "sample": sample,
    "measure": measure,
    "alpha": alpha,
    "variance": variance,
    "figures": figures,
    "list": list_things,
    "env": env,
}


def main() -> None:
    """Entry point of the ``gradstats`` command.

    What a user can mend (bad settings, missing files, a full disk) ends in one sentence and exit code 1; set
    GRADSTATS_TRACEBACK=1 to see where it came from.
    """
    from gradstats.errors import EXPECTED

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
