"""Write experiment_file.md: every setting of an experiment file, from the sections that declare them.

Run ``python docs/experiment_page.py`` after a change of a setting.
"""

from __future__ import annotations

import re
from pathlib import Path

from gradstats.config.experiment import Experiment, as_yaml
from gradstats.config.validation import Section

PAGE = Path(__file__).with_name("experiment_file.md")
BEGINNING = """\
# The experiment file

One YAML file says which policy is measured on which problems, how completions are drawn, and what is measured, compared
and drawn. `gradstats init NAME` writes one with every setting, `gradstats run NAME.yaml` runs it, and
`--set prompts.n=60` changes a setting for one call. A setting stands in its section, or by its full name, as in
`prompts.n: 60`. Editors complete and check it by the schema that its first line names.

Each line gives a setting with its default; `…` has none. What is unknown or out of range is refused before a model is
loaded. This page is generated from the declarations of the settings.
"""
ENDING = """
## Environment variables

- `GRADSTATS_TRACEBACK`: with any value, errors show where they happened.
- `GRADSTATS_ESTIMATOR`: a label with parameters, [for verl](training.md).
- `OPENAI_API_KEY`, `OPENAI_BASE_URL`: key and address of a server that samples.
- `RAY_ADDRESS`: a cluster of ray, where `execution.address` is `null`.
- `TRACKIO_PROJECT`, `WANDB_PROJECT`: the project that runs are logged to; `gradstats` by default.
- `CUDA_VISIBLE_DEVICES`: the GPUs. `COLUMNS`: the width of printed tables.

Libraries read their own, such as `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE`, `OMP_NUM_THREADS` and `NO_COLOR`.
"""
#: Kinds of values that a default shows by itself.
EVIDENT = ("a string", "a mapping", "true or false", "a list with each entry a string")


def page() -> str:
    """Return the page."""
    parts = [BEGINNING, "## At the top level\n", *_settings(Experiment, sections=False)]
    for name, field in Experiment.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            parts += [f"\n## `{name}`\n", f"{_capital(field.description or '')}\n", *_settings(section)]
    return "\n".join([*parts, ENDING])


def _settings(section: type[Section], *, sections: bool = True) -> list[str]:
    rows = []
    for name, field in section.model_fields.items():
        if not sections and isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            continue
        default = "…" if field.is_required() else as_yaml(field.get_default(call_default_factory=True))
        if name == "name" and section is Experiment:
            default = "the file's name"
        allowed = section.allowed_values(name)
        if default == "null":
            allowed = allowed.removesuffix(", or None").removesuffix(" (or None)")
        allowed = re.sub(r"\ban? (?:integer|number) of at least (\d+)", r"≥ \1", allowed)
        allowed = allowed.replace("a number above", ">").replace("a number in", "in")
        listed = re.fullmatch(r"one of (.*)", allowed)  # said again, where the description names them all
        if listed and all(one in (field.description or "") for one in listed[1].split(", ")):
            allowed = EVIDENT[0]
        values = "" if allowed in EVIDENT else f" ({allowed.replace('None', '`null`')})"
        rows.append(f"- `{name}: {default}`{values}: {field.description or ''}")
    return rows


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
