"""The wheel: what it carries, and that it works where the source tree is not."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import gradstats
from gradstats.config.experiment import shipped_experiments

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The interpreter of an environment that holds the wheel, and behind it what this environment has installed."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = next(home.glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Other packages come from here; those of the source tree, which stand in .pth files, do not.
    (packages / "others.pth").write_text("\n".join(dict.fromkeys([sysconfig.get_path("purelib"), *OTHERS])))
    return home / "bin" / "python"


OTHERS = [path for path in sys.path if Path(path).name == "site-packages"]


def run(installed: Path, folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(installed), "-m", "gradstats", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_experiments_data_templates_and_the_marker_of_types(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    shipped = [*shipped_experiments().values(), *shipped_experiments(sweeps=True).values()]
    assert len(shipped) > 10
    wanted = {f"gradstats/data/{path.relative_to(ROOT).as_posix()}" for path in shipped}
    source = ROOT / "gradstats"
    wanted |= {
        path.relative_to(ROOT).as_posix()
        for path in source.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".nbi", ".nbc")
    }
    assert wanted <= names, sorted(wanted - names)
    assert {"gradstats/py.typed", "gradstats/data/experiments/experiment.schema.json"} <= names
    assert not [name for name in names if name.split("/")[0] in ("tests", "docs", "figures", "experiments")]


def test_the_wheel_runs_an_experiment_by_name(installed, tmp_path):
    where = [str(installed), "-c", "import gradstats; print(gradstats.__file__, gradstats.__version__)"]
    found, version = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    assert Path(found).is_relative_to(installed.parents[1])
    assert version == gradstats.__version__
    assert "embedded_zoo" in run(installed, tmp_path, "list", "experiments")
    small = ["prompts.n=2", "sampling.group_size=2", "sampling.max_new_tokens=8", "measurement.sketch_dim=4096"]
    run(installed, tmp_path, "run", "embedded", "--no-progress", "--set", *small, "figures.formats=[]")
    assert (tmp_path / "runs" / "embedded" / "report.html").is_file()


@pytest.mark.slow  # pyright may be downloaded first
def test_types_are_checked_in_code_that_uses_the_wheel(installed, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gradstats as gs\n\nfit: gs.stats.LengthScalingFit = gs.fit_length_scaling(3)\nreveal_type(gs.compare)\n"
    )
    checker = Path(sys.executable).with_name("pyright")
    command = [str(checker), "--pythonpath", str(installed), "mine.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "VarianceComparison" in found
    assert re.search(r"mine.py:3:.*error", found)
    assert "Stub file not found" not in found


@pytest.mark.parametrize("words", [["-m", "gradstats"], [str(Path(sys.executable).with_name("gradstats"))]])
def test_the_command_states_its_version(words):
    command = [sys.executable, *words, "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == (
        f"gradstats {gradstats.__version__}\n"
    )


def test_one_version():
    stated = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    cited = re.search(r"^version: (.*)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert stated is not None
    assert cited is not None
    assert stated[1] == cited[1] == gradstats.__version__
