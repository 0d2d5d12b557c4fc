"""What certify finds in functions with known faults, and in sound ones: exact numbers, labels and invariances."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from gradstats.cli import certify as command
from gradstats.cli.commands import dispatch
from gradstats.estimators import get
from gradstats.integrations.certify.batches import Batches
from gradstats.integrations.certify.exact import Row, certify, worst_first
from gradstats.integrations.certify.invariances import Subject
from gradstats.integrations.certify.labels import Catalogue, label_weights
from gradstats.integrations.certify.own import own_subjects

FILE = Path(__file__).with_name("faulty_functions.py")
DAPO = "recipe:custom(advantage=rloo, aggregation=token_mean(scope=batch))"
#: Function → its label on-policy, whether E ĝ has the direction of ∇J there and off-policy, and what does not hold.
FOUND = {
    "sound_loss": ("rloo", True, False, set()),
    "weights_from_sums": ("rloo", True, True, set()),
    "weights_from_means": ("rloo", True, False, set()),
    "k2_in_loss": (None, False, False, set()),
    "k3_in_loss": (None, False, False, {"KL term"}),
    "dapo_with_truncated_rows": (DAPO, False, False, {"accumulation steps", "masked row", "padding left", "processes"}),
    "dapo_of_each_step": (DAPO, False, False, {"accumulation steps", "processes"}),
    "loo": ("rloo", True, False, set()),
    "loo_with_batch_std": (
        "recipe:custom(advantage=rloo, scale=batch_std)", False, False, {"prompts repeated"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Row]:
    subjects = chain.from_iterable(own_subjects(f"{FILE}:{name}") for name in FOUND)
    return {(row.setting.rpartition(":")[2], row.sampler): row for row in certify(list(subjects))}


@pytest.mark.parametrize("name", FOUND)
def test_known_faults_are_found_and_sound_functions_pass(rows, name):
    label, on_policy, off_policy, failing = FOUND[name]
    row, older = rows[name, "on-policy"], rows[name, "older"]
    assert not row.error
    assert (row.is_unbiased, older.is_unbiased) == (on_policy, off_policy)
    assert set(row.failing) - {"NaN of masked tokens"} == failing
    assert label is None or (row.label, row.likeness) == (label, 1.0)


def test_rloo_is_exact_and_a_ratio_of_sequences_makes_it_unbiased(rows):
    row, sums = rows["loo", "on-policy"], rows["weights_from_sums", "older"]
    np.testing.assert_allclose([row.scale, row.cosine, row.variance, row.factor], 1.0, rtol=1e-9)
    np.testing.assert_allclose([sums.scale, sums.cosine], 1.0, rtol=1e-9)
    assert row.bias < 1e-9
    assert "sequence_product" in sums.equals
    assert rows["weights_from_means", "older"].cosine < 0.999


def test_what_twice_the_tokens_do(rows):
    for name, length in (("loo", 1.0), ("dapo_of_each_step", rows["dapo_of_each_step", "on-policy"].other_length)):
        found = rows[name, "on-policy"]
        assert (found.own_length, found.other_length) == pytest.approx((length, length))
    assert length < 0.9


@pytest.mark.parametrize(("sampler", "label"), [("on-policy", "rloo"), ("older", "recipe:rloo_is"), ("older", "grpo")])
def test_moments_are_those_of_groups(sampler, label):
    """A batch is the mean of one group of each prompt, which are independent."""
    batches, estimator = Batches.of(sampler), get(label)
    assert batches.probabilities.sum() == pytest.approx(1.0)
    found = batches.moments(label_weights(batches, estimator, np.arange(len(batches.rows))))
    alone = batches.policy.moments_by_prompt(estimator, 3)
    np.testing.assert_allclose(found.mean, np.mean([one.mean for one in alone], axis=0), atol=1e-12)
    assert found.trace_cov == pytest.approx(sum(one.trace_cov for one in alone) / 4)


def test_functions_that_depend_on_the_order_are_averaged_over_all_orders():
    ordered, sets = Batches.of("on-policy", ordered=True), Batches.of("on-policy")
    assert (len(ordered.rows), len(sets.rows)) == (4**6, 20**2)
    for batches in (ordered, sets):
        found = batches.moments(label_weights(batches, get("rloo"), np.arange(len(batches.rows))))
        np.testing.assert_allclose(found.mean, batches.policy.gradient, atol=1e-12)


def test_the_worst_come_first():
    row = {name: Row(name, "older", cosine=cosine) for name, cosine in (("good", 1.0), ("none", np.nan), ("bad", 0.5))}
    assert [one.setting for one in worst_first([*row.values(), Row("broken", "older", error="ValueError")])] == [
        "broken", "none", "bad", "good",
    ]  # fmt: skip


WRONG = {
    "def f(rewards, length): return rewards": "takes 'length': what a function may take is rewards",
    "def f(): return 0": "takes nothing that is known",
    "def f(rewards): return rewards[:2]": r"returned a tensor of shape \(2,\): an advantage function returns a tensor",
    "def f(advantages, logprobs): return logprobs": "a loss function returns one number, with a gradient",
    "def f(advantages, logprobs): return 1.0": "returned a value of type float: a loss function returns one number",
    "def f(rewards): return {}['a']": r"fails in its own code, .*, line 6: KeyError",
}


def test_functions_that_do_not_fit_are_refused(tmp_path):
    file = tmp_path / "functions_that_do_not_fit.py"
    file.write_text("\n".join(code.replace("def f", f"def f{at}") for at, code in enumerate(WRONG)))
    for at, message in enumerate(WRONG.values()):
        with pytest.raises((TypeError, ValueError), match=message):
            own_subjects(f"{file}:f{at}")


@pytest.mark.parametrize("code", [("json",), ()])
def test_errors_of_the_code_that_is_certified_are_told_from_our_own(code):
    class Failing(Subject):
        def advantages(self, batch):
            return json.loads("not JSON")  # stands for a trainer's code

    subject = Failing(setting={"function": "failing"}, code=code)
    if code:
        (row,) = certify([subject])
        assert "JSONDecodeError" in row.error
    else:
        with pytest.raises(json.JSONDecodeError):
            list(certify([subject]))


def test_names_that_cannot_be_certified_are_refused(monkeypatch):
    monkeypatch.setattr("gradstats.system.environment.installed", lambda package: None)
    with pytest.raises(ImportError, match=r"verl is not installed: pip install 'gradstats\[verl\]'"):
        command.certify("verl")
    with pytest.raises(ValueError, match="'nanotrl' cannot be certified: give trl or verl, or a function"):
        command.certify("nanotrl")


def test_the_command_shows_a_screen_and_says_what_moved(rows, tmp_path, capsys, monkeypatch):
    known = worst_first([row for (name, _), row in rows.items() if name == "dapo_of_each_step"])
    monkeypatch.setattr(command, "_rows", lambda subjects, progress: known)
    words = ["certify", f"{FILE}:dapo_of_each_step", "--no-progress"]
    dispatch(words)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert any("accumulation steps" in line for line in lines)
    dispatch([*words, "--markdown"])
    assert "| accumulation steps, processes |" in capsys.readouterr().out
    dispatch([*words, "--json"])
    expected = tmp_path / "expected.json"
    expected.write_text(capsys.readouterr().out)
    dispatch([*words, "--expect", str(expected)])
    capsys.readouterr()
    content = json.loads(expected.read_text())
    content["rows"][0]["cosine"] += 1e-3
    content["rows"][1]["setting"] = "another"
    expected.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="1"):
        dispatch([*words, "--all", "--expect", str(expected)])
    said = " ".join(capsys.readouterr().err.split())
    assert "cosine was" in said
    assert "another (on-policy) has gone" in said
    assert "in all: 3." in said
    with pytest.raises(ValueError, match="is not what `gradstats certify NAME --json` prints"):
        dispatch([*words, "--expect", str(FILE)])
    with pytest.raises(FileNotFoundError, match=r"expect=.*none.json does not exist: write it with"):
        dispatch([*words, "--expect", str(tmp_path / "none.json")])


def test_the_worst_failure_is_that_without_a_number():
    found = [Row(name, "older", deviations={"processes": value}) for name, value in (("far", 0.5), ("none", np.nan))]
    assert "none (older)" in command._failure("processes", found)


def test_an_expected_label_is_named_where_its_weights_are_equal():
    batches = Batches.of("on-policy")
    catalogue = Catalogue(batches, {})
    weights = label_weights(batches, get("grpo(eps=0.0001)"), np.arange(len(batches.rows)))
    label = "trl:luspo(vllm_importance_sampling_correction=False)"
    assert catalogue.nearest(weights, label) == (label, 1.0, 1.0)
    assert catalogue.nearest(6 * weights, label) == (label, pytest.approx(6.0), 1.0)
    assert catalogue.nearest(weights, "rloo")[0] != "rloo"


def test_a_plain_clip_is_named_before_one_that_does_the_same_here():
    batches = Batches.of("older")
    weights = label_weights(batches, get("recipe:custom(advantage=rloo, ratio=token_clip)"), np.arange(400))
    assert Catalogue(batches, {}).nearest(weights)[0] == "recipe:custom(advantage=rloo, ratio=token_clip)"
