"""Write the terms of read_results.md, which ``gradstats list terms`` prints.

Run ``python docs/terms_page.py`` after a change of a term.
"""

from __future__ import annotations

import re
from pathlib import Path

from gradstats.report.glossary import TERMS

PAGE = Path(__file__).with_name("read_results.md")
#: Terms that the page explains where they are first used, and those of the field.
EXPLAINED_ABOVE = (
    "relative noise, matched ratio", "bias, matched bias", "critical batch, noise-to-signal", "α, length exponent",
    "α within prompts", "best set", "clustered interval", "not resolved", "own-sample", "ratios of all rows",
    "effective prompts", "tr Cov", "sketch", "score", "baseline", "estimator", "group",
    "importance ratio", "leave-one-out", "off-policy",
)  # fmt: skip


def render(page: str) -> str:
    """Return the page with the terms between their markers."""
    terms = "".join(f"\n**{term}.** {meaning}\n" for term, meaning in TERMS.items() if term not in EXPLAINED_ABOVE)
    written, count = re.subn(
        r"(<!-- generated: terms -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{terms}\n{match[2]}",
        page,
        flags=re.S,
    )
    if count != 1:
        raise ValueError(f"{PAGE.name} must have one pair of markers for the terms, found {count}")
    return written


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
