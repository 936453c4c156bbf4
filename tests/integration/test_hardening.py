"""The walls, seen from inside a real container, and attacks that were seen to work on softer ones."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from runner.adapters.docker.image_links import ImageLinks
from runner.adapters.launch import attempt_name
from runner.core.ports.executor import ImageUnfit, LaunchRefused, Limits, Mount
from tests.contract.worlds import OWNER, Place, begun, docker_place, end, printed, seen

pytestmark = pytest.mark.engine

Bake = Callable[..., str]
MIB = 1024**2
LIMITS = Limits(cpus=0.5, memory_bytes=128 * MIB, shm_bytes=24 * MIB, pids=50, tmp_bytes=8 * MIB)

LOOK = """
import json, os, resource, socket, subprocess

def attempt(action):
    try:
        action()
    except OSError as error:
        return os.strerror(error.errno)
    return "done"

def first(*paths):
    return next(open(path).read().strip() for path in paths if os.path.exists(path))

def size(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize

script = "/tmp/script"
with open(script, "w") as file:
    file.write("#!/bin/sh\\n")
os.chmod(script, 0o700)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
listening = socket.create_server(("localhost", 0))
print(json.dumps({
    "status": {name: value.strip() for name, value in status.items()},
    "root": attempt(lambda: open("/file", "w")),
    "etc": attempt(lambda: open("/etc/file", "w")),
    "job": attempt(lambda: open("/job/file", "w")),
    "attempt": attempt(lambda: open("/job/attempts/1/file", "w")),
    "mknod": attempt(lambda: os.mknod("/tmp/node", 0o60600, os.makedev(8, 0))),
    "run from tmp": attempt(lambda: subprocess.run([script], check=True)),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "network": os.readlink("/proc/self/ns/net"),
    "localhost": attempt(lambda: socket.create_connection(listening.getsockname())),
    "names": sorted({found[4][0] for found in socket.getaddrinfo("localhost", 1)}),
    "outside": attempt(lambda: socket.create_connection(("192.0.2.1", 80), timeout=5)),
    "shm": size("/dev/shm"), "tmp": size("/tmp"),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "memory": first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "pids": first("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit())[:2],
    "pid 1": open("/proc/1/cmdline").read().split("\\0")[0],
    "environment": dict(os.environ),
    "umask": os.umask(0),
}), flush=True)
"""


@pytest.fixture(scope="module")
def engine_api(engine: str) -> Iterator[docker.APIClient]:
    client = docker.APIClient(engine, version="auto")
    yield client
    client.close()


@pytest.fixture(scope="module")
def bake(engine_api: docker.APIClient, base_image: str) -> Iterator[Bake]:
    """Make a hostile image: run a command as root in the base, and add lines of a Dockerfile."""
    made: list[str] = []

    def bake(command: str, *lines: str) -> str:
        container = engine_api.create_container(base_image, ["/bin/sh", "-c", command], user="0:0")["Id"]
        try:
            engine_api.start(container)
            assert engine_api.wait(container)["StatusCode"] == 0
            made.append(engine_api.commit(container, changes="\n".join(lines))["Id"])
        finally:
            engine_api.remove_container(container, v=True, force=True)
        return made[-1]

    yield bake
    for image in made:
        engine_api.remove_image(image, force=True)


@pytest.fixture(scope="module")
def place(engine: str, base_image: str, bake: Bake) -> Iterator[Place]:  # noqa: ARG001 - images outlive containers
    with docker_place(engine, base_image) as place:
        yield place


@pytest.fixture(scope="module")
def inside(place: Place) -> tuple[dict[str, Any], str]:
    """Return the view of a running job, and the name of its container, which still runs."""
    program = f"{LOOK}\nimport time; time.sleep(1000)"
    request = replace(place.request("python3", "-c", program, job="looks"), limits=LIMITS)
    place.executor().launch(request)
    begun(request, "}\n")
    return json.loads(printed(request)), attempt_name(request.key)


def test_the_job_is_its_owner_and_nobody_else(inside: tuple[dict[str, Any], str]) -> None:
    status = inside[0]["status"]
    assert status["Uid"].split() == [str(OWNER.uid)] * 4
    assert status["Gid"].split() == [str(OWNER.gid)] * 4
    assert status["Groups"].split() in ([], [str(OWNER.gid)])


def test_the_job_has_no_capabilities_and_cannot_get_any(inside: tuple[dict[str, Any], str]) -> None:
    status = inside[0]["status"]
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert inside[0]["mknod"] == "Operation not permitted"


def test_the_root_is_read_only_and_only_the_leaves_of_the_run_directory_are_not(
    inside: tuple[dict[str, Any], str],
) -> None:
    view = inside[0]
    assert (view["root"], view["etc"]) == ("Read-only file system", "Read-only file system")
    assert (view["job"], view["attempt"]) == ("Permission denied", "done")
    assert view["run from tmp"] == "done"  # compilers need that
    assert view["umask"] == 0o077


def test_there_is_no_network_but_the_loopback(inside: tuple[dict[str, Any], str]) -> None:
    assert set(inside[0]["interfaces"]) <= {"lo", "tunl0", "sit0", "ip6tnl0", "erspan0", "gre0", "gretap0"}
    assert "eth0" not in inside[0]["interfaces"]
    assert inside[0]["network"] != str(Path("/proc/self/ns/net").readlink())
    assert inside[0]["outside"] == "Network is unreachable"


def test_the_loopback_works_and_has_a_name(inside: tuple[dict[str, Any], str]) -> None:
    assert inside[0]["localhost"] == "done"
    assert set(inside[0]["names"]) == {"127.0.0.1", "::1"}


def test_limits_are_in_force(inside: tuple[dict[str, Any], str]) -> None:
    view = inside[0]
    assert (view["shm"], view["tmp"]) == (24 * MIB, 8 * MIB)
    assert (int(view["memory"]), int(view["pids"]), view["core"]) == (128 * MIB, 50, [0, 0])


def test_the_job_sees_its_own_processes_under_an_init(inside: tuple[dict[str, Any], str]) -> None:
    assert inside[0]["processes"][0] == 1
    assert "init" in inside[0]["pid 1"]


def test_the_engine_agrees(inside: tuple[dict[str, Any], str], engine_api: docker.APIClient) -> None:
    found = engine_api.inspect_container(inside[1])
    host, config = found["HostConfig"], found["Config"]
    assert (host["NetworkMode"], host["IpcMode"], host["ShmSize"]) == ("none", "private", 24 * MIB)
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (128 * MIB, 128 * MIB, 500_000_000)
    assert (host["AutoRemove"], host["RestartPolicy"]["Name"], host["Runtime"]) == (False, "no", "runc")
    assert (config["User"], config["Image"][:7]) == (f"{OWNER.uid}:{OWNER.gid}", "sha256:")
    assert config["Labels"]["runner.job"] == "looks"
    assert config["Labels"]["runner.attempt"] == "1"
    assert config["Labels"]["runner.uid"] == str(OWNER.uid)
    assert {mount["Type"] for mount in found["Mounts"]} == {"bind"}


# --- Attacks: each worked somewhere ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def sneaky(bake: Bake) -> str:
    """An image that tries everything which must not take effect."""
    return bake(
        "cp $(readlink -f /usr/bin/python3) /setuid && chmod 4755 /setuid"
        f" && echo 'ada:x:{OWNER.uid}:{OWNER.gid}::/:/bin/sh' >>/etc/passwd"
        " && echo 'shadowy:x:42:ada' >>/etc/group && echo 'engine:x:999:ada' >>/etc/group",
        'ENTRYPOINT ["/bin/echo", "the entrypoint of the image"]',
        "HEALTHCHECK --interval=1s CMD touch /job/attempts/1/healthcheck",
        "LABEL runner.instance=another runner.job=stolen runner.uid=0",
        "ENV NVIDIA_VISIBLE_DEVICES=all HOME=/root USER=root",
        "USER 0:0",
    )


def _inside(place: Place, image: str, job: str, program: str) -> tuple[str, Path]:
    request = replace(place.request("/setuid", "-c", program, job=job), image=image)
    executor = place.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    return printed(request), request.log.parent


def test_attack_2_a_setuid_program_of_the_image_gains_nothing(place: Place, sneaky: str) -> None:
    program = """
import os
try:
    os.setresuid(0, 0, 0)
except PermissionError:
    print("denied")
with open("/job/attempts/1/shell", "wb") as file:
    os.fchmod(file.fileno(), 0o4755)
print(os.getresuid())
"""
    said, attempt_dir = _inside(place, sneaky, "attack2", program)
    assert said == f"denied\n({OWNER.uid}, {OWNER.uid}, {OWNER.uid})\n"
    assert {entry.stat().st_uid for entry in attempt_dir.iterdir()} == {OWNER.uid}


def test_attack_3_groups_that_the_image_lists_are_not_given(place: Place, sneaky: str) -> None:
    said, _ = _inside(place, sneaky, "attack3", "import os; print(os.getgid(), os.getgroups())")
    assert said in {f"{OWNER.gid} []\n", f"{OWNER.gid} [{OWNER.gid}]\n"}


def test_a_container_of_somebody_else_is_not_adopted(place: Place) -> None:
    """As where an older store was put back, and an id is given out twice."""
    request = place.request("/bin/sh", "-c", "exec sleep 60", job="adopted")
    place.executor().launch(request)
    theirs = replace(request, owner=replace(request.owner, uid=request.owner.uid + 1))
    with pytest.raises(LaunchRefused, match="a container of this name exists and is not ours"):
        place.executor().launch(theirs)


def test_attack_6_a_missing_mount_source_is_refused_and_not_made(place: Place) -> None:
    source = place.root / "not there"
    mounts = (Mount(source, Path("/data/x")),)
    request = replace(place.request("true", job="attack6"), mounts=mounts)
    with pytest.raises(LaunchRefused, match="not there"):
        place.executor().launch(request)
    assert not source.exists()
    assert seen(place.executor(), request.key) is None


@pytest.mark.parametrize(
    ("command", "place_of_link"),
    [
        ("mkdir -p /data/a; ln -s /data/a/made /data/b", "/data/b"),
        ("mkdir -p /data/a/made; ln -s a/made/../made /data/b", "/data/b"),
        ("ln -s /data/a/x /y; mkdir /data; ln -s /y /data/b", "/data/b"),
        ("rm -r /tmp; ln -s /data/a/made /tmp", "/tmp"),
        ("ln -s /job/home/made /data", "/data"),
    ],
)
def test_a_link_of_an_image_makes_no_directory_in_what_is_mounted(
    place: Place, bake: Bake, engine_api: docker.APIClient, command: str, place_of_link: str
) -> None:
    sources = [place.root / "beside" / name for name in ("a", "b")]
    for source in sources:
        source.mkdir(parents=True, exist_ok=True)
    mounts = tuple(Mount(source, Path("/data", source.name), read_only=False) for source in sources)
    image = bake(command, "LABEL made=here")
    request = replace(place.request("true", job="links"), mounts=mounts, image=image)
    with pytest.raises(ImageUnfit, match=f"the image has at {place_of_link} a link to "):
        place.executor().launch(request)
    assert list(sources[0].iterdir()) == []
    assert seen(place.executor(), request.key) is None
    assert not engine_api.containers(all=True, filters={"ancestor": image})


def test_an_image_without_such_links_is_asked_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, original = [], ImageLinks._container

    def counted(
        links: ImageLinks, image: str, name: str
    ) -> AbstractContextManager[tuple[docker.APIClient, str]]:
        asked.append(image)
        return original(links, image, name)

    monkeypatch.setattr(ImageLinks, "_container", counted)
    source = place.root / "mounted"
    source.mkdir()
    executor = place.executor()
    for attempt in (1, 2):
        request = place.request("ls", "/data/a", job="linkless", attempt=attempt)
        executor.launch(replace(request, mounts=(Mount(source, Path("/data/a"), read_only=False),)))
        assert end(executor, request.key).exit_code == 0
    assert len(asked) == 1


def test_attack_7_what_an_image_declares_takes_no_effect(
    place: Place, sneaky: str, engine_api: docker.APIClient
) -> None:
    program = "import os, json; print(json.dumps(dict(os.environ)), flush=True); os.read(os.pipe()[0], 1)"
    request = replace(place.request("/setuid", "-c", program, job="attack7"), image=sneaky)
    place.executor().launch(request)
    begun(request, "}\n")
    environment = json.loads(printed(request))  # and not the words of the image's entrypoint
    found = engine_api.inspect_container(attempt_name(request.key))
    assert (environment["NVIDIA_VISIBLE_DEVICES"], environment["HOME"]) == ("void", "/job/home")
    assert environment["USER"] == OWNER.name
    assert found["Config"]["Labels"]["runner.instance"] == place.instance
    assert found["Config"]["Labels"]["runner.uid"] == str(OWNER.uid)
    assert found["Config"]["Healthcheck"]["Test"] == ["NONE"]
    assert "Health" not in found["State"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("VOLUME /data/mine", "declares the volume /data/mine"),
    ],
)
def test_attack_7_what_cannot_be_overridden_is_refused_and_leaves_nothing(
    place: Place, bake: Bake, engine_api: docker.APIClient, line: str, complaint: str
) -> None:
    before = {volume["Name"] for volume in engine_api.volumes()["Volumes"] or []}
    request = replace(place.request("true", job="attack7b"), image=bake("true", line))
    with pytest.raises(LaunchRefused, match=complaint):
        place.executor().launch(request)
    assert seen(place.executor(), request.key) is None
    assert {volume["Name"] for volume in engine_api.volumes()["Volumes"] or []} <= before


# --- Images of others ------------------------------------------------------------------------------------

LAB_IMAGES = {
    "pytorch/pytorch": (
        "ENV NVIDIA_VISIBLE_DEVICES=all",
        "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        "ENV PYTORCH_VERSION=2.8.0",
        "WORKDIR /workspace",
    ),
    "nvidia/cuda": (
        "ENV NVARCH=x86_64",
        'ENV NVIDIA_REQUIRE_CUDA="cuda>=12.8 brand=unknown,driver>=470,driver<471"',
        "ENV CUDA_VERSION=12.8.1",
        "ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        "ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "ENV NVIDIA_PRODUCT_NAME=CUDA",
        'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]',
    ),
}
"""Lines of the Dockerfiles of images that labs use."""


@pytest.mark.parametrize("name", LAB_IMAGES)
def test_an_image_of_others_runs_and_hooks_see_nothing_of_it(
    place: Place, bake: Bake, engine_api: docker.APIClient, name: str
) -> None:
    program = "import os, json; print(json.dumps(dict(os.environ)), flush=True); os.read(os.pipe()[0], 1)"
    job = name.replace("/", "-")
    request = replace(place.request("python3", "-c", program, job=job), image=bake("true", *LAB_IMAGES[name]))
    place.executor().launch(request)
    begun(request, "}\n")
    environment = json.loads(printed(request))
    assert environment["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    config = engine_api.inspect_container(attempt_name(request.key))["Config"]
    for_hooks = dict(each.split("=", 1) for each in config["Env"])
    assert for_hooks["LD_LIBRARY_PATH"] == for_hooks.get("NVIDIA_REQUIRE_CUDA", "") == ""
    assert (for_hooks["NVIDIA_VISIBLE_DEVICES"], for_hooks["NVIDIA_DISABLE_REQUIRE"]) == ("void", "1")


def test_an_image_that_preloads_a_library_does_so_for_the_program_alone(
    place: Place, bake: Bake, engine_api: docker.APIClient
) -> None:
    request = replace(
        place.request("python3", "-c", "import os; print(os.environ['LD_PRELOAD'])", job="preloads"),
        image=bake("true", "ENV LD_PRELOAD=/none.so"),
    )
    executor = place.executor()
    executor.launch(request)
    config = engine_api.inspect_container(attempt_name(request.key))["Config"]
    assert "LD_PRELOAD=" in config["Env"]
    assert end(executor, request.key).exit_code == 0
    assert printed(request).endswith("/none.so\n")


def test_a_container_of_our_name_that_is_not_ours_is_left_alone(
    place: Place, base_image: str, engine_api: docker.APIClient
) -> None:
    request = place.request("true", job="squatted")
    name = attempt_name(request.key)
    engine_api.create_container(base_image, ["true"], name=name)
    try:
        with pytest.raises(LaunchRefused, match="not ours"):
            place.executor().launch(request)
        assert engine_api.inspect_container(name)["State"]["Status"] == "created"
    finally:
        engine_api.remove_container(name, v=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a directory of another user")
def test_a_directory_of_another_user_stays_closed(place: Place) -> None:
    private = place.root / "of another"
    private.mkdir(mode=0o700)
    (private / "secret").write_text("secret")
    mounts = (Mount(private, Path("/data/private")),)
    request = replace(place.request("cat", "/data/private/secret", job="private"), mounts=mounts)
    executor = place.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 1
    assert "Permission denied" in printed(request)
