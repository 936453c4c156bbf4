"""Facts of the driver about itself, through a real shared library that answers as one would."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.hosts import compile_nvml, h100s

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

TELL = """
import json
from dataclasses import asdict
from runner.adapters.gpu.nvidia import describe_driver
print(json.dumps(asdict(describe_driver())))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("driver"))


def told(tmp_path: Path, library: Path, text: str) -> dict[str, Any]:
    said = tmp_path / "host"
    said.write_text(text)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "RUNNER_FAKE_NVML": str(said)}
    done = subprocess.run(
        [sys.executable, "-c", TELL], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_versions_and_gpus_are_told(tmp_path: Path, library: Path) -> None:
    host = h100s(2)
    host.trouble = "driver 580.65.06 13000"
    host[0].say(persist=1, remapped=3)
    found = told(tmp_path, library, host.text())
    assert (found["driver"], found["cuda"], found["nvml_error"]) == ("580.65.06", [13, 0], None)
    first, second = found["gpus"]
    known = (first["name"], first["model"], first["capability"], first["persistence"], first["retired_pages"])
    assert known == ("GPU-0", "NVIDIA H100 80GB HBM3", [9, 0], True, 3)
    assert (first["ecc_errors"], first["unusable"]) == (0, None)
    assert (second["persistence"], second["retired_pages"]) == (None, None)


def test_an_error_of_the_driver_is_told(tmp_path: Path, library: Path) -> None:
    found = told(tmp_path, library, "error 18 -\n")
    assert "mismatch" in str(found["nvml_error"]).lower()
    assert found["gpus"] == []


def test_a_lost_gpu_is_told(tmp_path: Path, library: Path) -> None:
    found = told(tmp_path, library, "lost GPU-1 1 NVIDIA L4\n")
    [gpu] = found["gpus"]
    assert gpu["unusable"] == "the driver has lost it"
