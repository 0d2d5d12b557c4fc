"""Write glossary.md: the words of terminal, report and tables.

Run ``python docs/glossary_page.py`` after a change of a term.
"""

from __future__ import annotations

from pathlib import Path

from gradstats.report.glossary import TERMS

PAGE = Path(__file__).with_name("glossary.md")
BEGINNING = """\
# Glossary

The words of the terminal, the report and the tables. `gradstats list terms` prints them, and `gradstats list
quantities` every column of every table with the file that defines it; [concepts](concepts.md) gives the formulas.
"""


def page() -> str:
    """Return the page."""
    return BEGINNING + "".join(f"\n**{term}.** {meaning}\n" for term, meaning in TERMS.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
