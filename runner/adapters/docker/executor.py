"""Attempts as hardened containers of a Docker engine.

Three calls start an attempt: create, inspect, start.  Between the second and the third
the container is compared with what was asked, and thrown away if it differs.  Nothing is
remembered between calls: names and labels say everything, so a new daemon adopts what
the old one started.

An engine that does not answer, or answers that it is broken, is ``Unavailable`` and never
evidence.  The SDK's client is not safe to share, so every thread has its own.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
from docker import APIClient
from docker.errors import APIError, DockerException, NotFound

from runner.adapters.docker.hardening import (
    LABEL_BOOT,
    LABEL_INSTANCE,
    LABEL_UID,
    LOOPBACK,
    HardeningSettings,
    Json,
    describe_difference,
    engine_arguments,
    key_of,
)
from runner.adapters.launch import OOM_WORD, attempt_name
from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread
from runner.core.ports.devices import Device
from runner.core.ports.executor import (
    Alive,
    Created,
    Gone,
    ImageGone,
    Key,
    LaunchRefused,
    LaunchRequest,
    Observation,
)

DEFAULT_URL: Final = "unix:///var/run/docker.sock"

UNREACHABLE: Final = frozenset({502, 503, 504})
"""Answers of an engine, or of a proxy before it, that say nothing about the request."""

SHELL_FAILED: Final = frozenset({2, 126, 127})
"""Exit codes after which the container's own output may say why the program never began."""

FIRST_RECONNECT_S: Final = 0.1
"""Pause before the event stream is opened again; it doubles while the engine does not answer."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DockerExecutorSettings:
    """Which engine, and the walls of every container in it."""

    hardened: HardeningSettings
    url: str | None = None
    """None: ``DOCKER_HOST``, else the default socket.  The command line's contexts are not followed."""
    timeout_s: int = 10
    """Of every call; a slower answer means that nothing is known."""
    reconnect_max_s: float = 5.0
    """Longest pause between two attempts to listen to an engine that is down."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Turn:
    """Who launches an attempt just now; it is there for as long as anybody does."""

    lock: threading.Lock = field(default_factory=threading.Lock)


def loopback_names(directory: Path) -> Path | None:
    """Return the file that containers without a network have as ``/etc/hosts``; it is made if need be.

    Where that cannot be, as on a full disk, there is none, and the engine makes one for each container.
    """
    path = directory / "hosts"
    try:
        if not path.exists() or path.read_bytes() != LOOPBACK:
            path.write_bytes(LOOPBACK)
            path.chmod(0o644)  # for whoever a job runs as, whatever the umask
    except OSError as error:
        log.warning("engine.no_hosts_file", path=str(path), problem=str(error))
        return None
    return path


class DockerExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``."""

    kind: Final = "docker"

    def __init__(self, settings: DockerExecutorSettings) -> None:
        self.settings = settings
        self._url = settings.url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        self._local = threading.local()
        self._guard = threading.Lock()
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        return engine_arguments(request, self.settings.hardened, _device_gids(request.devices))

    def launch(self, request: LaunchRequest) -> None:
        asked = engine_arguments(request, self.settings.hardened, _device_gids(request.devices))
        name = asked["name"]
        with self._turn(name), _engine(f"launch {name}"):
            self._create(asked)
            inspected = self._client().inspect_container(name)
            labels = inspected["Config"]["Labels"] or {}
            ours = key_of(labels, name) == request.key and labels.get(LABEL_UID) == str(request.owner.uid)
            if not ours:
                raise LaunchRefused(f"{name}: a container of this name exists and is not ours; remove it")
            if inspected["State"]["Status"] == "created":
                self._start(asked, inspected)

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Let the launches of one attempt follow each other: the engine starts what has ended again."""
        with self._guard:
            turn = self._turns.setdefault(name, _Turn())
        with turn.lock:
            yield

    def signal(self, key: Key, signal: int) -> None:
        """Send ``signal`` to the container's init, which passes it on to the program."""
        with _engine(f"signal {attempt_name(key)}"):
            try:
                self._client().kill(attempt_name(key), int(signal))
            except APIError as error:
                if error.status_code not in {404, 409}:  # gone, or not running
                    raise

    def observe(self) -> tuple[Observation, ...]:
        """Return what one list call says, with an inspect for each container that has ended."""
        with _engine("list containers"):
            ours = f"{LABEL_INSTANCE}={self.settings.hardened.instance}"
            listed = self._client().containers(all=True, filters={"label": [ours]})
            return tuple(seen for entry in listed if (seen := self._observation(entry)) is not None)

    def remove(self, key: Key) -> None:
        """Remove the container with its anonymous volumes.

        Raises:
            Unavailable: it still runs; it is left alone, and ``signal`` has to come first.
        """
        name = attempt_name(key)
        with _engine(f"remove {name}"):
            try:
                self._client().remove_container(name, v=True, force=False)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:
                    raise
                self._check_removal(name, error)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Listen to the engine's events of this instance on a thread of its own, for as long as it takes."""
        return _Watch(self._connect, self.settings, wake).stop

    def _client(self) -> APIClient:
        self._knock()
        client: APIClient | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self._connect()
        return client

    def _knock(self) -> None:
        """Find out whether anybody listens, in microseconds: the SDK forgets a socket when nobody does."""
        if self._url.startswith("unix://"):
            with socket(AF_UNIX) as door:
                door.settimeout(self.settings.timeout_s)
                door.connect(self._url.removeprefix("unix://"))

    def _connect(self) -> APIClient:
        self._knock()
        return APIClient(base_url=self._url, version="auto", timeout=self.settings.timeout_s)

    def _create(self, asked: Json) -> None:
        """Create the container, or find that it exists."""
        try:
            self._client().create_container_from_config(asked["config"], asked["name"])  # type: ignore[no-untyped-call]
        except APIError as error:
            if error.status_code == 409:
                return
            if error.status_code == 404 and not self._has_image(asked["config"]["Image"]):
                raise ImageGone(asked["config"]["Image"]) from error
            raise _refused(asked["name"], error) from error

    def _has_image(self, image: str) -> bool:
        try:
            self._client().inspect_image(image)  # type: ignore[no-untyped-call]
        except NotFound:
            return False
        return True

    def _start(self, asked: Json, inspected: Json) -> None:
        name = asked["name"]
        differences = describe_difference(asked, inspected)
        if differences:
            self._client().remove_container(name, v=True, force=False)
            raise LaunchRefused(f"{name}: {'; '.join(differences)}")
        try:
            self._client().start(name)
        except APIError as error:
            refused = _refused(name, error)
            self._client().remove_container(name, v=True, force=False)
            raise refused from error

    def _check_removal(self, name: str, error: APIError) -> None:
        """Tell a removal that is under way from a container that still runs."""
        try:
            state = self._client().inspect_container(name)["State"]
        except NotFound:
            return
        if state["Status"] != "removing":
            raise Unavailable(f"{name}: not removed, it is {state['Status']}; signal it first") from error

    def _observation(self, entry: Json) -> Observation | None:
        key = key_of(entry["Labels"], entry["Names"][0].removeprefix("/"))
        if key is None:
            return None
        match entry["State"]:
            case "created":
                return Created(key)
            case "exited" | "dead":
                return self._gone(key, entry["Id"])
            case "removing":
                return None  # we asked for that, so its end is recorded
            case _:
                return Alive(key, container=entry["Id"])

    def _gone(self, key: Key, container: str) -> Gone | None:
        try:
            inspected = self._client().inspect_container(container)
            seen = gone(key, inspected, self.settings.hardened.boot_id, _booted_at())
            said = "" if seen.oom_seen else self._last_words(container)
        except NotFound:
            return None
        if OOM_WORD.fullmatch(said):  # up to once in twenty times the engine misses it
            return replace(seen, oom_seen=True)
        return replace(seen, error=said) if seen.exit_code in SHELL_FAILED and not seen.error else seen

    def _last_words(self, container: str) -> str:
        """Return the last line that did not go to the log: what the kernel counted, or why it is not open."""
        try:
            said = self._client().logs(container, stdout=False, stderr=True, tail=1)
        except APIError as error:
            if error.status_code == 409:  # half removed, which the engine calls dead: it says nothing more
                return ""
            raise
        return _one_line(said.decode(errors="replace"))


def gone(key: Key, inspected: Json, boot_id: str, booted_at: float) -> Gone:
    """Return what an inspected, ended container tells about its end.

    An engine that finds a container dead after the host was reset invents an exit code:
    255 in most versions, 0 in some.  That one is reported as unknown.
    """
    state = inspected["State"]
    at = _time(state["FinishedAt"])
    boot = (inspected["Config"]["Labels"] or {}).get(LABEL_BOOT, "")
    if boot != boot_id and boot_id and at.timestamp() > booted_at:
        return Gone(key, None, bool(state["OOMKilled"]), "the machine was restarted while it ran", at)
    return Gone(key, state["ExitCode"], bool(state["OOMKilled"]), _one_line(state["Error"]), at)


class _Watch:
    """A thread that listens to events until it is stopped, through every death of the engine."""

    def __init__(
        self, connect: Callable[[], APIClient], settings: DockerExecutorSettings, wake: Callable[[], None]
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._wake = wake
        self._lock = threading.Lock()
        self._stream: Any = None
        self._pause_s = FIRST_RECONNECT_S
        self._thread = PeriodicThread(
            "engine-events", lambda: self._pause_s, self._listen_once, begin_at_once=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()
        with self._lock, suppress(AttributeError, OSError):  # the SDK's, for a stream that ends just now
            if self._stream is not None:
                self._stream.close()
        self._thread.join(self._settings.timeout_s)

    def _listen_once(self) -> None:
        """Listen until the stream ends; the next connection waits longer after each failure."""
        try:
            with _engine("listen to events"):
                self._listen()
            self._pause_s = FIRST_RECONNECT_S
        except Unavailable as error:
            log.debug("engine.events_lost", why=str(error))
            self._pause_s = min(self._pause_s * 2, self._settings.reconnect_max_s)

    def _listen(self) -> None:
        client = self._connect()
        try:
            stream = client.events(filters=self._filters(), decode=True)
            with self._lock:
                if self._thread.stopped:
                    stream.close()
                    return
                self._stream = stream
            self._wake()  # whatever happened while nobody listened
            for event in stream:
                if event.get("Action") == "die":
                    _settle(client, event["Actor"]["ID"])
                self._wake()
        finally:
            with self._lock:
                self._stream = None
            client.close()

    def _filters(self) -> dict[str, list[str]]:
        return {"type": ["container"], "label": [f"{LABEL_INSTANCE}={self._settings.hardened.instance}"]}


def _settle(client: APIClient, container: str) -> None:
    """Wait until the engine's list knows of an end.

    The event is sent before the engine has cleaned up, with the container locked; the list
    does not look at the lock, and would still say "running".  An inspect does.
    """
    with suppress(NotFound):
        client.inspect_container(container)


@contextmanager
def _engine(doing: str) -> Iterator[None]:
    """Translate what the SDK raises when nothing is known, with the original chained."""
    try:
        yield
    except APIError as error:
        raise Unavailable(f"{doing}: the container engine says: {_explanation(error)}") from error
    except (OSError, DockerException) as error:  # requests' errors are OSErrors
        fact = f"the container engine does not answer ({doing}: {_one_line(str(error))})"
        raise Unavailable(f"{fact}; it is tried again") from error


def _refused(name: str, error: APIError) -> LaunchRefused | APIError:
    """Return the refusal that an error of create or start means, or the error if it means nothing."""
    if error.status_code in UNREACHABLE:
        return error
    return LaunchRefused(f"{name}: {_explanation(error)}")


def _explanation(error: APIError) -> str:
    return _one_line(str(error.explanation or error))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def _device_gids(devices: tuple[Device, ...]) -> tuple[int, ...]:
    """Return the groups that own the AMD nodes of ``devices`` on this host, as numbers."""
    nodes = {device.render_node for device in devices if device.vendor == "amd" and device.render_node}
    if not nodes:
        return ()
    try:
        return tuple(sorted({node.stat().st_gid for node in {*nodes, Path("/dev/kfd")}}))
    except OSError as error:
        raise LaunchRefused(f"{error.filename}: {error.strerror}; is the amdgpu driver loaded?") from error


def _booted_at() -> float:
    lines = Path("/proc/stat").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("btime "))


def _time(text: str) -> datetime:
    """Parse the engine's RFC 3339 with nanoseconds."""
    return datetime.fromisoformat(text)
