"""Write experiment_file.md: every setting of an experiment file, from the sections that declare them.

Run ``python docs/experiment_page.py`` after a change of a setting.
"""

from __future__ import annotations

from pathlib import Path

from gradstats.config.experiment import Experiment, as_yaml
from gradstats.config.validation import Section

PAGE = Path(__file__).with_name("experiment_file.md")
BEGINNING = """\
# The experiment file

An experiment is one YAML file: which policy is measured on which problems, how completions are drawn, which gradients
are measured, what is compared and drawn. `gradstats init NAME` writes one in which every setting below is explained,
`gradstats run NAME.yaml` runs it, and `gradstats run NAME.yaml --set prompts.n=60` changes a setting for one call.
Editors with a YAML language server complete and check it by the schema that its first line names.

Only `policy.name` and `prompts.source` have no default. What is unknown, of a wrong type or out of range is refused
before a model is loaded. This page is generated from the declarations of the settings.
"""


def page() -> str:
    """Return the page."""
    parts = [BEGINNING, "## At the top level\n", *_table(Experiment, sections=False)]
    for name, field in Experiment.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            parts += [f"\n## `{name}`\n", f"{_capital(field.description or '')}\n", *_table(section)]
    return "\n".join(parts) + "\n"


def _table(section: type[Section], *, sections: bool = True) -> list[str]:
    rows = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in section.model_fields.items():
        if not sections and isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            continue
        default = "required" if field.is_required() else f"`{as_yaml(field.get_default(call_default_factory=True))}`"
        if name == "name" and section is Experiment:
            default = "the file's name"
        cells = [f"`{name}`", section.allowed_values(name).replace("None", "`null`"), default, field.description or ""]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
