"""The table of completions: columns, selection, files, checksums."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradstats.measurement.measurement import Measurement
from gradstats.rollouts.schema import SCHEMA, table_digest, validate
from gradstats.rollouts.table import PENDING_REWARDS, Rollouts, part_of_run, read_rollouts, refuse_different_policies

COLUMNS = {
    "text": pa.array(["a", None, "", "é"]),
    "number": pa.array([1.5, None, float("nan"), 0.0]),
    "flags": pa.array([[True], [], None, [False, True]]),
    "ids": pa.array([[1, 2], [3], [], None], pa.list_(pa.int32())),
}


def test_it_survives_parquet_and_chunks(tmp_path):
    table = pa.table(COLUMNS)
    expected = table_digest(table, b"about")
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=2, compression="snappy")
    assert table_digest(pq.read_table(tmp_path / "table.parquet"), b"about") == expected
    assert table_digest(pa.concat_tables([table[:1], table[1:]]), b"about") == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("text", ["a", "", None, "é"]),
        ("text", ["", "a", None, "é"]),
        ("number", [1.5, 0.0, float("nan"), 0.0]),
        ("flags", [[True], None, [], [False, True]]),
        ("ids", [[1], [2, 3], [], None]),
    ],
)
def test_it_notices_every_change(name, values):
    table = pa.table(COLUMNS)
    changed = pa.table(COLUMNS | {name: pa.array(values, COLUMNS[name].type)})
    renamed = table.rename_columns(["text", "number", "flags", "tokens"])
    digests = {table_digest(one, b"about") for one in (table, changed, renamed, table[::-1])}
    assert len(digests | {table_digest(table, b"About")}) == 5


ROW = {"prompt_id": "a", "sample_id": 0, "prompt_tokens": [1], "completion_tokens": [2, 3], "reward": 1.0}
SECOND = ROW | {"sample_id": 1, "sampler_logprobs": [-1.0, float("nan")]}


def test_a_table_of_the_required_columns_passes():
    assert [name for name, (_, required) in SCHEMA.items() if required] == list(ROW)
    validate(pd.DataFrame([ROW, ROW | {"sample_id": 1}]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt_id": None}, "row 1 .* has no prompt_id: give each completion the name of its prompt"),
        ({"reward": float("inf")}, "has a reward that is not finite"),
        ({"sampler_logprobs": [-1.0, 0.5]}, "has a sampler_logprobs above 0: give natural log-probabilities"),
        ({"sampler_logprobs": [float("nan"), float("inf")]}, "has a sampler_logprobs above 0"),
    ],
)
def test_the_first_row_that_is_wrong_is_named(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        validate(pd.DataFrame([ROW | {"sampler_logprobs": [-1.0, -2.0]}, SECOND | change]))


def test_unknown_log_probabilities_and_those_that_rounding_leaves_above_zero_pass():
    validate(pd.DataFrame([ROW | {"sampler_logprobs": [float("nan"), 1e-3]}, SECOND]))
    with pytest.raises(ValueError, match="has a proximal_logprobs above 0"):
        validate(pd.DataFrame([ROW | {"proximal_logprobs": [-1.0, 0.5]}]))
    with pytest.raises(ValueError, match="has a proximal_logprobs that is not finite: give all of them"):
        validate(pd.DataFrame([ROW | {"proximal_logprobs": [-1.0, float("nan")]}]))


def rollouts(digests, name="a"):
    policy = {"name": "p"} | ({} if digests is None else {"digests": digests})
    return Rollouts.from_sequences([[1]], [[2, 3]], np.ones(1), [name], metadata={"policy": policy})


def test_rollouts_of_other_weights_are_joined_on_request_only():
    first, second = rollouts({"weights": "a" * 64}), rollouts({"weights": "b" * 64}, "b")
    with pytest.raises(ValueError, match=r"rollouts come from policies with different weights \(SHA-256 aaaa"):
        Rollouts.concatenate([first, second])
    assert len(Rollouts.concatenate([first, second], allow_policy_mismatch=True)) == 2
    assert len(Rollouts.concatenate([first, rollouts(None, "b"), rollouts({"weights": "a" * 64}, "c")])) == 3


def test_an_adapter_that_only_one_has_is_a_difference():
    adapted, plain = {"weights": "a", "adapter": "c"}, {"weights": "a"}
    with pytest.raises(ValueError, match="different adapter"):
        refuse_different_policies([{"policy": {"digests": one}} for one in (adapted, plain)], "rollouts")
    refuse_different_policies([{"policy": {"digests": one}} for one in (plain, plain | {"tokenizer": "d"})], "rollouts")
    refuse_different_policies([{}, {"policy": None}, {"policy": {"digests": adapted}}], "rollouts")


def test_measurements_of_other_weights_are_joined_on_request_only():
    parts = [
        Measurement(
            rollouts(None, name),
            pd.DataFrame({"all": [1.0]}),
            None,
            **{field: [np.ones(2)] for field in ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")},
            metadata={"policy": {"digests": {"weights": name * 64}}, "block_names": ["all"]},
        )
        for name in "ab"
    ]
    with pytest.raises(ValueError, match="measurements come from policies with different weights"):
        Measurement.concatenate(parts)
    assert len(Measurement.concatenate(parts, allow_policy_mismatch=True).rollouts) == 2


FULL = {
    "completion_mask": [[True, False, True], [True]],
    "token_rewards": [[0.0, 0.0, 1.0], [0.5]],
    "sampler_logprobs": [[-0.5, -1.5, -0.25], [-2.0]],
    "proximal_logprobs": [[-0.75, -1.5, -0.5], [-2.5]],
    "finish_reason": ["stop", "length"],
    "prompt_text": ["one?", "two?"],
    "completion_text": ["ünö", "b"],
}


def table(**changes):
    given = {
        "prompt_tokens": [[1, 2], [3]],
        "completion_tokens": [[4, 5, 6], [7]],
        "rewards": [1.0, 0.5],
        "prompt_ids": ["a", "b"],
    }
    return Rollouts.from_sequences(**(given | changes))


def test_parquet_gives_back_every_column_and_the_metadata(tmp_path):
    rollouts = table(**FULL, metadata={"policy": {"name": "ünö"}, "seed": 3})
    rollouts.to_parquet(tmp_path / "rollouts.parquet")
    read = read_rollouts(tmp_path / "rollouts.parquet")
    pd.testing.assert_frame_equal(read.frame, rollouts.frame)
    assert read.metadata == rollouts.metadata
    assert list(tmp_path.iterdir()) == [tmp_path / "rollouts.parquet"]


def test_lengths_count_masked_in_tokens_only():
    assert table(**FULL).lengths.tolist() == [2, 1]
    assert table().lengths.tolist() == [3, 1]
    assert table(**FULL | {"completion_mask": [[False] * 3, [True]]}).lengths.tolist() == [0, 1]
    assert table(**FULL).truncated.tolist() == [False, True]


def test_sample_ids_count_within_a_prompt_in_order_of_appearance():
    rollouts = table(
        prompt_tokens=[[1]] * 4, completion_tokens=[[2]] * 4, rewards=[0.0] * 4, prompt_ids=[7, "x", 7, "x"]
    )
    assert rollouts.prompt_id.tolist() == ["7", "x", "7", "x"]
    assert rollouts.sample_id.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("prompt_ids", "sentence"),
    [
        (["a", None], "prompt_ids has no label at completion 1, but None"),
        ([float("nan"), 1.0], "prompt_ids has no label at completion 0, but nan"),
        ([1, "1"], r"prompt_ids mixes numbers and text \(1 and '1'\)"),
    ],
)
def test_prompts_without_a_name_and_two_of_the_same_text_are_refused(prompt_ids, sentence):
    with pytest.raises(ValueError, match=sentence):
        table(prompt_tokens=[[1]] * 2, completion_tokens=[[2]] * 2, rewards=[0.0] * 2, prompt_ids=prompt_ids)


def test_a_folder_of_shards_reads_in_the_order_of_their_names(tmp_path):
    rollouts = table()
    rollouts.select([1]).to_parquet(tmp_path / "shard-1.parquet")
    rollouts.select([0]).to_parquet(tmp_path / "shard-0.parquet")
    (tmp_path / ".shard-2.parquet.99.partial").write_bytes(b"half a file")
    pd.testing.assert_frame_equal(read_rollouts(tmp_path).frame, rollouts.frame)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completion_tokens": [[], [7]]}, r"row 0 \(prompt_id 'a', sample_id 0\) has no completion tokens"),
        ({"prompt_tokens": [[1], []]}, "row 1 .* has no prompt tokens"),
        ({"completion_tokens": [[5, -1], [7]]}, "completion_tokens of row 0 hold -1, which is not a token id: ids are"),
        ({"completion_tokens": [[5, 6, "6"], [7]]}, "completion_tokens of row 0 hold '6', which is not a token id"),
        ({"prompt_tokens": [[1], [None]]}, "prompt_tokens of row 1 hold None, which is not a token id"),
        ({"rewards": [1.0, float("nan")]}, "row 1 .* has a reward that is not finite"),
        ({"rewards": [1.0, -1e308]}, r"row 1 .* has a reward beyond ±1e\+100, of which squares are not finite: scale"),
        ({"rewards": [1.0]}, "reward has 1 entries but prompt_ids has 2"),
        ({"completion_mask": [[True], [True]]}, "row 0 .* completion_mask of another length"),
        ({"sampler_logprobs": [[-1.0] * 3, [-1.0] * 2]}, "row 1 .* sampler_logprobs of another length"),
        ({"finish_reason": ["stop", "eos"]}, "row 1 .* finish_reason that is none of stop, length"),
        ({"prompt_ids": ["a", "a"], "sample_ids": [0, 0]}, "row 1 .* repeats its sample_id"),
        ({"mask": [[True], [True]]}, "unknown column 'mask'; optional columns are completion_mask"),
        ({"prompt_tokens": [], "completion_tokens": [], "rewards": [], "prompt_ids": []}, "the rollouts are empty"),
        ({"greedy_reward": [1.0, float("nan")]}, "greedy_reward that is not finite"),
        ({"greedy_reward": [1.0, 1e308]}, r"greedy_reward beyond ±1e\+100"),
        ({"token_source": ["text", "guess"]}, "token_source that is none of engine, pieces, text, mismatch"),
    ],
)
def test_invalid_tables_are_refused_with_the_row(changes, message, unchecked):
    with pytest.raises((TypeError, ValueError), match=message):
        table(**changes)


@pytest.mark.parametrize(("token", "shown"), [(1.5, "1.5"), (-1, "-1"), (2**40, "1099511627776"), (np.nan, "None")])
def test_a_file_from_elsewhere_with_other_numbers_than_token_ids_is_refused(tmp_path, token, shown):
    path = tmp_path / "theirs.parquet"
    frame = table().frame.assign(completion_tokens=[[5, token, 6], [7]])
    frame.to_parquet(path)
    with pytest.raises(ValueError, match=rf"theirs\.parquet: completion_tokens of row 0 hold {shown}, which is not"):
        read_rollouts(path)
    frame.assign(completion_tokens=[[5.0, 1.0, 6.0], [7.0]]).to_parquet(path)  # as pandas writes some integers
    assert read_rollouts(path).frame["completion_tokens"].tolist() == [[5, 1, 6], [7]]


def test_a_truncated_file_is_never_read_as_whole(tmp_path):
    path = tmp_path / "rollouts.parquet"
    table().to_parquet(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"rollouts\.parquet cannot be read as Parquet"):
        read_rollouts(path)


def test_a_checksum_that_lost_its_name_is_noticed(tmp_path):
    path = tmp_path / "rollouts.parquet"
    table().to_parquet(path)
    stored = pq.read_table(path)
    about = {name.replace(b"_checksum", b"_checksun"): value for name, value in stored.schema.metadata.items()}
    pq.write_table(stored.replace_schema_metadata(about), path)
    with pytest.raises(ValueError, match=r"rollouts\.parquet has changed since it was written"):
        read_rollouts(path)


def test_missing_files_and_columns_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.parquet does not exist"):
        read_rollouts(tmp_path / "absent.parquet")
    with pytest.raises(FileNotFoundError, match="holds no rollouts"):
        read_rollouts(tmp_path)
    pd.DataFrame({"prompt_id": ["a"]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ValueError, match=r"other\.parquet: the rollouts have no column 'sample_id'"):
        read_rollouts(tmp_path / "other.parquet")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "rollouts.parquet"
    table().to_parquet(path)
    before = path.read_bytes()

    def full_disk(_table, where, **_options):
        where.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full_disk)
    with pytest.raises(OSError, match=r"no space is left to write .*rollouts\.parquet: free some and repeat the"):
        table(rewards=[0.0, 0.0]).to_parquet(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tables_with_and_without_logprobs_are_stacked_and_other_differences_refused():
    known, unknown = (table(**columns) for columns in ({"sampler_logprobs": FULL["sampler_logprobs"]}, {}))
    unknown = Rollouts(unknown.frame.assign(prompt_id="q", sample_id=[0, 1]))
    stacked = Rollouts.concatenate([unknown, known]).tokens("sampler_logprobs")
    assert np.isnan(stacked[0]).all()
    assert stacked[2].tolist() == FULL["sampler_logprobs"][0]
    with pytest.raises(ValueError, match="rollouts differ in the column 'greedy_reward'"):
        Rollouts.concatenate([unknown, table(greedy_reward=[1.0, 1.0])])


def test_columns_of_ones_own_are_kept_in_files(tmp_path):
    rollouts = table(**FULL)
    own = {"domain": ["logic", "algebra"], "salience": [[0.5, 1.0, 2.0], [3.0]], "turns": [2, 5], "easy": [True, False]}
    frame = rollouts.frame.assign(**own)
    Rollouts(frame, rollouts.metadata).to_parquet(tmp_path / "own.parquet")
    back = read_rollouts(tmp_path / "own.parquet")
    pd.testing.assert_frame_equal(back.frame, frame)
    assert back.select([1]).frame["salience"].tolist() == [[3.0]]
    with pytest.raises(ValueError, match=r"the column 'notes' of the rollouts cannot be stored.*or drop the column"):
        Rollouts(frame.assign(notes=[object(), 1])).to_parquet(tmp_path / "other.parquet")
    assert not (tmp_path / "other.parquet").exists()


@pytest.mark.parametrize("part", ["rollouts", "measurement"])
def test_a_part_is_found_from_the_run_and_from_itself(tmp_path, part):
    (tmp_path / "run" / part).mkdir(parents=True)
    assert part_of_run(tmp_path / "run", part) == tmp_path / "run" / part
    assert part_of_run(tmp_path / "run" / part, part) == tmp_path / "run" / part
    assert part_of_run(tmp_path, part) == tmp_path


@pytest.mark.parametrize("part", ["rollouts", "measurement"])
def test_neither_is_read_while_rewards_are_pending(tmp_path, part):
    (tmp_path / part).mkdir()
    (tmp_path / PENDING_REWARDS).parent.mkdir()
    (tmp_path / PENDING_REWARDS).write_text("{}")
    for folder in (tmp_path, tmp_path / part):
        with pytest.raises(ValueError, match="again was interrupted: finish it with `gradstats regrade"):
            part_of_run(folder, part)
