"""A template filled in, and written as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from gradstats.system.files import atomic_path


def rendered(template: str, **shown: object) -> str:
    """Return a template of this package filled in; all text is escaped, and an unknown name is an error.

    Args:
        template: its file name.
        **shown: name in the template → value.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gradstats.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(shown)


def write_page(page: str, target: Path) -> Path:
    """Write a page, whole or not at all; the caller has asked that nothing foreign is replaced.

    Raises:
        OSError: when the file cannot be written.
    """
    try:
        with atomic_path(target) as partial:
            partial.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise OSError(
            f"the report cannot be written to {target} ({error.strerror or error}): choose another with --out"
        ) from error
    return target
