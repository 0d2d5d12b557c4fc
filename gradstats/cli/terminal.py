"""The output of the commands: short tables, and one sentence per error."""

from __future__ import annotations

import codecs
import io
import math
import os
import re
import statistics
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box, markup
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Column, Table

from gradstats.system.files import to_json

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.analyses.declaration import Analysis, FurtherTable
    from gradstats.answers import Answer
    from gradstats.config.experiment import Experiment
    from gradstats.policy.policy import Policy
    from gradstats.report.tables import Table as PaperTable
    from gradstats.rollouts.table import Rollouts
    from gradstats.runs.analysis import RunResult
    from gradstats.runs.cost import CostEstimate

_PIPED = 80  # columns of a file or a pipe
WIDE = 100  # columns; labels are broken into lines on a narrower terminal
_READABLE_NAME = 28  # columns of the name of a row beside as many numbers as fit


class _PipedConsole(Console):
    """A console of 80 columns in a file or a pipe, unless COLUMNS sets their number.

    It also leaves it to the command to exit when the reader of a pipe has closed it.
    """

    @property
    def size(self) -> ConsoleDimensions:
        """The width and height of the terminal, or of what stands for one where the output is redirected."""
        size = super().size
        return size if self.is_terminal or "COLUMNS" in os.environ else ConsoleDimensions(_PIPED, size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self.width, self.height = new_size

    def on_broken_pipe(self) -> None:
        """Re-raise the BrokenPipeError that is being handled; rich would exit with code 1."""
        raise


# A name such as module:question is no emoji.
console = _PipedConsole(highlight=False, soft_wrap=True, emoji=False)
_errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


# What stands for characters that a terminal cannot show, beside the names of Greek letters.
_SUBSTITUTES = {
    "−": "-", "–": "-", "—": "-", "±": "+/-", "×": "x", "·": "*", "≤": "<=", "≥": ">=", "→": "->", "‖": "||",
    "√": "sqrt", "∇": "grad", "∞": "inf", "≈": "~", "’": "'", "‘": "'", "“": '"', "”": '"', "«": '"', "»": '"',
}  # fmt: skip


def substitute_characters() -> None:
    """Let standard output and error show something for characters that their encoding lacks, as in ASCII or cp1252."""
    codecs.register_error("gradstats.substitute", _substitute)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="gradstats.substitute")


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain_letter, error.object[error.start : error.end])), error.end


def _plain_letter(letter: str) -> str:
    """Return a letter in ASCII: by its table, a Greek one's name, or without its accents; ? for any other."""
    if letter in _SUBSTITUTES:
        return _SUBSTITUTES[letter]
    name = unicodedata.name(letter, "")
    if name.startswith(("GREEK SMALL LETTER", "GREEK CAPITAL LETTER")):
        return name.split(" WITH ")[0].split()[-1].lower()
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return plain or "?"


def escape(text: str) -> str:
    """Make a text from elsewhere harmless: markup is shown literally, and control characters as their codes.

    A prompt's name or a server's message could otherwise move the cursor, or rewrite what was printed.
    """
    shown = "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)
    return markup.escape(shown)


def fail(message: str) -> None:
    """Print one error sentence to standard error."""
    _print_error("gradstats:", "bold red", " ".join(message.split()))


def note(message: str) -> None:
    """Print a note to standard error."""
    _print_error("note:", "yellow", message)


def _print_error(word: str, style: str, message: str) -> None:
    """Print a message behind a word, folded to the width of a terminal; elsewhere it stays a line, to be searched."""
    lines = [f"{word} {message}"]
    if _errors.is_terminal:
        width = min(_errors.width, WIDE)
        lines = textwrap.wrap(lines[0], width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    first, *others = lines
    _errors.print(f"[{style}]{word}[/]{escape(first.removeprefix(word))}")
    for line in others:
        _errors.print(escape(line))


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print each warning of the library as a note, once, without the source line that Python would add."""
    told = set()

    def tell(message: object, *_args: object, **_options: object) -> None:
        if str(message) not in told:
            told.add(str(message))
            note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for category in (UserWarning, RuntimeWarning):
            warnings.filterwarnings("default", category=category)
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # pyparsing's are UserWarnings too
        warnings.showwarning = tell
        yield


def show(lines: Iterable[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(escape(line))


def show_sentence(text: str) -> None:
    """Print a sentence in lines of 80 columns."""
    show(textwrap.wrap(text, _PIPED, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False))


def show_notes(notes: Iterable[str]) -> None:
    """Print notes, each folded to the width of the terminal."""
    width = min(console.width, WIDE)
    for one in notes:
        for line in textwrap.wrap(f"note: {one}", width, subsequent_indent="  ", break_on_hyphens=False):
            console.print(escape(line))


def hidden_content_hint(n_notes: int, notes: bool, everything: bool, levels: Mapping[str, float]) -> list[str]:
    """Return a line on intervals that are not of the usual level, and on what the first screen leaves out.

    The keys of levels say what their intervals are of, which is shown where levels differ; "" says nothing.
    """
    from gradstats.analyses.numbers import percent
    from gradstats.config.options import CONFIDENCE_LEVEL

    of_level = " and ".join(dict.fromkeys(percent(level) for level in levels.values()))
    if " and " in of_level:
        of_level = " and ".join(percent(level) + (f" ({of})" if of else "") for of, level in levels.items())
    said = [] if of_level in ("", percent(CONFIDENCE_LEVEL)) else [f"{of_level} intervals"]
    said += [] if notes or not n_notes else [f"{n_notes} {'note' if n_notes == 1 else 'notes'}: --notes"]
    said += [] if everything else ["all rows and columns: --all"]
    return [f"  {'    '.join(said)}"] if said else []


def show_run(result: RunResult, everything: bool = False, notes: bool = False) -> None:
    """Print what a run has found: verdicts and relative noise, and where the rest is.

    Args:
        result: the run.
        everything: print the fit of α, all columns of the comparison, and all paths.
        notes: print the notes.
    """
    from gradstats.analyses import registry
    from gradstats.cli.answers import first_screen
    from gradstats.report.saved_results import read_results
    from gradstats.report.verdict import headline_of, left_out, verdicts, without_signal

    answers = read_results(result.run.path).answers
    comparison = answers.get("variance")
    page = next((path for path in reversed(result.paths) if path.suffix == ".html"), None)
    said = _notes_of_run(result)
    closing = [] if page is None else [f"  {page}   figures and tables"]
    name = result.run.experiment.name
    headline = headline_of(name, result.measured.rollouts, result.measured.metadata.get("params"))
    rollouts = result.measured.rollouts
    answer = without_signal(rollouts.frame.assign(truncated=rollouts.truncated), str(result.run.path))
    answer += verdicts(
        answers.get("alpha"),
        comparison,
        blocks=answers.get("alpha_by_block"),
        batch_sizes=answers.get("batch_size"),
        allocation=answers.get("allocation"),
    )
    answer += left_out(result.run.remarks)
    named = {"alpha": "α", "variance": ""}
    levels = {of: float(answers[name].about["confidence_level"]) for name, of in named.items() if name in answers}
    show(
        first_screen(
            headline, answer, comparison, [*closing, *hidden_content_hint(len(said), notes, everything, levels)]
        )
    )
    if everything:
        for name in ("alpha", "alpha_by_block", "variance"):
            if name in answers:
                show_answer_table(registry.get(name), answers[name].frame)
        show_paths(result.paths)
    if notes:
        show_notes(said)


def run_as_json(result: RunResult) -> dict[str, Any]:
    """Return what a run has found: α with its diagnostics, the rows of the comparison, notes and paths."""
    level = result.run.experiment.variance.confidence_level
    frame = None if result.comparison is None else result.comparison.to_frame(level)
    return {
        "alpha": None if result.alpha is None else result.alpha.summary(),
        "rows": [] if frame is None else frame.to_dict("records"),
        "notes": _notes_of_run(result),
        "paths": [str(path) for path in result.paths],
    }


def _notes_of_run(result: RunResult) -> list[str]:
    """Return what qualifies the numbers of a run, each sentence once."""
    said = [] if result.alpha is None else [*result.alpha.beside(), *result.alpha.sentences()]
    if result.gap is not None and not result.gap.off_policy:  # else it is a remark
        said.append(result.gap.sentence())
    return list(dict.fromkeys([*said, *result.run.remarks]))


def show_paths(paths: Sequence[Path]) -> None:
    """Print what was written, one line for each folder, and where to start reading."""
    folders: dict[Path, dict[str, list[str]]] = {}
    for path in paths:
        folders.setdefault(path.parent, {}).setdefault(path.stem, []).append(path.suffix.removeprefix("."))
    console.print("written:")
    for folder, files in folders.items():
        names = [f"{stem}.{'|'.join(kinds)}" for stem, kinds in files.items()]
        console.print(escape(f"  {folder}: {', '.join(names)}"))
    if pages := [path for path in paths if path.suffix == ".html"]:
        console.print(escape(f"start with {pages[-1]}"))


def print_json(entries: Mapping[str, Any]) -> None:
    """Print entries as JSON: what is not known is null, and infinities are the texts "inf" and "-inf"."""
    print(to_json(_with_infinities(dict(entries))))


def print_answer(answer: Answer, declared: Analysis) -> None:
    """Print what the files of an answer hold as JSON, with the tables beside it that ``--all`` shows."""
    print_json(answer_entries(answer, declared))


def answer_entries(answer: Answer, declared: Analysis) -> dict[str, Any]:
    """Return what the files of an answer hold, with the tables beside it that ``--all`` shows."""
    shown = [one.name for one in declared.further if one.shown_in("terminal") and one.name in answer.further]
    return _entries(answer) | {"further": {name: _entries(answer.further[name]) for name in shown}}


def _entries(answer: Answer) -> dict[str, Any]:
    from gradstats.report.verdict import sentence_of

    said = {"question": answer.question, "sentence": answer.sentence or sentence_of(answer)}
    said |= {"notes": list(answer.notes)}
    return {**said, **answer.about, "rows": answer.frame.to_dict("records")}


def _with_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_infinities(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_with_infinities(entry) for entry in value]
    return repr(value) if isinstance(value, float) and math.isinf(value) else value


def show_answer_table(declared: Analysis | FurtherTable, frame: pd.DataFrame) -> None:
    """Print a table of an answer with its caption, and what a reader has to know of its columns."""
    from gradstats.analyses.numbers import UNRESOLVED
    from gradstats.report.analysis_tables import table_of
    from gradstats.stats.variance.quantities import JUDGED

    table = table_of(declared, frame, "terminal", in_words=False)
    if caption := declared.caption(frame):
        show([""])
        show_sentence(caption)
    show_table(table)
    if any(cell.startswith(UNRESOLVED) for row in table.cells("plain")[1] for cell in row):
        show_sentence(f"{UNRESOLVED}: not resolved or not defined on these data; see the notes")
    for heading, sentence in table.about.items():
        if heading != JUDGED.heading:  # whose sentence is about bold rows
            show_sentence(sentence)


def show_table(table: PaperTable) -> None:
    """Print a table made for a paper, in plain text; columns that are too wide side by side follow one another."""
    headings, rows = table.cells("plain")
    names, *columns = zip(headings, *rows, strict=True)
    longest = max(map(cell_len, names))
    if longest + 3 + sum(max(map(cell_len, column)) + 3 for column in columns) > console.width:
        columns = [
            ("\n".join(textwrap.wrap(heading, max(map(cell_len, cells)), break_long_words=False)), *cells)
            for heading, *cells in columns
        ]
    # Padding, and the space that the box adds.
    widths = [max(cell_len(line) for cell in column for line in cell.splitlines()) + 3 for column in columns]
    while columns:
        # Names are broken where one more column then fits, but not below a readable width.
        room = console.width - min(longest, _READABLE_NAME) - 3
        at_once = max(1, sum(total <= room for total in accumulate(widths)))
        numbers = [Column(heading, justify="right", no_wrap=True) for heading, *_ in columns[:at_once]]
        left = min(longest, max(console.width - sum(widths[:at_once]) - 3, 1))
        shown = Table(Column(names[0], width=left, overflow="fold"), *numbers, box=box.SIMPLE_HEAD, pad_edge=False)
        for name, *cells in zip(names[1:], *(column[1:] for column in columns[:at_once]), strict=True):
            shown.add_row(escape(_broken(name, left)), *map(escape, cells))
        console.print(shown)
        columns, widths = columns[at_once:], widths[at_once:]


def _broken(name: str, width: int) -> str:
    """Break the name of a row between words and behind an opening bracket, but not within ``N = 2``."""
    words = re.sub(r"(?<=\w)\(", "(\u200b ", name.replace(" = ", "\u00a0=\u00a0"))
    lines = textwrap.wrap(words, max(width, 1), break_on_hyphens=False)
    return "\n".join(lines).replace("\u00a0", " ").replace("\u200b ", "").replace("\u200b", "")


def show_rollouts(rollouts: Rollouts, path: Path) -> None:
    """Print one line on sampled rollouts."""
    show_sentence(
        f"{len(rollouts)} completions of {len(set(rollouts.prompt_id))} prompts, mean reward "
        f"{rollouts.rewards.mean():.2f}, median length {statistics.median(rollouts.lengths):.0f} → {path}"
    )


def show_regrading(path: Path) -> None:
    """Print one line on what regrading a run changed."""
    from gradstats.runs.regrading import read_regradings

    change = read_regradings(path)[-1]
    show_sentence(
        f"scored with {change['reward']} instead of {change['old_reward']}: {change['n_changed']} rewards changed; the "
        f"old ones are in {path / 'regraded' / str(change['table'])}"
    )


def show_cost(experiment: Experiment, cost: CostEstimate, n_workers: int = 1) -> None:
    """Print what a run would do, and upper bounds on its cost, in all and by several workers."""
    show_sentence(
        f"{experiment.name}: would sample {cost.n_sequences:,} completions of {cost.n_prompts:,} prompts, at most "
        f"{experiment.sampling.max_new_tokens:,} tokens each, in {cost.n_batches} "
        f"{'shard' if cost.n_batches == 1 else 'shards'}, and measure their gradients "
        f"with respect to {cost.n_parameters:,} parameters"
    )
    if cost.devices:
        show_sentence(cost.devices)
    table = Table(title="at most, if every completion ran to the cap", title_justify="left", show_header=False)
    for label, value in (
        ("sampling", _duration(cost.sampling_seconds)),
        ("measuring", _duration(cost.measuring_seconds)),
        *(_by_workers(cost, n_workers) if n_workers > 1 else []),
        *([("hidden states of the value head", _duration(cost.fitting_seconds))] if cost.fitting_seconds else []),
        (f"memory{' of each' if n_workers > 1 else ''}, estimated", f"{cost.memory_gib:.1f} GiB"),
        *(
            [("longest sequence that can be measured", f"{cost.fitting_tokens:,} tokens")]
            if cost.fitting_tokens
            else []
        ),
        ("disk", f"{cost.disk_gib:.2f} GiB"),
    ):
        table.add_row(label, value)
    console.print(table)
    if n := cost.n_weightings:
        show_sentence(f"further weightings of each completion that the estimators need are included: {n}")
    if cost.n_if_off_policy:
        show_sentence(
            f"{cost.n_if_off_policy} further weightings of each completion would come on top if sampler and "
            "scorer turned out to differ"
        )
    if cost.n_measured is not None:
        show_sentence(
            f"gradients are measured of {cost.n_measured:,} of the {cost.n_prompts:,} prompts; scoring the others "
            f"takes {_duration(cost.scoring_seconds)} of that time, and saves {_duration(cost.saved_seconds)}"
        )
    if cost.prefix_seconds:
        show_sentence(
            f"values of prefixes take up to {_duration(cost.prefix_seconds)} more for each step of a completion "
            f"({experiment.values.monte_carlo} completions from its beginning)"
        )
    show_sentence("times are extrapolated from a probe of a few tokens on this machine; nothing was written")


def _by_workers(cost: CostEstimate, n_workers: int) -> list[tuple[str, str]]:
    """Return the rows of the table that are about several workers."""
    steps = zip(("sampling", "measuring"), cost.with_workers(n_workers), strict=True)
    return [(f"{step} by {n_workers} such workers", _duration(seconds)) for step, seconds in steps]


def show_check(frame: pd.DataFrame, policy: Policy) -> None:
    """Show the check of the gradient engines: the verdict, one line per comparison, and remarks."""
    from gradstats.analyses.numbers import format_number

    judged = frame.loc[frame["tolerance"].notna() & frame["deviation"].notna()]
    wrong = ", ".join(dict.fromkeys(frame.loc[frame["verdict"] == "fails", "engine"]))
    if frame.attrs["passed"]:
        largest = judged.groupby("dtype", sort=False)["deviation"].max()
        found = [f"{format_number(float(deviation), 1)} in {dtype}" for dtype, deviation in largest.items()]
        show_sentence(f"All engines agree with autograd: largest relative difference {', '.join(found)}.")
    elif wrong:
        fail(f"the check fails ({wrong}): measure with an engine that passes, or with dtype float32")
    else:
        fail("nothing could be checked, for the reasons below: choose other dtypes, or another device")
    title = f"{policy.name} on {policy.device}: relative differences of ‖S‖²"
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    for column in ("dtype", "check", "engine"):
        table.add_column(column)
    for column in ("difference", "allowed", "verdict"):
        table.add_column(column, justify="right")
    colours = {"ok": "green", "fails": "bold red"}
    for row in frame.to_dict("records"):
        numbers = (format_number(float(row[name]), 2) for name in ("deviation", "tolerance"))
        verdict = f"[{colours.get(row['verdict'], 'yellow')}]{row['verdict']}[/]"
        table.add_row(row["dtype"], row["check"], row["engine"], *numbers, verdict)
    console.print(table)
    for sentence in dict.fromkeys(frame["note"]):
        if sentence:
            note(sentence)


def with_interval(row: dict[str, Any], name: str) -> str:
    """Format a number of a row with the ends of its interval."""
    from gradstats.analyses.numbers import format_estimate
    from gradstats.stats.variance.quantities import limits_of

    return escape(format_estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], limits=limits_of(name)))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
