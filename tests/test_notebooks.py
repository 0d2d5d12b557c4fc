"""The notebooks agree with their scripts, run from end to end, and are complete."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
EXPECTED = ("01_alpha_r1_distill", "02_variance_vs_baseline", "03_paper_figures", "04_inside_training")
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# What each run of a notebook may take.
SECONDS = 600


def test_no_notebook_is_missing():
    assert [path.stem for path in NOTEBOOKS] == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_notebook_and_its_script_say_the_same(name):
    import jupytext

    notebook, script = (jupytext.read(FOLDER / f"{name}.{suffix}") for suffix in ("ipynb", "py"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in script.cells
    ], f"pair them again: jupytext --sync notebooks/{name}.ipynb"
    assert all(not cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow  # each change executes them once already, in make docs
@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.delenv("MPLBACKEND")  # that of all tests keeps figures out of the notebook
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    text = "".join(output.get("text", "") for output in outputs)
    if name == EXPECTED[0]:
        assert "published points: α = 0.789 [0.474, 1.103]" in text
        assert "embedded policy (stand-in): α = " in text or "R1-Distill-1.5B: α = " in text
    if name == EXPECTED[2]:
        assert r"\toprule" in text
        assert (tmp_path / "figures" / "overlay" / "variance.pdf").exists()
    if name == EXPECTED[3]:
        steps = sorted((tmp_path / "monitor").glob("step-*"))
        assert [path.name for path in steps] == [f"step-{step:06d}" for step in range(3)]
        assert all("length_weighted(alpha=0.8, loo=True)" in (path / "variance.csv").read_text() for path in steps)
