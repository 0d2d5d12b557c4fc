"""Write findings.md, findings_details.md and claims.md from their templates, with numbers of committed answers.

Run ``python docs/results_pages.py`` after the answers in ``figures/`` have changed. A template looks each number up by
name and says, where a word depends on it, what its interval must exclude: ``{{ ratio(…) | below(1) }}``, ``{{ "only" |
provided(…) }}``. Where that no longer holds, no page is written and the sentences are named.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

import committed_numbers
import findings_numbers
from committed_numbers import Number
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gradstats.analyses.numbers import format_number
from gradstats.estimators.display_names import in_words

DOCS = Path(__file__).parent
PAGES = ("findings.md", "findings_details.md", "claims.md")
#: Stands before what contradicts its sentence, and ends the reason that follows it.
MARK, END = "\ue000", "\ue001"


def contradicted(written: object, reason: str) -> str:
    """Return what is written, marked as something that the committed numbers contradict."""
    return f"{MARK}{reason}{END}{written}"


def below(one: Number, bound: float) -> Number | str:
    """Write a number of which the sentence says that it is below a bound."""
    return one if one.below(bound) else contradicted(one, f"{one} is not below {bound:g}")


def above(one: Number, bound: float) -> Number | str:
    """Write a number of which the sentence says that it is above a bound."""
    return one if one.above(bound) else contradicted(one, f"{one} is not above {bound:g}")


def holding(one: Number, bound: float) -> Number | str:
    """Write a number of which the sentence says that it does not differ measurably from a bound."""
    return contradicted(one, f"{one} excludes {bound:g}") if one.excludes(bound) else one


def provided(words: str, condition: object) -> str:
    """Write words that hold under a condition."""
    return words if condition else contradicted(words, f'"{words}" no longer holds')


def all_below(found: Iterable[Number], bound: float) -> bool:
    """Return whether all numbers are below a bound."""
    return all(one.below(bound) for one in found)


def all_above(found: Iterable[Number], bound: float) -> bool:
    """Return whether all numbers are above a bound."""
    return all(one.above(bound) for one in found)


def none_above(found: Iterable[Number], bound: float) -> bool:
    """Return whether no number is above a bound."""
    return not any(one.above(bound) for one in found)


def none_excludes(found: Iterable[Number], bound: float) -> bool:
    """Return whether no number differs measurably from a bound."""
    return not any(one.excludes(bound) for one in found)


def judged(holds: bool, fails: bool) -> str:
    """Return the verdict on a claim."""
    return "holds" if holds else "fails" if fails else committed_numbers.UNRESOLVED


def known(value: object) -> object:
    """Refuse to write a number that is not committed."""
    return contradicted("None", "a number is not among the committed answers") if value is None else value


def flat(text: str) -> str:
    """Write a text in one line, as it stands in a table."""
    return " ".join(text.split())


def answers(sections: str) -> str:
    """List the heading of each section, linked to it, with the answer in bold that it begins with."""
    found = re.findall(r"^## (.+?)\n+\*\*(.+?)\*\*", sections, re.M | re.S)
    return "\n".join(f"- [{title}](#{anchor(title)}) {flat(said)}" for title, said in found)


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and Sphinx form it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


FILTERS = (below, above, holding, provided, all_below, all_above, none_above, none_excludes, flat, answers)


def render(name: str, folder: Path = DOCS) -> str:
    """Return a page.

    Raises:
        ValueError: when the committed numbers contradict sentences, which are named.
    """
    environment = Environment(
        loader=FileSystemLoader(folder), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=known
    )
    environment.filters |= {one.__name__: one for one in FILTERS}
    environment.globals |= {
        one: getattr(module, one) for module in (findings_numbers, committed_numbers) for one in dir(module)
    }
    environment.globals |= {"judged": judged, "in_words": in_words, "written": format_number, "zip": zip}
    text = re.sub(r"\n{3,}", "\n\n", environment.get_template(f"{name}.jinja").render()).strip() + "\n"
    if wrong := list(dict.fromkeys(contradictions(text))):
        raise ValueError(f"{name}.jinja no longer says what was measured:\n" + "\n".join(wrong))
    return "\n\n".join(map(in_lines, text.split("\n\n")))


def contradictions(text: str) -> Iterable[str]:
    """Yield each marked sentence, with the reason; the list of answers repeats those of the sections."""
    sections = re.sub(r"^- \[.*\n", "", text, flags=re.M)
    for sentence in re.split(r"(?<=[.|])\*{0,2}\s+|\n\n", sections):
        for reason in re.findall(f"{MARK}(.*?){END}", sentence):
            yield f"- {' '.join(re.sub(f'{MARK}.*?{END}', '', sentence).split())} ({reason})"


def in_lines(block: str) -> str:
    """Break a paragraph or a list into lines of a page's width; the rest stays as it is."""
    if block.startswith(("|", "![", "#")):
        return block
    entries = re.split(r"\n(?=- )", block)
    lines = (
        fill(one, 120, break_long_words=False, break_on_hyphens=False, subsequent_indent="  " * one.startswith("- "))
        for one in entries
    )
    return "\n".join(lines) + "\n" * block.endswith("\n")


def main() -> None:
    """Write the pages, or none."""
    try:
        pages = {name: render(name) for name in PAGES}
    except ValueError as error:
        sys.exit(str(error))
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
