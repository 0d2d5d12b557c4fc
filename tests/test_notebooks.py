"""The notebooks agree with their scripts, run from end to end with the outputs that are kept, and are complete."""

import re
from pathlib import Path

import pytest
from programs import program

FOLDER = Path(__file__).parent.parent / "notebooks"
EXPECTED = ("01_alpha_r1_distill", "02_variance_vs_baseline", "03_paper_figures", "04_inside_training")
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PUBLIC_MODULES = {"gradstats", "gradstats.integrations.trl"}


def test_no_notebook_is_missing():
    assert [path.stem for path in NOTEBOOKS] == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_notebook_and_its_script_say_the_same(name):
    import jupytext

    notebook, script = (jupytext.read(FOLDER / f"{name}.{suffix}") for suffix in ("ipynb", "py"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in script.cells
    ], f"pair them again: jupytext --sync notebooks/{name}.ipynb"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_small_outputs(path):
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        f"run notebooks/execute.py {path.stem}"
    )
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    assert "error" not in {output.output_type for output in outputs}
    assert all(not cell.metadata for cell in cells)  # no times
    assert path.stat().st_size < 250_000
    text = "".join(output.get("text", "") for output in outputs)
    assert "/tmp" not in text
    if path.stem == EXPECTED[0]:
        assert "published points: α = 0.789 [0.474, 1.103]" in text


def test_notebooks_use_public_names_alone():
    for name in EXPECTED:
        script = (FOLDER / f"{name}.py").read_text("utf-8")
        assert set(re.findall(r"^(?:from|import) (gradstats[\w.]*)", script, re.M)) <= PUBLIC_MODULES, name


@pytest.mark.slow  # each change executes them once already, in make docs
@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_gives_the_outputs_that_are_kept(name, tmp_path, monkeypatch):
    import nbformat

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.delenv("MPLBACKEND")  # that of all tests keeps figures out of the notebook
    path = FOLDER / f"{name}.ipynb"
    executed = program("notebooks/execute.py").executed(path, tmp_path)
    kept = nbformat.read(path, as_version=4)
    assert [printed(cell) for cell in executed.cells] == [printed(cell) for cell in kept.cells]
    if name == EXPECTED[2]:
        assert (tmp_path / "overlay" / "figures" / "variance.pdf").exists()
    if name == EXPECTED[3]:
        steps = sorted((tmp_path / "monitor").glob("step-*"))
        assert [path.name for path in steps] == [f"step-{step:06d}" for step in range(3)]
        assert all("length_weighted(alpha=0.8, loo=True)" in (path / "variance.csv").read_text() for path in steps)


def printed(cell):
    """What a cell prints and returns, as text."""
    outputs = cell.get("outputs", [])
    return [output.get("text") or output.get("data", {}).get("text/plain") for output in outputs]
