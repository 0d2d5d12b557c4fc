"""Results go where a user asks, and nothing that this program did not write is replaced."""

import os

import pandas as pd
import pytest

from gradstats.system.outputs import (
    MARK,
    TABLE,
    OutputType,
    claim,
    csv_with,
    differing_entry,
    other_numbers,
    refuse_links,
    write_marked,
    write_table,
)


def test_only_what_is_recognised_may_be_replaced(tmp_path):
    mine = tmp_path / "mine.tex"
    claim(mine, TABLE)
    write_marked(mine, f"% {MARK}\n1", TABLE)
    write_marked(mine, f"% {MARK}\n2", TABLE)
    assert mine.read_text() == f"% {MARK}\n2"
    yours = tmp_path / "yours.tex"
    yours.write_text("years of work")
    with pytest.raises(FileExistsError, match="the file .*yours.tex exists and is not a table that gradstats wrote"):
        write_marked(yours, f"% {MARK}", TABLE)
    assert yours.read_text() == "years of work"
    with pytest.raises(FileExistsError, match="the folder .* exists and is not a table"):
        claim(tmp_path, TABLE)
    for odd in ("pipe", "link"):
        os.mkfifo(tmp_path / odd) if odd == "pipe" else (tmp_path / odd).symlink_to("nowhere")
        with pytest.raises(FileExistsError, match="is not a file or folder"):
            claim(tmp_path / odd, OutputType("a table", lambda _: True))
    with pytest.raises(FileExistsError, match="is not a file or folder"):
        claim("/dev/null", OutputType("a table", lambda _: True))
    with pytest.raises(NotADirectoryError, match=r"mine.tex/deep.tex cannot be written, since .* is not a folder"):
        claim(mine / "deep.tex", TABLE)


def test_a_table_replaces_the_same_one_and_another_on_request_only(tmp_path):
    path, frame = tmp_path / "table.csv", pd.DataFrame({"a": [1.5], "b,c": ["x"]})
    write_table(path, frame, overwrite=False)
    assert csv_with(["a"], "a table").is_ours(path)
    frame = frame[["a"]]
    path.unlink()
    for _ in range(2):
        write_table(path, frame, overwrite=False)
    with pytest.raises(FileExistsError, match="holds a finished result with other numbers: replace it with"):
        write_table(path, frame * 2, overwrite=False)
    write_table(path, frame * 2, overwrite=True)
    assert path.read_text() == "a\n3.0\n"
    path.write_text("name,age\nme,9\n")
    with pytest.raises(FileExistsError, match="is not a table of these columns that gradstats wrote"):
        write_table(path, frame, overwrite=True)
    assert path.read_text() == "name,age\nme,9\n"


@pytest.mark.parametrize(
    ("cells", "same"),
    [
        ("10000001,0.25,", True),
        ("10000001,0.2500001,", True),
        ("10000001,0.2501,", False),
        ("10000002,0.25,", False),  # the name of a prompt
        ("10000001,0.25,nan", False),
        ("10000001,0.25", False),
    ],
)
def test_tables_are_the_same_up_to_rounding(tmp_path, cells, same):
    (tmp_path / "a.csv").write_text("prompt_id,value,note\n10000001,0.25,\n")
    found = other_numbers(tmp_path / "a.csv", f"prompt_id,value,note\n{cells}\n")
    assert found == (None if same else "other numbers")


def test_the_difference_between_two_results_is_named():
    wanted = {"seed": 1, "sampler": {"k": (1, 2)}, "versions": 3}
    assert differing_entry({"seed": 1, "sampler": {"k": [1, 2]}, "versions": 4}, wanted, {"versions"}) is None
    assert differing_entry({"seed": 1, "versions": 3}, wanted) == "another sampler"
    assert differing_entry(wanted | {"sampler": {"k": [1, 2]}, "extra": 1}, wanted) == "another extra"
    fits = [{"fit": "pooled", "low": 0.5, "high": None, "n": 10_000_001}]
    rounded = [{"fit": "pooled", "low": 0.5 + 1e-15, "high": None, "n": 10_000_001}]
    assert differing_entry({"fits": rounded}, {"fits": fits}) is None
    assert differing_entry({"fits": [rounded[0] | {"low": 0.50001}]}, {"fits": fits}) == "another fits"
    assert differing_entry({"fits": [rounded[0] | {"n": 10_000_002}]}, {"fits": fits}) == "another fits"
    assert differing_entry({"fits": rounded, "seed": 1}, {"fits": [], "seed": 2}) == "another seed"


@pytest.mark.parametrize("link", ["report.html", "tables", "rollouts/shard-00000.parquet", "figures/deep/a.pdf"])
@pytest.mark.parametrize("target", ["thesis.tex", "disk", "nowhere"])
def test_links_in_a_run_are_refused(tmp_path, link, target):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "disk").mkdir()
    run = tmp_path / "run"
    (run / link).parent.mkdir(parents=True)
    refuse_links(run)
    (run / link).symlink_to(tmp_path / target)
    with pytest.raises(ValueError, match=f"{link} is a symbolic link, and nothing is written into a run directory"):
        refuse_links(run)


def test_the_folders_of_shards_may_be_on_another_disk_but_hold_no_links(tmp_path):
    run, disk = tmp_path / "run", tmp_path / "disk"
    refuse_links(run)
    run.mkdir()
    disk.mkdir()
    for name in ("rollouts", "measurement"):
        (run / name).symlink_to(disk)
    (tmp_path / "linked").symlink_to(run)
    refuse_links(run)
    refuse_links(tmp_path / "linked")
    (disk / "shard-00000").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="shard-00000 is a symbolic link"):
        refuse_links(run)
    disk.rename(tmp_path / "away")
    with pytest.raises(ValueError, match="measurement is a symbolic link"):
        refuse_links(run)


@pytest.mark.parametrize("link", ["sweep.csv", "figures", "figures/a.png", "one", "one/report.html", "rollouts"])
def test_links_in_the_folder_of_a_sweep_are_refused(tmp_path, link):
    sweep, disk = tmp_path / "sweep", tmp_path / "disk"
    (tmp_path / "elsewhere").mkdir()
    (sweep / "two").mkdir(parents=True)
    disk.mkdir()
    (sweep / "two" / "rollouts").symlink_to(disk)
    refuse_links(sweep, cells=["one", "two"])
    (sweep / link).parent.mkdir(exist_ok=True)
    (sweep / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{link} is a symbolic link, and nothing is written into the folder of a sw"):
        refuse_links(sweep, cells=["one", "two"])
