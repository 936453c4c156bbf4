"""Images by a real engine: built once, quick to change, with nothing of the host inside."""

import io
import json
import os
import shutil
import signal
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

import docker
import pytest
from click.testing import CliRunner

from images import bases
from images.cancellation import CancellationToken
from images.context import entries_below, text_entry, write_tar
from images.docker_engine import DockerEngine
from images.errors import BuildFailed, EngineUnavailable
from images.own import tag_of
from images.ports import Addition, BuildRequest, Step
from images.settings import LOCAL_BASE, BuilderKind, ImageSettings, default_dockerfiles
from images.store import ImageStore
from runner.cli.main import cli
from tests.fakes.daemon.service import until
from tests.fakes.engine.libraries import LOOK, find_missing, inside

pytestmark = pytest.mark.engine

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runner"


@dataclass
class Observed(DockerEngine):
    """A real engine that notes which images it was asked to build."""

    built: list[str] = field(default_factory=list)
    url: str | None = None

    def __post_init__(self) -> None:
        super().__init__(self.url)

    def build(
        self, kind: BuilderKind, request: BuildRequest, context: IO[bytes], token: CancellationToken
    ) -> Iterator[str]:
        self.built.append(request.tag)
        return super().build(kind, request, context, token)


@pytest.fixture(scope="module")
def settings(base_image: str) -> ImageSettings:
    assert base_image
    return ImageSettings(cache_dir=CACHE)


@pytest.fixture(scope="module")
def image(settings: ImageSettings, tmp_path_factory: pytest.TempPathFactory) -> str:
    return ImageStore(settings).ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")


@pytest.fixture(scope="module")
def client(engine: str) -> Iterator[docker.DockerClient]:
    with closing(docker.DockerClient(engine, version="auto")) as client:
        yield client


def test_the_second_time_nothing_is_built(settings: ImageSettings, image: str, tmp_path: Path) -> None:
    engine = Observed()
    assert ImageStore(settings, engine).ensure("cpu", tmp_path / "log.txt") == image
    assert engine.built == []


def test_training_can_start_in_it_as_anybody(client: docker.DockerClient, image: str) -> None:
    program = "import os, torch, numpy, jobs.contract as c; print(torch.__version__, os.getuid(), c.__file__)"
    version, uid, where = inside(client, image, "python3", "-c", program, user="12345:12345").split()
    assert version.startswith("2.13.0")
    assert (uid, where) == ("12345", "/opt/runner/jobs/contract/__init__.py")


def test_nobody_is_root_by_default(client: docker.DockerClient, image: str) -> None:
    assert inside(client, image, "id", "-u").strip() == "65532"
    assert inside(client, image, "id", "-g").strip() == "65532"


def test_a_compiler_and_pythons_headers_are_there(client: docker.DockerClient, image: str) -> None:
    script = (
        "cd /tmp && echo '#include <Python.h>' > a.c && cp a.c a.cpp && I=$(python3 -c"
        " 'import sysconfig; print(sysconfig.get_path(\"include\"))') && gcc -I$I -c a.c"
        " && g++ -I$I -c a.cpp && ls"
    )
    assert {"a.c", "a.cpp", "a.o"} <= set(inside(client, image, "sh", "-c", script).split())


def test_the_jobs_code_needs_no_compiling_at_the_start(client: docker.DockerClient, image: str) -> None:
    assert "loop.cpython" in inside(client, image, "ls", "/opt/runner/jobs/training/__pycache__")


def test_nothing_of_the_host_is_in_the_image(client: docker.DockerClient, image: str) -> None:
    history = str(client.images.get(image).history())
    assert "find-links /tmp/wheelhouse" not in history
    assert "index-url" not in history
    script = (
        "find / -xdev \\( -name '*.whl' -o -name 'pip.conf' -o -name 'pip'"
        " -o -name 'wheelhouse'"
        " -o -name 'lock.txt' -o -name '*runner-ca*' \\) -not -path '/proc/*' 2>/dev/null; env"
    )
    found = inside(client, image, "sh", "-c", script, user="0:0").splitlines()
    ensurepip = [line for line in found if "/ensurepip/" in line or "/python-wheels/" in line]
    files = [line for line in found if line.startswith("/") and line not in ensurepip]
    assert files == []
    assert not [line for line in found if line.startswith(("PIP_", "SSL_", "HTTP", "http", "LD_"))]


def test_the_packages_come_from_this_hosts_pip_without_a_trace_of_it(
    client: docker.DockerClient, image: str
) -> None:
    urls = inside(
        client, image, "sh", "-c", "cat /opt/venv/lib/python3*/site-packages/*/direct_url.json; true"
    )
    assert "file:///" not in urls
    assert "http" not in urls


def test_a_change_of_the_jobs_code_rebuilds_the_last_layer_alone(
    settings: ImageSettings, image: str, tmp_path: Path, client: docker.DockerClient
) -> None:
    """The code is changed through the Dockerfile's last stage, because the package is everybody's."""
    dockerfile = (settings.dockerfiles / "Dockerfile.cpu").read_text()
    (tmp_path / "Dockerfile.cpu").write_text(
        dockerfile.replace("COPY jobs", f"LABEL test={tmp_path.name}\nCOPY jobs")
    )
    engine = Observed()
    changed = ImageStore(replace(settings, dockerfiles=tmp_path), engine).ensure("cpu", tmp_path / "log.txt")
    assert [tag.split(":")[0] for tag in engine.built] == ["runner-cpu"]
    layers = [client.images.get(name).attrs["RootFS"]["Layers"] for name in (image, changed)]
    assert layers[0][:-2] == layers[1][:-2]
    client.images.get(image).tag("runner-cpu", "current")
    client.images.remove(engine.built[0])


def test_two_wishes_at_once_cause_one_build(
    settings: ImageSettings, image: str, tmp_path: Path, client: docker.DockerClient
) -> None:
    dockerfile = (settings.dockerfiles / "Dockerfile.cpu").read_text()
    (tmp_path / "Dockerfile.cpu").write_text(f"{dockerfile}LABEL test={uuid4().hex}\n")
    engine = Observed()
    answers: list[str] = []

    def wish(number: int) -> None:
        store = ImageStore(replace(settings, dockerfiles=tmp_path), engine)
        answers.append(store.ensure("cpu", tmp_path / f"log-{number}.txt"))

    threads = [threading.Thread(target=wish, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engine.built) == 1
    assert answers[0] == answers[1] != image
    client.images.get(image).tag("runner-cpu", "current")
    client.images.remove(engine.built[0])


@pytest.mark.parametrize("kind", ["engine", "classic"])
def test_a_failing_build_shows_what_the_command_printed(kind: BuilderKind, base_image: str) -> None:
    dockerfile = f"FROM runner-base:bookworm\nRUN echo the last words of {kind} && exit 7\n"
    lines: list[str] = []
    with pytest.raises(BuildFailed, match="7"):
        lines.extend(_build(kind, dockerfile, lines))
    assert f"the last words of {kind}" in lines
    assert base_image


@pytest.mark.parametrize("kind", ["engine", "classic"])
def test_builds_have_no_network(kind: BuilderKind, base_image: str) -> None:
    script = "import socket; print(sorted(name for _, name in socket.if_nameindex()))"
    lines: list[str] = []
    with pytest.raises(BuildFailed):
        _build(kind, f'FROM runner-base:bookworm\nRUN python3 -c "{script}" && false\n', lines)
    assert [line for line in lines if line.startswith("['")] == ["['lo']"]
    assert base_image


def test_no_library_of_the_packages_is_missing(client: docker.DockerClient, image: str) -> None:
    missing, count = find_missing(inside(client, image, "python3", "-c", LOOK))
    assert missing == []
    assert count > 50


def _wheel(directory: Path, name: str, code: str) -> None:
    """Write a wheel with one module."""
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(directory / f"{name}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


TORCH: Final = "__version__ = '1'\nclass version:\n    cuda = hip = None\n"


@pytest.fixture
def by_hand(client: docker.DockerClient) -> Iterator[str]:
    """The tag of an image that is built by hand; it is removed with what failed builds leave behind."""
    tag = "runner-images-test:by-hand"
    yield tag
    client.images.remove(tag, force=True)
    for _ in range(2):  # what is removed may be the last child of another one
        for image in client.images.list(filters={"dangling": True}):
            with suppress(docker.errors.APIError):  # it is gone, or below one that is still there
                if "/tmp/wheelhouse/" in str(image.history()):
                    client.images.remove(str(image.id))


def test_a_whole_image_can_be_built_by_hand(
    client: docker.DockerClient, base_image: str, by_hand: str, tmp_path: Path
) -> None:
    """As the header of the Dockerfile says, in one build; the wheels are small ones of the same names."""
    tag = by_hand
    wheels, lines = _hand_build_context(tmp_path), list[str]()
    with pytest.raises(BuildFailed, match="1"):
        _build_by_hand(tmp_path, tag, lines)
    assert any("wheelhouse: no wheels; pip download -d wheelhouse -r " in line for line in lines)
    wheels.mkdir()
    for name in ("numpy", "pyarrow", "pydantic"):
        _wheel(wheels, name, "")
    _wheel(wheels, "torch", "raise ImportError('libcudart.so.13: cannot open shared object file')")
    with pytest.raises(BuildFailed, match="1"):
        _build_by_hand(tmp_path, tag, lines)
    assert any("libcudart.so.13: cannot open shared object file" in line for line in lines)
    _wheel(wheels, "torch", TORCH)
    _build_by_hand(tmp_path, tag, [])
    assert inside(client, tag, "python3", "-c", "import jobs, torch; print(torch.__version__)") == "1\n"
    assert base_image


def _hand_build_context(directory: Path) -> Path:
    """Lay out what the header of the Dockerfile asks for; return the missing directory of wheels."""
    shutil.copy(default_dockerfiles() / "Dockerfile.cpu", directory / "Dockerfile")
    lock = directory / "images" / "locks" / "cpu.txt"
    lock.parent.mkdir(parents=True)
    lock.write_text("torch==1\nnumpy==1\npyarrow==1\npydantic==1\n")
    for package in ("jobs", "gpu_job_runner"):
        (directory / package).mkdir()
        (directory / package / "__init__.py").write_text("")
    return directory / "wheelhouse"


def _build_by_hand(directory: Path, tag: str, lines: list[str]) -> None:
    with tempfile.TemporaryFile() as archive:
        write_tar(entries_below(directory, "."), archive)
        archive.seek(0)
        request = BuildRequest(tag, {"BASE": LOCAL_BASE}, {})
        for line in DockerEngine().build("classic", request, archive, CancellationToken()):
            lines.append(line)  # noqa: PERF402  kept also when the build fails half-way


def test_a_wrong_dockerfile_is_a_failed_build_and_not_a_dead_engine(base_image: str) -> None:
    with pytest.raises(BuildFailed, match=r"(?i)unknown instruction: NONSENSE"):
        _build("engine", "FROM runner-base:bookworm\nNONSENSE\n", [])
    assert base_image


def test_an_engine_that_is_not_there_is_no_failed_build(tmp_path: Path) -> None:
    store = ImageStore(ImageSettings(cache_dir=tmp_path, engine_url=f"unix://{tmp_path}/none.sock"))
    with pytest.raises(EngineUnavailable, match="No such file"):
        store.ensure("cpu", tmp_path / "log.txt")


def test_a_registry_that_is_not_there_is_a_failed_build() -> None:
    with pytest.raises(BuildFailed, match=r"pull registry\.invalid/nothing:1"):
        DockerEngine().pull("registry.invalid/nothing:1")


def test_a_step_leaves_behind_what_it_wrote_and_nothing_of_the_host(
    client: docker.DockerClient, base_image: str, tmp_path: Path
) -> None:
    secret = tmp_path / "ca.pem"
    secret.write_text("ours")
    argv = ("sh", "-c", "cat /run/ca.pem && cat /run/ca.pem > /seen && id -u")
    step = Step(base_image, argv, root=True, files={"/run/ca.pem": secret}, commit="runner-images-test:step")
    end = DockerEngine().step(step)
    assert (end.exit_code, end.output) == (0, "ours0\n")
    made = client.images.get("runner-images-test:step")
    assert made.id == end.committed
    assert (made.attrs["Config"]["Entrypoint"] or [], made.attrs["Config"]["Cmd"]) == ([], ["sh"])
    assert inside(client, "runner-images-test:step", "cat", "/seen") == "ours"
    assert "ca.pem" not in inside(client, "runner-images-test:step", "ls", "/run")
    client.images.remove("runner-images-test:step")


def test_what_a_killed_process_left_of_a_step_is_removed_by_the_next_step(
    client: docker.DockerClient, base_image: str
) -> None:
    child = os.fork()
    if child == 0:
        try:
            DockerEngine().step(Step(base_image, ("sleep", "2")))
        finally:
            os._exit(0)  # a second process must not go on with the tests
    name = f"runner-step-{child}-"

    def left(**filters: str) -> list[object]:
        return client.api.containers(all=True, filters={"name": name, **filters})

    try:
        until(lambda: left(status="running"), "the step runs")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    DockerEngine().step(Step(base_image, ("true",)))
    assert left(status="running")  # what still runs is left alone
    until(lambda: left(status="exited"), "the step has ended")
    own = client.api.create_container(base_image, ["true"], name=f"runner-step-{os.getpid()}-missed")["Id"]
    DockerEngine().step(Step(base_image, ("true",)))  # the engine was away when this process removed it
    assert left() == []
    assert not client.api.containers(all=True, filters={"id": own})


def test_a_step_is_nobody_without_a_network_unless_told_otherwise(base_image: str) -> None:
    end = DockerEngine().step(Step(base_image, ("sh", "-c", "id -u; ls /sys/class/net; exit 3")))
    assert (end.exit_code, end.output, end.committed) == (3, "65532\nlo\n", None)


def test_a_command_that_is_not_in_the_base_is_a_failed_build(base_image: str) -> None:
    with pytest.raises(BuildFailed, match="no-such-program"):
        DockerEngine().step(Step(base_image, ("no-such-program",)))


def test_an_image_in_use_is_known_and_not_removed(client: docker.DockerClient, base_image: str) -> None:
    container = client.containers.create(base_image, ["true"], network_mode="none")
    try:
        assert base_image in DockerEngine().used()
    finally:
        container.remove()
    assert DockerEngine().image("runner-images-test:no-such-image") is None
    DockerEngine().remove("runner-images-test:no-such-image")


def test_this_engine_has_a_builder(base_image: str) -> None:
    assert "classic" in list(DockerEngine().builders())
    assert DockerEngine().platform().startswith("linux/")
    assert base_image


def test_a_root_directory_becomes_an_image(client: docker.DockerClient) -> None:
    archive = io.BytesIO()
    write_tar([text_entry("etc/made", "here")], archive)
    archive.seek(0)
    made = DockerEngine().load_root(archive, "runner-images-test:root")
    assert client.images.get("runner-images-test:root").id == made
    DockerEngine().remove("runner-images-test:root")
    assert DockerEngine().image(made) is None


ODD = """\
FROM {base}
USER 7:7
ENV A="x y" LD_LIBRARY_PATH=/opt/lib
WORKDIR /odd
ENTRYPOINT ["/entry", "first"]
CMD ["second"]
STOPSIGNAL SIGINT
HEALTHCHECK CMD ["true"]
ONBUILD RUN false
LABEL kept=yes taken=yes
"""


def test_a_layer_is_all_that_an_image_gets_whatever_its_dockerfile_says(
    client: docker.DockerClient, base_image: str
) -> None:
    engine, name = DockerEngine(), "runner-images-test:more"
    _build("classic", ODD.format(base=tag_of(engine, base_image)), [])
    below = engine.inspect("runner-images-test:build")
    layer = io.BytesIO()
    write_tar([text_entry("opt/made/here", "new")], layer)
    value = r'/a b:$HOME:"x"\y'
    removed = ("/etc/debian_version", "/no/such")
    addition = Addition(name, below["Id"], {"taken": "", "more": 'q"$'}, {"A": value}, removed)
    try:
        engine.add_layer(addition, [layer.getvalue()], CancellationToken())
        made = engine.inspect(name)["Config"]
        changed = {"Env", "Labels", "OnBuild", "Image", "Hostname", "ArgsEscaped"}
        assert {key: made.get(key) for key in below["Config"] if key not in changed} == {
            key: value for key, value in below["Config"].items() if key not in changed
        }
        assert not made.get("OnBuild")
        assert (made["Labels"]["kept"], made["Labels"]["taken"], made["Labels"]["more"]) == ("yes", "", 'q"$')
        assert {f"A={value}", "LD_LIBRARY_PATH=/opt/lib"} <= set(made["Env"])
        assert len(engine.inspect(name)["RootFS"]["Layers"]) == len(below["RootFS"]["Layers"]) + 1
        look = "exec 2>&1; cat /opt/made/here; stat -c %u:%g /opt/made/here; ls /etc/debian_version"
        assert engine.step(Step(name, ("sh", "-c", look))).output.startswith("new0:0\nls: ")
        with pytest.raises(BuildFailed, match=r"^runner-images-test:more: "):
            engine.add_layer(addition, [b"this is no tar" * 100], CancellationToken())
        until(
            lambda: not client.api.containers(all=True, filters={"name": f"runner-step-{os.getpid()}-"}),
            "removed",
        )
    finally:
        engine.remove(name)
        engine.remove("runner-images-test:build")


def test_the_command_line_builds_lists_and_explains(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path))
    built = CliRunner().invoke(cli, ["images", "build", "cpu", "--json"])
    assert json.loads(built.stdout)["id"] == image
    listed = [
        json.loads(line) for line in CliRunner().invoke(cli, ["images", "list", "--json"]).stdout.splitlines()
    ]
    assert [row["id"] for row in listed if row["current"] and row["accelerator"] == "cpu"] == [image]
    monkeypatch.setattr("runner.cli.console.on_terminal", lambda: True)
    table = CliRunner().invoke(cli, ["images", "list"]).stdout
    assert table.startswith("IMAGE")
    assert image[7:19] in table
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    down = CliRunner().invoke(cli, ["images", "prune"])
    assert down.exit_code == 4
    assert down.stderr.endswith("none.sock: No such file or directory); scripts/engine starts one\n")


HOSTILE: Final = """\
FROM runner-base:bookworm
RUN rm /usr/bin/python3; printf '%s\\n' '#!/bin/sh' \\
  'first() { cat "$@" 2>/dev/null | head -n 1; }; cd /sys/fs/cgroup' \\
  'pids=$(first pids.max pids/pids.max) memory=$(first memory.max memory/memory.limit_in_bytes)' \\
  'touch /etc/x /var/tmp/x 2>/dev/null && written=true; uid=$(id -u)' \\
  'echo "{\\"pids\\": $pids, \\"memory\\": $memory, \\"written\\": ${written:-false}, \\"uid\\": $uid}"' \\
  >/usr/bin/python3; chmod 755 /usr/bin/python3
"""
"""An image whose Python is another program, which tells what it may take."""


def test_an_image_is_asked_for_its_python_within_limits(
    base_image: str, client: docker.DockerClient, tmp_path: Path
) -> None:
    _build("classic", HOSTILE, [])
    made = str(client.images.get("runner-images-test:build").id)
    found = bases.ask_python(DockerEngine(), made, "", tmp_path, dict)
    assert found == {"pids": 1024, "memory": bases.ASKED_BYTES, "written": False, "uid": 65532}
    assert base_image


def _build(kind: BuilderKind, dockerfile: str, lines: list[str]) -> list[str]:
    archive = io.BytesIO()
    write_tar([text_entry("Dockerfile", dockerfile)], archive)
    archive.seek(0)
    request = BuildRequest("runner-images-test:build", {}, {})
    for line in DockerEngine().build(kind, request, archive, CancellationToken()):
        lines.append(line)  # noqa: PERF402  kept also when the build fails half-way
    return lines
