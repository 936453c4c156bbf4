"""Images of a registry with a login, pulled by a real engine."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import ImageNotFound

from images.settings import ImageSettings
from images.store import ImageStore
from runner.adapters.docker.images import DockerImages
from runner.core.ports.images import BuildFailed
from tests.fakes.daemon.service import service, until
from tests.fakes.engine.registry import Registry, digest_of, registry

pytestmark = pytest.mark.engine


@pytest.fixture
def engine_api(engine: str) -> Iterator[docker.APIClient]:
    client = docker.APIClient(engine, version="auto")
    yield client
    client.close()


def id_of(lab: Registry, engine_api: docker.APIClient) -> str:
    """Return the engine's id of the image: that of its manifest where containerd stores it."""
    by_manifest = "io.containerd.snapshotter.v1" in str(engine_api.info()["DriverStatus"])
    return digest_of(lab.manifest) if by_manifest else lab.image_id


@pytest.fixture(params=[{}, {"Volumes": {"/data": {}}}], ids=["plain", "with a volume"])
def lab(request: pytest.FixtureRequest, engine_api: docker.APIClient) -> Iterator[Registry]:
    with registry(**request.param) as made:
        yield made
        with suppress(ImageNotFound):
            engine_api.remove_image(id_of(made, engine_api), force=True)


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
    lab: Registry, engine_api: docker.APIClient, images: DockerImages, login: Path, tmp_path: Path
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
    assert images.fetch(lab.reference(), log, "1") == id_of(lab, engine_api)
    lines = log.read_text().splitlines()
    assert f"pull {lab.reference()}" in lines
    assert any(line.startswith("Digest: sha256:") for line in lines)
    asked = len(lab.asked)
    assert images.fetch(lab.reference(), log, "2") == id_of(lab, engine_api)
    assert images.fetch(lab.reference(f"@{digest_of(lab.manifest)}"), log, "3") == id_of(lab, engine_api)
    assert len(lab.asked) == asked  # it is there
    pinned = lab.reference(f"@{digest_of(lab.manifest)}")
    assert images.pin(lab.reference(), "missing") == pinned
    assert images.pin(lab.reference(), "never") == id_of(lab, engine_api)
    assert len(lab.asked) == asked
    lab.move_tag()
    assert images.pin(lab.reference(), "missing") == pinned  # the engine has it
    moved = images.pin(lab.reference(), "always")
    assert moved == lab.reference(f"@{digest_of(lab.tagged)}") != pinned
    assert images.fetch(pinned, log, "2") == id_of(lab, engine_api)
    with pytest.raises(BuildFailed, match=f"pull {lab.reference(':2')}: "):
        images.fetch(lab.reference(":2"), log, "4")


# --- Through a daemon of one's own

ENTRYPOINT = 'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]'
LIBRARIES = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"


@pytest.fixture
def own_image(engine_api: docker.APIClient, base_image: str) -> Iterator[str]:
    """A stand-in for an image that a lab has pulled, without a name of the operator."""
    reference = f"lab.invalid/stand-in:{secrets.token_hex(4)}"
    container = engine_api.create_container(base_image, ["true"])["Id"]
    try:
        lines = [f"ENV LD_LIBRARY_PATH={LIBRARIES}", "ENV NVIDIA_REQUIRE_CUDA=cuda>=99", ENTRYPOINT]
        repository, tag = reference.rsplit(":", 1)
        engine_api.commit(container, repository, tag, changes="\n".join(lines))
    finally:
        engine_api.remove_container(container)
    yield reference
    engine_api.remove_image(reference, force=True)


def test_a_job_names_an_image_of_the_engine_as_it_is(own_image: str) -> None:
    with service(executor="docker", system_wide=False) as daemon:
        daemon.start()
        script = 'echo "libraries: $LD_LIBRARY_PATH"; echo "cuda: $NVIDIA_REQUIRE_CUDA"'
        fields: dict[str, Any] = {
            "workload": {"kind": "program", "command": ["/bin/sh", "-c", script]},
            "resources": {"cpus": 1, "memory": "256MiB"},
        }
        job_id = daemon.submit(daemon.file("own", image={"name": own_image, "pull": "never"}, **fields))
        assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.log(job_id)
        lines = daemon.log(job_id).splitlines()
        assert f"libraries: {LIBRARIES}" in lines
        assert "cuda: cuda>=99" in lines
        missing = daemon.file("missing", image={"name": "lab.invalid/no:1", "pull": "never"}, **fields)
        said = daemon.runner("submit", str(missing), code=2)
        assert "image lab.invalid/no:1: is not in the engine; docker pull lab.invalid/no:1" in said
        nowhere = daemon.file("nowhere", image="lab.invalid/no:1", **fields)
        assert "image.name: image lab.invalid/no:1: " in daemon.runner("submit", str(nowhere), code=2)


# --- For all users: a pattern of the operator, with the operator's login, and an image without glibc

BUSYBOX = shutil.which("busybox")
APPLETS = ("sh", "env", "cat", "sleep", "test", "mkdir")
TRAPS = 'trap "echo saved; exit 143" TERM; echo "steps of $(cat /etc/of)"; while :; do sleep 0.1; done'


@pytest.mark.skipif(BUSYBOX is None and not os.environ.get("CI"), reason="needs busybox")
def test_an_image_of_a_pattern_stays_what_its_tag_named_at_submission(
    tmp_path: Path, engine_api: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BUSYBOX is not None
    files = {"bin/busybox": Path(BUSYBOX).read_bytes(), "etc/of": b"the lab"}
    login = tmp_path / "login.json"
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))  # has no login
    with registry(files, {f"bin/{each}": "busybox" for each in APPLETS}) as lab:
        login.write_text(lab.login_file())
        offered = {"lab": f"{lab.host}/lab/*"}
        with service(executor="docker", allowed_images=offered, registry_login=str(login)) as daemon:
            daemon.start()
            fields: dict[str, Any] = {
                "workload": {"kind": "program", "command": ["sh", "-c", TRAPS]},
                "resources": {"cpus": 1, "memory": "64MiB"},
            }
            other = daemon.file("other", image=f"{lab.host}/else/tiny:1", **fields)
            assert "is not offered here; there are auto, " in daemon.runner("submit", str(other), code=2)
            missing = daemon.file("missing", image=lab.reference(":2"), **fields)
            assert f"image {lab.reference(':2')}: " in daemon.runner("submit", str(missing), code=2)
            job_id = daemon.submit(daemon.file("alpine", image=lab.reference(), **fields), end="cancelled")
            daemon.prints(job_id, "steps of the lab")
            daemon.runner("hold", job_id)
            daemon.reaches(job_id, "held")
            assert daemon.log(job_id).splitlines()[-1] == "saved"
            until(lambda: not daemon.containers(job_id), "its container is removed")
            removed = id_of(lab, engine_api)
            lab.move_tag()
            del lab.asked[:]  # before: the daemon may miss the image at once
            engine_api.remove_image(removed, force=True)
            daemon.runner("release", job_id)
            daemon.prints(job_id, "steps of the lab", attempt=2)
            daemon.runner("cancel", job_id)
            daemon.ends(job_id)
            assert daemon.log(job_id, attempt=2).splitlines()[-1] == "saved"
            assert lab.asked  # its layers, and its manifest by the digest unless the engine has kept that
            assert "/v2/lab/tiny/manifests/1" not in lab.asked
        with suppress(ImageNotFound):
            engine_api.remove_image(id_of(lab, engine_api), force=True)
