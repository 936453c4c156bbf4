"""Attempts as hardened containers of a Docker engine.

A launch makes three calls: create, inspect, start.  Before the start, the container is compared with the
request, and removed if it differs.  An image is asked for its links once, before a job of it gets a
directory of the host that it may write to.  The executor keeps no state between calls: it finds its
containers by their labels and run directories, and addresses them by id, so a new daemon adopts those of the
previous one and a container may be renamed.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from signal import SIGKILL
from typing import Final
from weakref import WeakValueDictionary

import structlog
from docker.errors import APIError, NotFound
from requests import ReadTimeout

from runner.adapters.docker.accounts import write_account_files
from runner.adapters.docker.connection import EngineConnection, engine_errors, explanation, shortened
from runner.adapters.docker.engine import ask_engine, describe_engine, in_force, report_engine
from runner.adapters.docker.events import EventsWatcher
from runner.adapters.docker.hardening import (
    JOB_DIR,
    LABEL_ATTEMPT,
    LABEL_BOOT,
    LABEL_INSTANCE,
    LABEL_JOB,
    LABEL_UID,
    LOOPBACK_HOSTS,
    HardeningSettings,
    Json,
    engine_arguments,
    find_differences,
    key_of,
)
from runner.adapters.docker.image_links import ImageLinks
from runner.adapters.docker.memory_kills import MemoryKills
from runner.adapters.host.process_status import is_childless
from runner.adapters.launch import attempt_name
from runner.base.errors import Unavailable
from runner.core.cuda import Gpu, launch_problem, parse_version
from runner.core.doctor import EngineFacts, Injection, choose_injection
from runner.core.ports.devices import Device
from runner.core.ports.executor import (
    Alive,
    Created,
    EndReason,
    Gone,
    HostFault,
    ImageGone,
    ImageUnfit,
    Key,
    LaunchRefused,
    LaunchRequest,
    LaunchResult,
    Observation,
    Unknown,
)

ENDED: Final = frozenset({"exited", "dead"})
"""States of a container whose program has ended."""

INIT_POLL_S: Final = 0.02
"""Time between two questions to a container that has just been started: does its init listen?"""

INIT_FAILED, INIT_SAYS, NO_SHELL = 1, "[FATAL tini", 126
"""Exit code of an init that cannot start the shell for a reason that it does not know, the beginning of what
it says, and the exit code that means as much."""

LABEL_CUDA: Final = "runner.cuda"
"""The label of our images with the CUDA of their torch."""

SHELL_FAILED: Final = frozenset({2, 125, 126, 127})
"""Exit codes after which the container's own output may say why the program did not start."""

_MACHINE_FAULT: Final = re.compile(
    r"(?:no space left on device|disk quota exceeded|too many open files(?: in system)?|input/output error"
    r"|resource temporarily unavailable|context deadline exceeded)(?:: unknown)?\W*$",
    re.IGNORECASE,
)
"""The end of what an engine says of a start that fails, whatever is started."""

_LIMIT: Final = re.compile(
    r"invalid mount config|duplicate mount point|minimum memory limit|memory limit too low|range of cpus"
    r"|argument list too long",
    re.IGNORECASE,
)
"""Part of what engines and runtimes say of a mount, a limit or an environment that a job asks for."""

_BAD_TARGET: Final = re.compile(
    r"not a directory|is a directory|too many levels of symbolic links|must be mounted on ordinary directory",
    re.IGNORECASE,
)
"""Part of what they say of a place in an image where something else is than can be mounted upon."""

_ALWAYS_MOUNTED: Final = (
    *("/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/proc", "/sys", "/sys/fs/cgroup"),  # noqa: S108
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/sbin/docker-init"),
)
"""Places in every container, beside those of the request."""

_ROOT: Final = r"(?:[\"'`]/?|\s/|(?:merged|rootfs|[0-9a-f]{64})/)"
"""Text before a place in a container: a quotation mark, or the engine's directory of its files."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DockerExecutorSettings:
    """The engine, and the hardening of every container in it."""

    hardening: HardeningSettings
    url: str | None = None
    """None: ``DOCKER_HOST``, else the default socket.  Contexts of the ``docker`` command are not read."""
    timeout_s: int = 10
    """Of every call; after a longer silence the engine counts as unavailable."""
    reconnect_max_s: float = 5.0
    """Longest pause between two attempts to listen to the events of an engine that is down."""
    driver_version: Callable[[], str | None] | None = None
    """Source of the NVIDIA driver's version before a launch; None: images are not compared with it."""
    choose_injection: bool = False
    """True: the engine is asked how NVIDIA devices get into containers; False: as the hardening says."""


def write_hosts_file(directory: Path) -> Path | None:
    """Return the file that containers without a network get as ``/etc/hosts``, and write it if necessary.

    Return None if it cannot be written, as on a full disk.  The engine then makes one for each container.
    """
    path = directory / "hosts"
    try:
        directory.mkdir(mode=0o755, exist_ok=True)
        if not path.exists() or path.read_bytes() != LOOPBACK_HOSTS:
            path.write_bytes(LOOPBACK_HOSTS)
            path.chmod(0o644)  # readable for every uid that jobs have, whatever the umask
    except OSError as error:
        log.warning("engine.no_hosts_file", path=str(path), problem=str(error))
        return None
    return path


class DockerExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``."""

    kind: Final = "docker"
    in_container: Final = True
    queues: Final = False

    def __init__(self, settings: DockerExecutorSettings) -> None:
        self.settings = settings
        self._connection = EngineConnection(settings.url, settings.timeout_s)
        self._guard = threading.Lock()
        self._launch_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._memory_kills = MemoryKills()
        self._chosen_injection: Injection | None = None
        self._engine: EngineFacts | None = None  # not asked yet
        self._image_configs: dict[str, Json] = {}  # by image id
        self._links = ImageLinks(self._connection)

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        return self._arguments(request)

    def launch(self, request: LaunchRequest) -> LaunchResult:
        arguments = self._arguments(request)
        name = arguments["name"]
        with self._launch_lock(name), engine_errors(f"launch {name}"):
            self._look_at_engine()
            arguments = self._arguments(request, self._config_of(request.image).get("Env") or ())
            self._check_driver(request)
            inspected = self._find_reusable(arguments, request.key)
            if inspected is None:
                self._check_links(arguments, request)
                write_account_files(request, self.settings.hardening.accounts)
                created = self._create(arguments, request)
                inspected = self._connection.client().inspect_container(created)
            if (inspected["Config"]["Labels"] or {}).get(LABEL_UID) != str(request.owner.uid):
                raise _name_taken(name)
            if inspected["State"]["Status"] == "created":
                self._start(arguments, inspected)
                self._memory_kills.watch(inspected["Id"])
        return LaunchResult.BEGUN

    def _arguments(self, request: LaunchRequest, image_variables: Iterable[str] = ()) -> Json:
        wanted, engine = self.settings.hardening, self._engine
        hardening = wanted if engine is None else in_force(wanted, engine)
        if self.settings.choose_injection and any(each.vendor == "nvidia" for each in request.devices):
            hardening = replace(hardening, gpu_injection=self._injection())
        return engine_arguments(request, hardening, _device_gids(request.devices), image_variables)

    def _injection(self) -> Injection:
        """Return the way of NVIDIA devices into containers; an answer is kept until the daemon ends."""
        if self._chosen_injection is None:
            facts = describe_engine(self.settings.url)
            choice = choose_injection(facts)
            if choice.how is None:
                raise Unavailable(
                    facts.error or f"no GPU can be given to containers: {choice.problem}; {choice.advice}"
                )
            self._chosen_injection = choice.how
        return self._chosen_injection

    def _check_driver(self, request: LaunchRequest) -> None:
        """Compare the CUDA of the image with the driver and the devices; may raise Unavailable."""
        devices = [each for each in request.devices if each.vendor == "nvidia"]
        version = self.settings.driver_version
        if not devices or version is None or (cuda := cuda_of_image(self._config_of(request.image))) is None:
            return
        gpus = [Gpu(each.label or each.uuid, each.capability) for each in devices]
        if problem := launch_problem(cuda, version(), gpus):
            raise Unavailable(f"{attempt_name(request.key)}: not started: {problem}")

    def _config_of(self, image: str) -> Json:
        """Return the configuration of an image, nothing if it is not there; ids never change."""
        if image not in self._image_configs:
            try:
                inspected: Json = self._connection.client().inspect_image(image)  # type: ignore[no-untyped-call]
            except NotFound:
                return {}
            self._image_configs[image] = inspected["Config"] or {}
        return self._image_configs[image]

    def _look_at_engine(self) -> None:
        """Learn what the engine offers and report it, once; may raise Unavailable."""
        if self._engine is not None:
            return
        engine = ask_engine(self._connection.client())
        if engine.refusal is not None:
            raise Unavailable(engine.refusal)
        report_engine(engine, self.settings.hardening)
        self._engine = engine

    @contextmanager
    def _launch_lock(self, name: str) -> Iterator[None]:
        """Serialize the launches of an attempt: the engine would start a container again that has ended."""
        with self._guard:
            lock = self._launch_locks.setdefault(name, threading.Lock())
        with lock:
            yield

    def signal(self, key: Key, signal: int) -> None:
        """Send ``signal`` to the container's init, which forwards it to the program.

        A container whose init has not begun to listen counts as unavailable: the kernel would discard the
        signal, as for any first process of a container without a handler.
        """
        with engine_errors(f"signal {attempt_name(key)}"):
            for container in self._find(key):
                if signal != SIGKILL:
                    self._wait_for_init(container)
                try:
                    self._connection.client().kill(container, int(signal))
                except APIError as error:
                    if error.status_code not in {404, 409}:  # it is gone, or does not run
                        raise

    def _wait_for_init(self, container: str) -> None:
        """Wait until the init of a container that runs on this host has begun its work.

        It blocks its signals to ask for them, and starts the program after that.
        """
        try:
            state = self._connection.client().inspect_container(container)["State"]
        except NotFound:
            return
        pid, pause = int(state["Pid"] or 0), threading.Event()
        for _ in range(int(self.settings.timeout_s / INIT_POLL_S)):
            if not is_childless(pid):
                return
            pause.wait(INIT_POLL_S)
        raise Unavailable(f"the init of container {container[:12]} has not started the program yet")

    def observe(self) -> tuple[Observation, ...]:
        """Return the observations of one list call and of an inspect of each container that has ended."""
        with engine_errors("list containers"):
            listed = self._listed(self.settings.hardening.instance)
            return tuple(found for entry in listed if (found := self._observation(entry)) is not None)

    def remove(self, key: Key) -> None:
        name = attempt_name(key)
        with engine_errors(f"remove {name}"):
            for container in self._find(key):
                self._memory_kills.forget(container)
                try:
                    self._connection.client().remove_container(container, v=True, force=False)
                except NotFound:
                    pass
                except APIError as error:
                    if error.status_code != 409:
                        raise
                    self._check_removal(name, container, error)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        instance, longest_s = self.settings.hardening.instance, self.settings.reconnect_max_s
        watcher = EventsWatcher(self._connection, instance, wake, longest_s)
        watcher.start()
        return watcher.stop

    def _listed(self, instance: str, *labels: str) -> list[Json]:
        """Return the containers of an instance with further labels, as the engine lists them."""
        wanted = [f"{LABEL_INSTANCE}={instance}", *labels]
        listed: list[Json] = self._connection.client().containers(all=True, filters={"label": wanted})
        return listed

    def _find(self, key: Key) -> list[str]:
        """Return the ids of the containers of an attempt, which may have been renamed; usually one."""
        labels = (f"{LABEL_JOB}={key.job_id}", f"{LABEL_ATTEMPT}={key.attempt}")
        return [entry["Id"] for entry in self._listed(key.instance, *labels) if key_of(entry) == key]

    def _find_reusable(self, arguments: Json, key: Key) -> Json | None:
        """Return the inspection of the container of an attempt, None if it must be created.

        A container that was never started and is not what is requested now comes from an earlier request, by
        a daemon with other settings.  It is removed, and blames nobody.
        """
        for container in self._find(key):
            inspected: Json = self._connection.client().inspect_container(container)
            differences = find_differences(arguments, inspected)
            if inspected["State"]["Status"] != "created" or not differences:
                return inspected
            log.info("engine.container_outdated", container=container, differences=differences)
            self._connection.client().remove_container(container, v=True, force=False)
        return None

    def _find_by_name(self, name: str, key: Key) -> str:
        inspected = self._connection.client().inspect_container(name)
        if key_of({"Labels": inspected["Config"]["Labels"], "Names": [f"/{name}"]}) != key:
            raise _name_taken(name)
        return str(inspected["Id"])

    def _create(self, arguments: Json, request: LaunchRequest) -> str:
        """Create the container, or find that it exists; return its id."""
        name, config = arguments["name"], arguments["config"]
        try:
            created: Json = self._connection.client().create_container_from_config(config, name)  # type: ignore[no-untyped-call]
        except APIError as error:
            if error.status_code == 409:  # an earlier request, which the engine has carried out meanwhile
                return self._find_by_name(name, request.key)
            if error.status_code == 404 and not self._has_image(config["Image"]):
                raise ImageGone(config["Image"]) from error
            why = explanation(error)
            if not (error.is_client_error() or is_of_image(why, config)):
                raise  # the engine's own trouble; it has not looked at what this attempt needs
            raise self._failure(f"{name}: {why}", config) from error
        return str(created["Id"])

    def _check_links(self, arguments: Json, request: LaunchRequest) -> None:
        """Check that no place of a mount is a link of the image into another mount.

        The engine would make the place, as root, in the directory of the host that is mounted there.

        Raises:
            ImageUnfit: one is.
        """
        if all(each.read_only or each.source.is_relative_to(request.run_dir) for each in request.mounts):
            return
        host, image = arguments["config"]["HostConfig"], arguments["config"]["Image"]
        mounts = [PurePosixPath(each["Target"]) for each in host["Mounts"]]
        try:
            links = self._links.of(image, [*mounts, *map(PurePosixPath, host["Tmpfs"])], arguments["name"])
        except NotFound as error:
            raise ImageGone(image) from error
        for place, target in links.items():
            if any(target.is_relative_to(each) for each in mounts):
                fact = f"the image has at {place} a link to {target}, which is in a mount of the job"
                raise ImageUnfit(f"{arguments['name']}: {fact}; build it without")

    def _failure(self, why: str, config: Json) -> Exception:
        """Return the exception for a container that cannot start: its job's fault, or else the host's."""
        if is_of_image(why, config):
            return ImageUnfit(why)
        if _LIMIT.search(why):
            return LaunchRefused(why)
        if _MACHINE_FAULT.search(why):  # no card's, so none is taken out
            return Unavailable(why)
        self._chosen_injection = None  # the engine is asked anew: a driver or a specification has changed
        return HostFault(why)

    def _has_image(self, image: str) -> bool:
        try:
            self._connection.client().inspect_image(image)  # type: ignore[no-untyped-call]
        except NotFound:
            return False
        return True

    def _start(self, arguments: Json, inspected: Json) -> None:
        """Start a created container if it is as requested, else remove it."""
        name, container = arguments["name"], inspected["Id"]
        differences = find_differences(arguments, inspected)
        if differences:
            self._connection.client().remove_container(container, v=True, force=False)
            raise LaunchRefused(f"{name}: {'; '.join(differences)}")
        try:
            self._connection.client().start(container)
        except APIError as error:
            if not self._is_refusal(container, error):
                raise
            self._connection.client().remove_container(container, v=True, force=False)
            raise self._failure(f"{name}: {explanation(error)}", arguments["config"]) from error

    def _is_refusal(self, container: str, error: APIError) -> bool:
        """Return True if an engine has tried to start a container, and could not.

        An engine answers 500 both for that and for its own trouble.  It records the former in the container.
        Docker does so for a fault of the host, too, such as a driver that cannot give devices to containers.
        """
        try:
            state = self._connection.client().inspect_container(container)["State"]
        except NotFound:
            return False  # somebody has removed it
        return error.is_client_error() or bool(state["Error"])

    def _check_removal(self, name: str, container: str, error: APIError) -> None:
        """Raise if a container was not removed because it runs, and not because its removal is under way."""
        try:
            state = self._connection.client().inspect_container(container)["State"]
        except NotFound:
            return
        if state["Status"] != "removing":
            raise Unavailable(f"{name}: not removed, it is {state['Status']}; signal it first") from error

    def _observation(self, entry: Json) -> Observation | None:
        key = key_of(entry)
        if key is None:
            return None
        match entry["State"]:
            case "created":
                return Created(key)
            case state if state in ENDED:
                return self._ended(key, entry["Id"])
            case "removing":
                return None  # the runner removes it, so its end is recorded already
            case state:
                self._watch_memory(entry["Id"])
                return Alive(key, container=entry["Id"], suspended=state == "paused")

    def _ended(self, key: Key, container: str) -> Observation | None:
        """Observe a container that has ended; trouble with one container hides no other."""
        try:
            inspected = self._connection.client().inspect_container(container)
            if inspected["State"]["Status"] not in ENDED:  # somebody has started it again
                return Alive(key, container=container)
            return self._gone(key, container, inspected)
        except NotFound:
            return None
        except APIError as error:
            why = f"the container engine says: {explanation(error)}"
        except ReadTimeout:
            why = f"the container engine says nothing within {self.settings.timeout_s} s"
        return Unknown(key, f"it is unknown how {attempt_name(key)} ended: {why}; it is tried again")

    def _gone(self, key: Key, container: str, inspected: Json) -> Gone:
        end = end_observation(key, inspected, self.settings.hardening.boot_id, _boot_time_s())
        if not end.oom_seen and self._memory_kills.kills(container):  # the engine misses up to one in twenty
            end = replace(end, oom_seen=True)
        if end.oom_seen or end.error or end.exit_code not in {INIT_FAILED, *SHELL_FAILED}:
            return end
        said = self._last_output(container)
        if said.startswith(INIT_SAYS):
            return replace(end, exit_code=NO_SHELL, error=said)
        return end if end.exit_code == INIT_FAILED else replace(end, error=said)

    def _watch_memory(self, container: str) -> None:
        """Count the kills for memory in a container that runs."""

        def pid() -> int:
            try:
                return int(self._connection.client().inspect_container(container)["State"]["Pid"])
            except (APIError, ReadTimeout):
                return 0

        self._memory_kills.watch(container, pid)

    def _last_output(self, container: str) -> str:
        """Return the last line of the container's own output: why nothing started."""
        try:
            output = self._connection.client().logs(container, stdout=False, stderr=True, tail=1)
        except APIError as error:
            if error.status_code == 409:  # half removed, which the engine calls dead; its output is gone
                return ""
            raise
        return shortened(output.decode(errors="replace"))


def cuda_of_image(config: Json) -> tuple[int, int] | None:
    """Return the CUDA that an image names: in the runner's label, else in the variable of NVIDIA's images."""
    environment = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
    named = (config.get("Labels") or {}).get(LABEL_CUDA) or environment.get("CUDA_VERSION", "")
    version = parse_version(named)[:2]
    return (version[0], version[1]) if len(version) == 2 else None


def end_observation(key: Key, inspected: Json, boot_id: str, boot_time_s: float) -> Gone:
    """Return the observation of an ended container from its inspection.

    An engine that finds a container dead after a reset of the host invents an exit code: 255 in most
    versions, 0 in some.  It also does when somebody starts a container again that has run, and cannot: the
    mount sources of a launch are unpinned then.  Such an exit code is reported as unknown.
    """
    state = inspected["State"]
    at, started = datetime.fromisoformat(state["FinishedAt"]), datetime.fromisoformat(state["StartedAt"])
    boot = (inspected["Config"]["Labels"] or {}).get(LABEL_BOOT, "")
    if boot != boot_id and boot_id and at.timestamp() > boot_time_s:
        return Gone(key, None, bool(state["OOMKilled"]), "the machine was restarted while it ran", at)
    error = shortened(state["Error"])
    if error and started.year > 1:  # it had started before: a first start that fails is refused by ``launch``
        why = f"somebody started its container again, which the engine could not: {error}"
        oom = bool(state["OOMKilled"])
        return Gone(key, None, oom, why, at, started, reason=EndReason.STARTED_TWICE)
    return Gone(key, state["ExitCode"], bool(state["OOMKilled"]), error, at, started)


def is_of_image(why: str, config: Json) -> bool:
    """Return True if the image has a file, or a circle of links, where the container has a directory."""
    if not _BAD_TARGET.search(why):
        return False
    host = config["HostConfig"]
    places = (JOB_DIR, *(mount["Target"] for mount in host["Mounts"]), *host["Tmpfs"], *_ALWAYS_MOUNTED)
    named = "|".join(re.escape(str(place).strip("/")) for place in places)
    return bool(re.search(rf"{_ROOT}(?:{named})(?=$|[\s\"'`:,;])", why))


def _name_taken(name: str) -> LaunchRefused:
    return LaunchRefused(f"{name}: a container of this name exists and is not ours; remove it")


def _device_gids(devices: tuple[Device, ...]) -> tuple[int, ...]:
    """Return the numeric ids of the groups that own the AMD device nodes of ``devices`` on this host."""
    nodes = {device.render_node for device in devices if device.vendor == "amd" and device.render_node}
    if not nodes:
        return ()
    try:
        return tuple(sorted({node.stat().st_gid for node in {*nodes, Path("/dev/kfd")}}))
    except OSError as error:
        raise HostFault(f"{error.filename}: {error.strerror}; is the amdgpu driver loaded?") from error


def _boot_time_s() -> float:
    """Return the time at which the host was booted, in seconds since the epoch."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))
