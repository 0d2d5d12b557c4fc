"""Logs of trainers as tables of numbers: what each format says, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest

from gradstats.estimators import recipes
from gradstats.rollouts import Rollouts, read_log
from gradstats.rollouts.log import BAND, CAP

MESSAGES = [{"role": "assistant", "content": "four"}]
SAMPLER, TRAINER = [[-1.0, -2.0, -0.5], [-0.1, -3.0]], [[-1.1, -1.0, -0.5], [-0.1, -5.0]]


def trl(folder):
    """Two steps as TRL writes them, with messages; the prompt of the second was drawn for two groups."""
    asked = [{"role": "user", "content": "2 + 2"}]
    for step, rewards in ((1, [1.0, 0.0]), (2, [1.0, 0.0, 0.0, 1.0])):
        groups = np.reshape(rewards, (-1, 2))
        advantages = ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-4)).ravel()
        columns = {"step": step, "prompt": [asked] * len(rewards), "completion": [MESSAGES] * len(rewards)}
        frame = pd.DataFrame(columns | {"accuracy_reward": rewards, "advantage": advantages})
        frame.to_parquet(folder / f"completions_{step:05d}.parquet")


def verl(folder):
    """Two steps as verl writes them, files numbered without zeros, with the optional fields of tokens."""
    for step in (2, 10):
        rows = [
            {"input": "q", "output": "ab", "score": at, "rollout_log_probs": drawn, "old_log_probs": scored}
            | {"response_mask": [1] * (len(drawn) - at) + [0] * at, "entropy": [0.5 + at] * len(drawn)}
            for at, (drawn, scored) in enumerate(zip(SAMPLER, TRAINER, strict=True))
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def own(folder):
    """Rollouts of gradstats, as in a run."""
    rollouts = Rollouts.from_sequences(
        [[5]] * 2, [[1, 2, 3], [1, 2]], [1.0, 0.0], ["q", "q"], sampler_logprobs=SAMPLER, proximal_logprobs=TRAINER,
        completion_mask=[[True] * 3, [True, False]], finish_reason=["stop", "length"],
    )  # fmt: skip
    (folder / "rollouts").mkdir()
    rollouts.to_parquet(folder / "rollouts" / "0.parquet")


def plain(folder):
    """A table with names that say what they are, and a name of a prompt that is a number."""
    (folder / "log.csv").write_text("prompt_id,reward,length,is_truncated\n007,1,3,False\n007,0,1,True\n")


LENGTHS = {trl: [4] * 6, verl: [3, 1, 3, 1], own: [3, 1], plain: [3, 1]}
GROUPS = {trl: [0, 0, 1, 1, 2, 2], verl: [0, 0, 1, 1], own: [0, 0], plain: [0, 0]}


@pytest.mark.parametrize("write", LENGTHS)
def test_every_format_is_the_same_table(write, tmp_path):
    write(tmp_path)
    log = read_log(tmp_path)
    assert log.frame["length"].tolist() == LENGTHS[write]
    assert log.frame["group"].tolist() == GROUPS[write]
    assert log.unit == ("letters" if write is trl else "tokens")
    assert set(log.frame["prompt"]) == {0}
    assert log.frame["step"].tolist() == {trl: [1] * 2 + [2] * 4, verl: [2, 2, 10, 10]}.get(write, [0, 0])
    if write is own or write is plain:
        assert log.frame["truncated"].tolist() == [0.0, 1.0]
    if write is verl:
        assert log.frame["entropy"].tolist() == [0.5, 1.5] * 2


@pytest.mark.parametrize("write", [verl, own])
def test_ratios_are_those_of_a_loop_over_counted_tokens(write, tmp_path):
    write(tmp_path)
    found = read_log(tmp_path).frame.iloc[:2]
    counted = [[0, 1, 2], [0]]
    pairs = zip(SAMPLER, TRAINER, counted, strict=True)
    gaps = [[np.float32(new[t]) - np.float32(old[t]) for t in at] for old, new, at in pairs]
    np.testing.assert_allclose(found["log_ratio"], [sum(one) for one in gaps], atol=1e-6)
    np.testing.assert_allclose(found["abs_gap"], [sum(map(abs, one)) for one in gaps], atol=1e-6)
    assert found["n_ratios"].tolist() == [3, 1]
    assert found["n_capped"].tolist() == [sum(np.exp(gap) > 2 for gap in one) for one in gaps] == [1, 0]
    assert found["n_outside"].tolist() == [0, 0]


def test_more_than_the_last_unknown_token_leaves_the_ratio_unknown(tmp_path):
    nan = float("nan")
    rows = [([-1.0, nan], [-2.0, -1.0]), ([nan, nan, -1.0], [-1.0, -1.0, -3.0]), ([nan], [-1.0])]
    frame = pd.DataFrame({"prompt": "q", "reward": 1.0, "sampler_logprobs": [drawn for drawn, _ in rows]})
    frame.assign(trainer_logprobs=[scored for _, scored in rows]).to_parquet(tmp_path / "log.parquet")
    assert read_log(tmp_path / "log.parquet").frame["log_ratio"].fillna(9).tolist() == [-1.0, 9.0, 9.0]


def test_rewards_are_weighted_and_missing_ones_left_out(tmp_path):
    (tmp_path / "log.csv").write_text("uid,a,b\nx,1,2\nx,,4\ny,,\ny,3,\n")
    log = read_log(tmp_path / "log.csv", reward=["a", "b=0.5"])
    assert log.frame.equals(read_log(tmp_path / "log.csv", reward={"a": 1.0, "b": 0.5}).frame)
    assert log.frame["reward"].tolist() == [2.0, 2.0, 3.0]
    assert any("1 of 4 completions have no finite reward" in note for note in log.notes)
    assert any("groups have 1 to 2 completions" in note for note in log.notes)
    assert any("prompts are named by uid" in note for note in log.notes)


@pytest.mark.parametrize("order", ["shuffled", "in order"])
def test_uids_tell_the_groups_of_one_prompt_apart(order, tmp_path):
    uids = [f"g{at // 4}" for at in range(16)]
    rows = pd.DataFrame({"prompt": [f"p{at // 8}" for at in range(16)], "uid": uids, "reward": [0, 1] * 8})
    rows = rows.sample(frac=1.0, random_state=0) if order == "shuffled" else rows
    rows.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    groups = read_log(tmp_path / "log.jsonl").frame["group"]
    assert len(set(zip(rows["uid"], groups, strict=True))) == groups.nunique() == 4


def test_a_log_without_names_is_cut_into_groups_in_its_order(tmp_path):
    (tmp_path / "log.csv").write_text("reward\n" + "1\n0\n" * 4)
    log = read_log(tmp_path / "log.csv", group_size=4)
    assert log.frame["group"].tolist() == [0] * 4 + [1] * 4
    assert log.notes == ("prompts have no names: rows are cut into groups of 4 in their order",)
    with pytest.raises(ValueError, match="step 0 has 8 completions, which is not a multiple of group_size=3"):
        read_log(tmp_path / "log.csv", group_size=3)


def test_many_files_are_one_log_and_one_given_twice_is_refused(tmp_path):
    for number in (1, 2):
        (tmp_path / f"part{number}.csv").write_text("prompt,reward\nq,1\nq,0\n")
    files = [tmp_path / "part1.csv", tmp_path / "part2.csv"]
    assert read_log(files).frame["step"].tolist() == [1, 1, 2, 2]
    with pytest.raises(ValueError, match=r"part1.csv is given twice"):
        read_log([*files, tmp_path])


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("column", ["length", "step"])
def test_rows_that_were_appended_twice_are_refused(column, times, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"step": np.repeat([1, 2], 64), "prompt": np.tile(np.repeat(range(8), 8), 2), "reward": 0.0})
    frame = frame.assign(length=rng.integers(5, 200, 128))
    repeated = frame if column == "length" else frame.query("step == 2")
    pd.concat([frame, *[repeated] * (times - 1)]).to_csv(tmp_path / "log.csv")
    with pytest.raises(
        ValueError, match=f"of step . log.csv holds the same 64 rows {times} times: .* keep each row once"
    ):
        read_log(tmp_path / "log.csv")
    assert len(read_log(tmp_path / "log.csv", length="step").frame) == 64 * (2 + (times - 1) * len(repeated) // 64)


def test_what_is_not_known_of_some_is_said(tmp_path):
    (tmp_path / "log.csv").write_text(
        "prompt,reward,length,finish_reason\nq,1,5,stop\nq,0,,\np,1,2,length\np,0,3,stop\nr,1,1,\n"
    )
    log = read_log(tmp_path / "log.csv")
    assert "truncated" not in log.frame
    assert "not every completion says how it ended: nothing is said of those cut off" in log.notes
    assert "1 completion of 5 without a length: none of their tokens count" in log.notes
    assert (log.group_size, repr(log)) == (2, "<Log: 5 completions of 3 prompts in 3 groups>")


def test_energies_and_names_of_prompts_are_kept(tmp_path):
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "How many primes are there?"}]
    rows = [
        {"prompt": asked, "reward": at, "old_log_probs": [-1.0, -2.0], "sum_pi_squared": [0.5, 0.25]} for at in (0, 1)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row | {"response_mask": [1, 0]}) + "\n" for row in rows))
    log = read_log(tmp_path / "log.jsonl")
    np.testing.assert_allclose(log.column("proxy_logit"), 1 - 2 * np.exp(-1.0) + 0.5)
    assert log.prompt_name(0) == "How many primes are ther…"
    (tmp_path / "log.csv").write_text("prompt,reward\n[{'role': x},1\n[{'role': x},0\n")
    assert read_log(tmp_path / "log.csv").prompt_name(0) == "[{'role': x}"
    assert repr(log) == "<Log: 2 completions of 1 prompt in 1 group>"


REFUSED = [
    ("log.csv", "prompt_id,reward,reward\na,1,0\na,0,1\n", r"log\.csv has two columns 'reward': name every column dif"),
    ("log.csv", "prompt,reward,step\nq,1,1e30\nq,0,1\n", r"row 1 of .* has the step 1e\+30, which is not the number"),
    ("log.csv", "prompt,reward\nq,1,9\nq,0\n", "has rows with more cells than its first line has names"),
    ("log.csv", "prompt,reward,truncated\nq,1,2\nq,0,1\n", "row 1 of .* has truncated=2: write true or false"),
    ("log.csv", "prompt,reward\nq,1e300\nq,0\n", r"row 1 of .* has the reward 1e\+300, beyond ±1e\+100"),
    ("log.json", '[{"prompt": "q", "reward": 1}]', "line 1 of .* is not a JSON object"),
    ("log.jsonl", '{"prompt": "q", "reward": 1, "response_mask": "no"}\n' * 2, "row 1 .* has response_mask='no',"),
    (
        "log.jsonl",
        '{"prompt": "q", "reward": 1, "rollout_log_probs": [0.5], "old_log_probs": [-0.1]}\n' * 2,
        "row 1 of .* has a rollout_log_probs above 0: give natural log-probabilities",
    ),
    ("log.csv", "reward\n1\n", "has no column that names prompts .*name it with prompt, or give group_size"),
    ("log.csv", "prompt,reward\n,1\nq,1\n", "row 1 of .* has no prompt"),
    ("log.csv", "prompt,reward\nq,good\nq,1\n", "row 1 of .* has reward='good', which is not a number"),
    ("log.csv", "prompt,a,b\nq,1,2\nq,0,1\n", r"exactly one column of numbers that may be the reward \(a, b\)"),
    ("log.csv", "prompt,reward\nq,1\n", "holds 1 completion with a reward: at least two"),
    ("log.csv", "prompt,sample_id,reward\nq,0,1\nq,0,1\n", "holds 1 completions twice"),
    ("log.csv", "prompt,reward,step\nq,1,1.5\nq,1,2\n", "row 1 of .* has the step 1.5"),
    ("log.jsonl", '{"prompt": "q", "reward": 1}\n{"prom', "line 2 of .* is not JSON .*truncated"),
    ("log.parquet", "no table", "cannot be read as a table"),
    ("log.csv", "prompt,reward,length\nq,1,5\nq,0,-3\n", "row 2 of .* has the length -3, .* name another column"),
    ("log.csv", "", r"log\.csv cannot be read as a table"),
    (
        "log.jsonl",
        '{"prompt": "q", "reward": 1, "rollout_log_probs": [-0.1], "old_log_probs": [-0.1, -0.2]}\n' * 2,
        "row 1 of .* has rollout_log_probs and old_log_probs of different lengths",
    ),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_what_is_wrong_is_named_with_the_remedy(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_log(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("none.csv", {}, "does not exist: give the files of a log"),
        ("empty", {}, "holds no table"),
        (".", {"group_size": 1}, "group_size=1 must be at least 2"),
        (".", {"reward": "a=half"}, "reward 'a=half' has a weight that is not a number"),
        (".", {"prompt": "x"}, r"has no column 'x' for the prompt \(it has prompt_id, reward"),
        (".", {"reward": "x"}, r"has no column 'x' for the reward"),
    ],
)
def test_paths_and_options_are_refused(name, options, message, tmp_path):
    plain(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        read_log(tmp_path / name, **options)


def test_the_bounds_of_corrections_are_those_of_the_recipes():
    tis, icepop = (recipes.get(name).correction.parameters for name in ("tis", "icepop"))
    assert (tis["cap"], icepop["low"], icepop["high"]) == (CAP, *BAND)


def test_shards_of_a_run_are_of_one_step_and_folders_of_a_monitor_of_theirs(tmp_path):
    rows = pd.DataFrame({"prompt_id": ["p", "p", "q", "q"], "reward": [0.0, 1.0, 1.0, 1.0]})
    for folder in ("run", "step-000002", "step-000004"):
        (tmp_path / folder / "rollouts").mkdir(parents=True)
        for shard, part in enumerate((rows.iloc[:2], rows.iloc[2:])):
            part.to_parquet(tmp_path / folder / "rollouts" / f"shard-{shard:05d}.parquet")
    assert set(read_log(tmp_path / "run").frame["step"]) == {0}
    steps = read_log([tmp_path / "step-000002", tmp_path / "step-000004"]).frame["step"]
    assert steps.tolist() == [2] * 4 + [4] * 4
