"""One colour and marker per estimator, everywhere."""

from gradstats import estimators
from gradstats.plots import estimator_appearance
from gradstats.plots.names import KNOWN, variants


def test_known_names_are_all_different():
    assert len({estimator_appearance(name) for name in KNOWN}) == len(KNOWN)


def test_every_estimator_of_the_family_is_known():
    assert set(estimators.names()) <= set(KNOWN)


def test_parameters_do_not_change_it():
    assert estimator_appearance("length_weighted(alpha=0.8, loo=True)") == estimator_appearance("length_weighted")


def test_unknown_names_are_settled_and_never_take_a_known_pair():
    known = {estimator_appearance(name) for name in KNOWN}
    for name in ("mine", "yours", "control_variate", "b"):
        assert estimator_appearance(name) == estimator_appearance(name)
        assert estimator_appearance(name) not in known


def test_it_is_fixed_for_good():
    color, marker = estimator_appearance("rloo")
    assert marker == "o"
    assert [round(channel, 3) for channel in color] == [0.004, 0.451, 0.698]
    color, marker = estimator_appearance("something_else")
    assert marker == "o"
    assert [round(channel, 3) for channel in color] == [0.871, 0.561, 0.02]


def test_estimators_of_one_name_differ_without_colour():
    labels = ["gae", "rloo", "gae(lam=0.95)", "token_mean", "gae(lam=0.5)", "gae(lam=0.1)"]
    found = variants(labels)
    assert [one.linestyle for one in found[:4]] == ["-", "-", "-.", "--"]
    assert [one.fillstyle for one in found[:4]] == ["full", "full", "left", "bottom"]
    two = variants(["token_mean(loo=True)", "token_mean"])  # leave-one-out and own sample
    assert [one.fillstyle for one in two] == ["full", "bottom"]
    assert two[0].linestyle != two[1].linestyle
    of_gae = [one for one, label in zip(found, labels, strict=True) if label.startswith("gae")]
    assert len({one.linestyle for one in of_gae}) == len({one.fillstyle for one in of_gae}) == 4
