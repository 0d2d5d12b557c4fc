"""What there is by name, versions and hardware."""

import json
from importlib.metadata import metadata
from typing import get_args

import pytest

from gradstats import estimators
from gradstats.cli.answers import LINES, WIDTH
from gradstats.cli.installation import Kind
from gradstats.rewards.registry import REWARDS
from gradstats.system.environment import EXTRAS


def test_quantities_are_listed_one_a_line_with_their_files(answered):
    lines = [line.split() for line in answered("list", "quantities", "--all").splitlines()]
    assert ["energy_ratio", "on_policy", "analyses/on_policy.py", "energy", "ratio"] in lines
    assert " on_policy · sampler_gap " in " ".join(answered("list", "quantities").split())
    assert "\nenergy_ratio " in answered("list", "quantities", "on_policy")
    out = answered("list", "quantities", "energy_ratio")
    assert out.splitlines()[:3] == ["energy_ratio", "  table: on_policy", "  file: analyses/on_policy.py"]


def test_one_of_a_list_is_explained_and_the_nearest_is_proposed(answered, refused):
    out = answered("list", "terms", "Best")
    assert (out.startswith("best set\n  The estimators that may have"), len(out.splitlines()) <= 3) == (True, True)
    rows = json.loads(answered("list", "estimators", "rloo", "--json"))["rows"]
    assert [row["name"] for row in rows] == ["rloo"]
    assert answered("list", "terms", "matched_ratio").startswith("relative noise, matched ratio\n")
    wrong = "none of the quantities is called 'matched_ration': did you mean matched_ratio?"
    assert wrong in refused("list", "quantities", "matched_ration")
    err = refused("list", "termz")
    assert "'termz' cannot be listed: did you mean terms? choose from experiments, " in err
    assert "as in list estimators rloo" in err


def test_a_check_begins_with_what_works_and_how_to_get_the_rest(answered, monkeypatch):
    monkeypatch.setattr("gradstats.system.environment.installed", lambda package: None if package == "ray" else "1.0")
    out = answered("check", width=80)
    assert out.startswith("gradstats samples, measures and analyses here, on ")
    assert [line for line in out.splitlines() if line.startswith("  missing")] == [
        "  missing  workers on many GPUs: pip install 'gradstats[ray]'"
    ]
    assert max(map(len, out.splitlines())) <= WIDTH


def test_every_extra_of_users_is_known_to_the_check():
    extras = set(metadata("gradstats").get_all("Provides-Extra", [])) - {"dev", "docs"}
    assert set(EXTRAS) == extras


def test_without_a_kind_the_other_kinds_are_named(answered):
    *_, last = answered("list").split("\n\n")
    assert all(kind in last for kind in get_args(Kind) if kind != "experiments")


def test_env_is_json(answered):
    assert {"torch", "transformers", "gradstats"} <= set(json.loads(answered("check", "--json"))["versions"])


#: What can be listed → some names that are in the list.
LISTED = {
    "experiments": ["embedded"],
    "estimators": estimators.names(),
    "recipes": [f"recipe:{name}" for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "kimi_k15", "ppo")],
    "rewards": REWARDS,
    "data": ["gloeckle2026"],
}


@pytest.mark.parametrize("what", [what for what in get_args(Kind) if what != "schema"])
def test_every_list_fits_on_a_screen(answered, what):
    lines = answered("list", what, width=80).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= LINES
    assert "…" not in "".join(lines).replace("=…", "")  # a parameter to be filled in, and no text that was cut
    everything = answered("list", what, "--all", width=80)
    assert max(map(len, everything.splitlines())) <= WIDTH or what == "quantities"  # which is read by programs
    assert [name for name in LISTED.get(what, ()) if name not in everything] == []
