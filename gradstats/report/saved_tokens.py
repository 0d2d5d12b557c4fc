"""The saved numbers of a run's tokens: proxies, profiles, a few traces and a sample of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.report.recorded_tables import record_tables
from gradstats.stats.tokens.proxy_quality import ProxyQuality
from gradstats.system.files import csv_text, read_csv, read_json, write_csv, write_json
from gradstats.system.outputs import differing_entry, refuse_foreign, refuse_other_result, same_table

ABOUT = "proxy_quality.json"
FILES = ("proxy_quality.csv", ABOUT, "token_profiles.csv", "token_traces.csv", "token_sample.csv")
MOST_TOKENS = 3000
_DIGITS = "%.7g"
TRACES_AT = (0.25, 0.5, 0.9)
PROFILES = ("correlation", "concentration", "local_slope")


@dataclass(frozen=True)
class SavedTokens:
    """The saved results of ``gradstats tokens``.

    Attributes:
        proxies: the frame of :class:`gradstats.ProxyQuality`, with its ``.attrs``.
        profiles: profile → its frame.
        traces: tokens of three completions, at the quartile, median and ninth decile of length.
        sample: at most 3000 tokens of all completions, drawn at random.
    """

    proxies: pd.DataFrame
    profiles: dict[str, pd.DataFrame]
    traces: pd.DataFrame
    sample: pd.DataFrame


def refuse_foreign_tokens(folder: Path) -> None:
    """Refuse to save token results where files of these names lie that are not earlier token results.

    Raises:
        FileExistsError: in that case.
    """
    about = folder / ABOUT
    try:
        is_earlier_result = about.is_file() and "n_probes" in read_json(about)
    except ValueError:
        is_earlier_result = False
    for name in FILES:
        refuse_foreign(folder / name, "token results", lambda _: is_earlier_result)


def save_tokens(
    quality: ProxyQuality, folder: Path, confidence_level: float = CONFIDENCE_LEVEL, *, overwrite: bool = True
) -> list[Path]:
    """Write the numbers of a :class:`gradstats.ProxyQuality` to a folder; returns the paths.

    In the folder of a finished run they are listed in its manifest before they are written: what a killed process
    leaves belongs to the run all the same. The caller then holds the run's lock.

    Raises:
        FileExistsError: when ``overwrite`` is False and the folder holds token results of other settings.
    """
    frame = quality.to_frame(confidence_level)
    about = {str(name): value for name, value in frame.attrs.items()}
    if (folder / ABOUT).exists():
        # Settings that are not recorded, such as the group size, show in the numbers.
        there = folder / FILES[0]
        same = there.exists() and same_table(there.read_text(encoding="utf-8"), _text(frame))
        difference = differing_entry(read_json(folder / ABOUT), about) or (None if same else "other numbers")
        refuse_other_result(folder / ABOUT, difference, overwrite)
    long = []
    for name in PROFILES:
        profile = getattr(quality, name)
        table = profile.to_frame(confidence_level)
        table.columns = ["first", "last", "value", "low", "high", "n_prompts"]
        long.append(table.assign(profile=name, axis=profile.axis, quantity=profile.quantity))
    tokens = quality.tokens
    sample = tokens
    if len(tokens) > MOST_TOKENS:
        sample = tokens.sample(MOST_TOKENS, random_state=0).sort_index()
    tables = {
        "proxy_quality.csv": frame,
        "token_profiles.csv": pd.concat(long, ignore_index=True),
        "token_traces.csv": _traces(tokens, confidence_level),
        "token_sample.csv": sample,
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in FILES]
    record_tables(folder, paths, {})
    for name, table in tables.items():
        write_csv(folder / name, table, float_format=_DIGITS)
    write_json(folder / ABOUT, about)
    record_tables(folder, paths)
    return paths


def _text(frame: pd.DataFrame) -> str:
    return csv_text(frame, float_format=_DIGITS)


def read_tokens(folder: Path) -> SavedTokens | None:
    """Read what :func:`save_tokens` wrote; None where there is nothing.

    Raises:
        ValueError: when a file is missing or broken.
    """
    if not (folder / FILES[0]).exists():
        return None
    try:
        proxies, long, traces, sample = (read_csv(folder / name) for name in FILES if name.endswith(".csv"))
        proxies.attrs |= read_json(folder / ABOUT)
        profiles = {}
        for name, rows in long.groupby("profile", sort=False):
            axis, quantity = rows["axis"].iloc[0], rows["quantity"].iloc[0]
            names = {"first": f"{axis}_first", "last": f"{axis}_last", "value": quantity}
            names |= {end: f"{quantity}_{end}" for end in ("low", "high")}
            profiles[str(name)] = rows.rename(columns=names)[[*names.values(), "n_prompts"]].reset_index(drop=True)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"the token results in {folder} cannot be read ({error}): make them again with `gradstats tokens {folder}`"
        ) from error
    return SavedTokens(proxies, profiles, traces, sample)


def _traces(tokens: pd.DataFrame, confidence_level: float) -> pd.DataFrame:
    """Return the completions of typical lengths, with the intervals of their energies."""
    from scipy import stats

    keys = ["prompt_id", "sample_id"]
    traces = sorted((rows for _, rows in tokens.groupby(keys, sort=False)), key=len)
    places = sorted({round(share * (len(traces) - 1)) for share in TRACES_AT})
    quantile = stats.norm.ppf(0.5 + confidence_level / 2.0)
    drawn = []
    for place in places:
        rows = traces[place]
        # An energy is a mean of squares: symmetric about its logarithm, and never below 0.
        energy, error = rows["energy"].to_numpy(), rows["energy_stderr"].to_numpy()
        width = np.exp(quantile * np.divide(error, energy, out=np.zeros(len(rows)), where=energy > 0))
        label = f"{len(rows)} tokens"
        drawn.append(rows.assign(sequence=label, energy_low=energy / width, energy_high=energy * width))
    return pd.concat(drawn, ignore_index=True)
