"""Conclusions of the adapter from an engine's words; the engine itself is in the contract suite."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from requests import ReadTimeout, Response

from runner.adapters.docker import executor as docker_executor
from runner.adapters.docker.connection import EngineConnection
from runner.adapters.docker.executor import (
    DockerExecutor,
    DockerExecutorSettings,
    cuda_of_image,
    end_observation,
    write_hosts_file,
)
from runner.adapters.docker.hardening import LOOPBACK_HOSTS, HardeningSettings
from runner.base.errors import Unavailable
from runner.core.doctor import EngineFacts
from runner.core.ports.devices import Device
from runner.core.ports.executor import (
    Alive,
    EndReason,
    Gone,
    HostFault,
    ImageUnfit,
    Key,
    LaunchRefused,
    LaunchRequest,
    Limits,
    Observation,
    Unknown,
)
from runner.core.ports.users import Owner

KEY = Key("i1", "j1", 1)


def _inspected(code: int, *, oom: bool = False, error: str = "", boot: str = "b1") -> dict[str, Any]:
    finished = "2026-11-20T10:00:00.123456789Z"
    started = "2026-11-20T09:00:00.123456789Z"
    state = {
        "Status": "exited",
        "ExitCode": code,
        "OOMKilled": oom,
        "Error": error,
        "StartedAt": started,
        "FinishedAt": finished,
    }
    return {"State": state, "Config": {"Labels": {"runner.boot": boot}}}


def _gone(inspected: dict[str, Any], *, booted_at: float = 0.0) -> Gone:
    return end_observation(KEY, inspected, "b1", booted_at)


def test_the_exit_code_and_the_kernels_word_are_kept_apart() -> None:
    assert (_gone(_inspected(0, oom=True)).exit_code, _gone(_inspected(0, oom=True)).oom_seen) == (0, True)
    assert (_gone(_inspected(137)).exit_code, _gone(_inspected(137)).oom_seen) == (137, False)


def test_the_engines_words_are_one_line() -> None:
    assert _gone(_inspected(127, error="a\n  b")).error.endswith(": a b")


@pytest.mark.parametrize("code", [0, 125, 126, 127, 128])
def test_the_code_of_a_start_that_somebody_tried_again_is_not_the_programs(code: int) -> None:
    seen = _gone(_inspected(code, error="error mounting pins/1"))
    assert (seen.exit_code, seen.reason) == (None, EndReason.STARTED_TWICE)  # which is not charged
    assert (
        seen.error
        == "somebody started its container again, which the engine could not: error mounting pins/1"
    )
    never = _inspected(code, error="no such program")
    never["State"]["StartedAt"] = "0001-01-01T00:00:00Z"
    assert _gone(never).exit_code == code


def test_an_exit_before_the_machine_was_restarted_is_believed() -> None:
    assert _gone(_inspected(0, boot="b0"), booted_at=4e9).exit_code == 0


def test_an_exit_that_an_engine_invents_after_a_power_cut_is_not_believed() -> None:
    seen = _gone(_inspected(0, boot="b0"))
    assert (seen.exit_code, seen.error) == (None, "the machine was restarted while it ran")


def _executor(url: str) -> DockerExecutor:
    return DockerExecutor(DockerExecutorSettings(HardeningSettings("i1"), url=url))


def _request(*devices: Device) -> LaunchRequest:
    run_dir = Path("/x")
    owner, limits = Owner(1, 1, "u"), Limits(1.0, 2**30)
    return LaunchRequest(KEY, "n", owner, "i", ("true",), run_dir, run_dir / "log", limits, devices=devices)


@pytest.mark.parametrize(
    "call",
    [
        DockerExecutor.observe,
        lambda executor: executor.launch(_request()),
        lambda executor: executor.signal(KEY, 15),
        lambda executor: executor.remove(KEY),
    ],
    ids=["observe", "launch", "signal", "remove"],
)
def test_an_engine_that_is_not_there_is_no_evidence(
    tmp_path: Path, call: Callable[[DockerExecutor], object]
) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        call(_executor(f"unix://{tmp_path}/no.sock"))


def test_a_dry_run_needs_no_engine(tmp_path: Path) -> None:
    assert _executor(f"unix://{tmp_path}/no.sock").plan(_request())["name"] == "runner-i1-j1-1"


def test_a_watch_on_an_engine_that_is_down_can_be_stopped(tmp_path: Path) -> None:
    before = threading.active_count()
    stop = _executor(f"unix://{tmp_path}/no.sock").watch(lambda: None)
    stop()
    assert threading.active_count() == before


def test_an_amd_device_that_is_not_there_is_a_fault_of_the_host(tmp_path: Path) -> None:
    device = Device("GPU-2", "amd", "MI300X", render_node=tmp_path / "renderD128")
    with pytest.raises(HostFault, match="No such file"):
        _executor("unix:///no.sock").launch(_request(device))


class QuickEnd:
    """An engine in which a container ends while it is started, and is started again by whoever asks."""

    @staticmethod
    def info() -> dict[str, Any]:
        return {"SecurityOptions": ["name=seccomp,profile=default"]}

    @staticmethod
    def version() -> dict[str, Any]:
        return {"Components": [{"Name": "Engine"}]}

    def __init__(self) -> None:
        self.status, self.starts = "created", 0
        self.looks: list[str] = []

    def inspect_image(self, _image: str) -> dict[str, Any]:
        return {"Config": {}}

    def inspect_container(self, _name: str) -> dict[str, Any]:
        seen = self.status
        self.looks.append(seen)
        threading.Event().wait(0.05)  # as long as another launch needs to look, too
        labels = {"runner.uid": str(_request().owner.uid)}
        return {"Id": "c1", "Config": {"Labels": labels}, "State": {"Status": seen}}

    def start(self, _name: str) -> None:
        self.starts += 1
        self.status = "exited"


def test_launches_at_the_same_time_do_not_start_twice_what_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, executor = QuickEnd(), _executor("unix:///nowhere")
    monkeypatch.setattr(EngineConnection, "client", lambda _: engine)
    monkeypatch.setattr(DockerExecutor, "_find", lambda *_: ["c1"])
    monkeypatch.setattr(docker_executor, "find_differences", lambda *_: [])
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: executor.launch(_request()), range(4)))
    assert (engine.starts, engine.looks) == (1, ["created", "exited", "exited", "exited"])


@dataclass
class ListedAsEnded:
    """An engine that lists two containers as ended, one of which is asked about with an odd answer."""

    odd: Callable[[], dict[str, Any]]

    def containers(self, **_: object) -> list[dict[str, Any]]:
        return [self._entry(number) for number in (1, 2)]

    @staticmethod
    def _entry(number: int) -> dict[str, Any]:
        labels = {"runner.instance": "i1", "runner.job": f"j{number}", "runner.attempt": "1"}
        name = f"/runner-i1-j{number}-1"
        return {"Id": f"c{number}", "Labels": labels, "Names": [name], "State": "exited"}

    def inspect_container(self, container: str) -> dict[str, Any]:
        return self.odd() if container == "c1" else _inspected(0)

    output = b""

    def logs(self, _container: str, **_: object) -> bytes:
        return self.output


def _raise(error: Exception) -> dict[str, Any]:
    raise error


def test_a_paused_container_is_suspended_and_no_silence_of_its_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused = {**ListedAsEnded._entry(1), "State": "paused"}
    monkeypatch.setattr(ListedAsEnded, "containers", lambda *_, **__: [paused])
    monkeypatch.setattr(DockerExecutor, "_watch_memory", lambda *_: None)
    (seen,) = _observed(monkeypatch, dict)
    assert isinstance(seen, Alive)
    assert seen.suspended


def _observed(monkeypatch: pytest.MonkeyPatch, odd: Callable[[], dict[str, Any]]) -> list[Observation]:
    monkeypatch.setattr(EngineConnection, "client", lambda _: ListedAsEnded(odd))
    return list(_executor("unix:///nowhere").observe())


def test_a_container_that_was_started_again_since_it_was_listed_has_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = _inspected(0)
    running["State"]["Status"] = "running"
    first, second = _observed(monkeypatch, lambda: running)
    assert (first, type(second)) == (Alive(KEY), Gone)


@pytest.mark.parametrize(
    ("code", "said", "seen"),
    [
        (1, "[FATAL tini (7)] exec /bin/sh failed: Exec format error", 126),
        (1, "[FATAL tini (7)] exec /bin/sh failed: Too many levels of symbolic links", 126),
        (127, "[FATAL tini (7)] exec /bin/sh failed: No such file or directory", 126),
        (1, "oom_kill 0", 1),
    ],
)
def test_an_image_whose_shell_cannot_be_started_is_told_whatever_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str, seen: int
) -> None:
    monkeypatch.setattr(ListedAsEnded, "output", f"{said}\n".encode())
    first, _ = _observed(monkeypatch, lambda: _inspected(code))
    assert isinstance(first, Gone)
    assert (first.exit_code, first.error) == (seen, said if seen == 126 else "")


@pytest.mark.parametrize(
    "error",
    [APIError("500 Server Error", Response(), "broken metadata"), ReadTimeout("no answer")],
    ids=["an error", "no answer"],
)
def test_one_container_that_cannot_be_inspected_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first, second = _observed(monkeypatch, lambda: _raise(error))
    assert isinstance(first, Unknown)
    assert "runner-i1-j1-1" in first.why
    assert isinstance(second, Gone)


def test_the_names_of_the_loopback_are_kept_and_mended(tmp_path: Path) -> None:
    hosts = write_hosts_file(tmp_path)
    assert hosts is not None
    assert (hosts.read_bytes(), hosts.stat().st_mode & 0o777) == (LOOPBACK_HOSTS, 0o644)
    inode = hosts.stat().st_ino
    hosts.write_bytes(b"127.0.0.1 elsewh")  # torn by a full disk
    assert write_hosts_file(tmp_path) == hosts
    assert (hosts.read_bytes(), hosts.stat().st_ino) == (
        LOOPBACK_HOSTS,
        inode,
    )  # what runs has this very file


def test_where_no_names_can_be_kept_there_are_none(tmp_path: Path) -> None:
    assert write_hosts_file(tmp_path / "missing" / "etc") is None


# --- how devices get into containers

GPU = Device("GPU-1", "nvidia", "NVIDIA H100 80GB HBM3")


def _choosing(monkeypatch: pytest.MonkeyPatch, *answers: EngineFacts) -> DockerExecutor:
    """Return an executor whose engine answers so, one time after the other."""
    queue = list(answers)
    monkeypatch.setattr(docker_executor, "describe_engine", lambda _url: queue.pop(0))
    return DockerExecutor(DockerExecutorSettings(HardeningSettings("i1"), choose_injection=True))


def test_a_job_whose_gpu_no_container_can_get_waits_and_the_next_launch_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = EngineFacts(version="20.10.24", runtimes=("runc",))
    executor = _choosing(monkeypatch, old, EngineFacts("gone"), replace(old, runtimes=("nvidia", "runc")))
    request = replace(_request(GPU), run_dir=tmp_path, log=tmp_path / "log")
    with pytest.raises(Unavailable, match=r"no GPU can be given to containers: engine 20.10.24 .*nvidia-ctk"):
        executor.plan(request)
    with pytest.raises(Unavailable, match=r"^gone$"):
        executor.plan(request)
    for _ in range(2):  # the answer is kept
        assert dict(executor.plan(request))["config"]["HostConfig"]["Runtime"] == "nvidia"  # type: ignore[index]


def test_cdi_is_taken_where_it_is_ready_and_nobody_asks_for_a_job_without_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready = EngineFacts(
        version="28.2.2",
        runtimes=("nvidia",),
        cdi_enabled=True,
        cdi_files=("nvidia.yaml",),
        cdi_devices=("GPU-1",),
    )
    executor = _choosing(monkeypatch, ready)
    executor.plan(_request())
    [asked] = dict(executor.plan(_request(GPU)))["config"]["HostConfig"]["DeviceRequests"]  # type: ignore[index]
    assert asked["DeviceIDs"] == ["nvidia.com/gpu=GPU-1"]


# --- the driver and the image


class Launching:
    """An engine that has one image, and takes what it is given."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.config = {"Labels": labels, "Env": ["PATH=/bin"]}
        self.asked = self.created = 0

    def inspect_image(self, image: str) -> dict[str, Any]:
        self.asked += 1
        if image == "gone":
            raise NotFound("no such image")
        return {"Config": self.config}

    @staticmethod
    def info() -> dict[str, Any]:
        return {"SecurityOptions": []}

    @staticmethod
    def version() -> dict[str, Any]:
        return {"Components": [{"Name": "Engine"}]}

    @staticmethod
    def containers(**_: object) -> list[dict[str, Any]]:
        return []

    def create_container_from_config(self, _config: object, _name: str) -> dict[str, str]:
        self.created += 1
        raise ReadTimeout("far enough")


def _launching(
    monkeypatch: pytest.MonkeyPatch, driver: str, labels: dict[str, str]
) -> tuple[Launching, DockerExecutor]:
    engine = Launching(labels)
    monkeypatch.setattr(EngineConnection, "client", lambda _: engine)
    settings = DockerExecutorSettings(HardeningSettings("i1"), driver_version=lambda: driver)
    return engine, DockerExecutor(settings)


def test_a_driver_that_is_too_old_for_the_image_lets_the_job_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executor = _launching(monkeypatch, "550.54.14", {"runner.cuda": "13.0"})
    said = (
        "runner-i1-j1-1: not started: driver 550.54.14 is too old: the image's torch needs CUDA 13.0; update"
        " the driver to 580.65 or later, or make the lock for CUDA 12.6 (runner images lock cuda-12.6)"
    )
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"^{re.escape(said)}$"):
            executor.launch(_request(GPU))
    assert (engine.asked, engine.created) == (1, 0)


def test_a_gpu_that_the_image_has_no_code_for_lets_the_job_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    _, executor = _launching(monkeypatch, "580.65.06", {"runner.cuda": "13.0"})
    volta = replace(GPU, label="GPU-3", capability=(7, 0))
    with pytest.raises(Unavailable, match=r"not started: GPU-3 has compute capability 7\.0"):
        executor.launch(_request(volta))


@pytest.mark.parametrize(
    ("driver", "labels", "request_"),
    [
        ("580.65.06", {"runner.cuda": "13.0"}, _request(GPU)),
        ("550.54.14", {}, _request(GPU)),
        ("550.54.14", {"runner.cuda": "13.0"}, _request()),
        ("550.54.14", {}, replace(_request(GPU), image="gone")),
    ],
    ids=["new enough", "unknown CUDA", "no GPU", "image gone"],
)
def test_what_fits_or_is_not_known_is_started(
    monkeypatch: pytest.MonkeyPatch, driver: str, labels: dict[str, str], request_: LaunchRequest
) -> None:
    engine, executor = _launching(monkeypatch, driver, labels)
    with pytest.raises(Unavailable, match=r"answers? nothing|nothing within|does not answer|far enough"):
        executor.launch(request_)
    assert engine.created == 1


@pytest.mark.parametrize(
    ("config", "cuda"),
    [
        ({"Labels": {"runner.cuda": "12.6"}, "Env": ["CUDA_VERSION=13.0.1"]}, (12, 6)),
        ({"Labels": None, "Env": ["PATH=/bin", "CUDA_VERSION=12.4.1"]}, (12, 4)),  # an image of NVIDIA
        ({"Env": ["CUDA_VERSION="]}, None),
        ({}, None),
    ],
)
def test_the_cuda_of_an_image_is_what_it_says(config: dict[str, Any], cuda: tuple[int, int] | None) -> None:
    assert cuda_of_image(config) == cuda


class NoDriver(QuickEnd):
    """An engine that cannot start a container, as when the driver of the devices was upgraded beneath it."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[str] = []

    def inspect_container(self, name: str) -> dict[str, Any]:
        inspected = super().inspect_container(name)
        inspected["State"]["Error"] = "failed to start" if self.starts else ""
        return inspected

    def start(self, _name: str) -> None:
        self.starts += 1
        response = Response()
        response.status_code = 500
        raise APIError("", response, "nvml error: driver/library version mismatch: unknown")

    def remove_container(self, container: str, **_: object) -> None:
        self.removed.append(container)


@pytest.mark.parametrize("devices", [(), (GPU,)])
def test_a_start_that_fails_is_the_fault_of_the_host_and_the_engine_is_looked_at_anew(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[Device, ...]
) -> None:
    engine, executor = NoDriver(), _executor("unix:///nowhere")
    executor._chosen_injection = "cdi"
    monkeypatch.setattr(EngineConnection, "client", lambda _: engine)
    monkeypatch.setattr(DockerExecutor, "_find", lambda *_: ["c1"])
    monkeypatch.setattr(docker_executor, "find_differences", lambda *_: [])
    with pytest.raises(HostFault, match="driver/library version mismatch"):
        executor.launch(_request(*devices))
    assert engine.removed == ["c1"]
    assert executor._chosen_injection is None


SHIM = "failed to create shim task: OCI runtime create failed"
NVIDIA = "error running hook #0: exit status 1: nvidia-container-cli: initialization error"


RUNC = f"{SHIM}: runc create failed: unable to start container process"
MACHINE = (
    "write /var/lib/docker/containers/1/.tmp-config.v2.json: no space left on device",
    f"{SHIM}: runc create failed: mkdir /run/runc/1: No space left on device: unknown",
    "mkdir /var/lib/docker/overlay2/l: disk quota exceeded",
    f"{SHIM}: fork/exec /usr/bin/runc: resource temporarily unavailable: unknown",
    "pipe2: too many open files in system",
    "start failed: context deadline exceeded: unknown",
)
"""Words of engines and runtimes about a machine that is full."""
HOST = (
    "Unknown runtime specified nvidia",
    'could not select device driver "" with capabilities: [[gpu]]',
    'could not select device driver "cdi" with capabilities: []',
    f"{SHIM}: {NVIDIA}: driver rpc error: timed out: unknown",
    f"{SHIM}: {NVIDIA}: nvml error: driver not loaded: unknown",
    "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-1",
    "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=MIG-1",
    f'{SHIM}: error gathering device information "/dev/nvidia0": no such device',
    f"{SHIM}: open /dev/nvidia0: device or resource busy: unknown",
    f'{SHIM}: exec: "no space left on device": executable file not found in $PATH',
    "failed to fulfil mount request: open /usr/lib64/libcuda.so.580.65.06: no such file or directory",
    f'{RUNC}: exec: "/sbin/docker-init": stat /sbin/docker-init: no such file or directory: unknown',
    f"{RUNC}: exec /sbin/docker-init: exec format error",
    (
        f"{RUNC}: error during container init: unable to apply apparmor profile: apparmor failed to apply"
        " profile: write /proc/self/attr/apparmor/exec: no such file or directory: unknown"
    ),
    "AppArmor enabled on system but the runner-job profile could not be loaded: apparmor_parser: not found",
    f"{RUNC}: error during container init: error loading seccomp filter into kernel: errno 524: unknown",
    f"{RUNC}: unable to apply cgroup configuration: unable to start unit: Unit docker-1.scope not found",
    f"{RUNC}: unable to apply cgroup configuration: mkdir /sys/fs/cgroup/memory/docker: cgroup deleted",
    f"{SHIM}: runc create failed: cgroupns not enabled in the kernel: unknown",
    f"{SHIM}: crun: writing file `/sys/fs/cgroup/cgroup.subtree_control`: Not supported: unknown",
    f"{SHIM}: crun: create keyring `1`: Disk quota exceeded, try `sysctl kernel.keys.maxkeys=20000`",
    f"{SHIM}: crun: cannot find `/dev/kfd`: No such file or directory: unknown",
    f"{SHIM}: runc create failed: User namespaces enabled, but no uid mappings found: unknown",
    f"{RUNC}: error setting rlimits for ready process: error setting rlimit type 8: operation not permitted",
    "failed to start shim: start failed: : fork/exec /usr/bin/containerd-shim-runc-v2: no such file",
    "ttrpc: closed: unknown",
    'connection error: desc = "transport: dial unix /run/containerd/containerd.sock": unavailable',
    (
        "driver failed programming external connectivity on endpoint: Bind for 0.0.0.0:80 failed: port is"
        " already allocated"
    ),
    "failed to set up container networking: network lab not found",
    (
        "failed to create endpoint on network lab: failed to add the host (veth1) <=> sandbox (veth2) pair"
        " interfaces: operation not supported"
    ),
    "error creating overlay mount to /var/lib/docker/overlay2/1/merged: too many levels of symbolic links",
    "failed to mount /var/lib/containerd/tmpmounts/containerd-mount1: not a directory",
    "open /etc/docker/seccomp.json: not a directory",
    "snapshot sha256:0123 does not exist: not found",
    f"{SHIM}: something that nobody has read before: unknown",
)
"""The same about a host that lacks something, or words that nobody knows."""
OF_JOB = (
    'invalid mount config for type "bind": bind source path does not exist: /srv/data',
    "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
    "Minimum memory limit allowed is 6MB",
    f"{RUNC}: container init was OOM-killed (memory limit too low?): unknown",
    f"{RUNC}: exec /sbin/docker-init: argument list too long: unknown",
)
"""The same about what the job itself asks for."""
OF_IMAGE = (
    "Cannot mkdir: /job is not a directory",
    'error mounting "/s" to rootfs at "/job": mount /s:/job, flags: 0x5000: not a directory: unknown',
    (
        f'{RUNC}: error mounting "/s" to rootfs at "/job": create mountpoint for /job mount: mkdirall'
        " /var/lib/docker/overlay2/1/merged/job: not a directory: unknown"
    ),
    'error mounting "tmpfs" to rootfs at "/tmp": SecureJoin /tmp: too many levels of symbolic links',
    f'{RUNC}: error mounting "proc" to rootfs at "/proc": "/proc" must be mounted on ordinary directory',
    (
        f'{RUNC}: error mounting "/var/lib/docker/containers/1/hostname" to rootfs at "/etc/hostname": not a'
        " directory: Are you trying to mount a directory onto a file (or vice-versa)?"
    ),
    f"{SHIM}: crun: mount `/s` to `job`: Not a directory: unknown",
    f'{RUNC}: error mounting "/usr/bin/docker-init" to rootfs at "/sbin/docker-init": not a directory',
    f"{SHIM}: crun: open `dev/shm`: Too many levels of symbolic links: unknown",
)
"""The same about an image that has something else where a container has a directory or a file."""


@pytest.mark.parametrize("at", ["creation", "start"])
@pytest.mark.parametrize(
    ("said", "raised"),
    [
        *((said, Unavailable) for said in MACHINE),
        *((said, HostFault) for said in HOST),
        *((said, LaunchRefused) for said in OF_JOB),
        *((said, ImageUnfit) for said in OF_IMAGE),
    ],
)
def test_what_an_engine_says_tells_whose_fault_it_is(
    monkeypatch: pytest.MonkeyPatch, at: str, said: str, raised: type[Exception]
) -> None:
    class Saying(NoDriver):
        def start(self, _name: str) -> None:
            self.starts += 1
            response = Response()
            response.status_code = 500 if at == "start" else 400
            raise APIError("", response, said)

        def create_container_from_config(self, _config: object, name: str) -> None:
            self.start(name)

    monkeypatch.setattr(DockerExecutor, "_find", lambda *_: [] if at == "creation" else ["c1"])
    monkeypatch.setattr(docker_executor, "find_differences", lambda *_: [])
    for devices in ((GPU,), ()):
        engine, executor = Saying(), _executor("unix:///nowhere")
        executor._chosen_injection = "cdi"
        monkeypatch.setattr(EngineConnection, "client", lambda _, engine=engine: engine)
        with pytest.raises(raised) as caught:
            executor.launch(_request(*devices))
        assert type(caught.value) is raised
        assert said in str(caught.value)


def test_a_mount_that_is_closed_to_the_engines_root_is_told_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Squashed(QuickEnd):
        @staticmethod
        def info() -> dict[str, Any]:
            return {**QuickEnd.info(), "Runtimes": {"runc": {}}}

        @staticmethod
        def create_container_from_config(_config: object, _name: str) -> dict[str, str]:
            response = Response()
            response.status_code = 400
            said = 'invalid mount config for type "bind": stat /home/ada/data: permission denied'
            raise APIError("", response, said)

    monkeypatch.setattr(EngineConnection, "client", lambda _: Squashed())
    monkeypatch.setattr(DockerExecutor, "_find", lambda *_: [])
    with pytest.raises(LaunchRefused, match=r"/home/ada/data: permission denied; it lies on .*NFS.*copy it"):
        _executor("unix:///nowhere").launch(_request())


def test_an_engine_without_support_that_comes_up_later_lets_the_job_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, executor = _launching(monkeypatch, "580.65.06", {})
    monkeypatch.setattr(engine, "version", lambda: {"Components": [{"Name": "Podman Engine"}]})
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"^Podman is not supported"):
            executor.launch(_request())
    assert engine.created == 0
