"""Named data sets that ship."""

import pytest

from gradstats import data


def test_published_points():
    frame = data.load("gloeckle2026")
    assert list(frame.columns) == ["length", "sq_norm"]
    assert len(frame) == 29
    assert (frame > 0).all().all()
    assert "Gloeckle" in frame.attrs["source"]
    assert data.names() == ["gloeckle2026"]


def test_unknown_name():
    with pytest.raises(KeyError, match="no data set is named 'orca': known names are gloeckle2026"):
        data.load("orca")
