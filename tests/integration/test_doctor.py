"""``runner doctor`` against the real engine and real images."""

import json
import os
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from runner.adapters.docker.doctor import try_image
from runner.adapters.docker.engine import describe_engine
from runner.core.doctor import Verdict

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def torch_image(engine: str) -> str:
    """The id of the image for CPUs."""
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli.main", "images", "build", "cpu", "--json"],
        check=True, capture_output=True, text=True, env={**os.environ, "DOCKER_HOST": engine},
    )  # fmt: skip
    return str(json.loads(done.stdout.splitlines()[-1])["id"])


def test_the_engine_is_described(engine: str) -> None:
    client = docker.DockerClient(engine)
    version = client.version()["Version"]
    client.close()
    found = describe_engine(engine)
    assert (found.error, found.version) == (None, version)
    assert "runc" in found.runtimes


def test_an_engine_that_does_not_answer_is_said(tmp_path: Path) -> None:
    found = describe_engine(f"unix://{tmp_path}/none.sock")
    assert found.error is not None
    assert "does not answer" in found.error


def test_specifications_of_nvidia_are_found(engine: str, tmp_path: Path) -> None:
    directory = tmp_path / "etc/cdi"
    directory.mkdir(parents=True)
    (directory / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    (directory / "other.yaml").write_text("kind: example.com/nic\n")
    assert describe_engine(engine, tmp_path).cdi_files == (str(directory / "nvidia.yaml"),)


def test_an_image_is_started_and_computes(engine: str, torch_image: str) -> None:
    finding = try_image(engine, torch_image, None)
    assert finding.verdict is Verdict.OK, finding
    assert "computes on the CPU" in finding.fact
    assert finding.fact.endswith(" s to compile a line")


def test_an_image_that_is_not_there_or_has_no_python_is_a_problem(engine: str, base_image: str) -> None:
    assert try_image(engine, "nothing:of-that-name", None).verdict is Verdict.PROBLEM
    found = try_image(engine, base_image, None)
    assert found.verdict is Verdict.PROBLEM
    assert "python" in found.fact


def test_the_command_says_what_is_there(engine: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli.main", "doctor", "--json"],
        check=False, capture_output=True, text=True, env={"DOCKER_HOST": engine, "HOME": "/tmp"},
    )  # fmt: skip
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"container engine", "cgroups", "free disk"} <= {each["subject"] for each in findings}
    assert done.returncode in {0, 4}, done.stderr
