"""Images of a registry with a login, pulled by a real engine."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from images.settings import ImageSettings
from images.store import ImageStore
from runner.adapters.docker.images import DockerImages
from runner.core.ports.images import BuildFailed
from tests.fakes.engine.registry import Registry, digest_of, registry

pytestmark = pytest.mark.engine


@pytest.fixture
def engine_api(engine: str) -> Iterator[docker.APIClient]:
    client = docker.APIClient(engine, version="auto")
    yield client
    client.close()


@pytest.fixture(params=[{}, {"Volumes": {"/data": {}}}], ids=["plain", "with a volume"])
def lab(request: pytest.FixtureRequest, engine_api: docker.APIClient) -> Iterator[Registry]:
    with registry(**request.param) as made:
        yield made
        with suppress(ImageNotFound):
            engine_api.remove_image(made.image_id, force=True)


@pytest.fixture
def images(engine: str, tmp_path: Path) -> DockerImages:
    return DockerImages(ImageStore(ImageSettings(engine_url=engine, cache_dir=tmp_path / "cache")))


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of ``docker login``, which does not exist yet."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    (tmp_path / "docker").mkdir()
    return tmp_path / "docker" / "config.json"


def test_an_image_is_pulled_with_the_login_of_the_user(
    lab: Registry, images: DockerImages, login: Path, tmp_path: Path
) -> None:
    log = tmp_path / "build.log"
    with pytest.raises(BuildFailed, match=f"pull {lab.reference()}: "):
        images.fetch(lab.reference(), log, "1")
    assert lab.asked == []  # nothing is given without the login
    login.write_text(lab.login_file())
    if lab.more:
        with pytest.raises(BuildFailed, match="declares the volume /data; build it without"):
            images.fetch(lab.reference(), log, "1")
        return
    assert images.fetch(lab.reference(), log, "1") == lab.image_id
    lines = log.read_text().splitlines()
    assert f"pull {lab.reference()}" in lines
    assert any(line.startswith("Digest: sha256:") for line in lines)
    asked = len(lab.asked)
    assert images.fetch(lab.reference(), log, "2") == lab.image_id
    assert images.fetch(lab.reference(f"@{digest_of(lab.manifest)}"), log, "3") == lab.image_id
    assert len(lab.asked) == asked  # it is there
    assert images.fetch(lab.reference(), log, "2", anew=True) == lab.image_id
    assert len(lab.asked) > asked
    with pytest.raises(BuildFailed, match=f"pull {lab.reference(':2')}: "):
        images.fetch(lab.reference(":2"), log, "4")
