"""The sections of findings.md on the energies of tokens, and on the logit proxy for them."""

from __future__ import annotations

import pandas as pd
from committed_numbers import Triple, committed_path, numbers, shown, table, with_interval
from findings_runs import NO_RUN, UNRESOLVED, Run, answer, figure, rows_of, verdict_of

from gradstats.report.saved_results import completion_means, read_results

#: Proxies that need no gradient, and what the page calls them.
PROXIES = {"logit": "1 − 2π + Σπ² (logit)", "surprisal": "−log π"}
COUNTS = (1, 16)
#: Runs with token scores.
RUNS = (Run("qwen_mawps_tokens", "Qwen-0.5B on MAWPS"), Run("embedded_tokens", "embedded"))


def section_concentration() -> str:
    """State how many tokens carry the energy."""
    shares: dict[str, list[Triple | None]] = {}
    sizes, lengths = {}, []
    for run, frame in token_tables("concentration"):
        single = frame[frame["tokens_first"] == frame["tokens_last"]].set_index("tokens_first")
        shares[run.name] = [with_interval(single.loc[n], "share") if n in single.index else None for n in COUNTS]
        sizes[run.name] = f"{prompts_of(run)} × {group_size(run)}"
        lengths.append(f"{completion_means(read_results(committed_path(run.folder, '.')))['mean_length']:.0f}")
    held = ", ".join(
        f"{in_percent([found[-1]])} in {name} (of {length})"
        for length, (name, found) in zip(lengths, shares.items(), strict=True)
    )
    return answer(
        f"**{'Few' if all(found[-1] and found[-1][1] > 0.5 for found in shares.values()) else 'Many'}: of a "
        f"completion's energy, its heaviest {COUNTS[-1]} tokens hold {held}.** The energy is Σ‖s_t‖²; the heaviest "
        f"token alone holds {in_percent([found[0] for found in shares.values()])}."
        if shares
        else NO_RUN,
        rows_of(
            ("run", "prompts × completions", *("heaviest token" if n == 1 else f"heaviest {n}" for n in COUNTS)),
            [(name, sizes[name], *(shown(share, "—") for share in found)) for name, found in shares.items()],
        ),
        "Repeat: `gradstats ask RUN tokens`.",
        first_token_figure("concentration", "Share of the energy in the heaviest tokens"),
    )


def in_percent(found: list[Triple | None]) -> str:
    """Write the range of estimates as percentages."""
    values = [round(100 * one[0]) for one in found if one is not None]
    ends = sorted({min(values), max(values)}) if values else []
    return f"{'–'.join(map(str, ends))} %" if ends else UNRESOLVED


def token_tables(name: str) -> list[tuple[Run, pd.DataFrame]]:
    """Return a table of each committed run with token scores."""
    found = ((run, table(run.folder, name)) for run in RUNS)
    return [(run, frame) for run, frame in found if frame is not None]


def prompts_of(run: Run) -> int:
    """Return the number of prompts in the run with token scores."""
    manifest = numbers(run.folder, "manifest")
    assert manifest is not None
    return int(manifest["n_prompts"])


def group_size(run: Run) -> int:
    """Return the number of completions of each prompt in the run with token scores."""
    manifest = numbers(run.folder, "manifest")
    assert manifest is not None
    return int(manifest["n_sequences"] // manifest["n_prompts"])


def first_token_figure(name: str, caption: str) -> str:
    """Show a figure of the first committed run with token scores."""
    for run, _ in token_tables(name):
        return figure(run.folder, name, f"{caption} ({run.name})")
    return ""


def section_proxy() -> str:
    """State whether the logit proxy is good enough."""
    rows, verdicts = [], []
    ranks: list[float] = []
    higher: list[bool] = []
    factors: list[float] = []
    for run, frame in token_tables("tokens"):
        by_proxy = frame.set_index("proxy")
        ranks.append(float(by_proxy.loc["logit", "rank_correlation"]))
        factors.append(float(by_proxy.loc["logit", "factor"]))
        higher.append(float(by_proxy.loc["surprisal", "rank_correlation_low"]) > ranks[-1])
        # With two completions a leave-one-out baseline has a single reward to weight: weights make no difference.
        compared = group_size(run) > 2
        for name, words in PROXIES.items():
            row = by_proxy.loc[name]
            otb = with_interval(row, "otb_ratio") if compared else None
            correlation, factor = (shown(with_interval(row, column)) for column in ("rank_correlation", "factor"))
            rows.append((run.name, words, correlation, factor, shown(otb, UNRESOLVED) if compared else "—"))
            verdicts += [(run.name, otb)] if compared and name == "logit" else []
    return answer(
        f"**{'For ranks' if min(ranks) > 0.9 else 'Not even for ranks'} (correlation {min(ranks):.2f} or more), "
        f"{'not for' if max(factors) > 1.1 else 'and for'} sizes (off by a factor of "
        f"{min(factors):.2f}–{max(factors):.2f} for a typical token).** "
        + ("−log π has a higher rank correlation. " if all(higher) else "")
        + f"As weights of OTB, proxies in place of energies {verdict_of(verdicts)}."
        if rows
        else NO_RUN,
        rows_of(("run", "proxy", "rank correlation", "error factor", "OTB: proxy over energies"), rows),
        "Repeat: `gradstats ask RUN tokens`.",
        first_token_figure("proxy", "Logit proxy against measured energy of tokens"),
    )
