"""Rules for the three Dockerfiles and their locks that no builder enforces."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
FILES = ("Dockerfile.cpu", "Dockerfile.cuda", "Dockerfile.rocm")


@pytest.fixture(params=FILES)
def text(request: pytest.FixtureRequest) -> str:
    return (ROOT / request.param).read_text()


def instructions(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [line for line in joined.splitlines() if line.strip()]


def test_jobs_do_not_run_as_root(text: str) -> None:
    users = [line for line in instructions(text) if line.startswith("USER")]
    assert users == ["USER 65532:65532"]
    assert instructions(text).index(users[-1]) > instructions(text).index("FROM ${ENVIRONMENT}")


def test_every_builder_can_read_it(text: str) -> None:
    assert not re.search(r"^#\s*(syntax|escape|check)\s*=", text, re.MULTILINE)
    assert "<<" not in text
    assert "--mount" not in text
    assert "--chmod" not in text


def test_nothing_is_fetched(text: str) -> None:
    for line in instructions(text):
        assert not re.search(r"https?://|apt-get|curl|wget|^ADD", line), line
    assert "--no-index" in text


def test_versions_are_arguments_and_no_tag_floats(text: str) -> None:
    stages = [line for line in instructions(text) if line.startswith("FROM")]
    assert stages == ["FROM ${BASE} AS packages", "FROM ${BASE} AS environment", "FROM ${ENVIRONMENT}"]
    assert {"ARG PYTHON=3.11", "ARG DEBIAN=bookworm"} <= set(instructions(text))
    assert ":latest" not in text


def test_no_secret_and_no_loader_variable_is_set(text: str) -> None:
    for line in instructions(text):
        if line.startswith(("ENV", "ARG")):
            assert not re.search(r"(?i)token|password|secret|_key|proxy|LD_|index", line), line


def test_nothing_is_granted_to_every_container(text: str) -> None:
    assert "NVIDIA_VISIBLE_DEVICES=all" not in text


def test_the_cuda_image_asks_for_no_device_by_itself() -> None:
    assert "NVIDIA_VISIBLE_DEVICES=void" in (ROOT / "Dockerfile.cuda").read_text()


def test_the_wheels_never_reach_the_stage_that_is_kept(text: str) -> None:
    kept = text[text.index("AS environment") :]
    assert "wheelhouse" not in kept
    assert "pip" not in kept


def test_the_three_differ_in_the_lock_and_the_environment_alone() -> None:
    def common(name: str) -> list[str]:
        lock = f"images/locks/{name.removeprefix('Dockerfile.')}.txt"
        lines = instructions((ROOT / name).read_text())
        return [line.replace(lock, "LOCK") for line in lines if "NVIDIA" not in line]

    assert common("Dockerfile.cuda") == common("Dockerfile.cpu") == common("Dockerfile.rocm")


def test_the_default_base_of_a_hand_build_has_a_compiler(text: str) -> None:
    """Images of Docker's library without "slim" have gcc and g++."""
    assert "ARG BASE=python:${PYTHON}-${DEBIAN}" in instructions(text)


def test_the_build_imports_what_jobs_import(text: str) -> None:
    stage = text[text.index("AS environment") : text.index("FROM ${ENVIRONMENT}")]
    assert '"import torch, numpy, pyarrow, pydantic; ' in stage


BUILDS = {"cpu", "cu126", "cu130", "cu132", "rocm7.1", "rocm7.2", "xpu"}
"""Local versions of PyTorch's own indexes; PyPI has the build for CUDA 13.0 without one."""


@pytest.mark.parametrize(
    ("accelerator", "fitting"), [("cpu", {"cpu"}), ("cuda", {"cu130"}), ("rocm", {"rocm7.2"})]
)
def test_a_lock_takes_no_build_for_another_accelerator(accelerator: str, fitting: set[str]) -> None:
    lines = (ROOT / "images" / "locks" / f"{accelerator}.txt").read_text().splitlines()
    [torch] = [line.split("#")[0].strip() for line in lines if line.startswith("torch==")]
    specifier = Requirement(torch).specifier
    assert {build for build in BUILDS if specifier.contains(f"2.13.0+{build}")} == fitting
    assert specifier.contains("2.13.0") == (accelerator != "rocm")


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
def test_every_package_of_a_lock_is_pinned_once(accelerator: str) -> None:
    lines = (ROOT / "images" / "locks" / f"{accelerator}.txt").read_text().splitlines()
    pins = [line.split("#")[0].strip() for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][^=\s]*(,!=\S+)*", pin) for pin in pins), pins
    names = [pin.split("==")[0] for pin in pins]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
def test_images_and_the_process_executor_train_with_the_same_torch(accelerator: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [torch] = [pin for pin in project["optional-dependencies"]["train"] if pin.startswith("torch==")]
    assert torch in (ROOT / "images" / "locks" / f"{accelerator}.txt").read_text()
