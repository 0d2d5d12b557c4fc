"""Figure style: exact widths, type-42 fonts, no side effects."""

import matplotlib as mpl
import pytest

from gradstats.plots import VENUES, style


@pytest.mark.parametrize(
    ("venue", "column", "width"),
    [
        ("icml", "half", 3.25),
        ("icml", "full", 6.75),
        ("icml", None, 3.25),
        ("neurips", None, 5.5),
        ("neurips", "full", 5.5),
        ("neurips", "half", 2.75),
        ("iclr", "full", 5.5),
        ("acl", "half", 3.03),
    ],
)
def test_widths(venue, column, width):
    assert style(venue, column)["figure.figsize"][0] == width


@pytest.mark.parametrize("venue", list(VENUES))
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_entry_is_an_rcparam(venue, theme):
    before = dict(mpl.rcParams)
    with mpl.rc_context(style(venue, "full", theme=theme)):
        assert mpl.rcParams["pdf.fonttype"] == 42
        assert mpl.rcParams["savefig.bbox"] is None
    assert dict(mpl.rcParams) == before


def test_height_and_latex_on_request():
    params = style("icml", "half", height=1.5, usetex=True)
    assert params["figure.figsize"] == (3.25, 1.5)
    assert params["text.usetex"] is True
    assert style()["text.usetex"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"venue": "nature"}, "venue='nature' is not known: choose from icml, neurips"),
        ({"column": "third"}, "column='third' is not a width: choose 'half' or 'full'"),
        ({"theme": "sepia"}, "theme='sepia' is not known"),
        ({"height": 0.0}, "height=0.0 must be positive"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        style(**arguments)


def test_another_dictionary_goes_on_top():
    theirs = {"font.size": 6, "axes.grid": True}
    merged = style("icml", "half") | theirs
    assert merged["figure.figsize"][0] == 3.25
    with mpl.rc_context(merged):
        assert (mpl.rcParams["font.size"], mpl.rcParams["axes.grid"]) == (6, True)


def test_dark_is_light_on_dark():
    dark, light = style("slide", theme="dark"), style("slide")
    assert (dark["text.color"], dark["figure.facecolor"]) == ("#e6e6e6", "#15181c")
    assert light["figure.facecolor"] == "#ffffff"
    assert dark["savefig.facecolor"] == dark["figure.facecolor"]
