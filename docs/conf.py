"""Settings of the documentation site, which ``make docs`` builds.

The source directory is the repository, so that pages link to figures, tables and notebooks where they lie.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gradstats

sys.path.insert(0, str(Path(__file__).parent))
import shown_elsewhere
import site_pages

site_pages.write()

project = "gradstats"
author = "The gradstats developers"
project_copyright = author
version = release = gradstats.__version__

root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [".*", "**/.*", "runs", "models", "data", "site", "build", "dist", "docs/_*"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # make docs executes them before, and they are kept with their outputs
nb_render_markdown_format = "myst"

autosummary_generate = ["docs/generated/python.md"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}  # else written out, in ten lines
python_maximum_signature_line_length = 60
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"gradstats {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_extra_path = ["_extra"]
mathjax_path = "mathjax/tex-mml-chtml.js"  # make docs puts it there: the site loads nothing from elsewhere
templates_path = ["_templates"]


def add_where_an_example_is(app, what, name, obj, options, lines: list[str]) -> None:
    """Add to a docstring without an example where one is."""
    lines += ["", *shown_elsewhere.sentence_about(name)]


def setup(app) -> None:
    """Connect what this file defines."""
    app.connect("autodoc-process-docstring", add_where_an_example_is)
