"""Execute the notebooks and keep their outputs in them: ``make docs`` does so, and changes nothing that is as it was.

The code is that of the script beside each notebook. Kept are results, printed text and pictures; not kept are times,
messages on standard error, and what names the kernel of the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
# What a notebook may take.
SECONDS = 600


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Return a notebook with its outputs, executed in a folder."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.clear()
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    notebook.metadata = {
        "jupytext": notebook.metadata["jupytext"],
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    """Execute the notebooks of these names, all without one."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        with TemporaryDirectory() as folder:
            text = nbformat.writes(executed(path, Path(folder))) + "\n"
        if text != path.read_text("utf-8"):
            path.write_text(text, "utf-8")
            print(f"{path.name} has other outputs than before")


if __name__ == "__main__":
    main(sys.argv[1:])
