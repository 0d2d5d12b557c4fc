"""Write the pages of the site that say what the code says already: names, commands, columns of tables and figures.

``make docs`` writes them to docs/generated, which is not kept.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import yaml

import gradstats
from gradstats.analyses import registry
from gradstats.cli.commands import COMMANDS, main
from gradstats.integrations import trl
from gradstats.report.columns import INDEX
from gradstats.report.figures import figures_of
from gradstats.report.glossary import TERMS
from gradstats.report.saved_results import read_results
from gradstats.system.files import read_json

ROOT = Path(__file__).parents[1]
GENERATED = ROOT / "docs" / "generated"
#: Columns of the help of commands, which fits the width of a page.
WIDTH = 96
#: What made the folders of figures that are neither a run's nor a benchmark's.
OTHER_COMMANDS = {
    "alpha_over_lengths": "python experiments/alpha_over_lengths.py",
    "batch_size": "python experiments/alignment_of_batches.py",
    "batch_size_training": "python experiments/batch_sizes_in_training.py",
    **{
        f"embedded{run}_layers": f"gradstats run embedded{run} --set measurement.params=layers"
        for run in ("", "_resolved", "_tokens", "_zoo", "_reinforced", "_mismatch")
    },
    **{
        run: f"gradstats run figures/{run}/experiment.yaml --out runs/{run}"
        for run in ("qwen_mawps_tokens_layers", "qwen_mawps_otb_layers")
    },
    "qwen_mawps_by_block": "gradstats run figures/qwen_mawps_by_block/experiment.yaml",
    "zoo": "make figures",
}
#: Captions of the figures that no run draws by itself.
OTHER_CAPTIONS = {
    "along_traces": "Squared norm of the score along long traces, at up to 8,192 tokens of each.",
    "alignment": "Predicted alignment of batches with the target gradient, and that of real batches of other prompts.",
    "cell": "The cells of the sweep: α, length, success, and relative noise.",
    "critic": "Bias and explained variance of a fitted value head, against Monte-Carlo values of prefixes.",
    "curve_asymmetric_loo_true_delta": "Variance, cosine and bias of RLOO's baseline shifted by δ.",
    "curve_length_weighted_loo_true_alpha": "Variance, cosine and bias of length weights along their exponent.",
    "monitored": "What the monitor logs along a run of SGD on enumerated policies, with intervals, and exact values.",
    "optimal_baselines": "Published baselines against those of lowest variance, learned on other prompts.",
    "methods": "Relative noise of the methods that trainers offer; the axis is stretched near 1.",
    "measurement_metric": "The sweep over metrics: α, and relative noise.",
    "policy_name": "Checkpoints of reinforcement learning: α, length, reward, critical batch, and relative noise.",
    "sampling_max_new_tokens": "The sweep over the cap on tokens: α, length, success, and relative noise.",
    "steps": "Steps to a reward against the batch, in prompts and in critical batches; open marks: tuned rates.",
    "sampling_temperature": "The sweep over temperature: α, length, success, and relative noise.",
    "zoo": "Relative noise of published methods, on-policy and eight optimizer steps stale.",
    "peaks": "Peak memory of measuring one long trace: the estimate of a dry run over what was measured.",
    "engines": "Time and memory of the engines, relative to a plain forward and backward pass.",
    "sampling": "Speed of the samplers, relative to generation by transformers.",
    "sketches": "Cost and error of sketches, by layer and method.",
    "tokens": "Cost and error of token scores, against one backward pass for each token.",
}


def api_groups() -> dict[str, list[str]]:
    """Return heading → public names, in the order and under the comments of ``gradstats/__init__.pyi``.

    A module among them is a group of its own, of those names in its ``__all__`` that are not public without it.
    """
    stub = (ROOT / "gradstats" / "__init__.pyi").read_text(encoding="utf-8")
    headings = {number: line[2:] for number, line in enumerate(stub.splitlines(), start=1) if line.startswith("# ")}
    groups: dict[str, list[str]] = {}
    modules: list[str] = []
    for node in ast.parse(stub).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        name = node.names[0].name
        above = [heading for number, heading in headings.items() if number < node.lineno]
        if inspect.ismodule(getattr(gradstats, name)):
            modules.append(name)
        elif not name.startswith("__"):
            groups.setdefault(above[-1].capitalize(), []).append(f"gradstats.{name}")
    for name in modules:
        module = getattr(gradstats, name)
        above = [getattr(gradstats, name, None) for name in gradstats.__all__]
        own = {one: getattr(module, one) for one in module.__all__}
        names = [one for one, thing in own.items() if not inspect.ismodule(thing) and thing not in above]
        groups[f"`{module.__name__}`"] = [documented_as(module, one) for one in names]
    # These need an extra each, and verl pins other versions: its module is described without being imported.
    groups["`gradstats.integrations.trl`"] = [f"gradstats.integrations.trl.{name}" for name in trl.__all__]
    groups["`gradstats.integrations.verl`"] = []
    return groups


def documented_as(module: ModuleType, name: str) -> str:
    """Return the name under which Sphinx finds the documentation of a public name: a constant's is where it is set."""
    if callable(getattr(module, name)):
        return f"{module.__name__}.{name}"
    file = Path(inspect.getfile(module))
    stub = file.with_suffix(".pyi")  # of what is imported when it is used
    imports = ast.walk(ast.parse((stub if stub.exists() else file).read_text("utf-8")))
    for node in imports:
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return f"{module.__name__}.{node.module}.{name}" if node.level else f"{node.module}.{name}"
    return f"{module.__name__}.{name}"


def api_page() -> str:
    """Return the page that lists every public name, each with a page of its own."""
    parts = ["# Python\n\nEvery public name (others are internal); `import gradstats as gs` is meant throughout.\n"]
    for heading, names in api_groups().items():
        parts.append(f"## {heading}\n")
        if heading.startswith("`"):
            described = module_docstring(heading.strip("`"))
            parts.append((described.split("\n")[0] if names else f"```{{eval-rst}}\n{described}\n```") + "\n")
        if not names:
            continue
        listed = "\n".join(f"   {name}" for name in names)
        parts.append(f"```{{eval-rst}}\n.. autosummary::\n   :toctree: api\n   :nosignatures:\n\n{listed}\n```\n")
    return "\n".join(parts)


def module_docstring(name: str) -> str:
    """Return what a module says of itself, without importing it."""
    path = ROOT.joinpath(*name.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.get_docstring(ast.parse(source.read_text("utf-8"))) or ""


def commands_page() -> str:
    """Return the page with the help of every command."""
    helps = [f"## gradstats {name}\n\n```text\n{help_of(name)}\n```\n" for name in COMMANDS]
    helps += [f"## gradstats ask RUN {name}\n\n```text\n{help_of('ask ' + name)}\n```\n" for name in registry.names()]
    return "\n".join(["# Commands\n\n`gradstats COMMAND --help` prints what follows.\n", *helps])


def help_of(command: str) -> str:
    """Return what ``gradstats COMMAND --help`` prints.

    Raises:
        RuntimeError: when the command ends with an error.
    """
    printed = io.StringIO()
    environment = patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"})
    with environment, patch.object(sys, "argv", ["gradstats", *command.split(), "--help"]), redirect_stdout(printed):
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"gradstats {command} --help ended with {ended.code}") from ended
    return printed.getvalue().strip()


def quantities_page() -> str:
    """Return the page with every column of every table, what it means and the file that defines it, and every term."""
    parts = ["# Quantities and terms\n\nEvery printed or saved column, as `gradstats list quantities` prints them.\n"]
    for table, columns in INDEX.items():
        rows = [f"| `{column.name}` | {cell(column.meaning)} | `{column.file}` |" for column in columns]
        parts.append(
            "\n".join([f"## {table}\n", "| column | meaning | defined in |", "| --- | --- | --- |", *rows, ""])
        )
    return "\n".join([*parts, "## Terms\n", *(f"**{term}.** {meaning}\n" for term, meaning in TERMS.items())])


def cell(text: str) -> str:
    """Return a text as it stands in a cell of a Markdown table."""
    return text.replace("|", "\\|")


def gallery_page() -> str:
    """Return the page with the figures that are there and the command that makes each."""
    declared = {figure.name: figure.caption for one in registry.all_analyses() for figure in one.figures}
    parts = [
        "# Figure gallery\n\nFigures of the repository, and the command that makes each. `make figures` draws all of "
        "them from the numbers beside them, which are linked below.\n"
    ]
    for folder, command, description in drawn_folders():
        parts.append(f"## {folder.name}\n\n{description}\n\n```bash\n{command}\n```\n")
        captions = declared | OTHER_CAPTIONS
        if (folder / "variance.json").exists():  # a run, whose captions state what it was asked with
            captions |= {figure.name: figure.caption for figure in figures_of(read_results(folder))}
        for picture in sorted(folder.glob("*.png")):
            caption = captions[picture.stem]
            tables = (f"{picture.stem}.csv", f"tables/{picture.stem}.csv", "sweep.csv")
            path = f"../../figures/{folder.name}"
            numbers = next((f" [Numbers]({path}/{name})." for name in tables if (folder / name).exists()), "")
            parts.append(f"![{caption}]({path}/{picture.name})\n\n*{picture.stem}*: {caption}{numbers}\n")
    return "\n".join(parts)


def drawn_folders() -> Iterator[tuple[Path, str, str]]:
    """Yield each folder of figures, the command that makes it, and what it shows.

    Raises:
        LookupError: for a folder of which nothing says what made it.
    """
    for folder in sorted({path.parent for path in (ROOT / "figures").glob("*/*.png")}):
        for place in ("experiments", "experiments/sweeps"):
            file = ROOT / place / f"{folder.name}.yaml"
            if file.exists():
                yield folder, f"gradstats run {folder.name}", yaml.safe_load(file.read_text("utf-8"))["description"]
                break
        else:
            made_by = read_json(folder / "manifest.json").get("benchmark")
            script = made_by or OTHER_COMMANDS.get(folder.name, "").split(" ")[-1]
            if not script:
                raise LookupError(f"nothing says what made {folder}: name the command in OTHER_COMMANDS")
            yield folder, OTHER_COMMANDS.get(folder.name, f"python {script}"), first_line(ROOT / script)


def first_line(script: Path) -> str:
    """Return the first line of the docstring of a script, empty for what is none."""
    if script.suffix != ".py":
        return ""
    return (ast.get_docstring(ast.parse(script.read_text("utf-8"))) or "").split("\n")[0]


def write() -> None:
    """Write the pages; files that say the same already are left alone, so that only what changed is built again."""
    GENERATED.mkdir(exist_ok=True)
    pages = {
        "python": api_page(),
        "commands": commands_page(),
        "quantities": quantities_page(),
        "gallery": gallery_page(),
    }
    for name, page in pages.items():
        file = GENERATED / f"{name}.md"
        if not file.exists() or file.read_text("utf-8") != page:
            file.write_text(page, "utf-8")
    listed = {name for names in api_groups().values() for name in names}
    for page_of_name in GENERATED.glob("api/*.rst"):  # a name that is gone has no page
        if page_of_name.stem not in listed:
            page_of_name.unlink()


if __name__ == "__main__":
    write()
