"""What every test may ask for: an engine, a base image, a daemon of its own."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASE_TAG = "runner-base:bookworm"


def engine_answers() -> bool:
    """Return whether a container engine can be reached."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.DockerClient(
            os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"), version="auto"
        )
    except DockerException:
        return False
    with client:
        return bool(client.ping())


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine's URL; without one, a laptop skips and CI fails."""
    if not engine_answers():
        message = "no container engine answers; scripts/engine starts or installs one"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


@pytest.fixture(autouse=True)
def _needs_engine(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("engine"):
        request.getfixturevalue("engine")


@pytest.fixture(scope="session")
def base_image(engine: str) -> str:
    """The id of an image with /bin/sh and python3, bootstrapped when there is none."""
    import docker

    from images.store import ImageStore

    with docker.DockerClient(engine, version="auto") as client:
        try:
            return str(client.images.get(BASE_TAG).id)
        except docker.errors.ImageNotFound:
            ImageStore().bootstrap(BASE_TAG)
            return str(client.images.get(BASE_TAG).id)


HOSTILE_NAMES = ["plain", "two words", "quo'te\"s", "new\nline", "; echo gotcha", "$(id)", "-rf"]


@pytest.fixture(params=HOSTILE_NAMES)
def hostile_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory whose name breaks whoever builds commands out of text."""
    path: Path = tmp_path / request.param
    path.mkdir()
    return path


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB, to be filled."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], check=True)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)
