"""The sections of findings.md on the energies of tokens, and on the logit proxy for them."""

from __future__ import annotations

import pandas as pd
from committed_numbers import committed_path, numbers, shown, table, with_interval
from findings_runs import MEMORY, RUNS, UNRESOLVED, Run, answer, figure, hours_of, rows_of, verdict_of

from gradstats.report.saved_results import completion_means, read_results

#: Proxies that need no gradient, and what the page calls them.
PROXIES = {"logit": "1 − 2π + Σπ² (logit)", "surprisal": "−log π (surprisal)", "entropy": "entropy"}


def section_concentration() -> str:
    """State how many tokens carry the energy."""
    rows = []
    for run, frame in token_tables("concentration"):
        frame = frame[frame["tokens_first"] == frame["tokens_last"]]
        counts = [count for count in (1, 4, 16) if count in set(frame["tokens_first"])]
        manifest = numbers(run.tokens or "", "manifest")
        assert manifest is not None
        rows.append(
            (
                run.name_with_tokens,
                f"{manifest['n_prompts']} × {group_size(run)}",
                f"{completion_means(read_results(committed_path(run.tokens or '', '.')))['mean_length']:.0f}",
                *(
                    shown(with_interval(frame[frame["tokens_first"] == count].iloc[0], "share"))
                    if count in counts
                    else "—"
                    for count in (1, 4, 16)
                ),
                f"{hours_of(manifest):.2f}",
                MEMORY.get(run.tokens or "", "—"),
            )
        )
    return answer(
        "Share of a completion's Σ‖s_t‖² that its heaviest tokens hold.",
        rows_of(
            (
                "run",
                "prompts × completions",
                "mean tokens",
                "heaviest token",
                "heaviest 4",
                "heaviest 16",
                "hours",
                "memory, GiB",
            ),
            rows,
        ),
        "These completions were drawn anew, under the settings of the run of the same name.",
        "What this does not show: energies are squared norms of single tokens; what tokens add to each other's "
        "gradient is in their inner products.",
        commands_of_tokens(),
        first_token_figure("concentration", "Share of the energy in the heaviest tokens"),
    )


def commands_of_tokens() -> str:
    """Write the commands whose tables the sections on tokens show."""
    written = [f"`gradstats tokens runs/{run.tokens}`" for run, _ in token_tables("concentration")]
    return f"Command: {', '.join(written) or '`gradstats tokens RUN`'}."


def token_tables(name: str) -> list[tuple[Run, pd.DataFrame]]:
    """Return a table of each committed run with token scores."""
    found = ((run, table(run.tokens, name)) for run in RUNS if run.tokens)
    return [(run, frame) for run, frame in found if frame is not None]


def group_size(run: Run) -> int:
    """Return the number of completions of each prompt in the run with token scores."""
    manifest = numbers(run.tokens or "", "manifest")
    assert manifest is not None
    return int(manifest["n_sequences"] // manifest["n_prompts"])


def first_token_figure(name: str, caption: str) -> str:
    """Show a figure of the first committed run with token scores."""
    for run, _ in token_tables(name):
        return figure(run.tokens or "", name, f"{caption}, {run.name_with_tokens}")
    return ""


def section_proxy() -> str:
    """State whether the logit proxy is good enough."""
    rows, verdicts = [], []
    for run, frame in token_tables("proxy_quality"):
        for name, words in PROXIES.items():
            row = frame[frame["proxy"] == name].iloc[0]
            otb = with_interval(row, "otb_ratio") if group_size(run) > 2 else None
            rows.append(
                (
                    run.name_with_tokens,
                    words,
                    shown(with_interval(row, "rank_correlation")),
                    shown(with_interval(row, "factor")),
                    "—" if group_size(run) == 2 else shown(otb, UNRESOLVED),
                )
            )
            verdicts += [(run.name_with_tokens, otb)] if group_size(run) > 2 and name == "logit" else []
    header = (
        "run",
        "proxy",
        "rank correlation with ‖s_t‖²",
        "typical error factor",
        "OTB with the proxy over OTB with energies",
    )
    return answer(
        "The error factor is exp of the mean |log(energy / (c · proxy))|, weighted by energy, with the c that makes "
        "the totals agree.",
        f"Against weights from measured energies, those from the logit proxy {verdict_of(verdicts)}."
        if verdicts
        else None,
        rows_of(header, rows),
        "What this does not show: that OTB itself pays, which is a row of [claims](claims.md). With two completions of "
        "a prompt its leave-one-out baseline has a single reward to weight, so that weights make no difference. Most "
        "tokens hold next to no energy, and rank correlations count them like the others; energies of all but the "
        "heaviest are estimates from random directions.",
        commands_of_tokens(),
        first_token_figure("proxy", "Logit proxy against measured energy of tokens"),
    )
