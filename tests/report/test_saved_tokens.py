"""Token results from the command line: printed, written, read back and drawn."""

from __future__ import annotations

import json

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from command_line import run
from probed_policies import enumerated, probed

import gradstats as gs
from gradstats.config.experiment import FiguresSection
from gradstats.report.figures import draw_run
from gradstats.report.page import report_page
from gradstats.report.saved_results import FILES, read_results, read_tokens, save_tokens
from gradstats.system.files import read_json, write_csv, write_json

mpl.use("Agg")
FIGURES = ("token_energy", "concentration", "token_correlation", "proxy")


@pytest.fixture(scope="module")
def measured():
    policy = enumerated()
    batch, _, scores = policy.sample(40, 3, 0)
    return probed(batch, scores, 32, 1, np.random.default_rng(0))


@pytest.fixture
def folder(measured, tmp_path):
    """A run directory that contains only a measurement."""
    (tmp_path / "run").mkdir()
    measured.save(tmp_path / "run" / "measurement")
    return tmp_path / "run"


def test_the_command_prints_writes_and_draws(monkeypatch, capsys, folder):
    code, out, _ = run(monkeypatch, capsys, "tokens", folder)
    assert code == 0
    assert "forward-only proxies of ‖s_t‖²" in out
    assert "last_layer" in out
    assert "share of a completion's energy held by its heaviest tokens: 1: " in out
    assert "the rest from 32 probes" in out
    for name in FILES:
        assert (folder / name).exists()
    for name in FIGURES:
        assert (folder / "figures" / f"{name}.pdf").exists()
        assert (folder / "figures" / f"{name}.csv").exists()


def test_a_bare_measurement_is_only_printed_unless_told(monkeypatch, capsys, folder, tmp_path):
    measurement = folder / "measurement"
    before = sorted(measurement.iterdir())
    code, out, err = run(monkeypatch, capsys, "tokens", measurement, "--json")
    assert code == 0, err
    assert len(json.loads(out)["concentration"]) == 6
    assert [row["proxy"] for row in json.loads(out)["proxies"]] == ["logit", "last_layer", "entropy", "surprisal"]
    assert sorted(measurement.iterdir()) == before
    code, _, err = run(monkeypatch, capsys, "tokens", measurement, "--out", tmp_path / "there")
    assert code == 0, err
    assert (tmp_path / "there" / "figures" / "proxy.png").exists()
    (tmp_path / "yours").mkdir()
    (tmp_path / "yours" / "token_sample.csv").write_text("mine")
    code, _, err = run(monkeypatch, capsys, "tokens", measurement, "--out", tmp_path / "yours")
    assert code == 1
    assert "token_sample.csv exists and is not token results that gradstats wrote" in err
    assert (tmp_path / "yours" / "token_sample.csv").read_text() == "mine"


def test_results_of_other_settings_are_replaced_on_request_only(monkeypatch, capsys, folder):
    assert run(monkeypatch, capsys, "tokens", folder)[0] == 0
    before = (folder / "proxy_quality.csv").read_bytes()
    assert run(monkeypatch, capsys, "tokens", folder)[0] == 0
    code, _, err = run(monkeypatch, capsys, "tokens", folder, "--confidence-level", "0.5")
    assert code == 1
    assert "proxy_quality.json holds a finished result with another confidence_level" in err
    assert (folder / "proxy_quality.csv").read_bytes() == before
    assert run(monkeypatch, capsys, "tokens", folder, "--confidence-level", "0.5", "--overwrite")[0] == 0
    assert (folder / "proxy_quality.csv").read_bytes() != before


class Killed(BaseException):
    """In place of a signal that ends the process."""


@pytest.mark.parametrize("n_tables", [0, 1, 3])
def test_what_a_killed_process_leaves_belongs_to_the_run_and_is_whole(measured, folder, monkeypatch, n_tables):
    (folder / "rollouts").mkdir()  # else it counts as a copy of a run's results
    write_json(folder / "manifest.json", {"files": ["alpha.json"], "checksums": {}})
    save_tokens(gs.proxy_quality(measured), folder, 0.9)
    written = []

    def killed(path, *arguments, **options):
        if len(written) == n_tables:
            raise Killed
        written.append(path)
        write_csv(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("gradstats.report.saved_results.write_csv", killed)
        with pytest.raises(Killed):
            save_tokens(gs.proxy_quality(measured), folder, 0.95)
    assert set(FILES) <= set(read_json(folder / "manifest.json")["files"])
    read_results(folder)  # refuses a table with another checksum
    save_tokens(gs.proxy_quality(measured), folder, 0.95)
    assert set(read_json(folder / "manifest.json")["checksums"]) == {name for name in FILES if name.endswith(".csv")}


def test_without_probes_it_says_what_to_measure(monkeypatch, capsys, measured, tmp_path):
    from dataclasses import replace

    replace(measured, token_projections=None).save(tmp_path / "plain")
    code, _, err = run(monkeypatch, capsys, "tokens", tmp_path / "plain")
    assert code == 1
    assert "measure with token_probes=…, for example 32" in err


def test_what_is_saved_is_read_back(measured, tmp_path):
    quality = gs.proxy_quality(measured)
    save_tokens(quality, tmp_path)
    saved = read_tokens(tmp_path)
    assert saved is not None
    pd.testing.assert_frame_equal(saved.proxies, quality.to_frame(), rtol=1e-5, check_dtype=False)
    assert saved.proxies.attrs["n_probes"] == 32
    for name in ("correlation", "concentration", "local_slope"):
        table = getattr(quality, name).to_frame()
        pd.testing.assert_frame_equal(
            saved.profiles[name], table[saved.profiles[name].columns], rtol=1e-5, check_dtype=False
        )
    assert saved.traces["sequence"].nunique() >= 2
    assert (saved.traces["energy_low"] <= saved.traces["energy"] + 1e-12).all()
    assert len(saved.sample) == len(quality.tokens)
    assert read_tokens(tmp_path / "nowhere") is None
    (tmp_path / "token_profiles.csv").unlink()
    with pytest.raises(ValueError, match="cannot be read .* make them again with `gradstats tokens"):
        read_tokens(tmp_path)


def test_a_run_with_energies_is_drawn_and_reported_with_them(measured, folder):
    report = gs.alpha_report(measured)
    write_json(folder / "alpha.json", report.summary())
    points = measured.rollouts.frame[["prompt_id", "sample_id", "reward"]].assign(
        length=measured.lengths, sq_norm=measured.sq_norms, energy=[e.sum() for e in measured.token_energy]
    )
    (folder / "tables").mkdir()
    points.to_csv(folder / "tables" / "length_scaling.csv", index=False)
    save_tokens(gs.proxy_quality(measured), folder)
    results = read_results(folder)
    assert results.energy_fit is not None
    assert results.energy_fit.alpha == pytest.approx(gs.fit_energy_scaling(measured).alpha)
    names = {path.stem for path in draw_run(results, folder / "figures", FiguresSection(formats=["svg"]))}
    assert {"alpha_energy", *FIGURES} <= names
    page = report_page(results)
    assert "Energy of each token along completions of typical lengths" in page
    assert "gradstats tokens" in page
