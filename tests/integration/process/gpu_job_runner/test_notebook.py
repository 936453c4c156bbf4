"""The notebook of the examples runs from its first cell to its last."""

import shutil
from pathlib import Path

import pytest

from tests.fakes.daemon.service import service
from tests.fakes.patience import patience

NOTEBOOK = Path(__file__).parents[4] / "examples" / "from_python.ipynb"


def test_it_follows_a_curve_and_plots_a_sweep_of_27(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    shutil.copy(NOTEBOOK, tmp_path)
    book = nbformat.read(tmp_path / NOTEBOOK.name, as_version=4)
    with service(executor="process", cpus=8) as daemon:
        daemon.env["PATH"] = "/usr/bin:/bin"
        monkeypatch.setenv("RUNNER_SOCKET", str(daemon.start().socket))
        client = nbclient.NotebookClient(
            book, timeout=patience(), resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
        candidates = daemon.client.get("/v1/sweeps/rates")["candidates"]
    *_, followed, _, plotted = [cell["outputs"] for cell in book.cells if cell["cell_type"] == "code"]
    assert [each["state"] for each in candidates].count("succeeded") == 3
    assert sum(each["step"] or 0 for each in candidates) == 18 * 10 + 6 * 30 + 3 * 90
    assert [outputs[-1]["data"].keys() >= {"image/png"} for outputs in (followed, plotted)] == [True, True]
