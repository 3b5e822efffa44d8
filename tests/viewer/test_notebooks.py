"""The example notebooks run: their cells as Python, and as notebooks where nbclient is installed."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(NOTEBOOKS[0].parent)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.path", [*__import__("sys").path])


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["job", "one_trace", "two_runs"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run(path: Path) -> None:
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            *lines, last = "".join(cell["source"]).splitlines()
            exec("\n".join(lines), names)
            try:
                code = compile(last, str(path), "eval")
            except SyntaxError:
                exec(last, names)
                continue
            displayed = eval(code, names)
            if hasattr(displayed, "_repr_html_"):
                assert displayed._repr_html_()
            if hasattr(displayed, "close"):
                displayed.close()
    if path.stem == "job":
        busiest = names["breakdown"]["compute_ns"].idxmax()
        assert busiest == 2
    if path.stem == "two_runs":
        assert "regression" in set(names["figures"]["verdict"])


@pytest.mark.skipif(not (find_spec("nbclient") and find_spec("ipykernel")), reason="nbclient is not installed")
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_in_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    path = next(path for path in NOTEBOOKS if path.stem == "one_trace")
    paths = (str(path.parents[2]), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(path.parent)}}, kernel_name="python3"
    ).execute()
    (shown,) = (cell["outputs"][0] for cell in notebook.cells if cell["source"].startswith("import augment"))
    assert "compute" in shown["data"]["text/html"]
