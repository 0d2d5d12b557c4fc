"""A run directory → one self-contained HTML page."""

from __future__ import annotations

import html
import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.report.glossary import TERMS
from gradstats.report.numbers import number_with_interval
from gradstats.report.page_table import variance_on_page
from gradstats.report.prompts_on_page import prompts_on_page
from gradstats.report.rendered_page import rendered, write_page
from gradstats.report.run_folder import refuse_inside_run, writing_into
from gradstats.report.saved_results import SavedAlpha, SavedResults, read_results
from gradstats.report.sentence_links import FIGURE_WORDS, linked, of_section
from gradstats.report.variance_columns import TOGETHER
from gradstats.system.files import read_json, to_json
from gradstats.system.outputs import is_marked, refuse_foreign, refuse_links

# What the inks of each theme become on the page, so that figures follow its dark mode: text, paper, grid.
_PAGE_INKS = ("currentColor", "var(--paper)", "var(--rule)")


def write_report(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    svgs: Mapping[str, str] | None = None,
) -> Path:
    """Write the results of a run to one HTML file that needs no network.

    Args:
        path: a run directory.
        out: the file; ``report.html`` in the run directory by default.
        svgs: name → SVG of the figures, where they have just been drawn
            (:func:`gradstats.report.figures.draw_run_for_report`); None draws them.

    Returns:
        The file's path.

    Raises:
        FileNotFoundError: when the run holds no numbers; states the command that writes them.
        FileExistsError: when the file exists and is not a report, or belongs to another run.
        LockedError: when it is written into a run directory on which another process works.
        ValueError: when it is written into a run directory that contains symbolic links.
        OSError: when the file cannot be written.
    """
    path = Path(path)
    if out is None:
        with writing_into(path):
            refuse_links(path)
            return write_page_of_run(path, svgs)
    target = Path(out)
    refuse_inside_run(target, source=path)
    with writing_into(target):
        refuse_foreign(target, "a report", is_marked)
        page = report_page(read_results(path), svgs)
        refuse_foreign(target, "a report", is_marked)  # drawing takes seconds
        return write_page(page, target)


def write_page_of_run(path: Path, svgs: Mapping[str, str] | None = None) -> Path:
    """Write ``report.html`` into a run directory, whose lock the caller holds; otherwise as :func:`write_report`."""
    refuse_foreign_page(path)
    return write_page(report_page(read_results(path), svgs), path / "report.html")


def refuse_foreign_page(run: Path) -> None:
    """Refuse to write the page of a run where a ``report.html`` lies that this program did not write.

    Raises:
        FileExistsError: in that case.
        ValueError: when the manifest is damaged.
    """
    refuse_foreign(
        run / "report.html", "a report", lambda page: is_marked(page) or (page.is_file() and _is_of_0_1(run))
    )


def remove_unmarked_page(run: Path) -> None:
    """Remove the page of a run of version 0.1, before a manifest is written that no longer tells the version.

    The caller has asked :func:`refuse_foreign_page`.
    """
    page = run / "report.html"
    if page.is_file() and not is_marked(page):
        page.unlink()


def remove_page(run: Path) -> None:
    """Remove the page of an earlier analysis, where the present one has nothing to report; another file stays."""
    page = run / "report.html"
    if page.is_file() and is_marked(page):
        page.unlink()


def _is_of_0_1(run: Path) -> bool:
    """Return whether a run was made by version 0.1, which marked no page and recorded no checksums of tables."""
    manifest = run / "manifest.json"
    return manifest.exists() and "checksums" not in read_json(manifest)


def report_page(run: SavedResults, svgs: Mapping[str, str] | None = None) -> str:
    """Return the page as text, with the figures given as SVG, or drawn here where None are."""
    figures = _figures(run, svgs)
    drawn = [figure["name"] for figure in figures]
    variance = variance_on_page(run.variance, run.figure_style.labels)
    return rendered(
        "report.html.j2",
        name=run.name,
        description=run.settings.get("description", ""),
        measured=_what_was_measured(run),
        alpha=_alpha(run),
        sentences=linked([] if run.alpha is None else run.alpha.get("sentences", []), drawn),
        variance=variance,
        notes=linked([] if variance is None else variance["notes"], drawn),
        together=TOGETHER,
        prompts=prompts_on_page(run),
        terms=TERMS,
        figures=figures,
        figure_words=FIGURE_WORDS,
        alpha_figures=of_section(("length_scaling",), drawn),
        prompt_figures=of_section(("success_shares", "length_reward"), drawn),
        variance_figures=of_section(("variance", "variance_bias"), drawn),
        commands=_commands(run),
        remarks=linked(run.manifest.get("remarks", []), drawn),
        settings=run.settings,
        experiment=_text(run.path / "experiment.yaml"),
        manifest=to_json(run.manifest) if run.manifest else "",
    )


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """Return an SVG file as an element of a page, with unique ids, the page's colours, and a name for screen readers.

    Args:
        svg: the file's text.
        prefix: put before each id, so that several figures share a page.
        title: what a screen reader reads out.
    """
    from gradstats.plots.style import INK

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", body)
    for inks in INK.values():
        for ink, colour in zip(inks, _PAGE_INKS, strict=True):
            body = body.replace(ink, colour)
    width, height = (float(number) for number in re.findall(r'(?:width|height)="([\d.]+)pt"', body)[:2])
    body = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", body, count=2)
    opening = f'<svg role="img" aria-label="{html.escape(title)}" style="aspect-ratio: {width:g} / {height:g}"'
    return body.replace("<svg", opening, 1)


def _figures(run: SavedResults, svgs: Mapping[str, str] | None) -> list[dict[str, str]]:
    from gradstats.report.figures import figures_as_svg, figures_of

    drawn = figures_as_svg(run) if svgs is None else svgs
    return [
        {
            "name": figure.name,
            "caption": figure.caption,
            "svg": inline_svg(drawn[figure.name], figure.name, figure.caption),
        }
        for figure in figures_of(run)
        if figure.name in drawn
    ]


def _what_was_measured(run: SavedResults) -> list[tuple[str, str]]:
    manifest, settings = run.manifest, run.settings
    policy, mean_reward = manifest.get("policy") or {}, manifest.get("mean_reward")
    rows = [
        ("policy", policy.get("name") or settings.get("policy.name")),
        ("revision", policy.get("revision")),
        ("parameters", f"{policy['n_parameters']:,}" if policy.get("n_parameters") else None),
        ("dtype and device", ", ".join(str(policy[key]) for key in ("dtype", "device") if policy.get(key))),
        ("scored at temperature", policy.get("temperature")),
        ("problems", settings.get("prompts.source")),
        ("sampler", ", ".join(f"{key} {value}" for key, value in (manifest.get("sampler") or {}).items())),
        ("prompts", manifest.get("n_prompts")),
        ("completions", manifest.get("n_sequences")),
        ("cut off at the cap", manifest.get("n_truncated")),
        ("mean reward", None if mean_reward is None else f"{mean_reward:.3f}"),
        ("gradient engine", manifest.get("engine")),
        ("sampler against scorer", (manifest.get("sampler_gap") or {}).get("sentence")),
    ]
    return [(label, str(value)) for label, value in rows if value not in (None, "")]


def _alpha(run: SavedResults) -> dict[str, str] | None:
    if run.alpha is None:
        return None
    saved = run.alpha
    numbers = (saved["alpha"], saved["alpha_low"], saved["alpha_high"], saved["r_squared"])
    alpha, low, high, r_squared = (math.nan if number is None else number for number in numbers)
    return {
        "text": number_with_interval(alpha, low, high),
        "interval": f"[{low:.3f}, {high:.3f}]",
        "level": f"{saved.get('confidence_level', CONFIDENCE_LEVEL):.0%}",
        "method": f"{saved['method']}, {saved['interval']} interval",
        "within": _alpha_within(saved),
        "rest": f"n = {saved['n']} completions of {saved['n_prompts']} prompts, R² = {r_squared:.2f}",
    }


def _alpha_within(saved: SavedAlpha) -> str:
    """Return α within prompts with its interval; nothing where it was not fitted, or is the α of the run itself."""
    within = saved.get("within_prompt")
    if within is None or saved["method"] == "within_prompt":
        return ""
    ends = (within.get(name) for name in ("alpha", "alpha_low", "alpha_high"))
    alpha, low, high = (math.nan if number is None else number for number in ends)
    return f"{number_with_interval(alpha, low, high)} [{low:.3f}, {high:.3f}]"


def _commands(run: SavedResults) -> list[tuple[str, str]]:
    folder = shlex.quote(run.path.name)
    return [
        ("the whole run, from its own experiment file", f"gradstats run {folder}/experiment.yaml --out {folder}-again"),
        ("α with its diagnostics", f"gradstats alpha {folder}"),
        ("the variance table", f"gradstats variance {folder}"),
        *([("single tokens", f"gradstats tokens {folder}")] if run.tokens is not None else []),
        ("figures at another venue's width", f"gradstats figures {folder} --venue neurips --column full"),
        ("this page", f"gradstats report {folder}"),
    ]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
