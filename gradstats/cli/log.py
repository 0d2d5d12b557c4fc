"""The command that answers from a trainer's log, without a model and without torch."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gradstats.cli import terminal
from gradstats.cli.options import All, AsJson, Level, Notes, Overwrite, Positional, Progress, one_or_more
from gradstats.config.options import CONFIDENCE_LEVEL, RewardNames

if TYPE_CHECKING:
    from gradstats.answers import Answer
    from gradstats.rollouts.log import Log

_FILES = one_or_more("FILE")
_REWARD = tyro.conf.arg(help="column of the reward, or several with the trainer's weights.")


def log(
    files: Positional[Annotated[tuple[Path, ...], _FILES]],
    prompt: str | None = None,
    reward: Annotated[RewardNames, _REWARD] = None,
    length: str | None = None,
    group_size: int | None = None,
    max_completion_length: int | None = None,
    most_silent: float = 0.1,
    measured: Path | None = None,
    confidence_level: Level = CONFIDENCE_LEVEL,
    everything: All = False,
    notes: Notes = False,
    figures: Path | None = None,
    out: Path | None = None,
    overwrite: Overwrite = False,
    progress: Progress = True,
    as_json: AsJson = False,
) -> None:
    """Answer from a trainer's log of completions: silent groups, noise by proxy, lengths, mismatch, drift.

    Reads TRL's completions_*.parquet, verl's JSONL, rollouts and runs of gradstats, and any CSV, TSV, JSON Lines or
    Parquet with the name of a prompt and a reward in each row. Several steps are a series.

    Args:
        files: files of a log, or folders of them.
        prompt: column that names the prompt, where it has no usual name.
        length: column of the number of tokens, of the tokens, or of the text.
        group_size: completions that were drawn together, where prompts repeat within a step; without names of prompts
            rows are cut into such groups in their order.
        max_completion_length: the trainer's limit, where the log does not say which completions were cut off.
        most_silent: share of silent groups below which the number of completions is sought.
        measured: a run that measured some of the log's prompts, which calibrates the noise of estimators by proxy.
        figures: a folder for the figures.
        out: a folder for tables, figures and a page, report.html.
    """
    from gradstats.analyses import registry
    from gradstats.cli.answers import log_screen
    from gradstats.report.analysis_tables import short_table
    from gradstats.report.verdict import LOG, log_verdicts
    from gradstats.rollouts.log import read_log

    if out is not None:
        _claim(out)
    read = read_log(
        files,
        prompt=prompt,
        reward=reward,
        length=length,
        group_size=group_size,
        max_completion_length=max_completion_length,
        progress=progress and sys.stderr.isatty(),
    )
    command = shlex.join(["gradstats", *sys.argv[1:]])
    asked = {"most_silent": most_silent} | ({} if measured is None else {"measured": str(measured)})
    answers, missing = _answers(read, asked, confidence_level, command)
    declared = {name: registry.get(name) for name in answers}
    said = list(dict.fromkeys([*(note for answer in answers.values() for note in answer.notes), *missing]))
    try:
        if as_json:
            entries = {name: terminal.answer_entries(answer, declared[name]) for name, answer in answers.items()}
            terminal.print_json({LOG: read.summary(), "notes": said, "answers": entries})
        else:
            leading = "log_noise" if measured is not None else next(iter(answers))
            frame = shown = answers[leading].frame
            drawn = 0
            if "group_size" in frame:
                shown = frame.loc[[_is_short(int(size), read.group_size) for size in frame["group_size"].tolist()]]
                shown = shown.reset_index(drop=True)
                shown.attrs = frame.attrs
                drawn = shown["group_size"].tolist().index(read.group_size)
            closing = terminal.hidden_content_hint(len(said), notes, everything, {"": confidence_level})
            terminal.show(
                log_screen(
                    f"{read.name}   {read.summary()}",
                    log_verdicts(answers),
                    short_table(declared[leading], shown),
                    closing,
                    drawn,
                )
            )
            for name, answer in answers.items() if everything else ():
                frames = {name: answer.frame} | {one: beside.frame for one, beside in answer.further.items()}
                for table in declared[name].tables:
                    if table.shown_in("terminal") and len(frames.get(table.name, ())):
                        terminal.show_answer_table(table, frames[table.name])
            if notes:
                terminal.show_notes(said)
            sys.stdout.flush()
    finally:  # also where what reads the screen ends early
        written = _written(answers, read.name, figures, out, overwrite)
    if written and not as_json:
        terminal.show([f"  → {path}" for path in written])


def _is_short(size: int, drawn: int) -> bool:
    """Whether a group size is a row of the first screen: powers of two, the size drawn and multiples of it."""
    return size >= drawn or size & (size - 1) == 0


def _answers(
    read: Log, asked: Mapping[str, Any], confidence_level: float, command: str
) -> tuple[dict[str, Answer], list[str]]:
    """Return the answers to a log by question, and why others have none."""
    from gradstats.analyses import registry
    from gradstats.report.verdict import LOG

    about = {LOG: read.summary(), "source": read.name, "command": command}
    about |= {"n_prompts": read.count("prompt"), "n_completions": len(read.frame)}
    answers, missing = {}, []
    for name in registry.OF_LOGS:
        analysis = registry.get(name)
        if why := analysis.unavailable_because(read):  # pyright: ignore[reportArgumentType]
            missing.append(f"{name}: {why}")
            continue
        options = {option: value for option, value in asked.items() if option in analysis.options}
        found = analysis.ask(read, **options)
        answers[name] = analysis.answer_of(found, confidence_level, analysis.not_usual(options), about)
    return answers, missing


def _claim(out: Path) -> None:
    """Refuse a folder of another run, before the log is read."""
    from gradstats.report.saved_results import is_run_directory, refuse_inside_run

    if is_run_directory(out):
        raise FileExistsError(f"{out} is a run directory: choose another folder for the answers of a log (--out)")
    refuse_inside_run(out)


def _written(
    answers: Mapping[str, Answer], name: str, figures: Path | None, out: Path | None, overwrite: bool
) -> list[Path]:
    """Write figures to a folder, and tables, figures and page to another; returns what to look at."""
    if figures is None and out is None:
        return []
    from gradstats.config.sections import FiguresSection
    from gradstats.report.figures import draw_run
    from gradstats.report.page import write_report
    from gradstats.report.saved_results import SavedResults, refuse_inside_run, writing_into

    paths = []
    if figures is not None:
        refuse_inside_run(figures)
        draw_run(SavedResults(figures, name, {}, {}, dict(answers)), figures, FiguresSection())
        paths.append(figures)
    if out is not None:
        with writing_into(out):
            for question, answer in answers.items():
                answer.save(out / "tables" / question, overwrite=overwrite)
            draw_run(SavedResults(out, name, {}, {}, dict(answers)), out / "figures", FiguresSection())
            paths.append(write_report(out, out / "report.html"))
    return paths
