"""Source distributions on images whose Python has no parser of TOML of its own, as before 3.11."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from images.packages.sdist import SCRIPT


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    body = b'[build-system]\nrequires = ["hatchling"]\n'
    about = tarfile.TarInfo("thing-1.0/pyproject.toml")
    about.size = len(body)
    path = tmp_path / "thing-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(about, io.BytesIO(body))
    return path


def declared(archive: Path, pip: Path) -> subprocess.CompletedProcess[str]:
    """Ask an archive for what its build needs, with a Python of which ``pip`` is the folder of pip."""
    hidden = f"import sys\nsys.modules['tomllib'] = None\nsys.path.insert(0, {str(pip.parent)!r})\n"
    script = hidden + SCRIPT.replace("/tmp/", f"{pip.parent}/")
    argv = [sys.executable, "-I", "-c", script, "declared", str(archive), ""]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_the_parser_of_pip_reads_what_a_build_needs(archive: Path, tmp_path: Path) -> None:
    vendored = tmp_path / "pip" / "_vendor"
    vendored.mkdir(parents=True)
    (vendored / "tomli.py").write_text(
        "def loads(text):\n"
        "    assert 'hatchling' in text\n"
        "    return {'build-system': {'requires': ['hatchling']}}\n"
    )
    assert declared(archive, vendored.parent).stdout == "hatchling"


def test_an_image_without_a_parser_is_told_as_such(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    done = declared(archive, tmp_path / "pip")
    assert (done.stdout, done.stderr) == (
        "",
        "error: the image needs Python 3.11 or pip 22, or newer, to build packages\n",
    )
