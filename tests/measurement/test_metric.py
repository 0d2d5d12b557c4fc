"""Labels and sentences of metrics."""

from gradstats.measurement.measurement import metric_label, metric_sentence

ADAM = {
    "name": "adam",
    "eps": 1e-8,
    "power": 0.5,
    "step": 100,
    "beta2": 0.95,
    "moments": "1a2b",
    "source": "optimizer.pt",
}


def test_a_label_states_what_the_numbers_depend_on():
    assert metric_label({"metric": ADAM}) == "adam(eps=1e-08, power=0.5, step=100, beta2=0.95, moments=1a2b)"
    labels = {
        metric_label({"metric": ADAM | change}) for change in ({}, {"moments": "3c"}, {"eps": 0.0}, {"step": None})
    }
    assert len(labels) == 4
    # beta2 enters with a number of steps only, and a file may be called otherwise
    without = ADAM | {"step": None}
    assert metric_label({"metric": without}) == metric_label({"metric": without | {"beta2": 0.9, "source": "other.pt"}})


def test_measurements_without_a_record_are_euclidean():
    assert metric_label({}) == metric_label({"metric": None}) == "euclidean"
    assert metric_sentence({}) == ""


def test_the_sentence_names_the_source():
    assert metric_sentence({"metric": ADAM}).endswith("P = 1/(v̂^0.5 + 1e-08), v̂ from optimizer.pt")
    assert metric_sentence({"metric": ADAM | {"source": ""}}).endswith("+ 1e-08)")
