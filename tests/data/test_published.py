"""Named data sets that ship."""

import numpy as np
import pytest

from gradstats import data


def test_published_points():
    frame = data.load("gloeckle2026")
    assert list(frame.columns) == ["length", "sq_norm"]
    assert len(frame) == 29
    assert (frame > 0).all().all()
    assert "Gloeckle" in frame.attrs["source"]
    assert data.names() == ["gloeckle2026"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("orca", "known names are gloeckle2026"), ("gloekle2026", r"did you mean 'gloeckle2026'\? known")],
)
def test_an_unknown_name_gets_a_hint(name, hint):
    with pytest.raises(KeyError, match=f"no data set is named '{name}': {hint}"):
        data.load(name)


def test_the_published_exponent_comes_out_of_the_points():
    frame = data.load("gloeckle2026")
    slope, _ = np.polyfit(np.log(frame["length"]), np.log(frame["sq_norm"]), 1)
    assert slope / 2 == pytest.approx(0.79, abs=0.005)
    assert frame["length"].max() <= 1500  # the cap


def test_each_call_reads_the_points_again():
    del data.load("gloeckle2026")["length"]
    assert "length" in data.load("gloeckle2026")
