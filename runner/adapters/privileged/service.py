"""The helper: the part of a daemon that stays root and does what its other part asks for, if it is allowed.

One thread per connection takes one request at a time.  What is refused, and everything else that goes wrong,
is an answer; only a connection that sends no frames is ended.
"""

import asyncio
import os
import shutil
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial, singledispatchmethod
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final

import structlog
from pydantic import ValidationError

from images.records import record, recorded
from runner.adapters.host.disk_counters import HostDiskCounters
from runner.adapters.host.log_times import LogTimes
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.run_directories import HostRunDirectories
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.host.users import HostUsers
from runner.adapters.privileged import messages as ask
from runner.adapters.privileged.answers import pack, pack_error
from runner.adapters.privileged.checks import Walls
from runner.adapters.privileged.giving import Gift, give_tree
from runner.adapters.privileged.opening import RunFileOpener
from runner.adapters.privileged.sessions import serve_session
from runner.adapters.rpc.frames import MAX_REQUEST_BYTES, Disconnected, close_all, receive, send
from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.threads import run_to_future
from runner.core.ports.disk_use import DiskUse
from runner.core.ports.exec import ExecPort
from runner.core.ports.executor import Alive, Executor, ImageGone, Key, LaunchRefused
from runner.core.ports.images import BuildFailed, Images
from runner.core.ports.network import OutboundNetwork
from runner.core.ports.packages import DockerfileRequest, Packages, Unresolvable
from runner.core.ports.users import Owner, User
from runner.files.settings.model import Settings

MAX_CONNECTIONS: Final = 1024
MOST_RUNS: Final = 512
"""Run directories that are remembered, with what was seen of their checkpoints."""

MOST_LOGS: Final = 4096
"""Logs whose sizes are remembered."""

EXPECTED: Final = (
    Refused,
    Unavailable,
    UsageError,
    ImageGone,
    LaunchRefused,
    BuildFailed,
    Unresolvable,
    OSError,
)

log = structlog.get_logger(__name__)

Answer = tuple[object, tuple[int, ...]]
"""A value of JSON, and descriptors, which the helper closes when it has sent them."""


@dataclass(slots=True)
class Helper:
    """Acts for one daemon; root's side of the connection."""

    walls: Walls
    executor_setting: str
    """``docker``, ``process`` or ``auto``, as the operator has set it."""
    allowed_images: Mapping[str, str]
    make_executor: Callable[[str, str], Executor]
    images: Images
    make_packages: Callable[[str], Packages]
    image_records: Path
    users: HostUsers
    pins: PinnedMounts
    make_network: Callable[[str, Executor], OutboundNetwork | None] = lambda _instance, _executor: None
    make_commands: Callable[[str], ExecPort | None] = lambda _kind: None
    reload: Callable[[], Settings] | None = None
    allowed_system: tuple[str, ...] = ()
    """Debian packages that jobs may have, as patterns."""
    allows_dockerfiles: bool = False
    """Whether jobs may be built from a Dockerfile of their own."""
    _network: OutboundNetwork | None = None
    _packages: Packages | None = None
    _runs: "OrderedDict[tuple[str, Owner], HostRunDirectory]" = field(default_factory=OrderedDict)
    _loop: asyncio.AbstractEventLoop | None = None
    _log_times: "OrderedDict[Path, LogTimes]" = field(default_factory=OrderedDict)
    _opener: RunFileOpener = field(init=False)
    _executor: Executor | None = None
    _disk: HostDiskCounters = field(default_factory=HostDiskCounters)
    _alive: Mapping[Key, Alive] = field(default_factory=dict)  # as their disk use was read last
    _choice: tuple[str, str] = ("", "")  # kind and instance
    _used: bool = False
    _connections: int = 0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._opener = RunFileOpener(self.jobs)

    @property
    def jobs(self) -> Path:
        return self.walls.directory / "jobs"

    # --- connections

    def accept(self, control: socket.socket) -> None:
        """Serve every connection that comes in over a socket, until its other end is closed."""
        while True:
            packet, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            for descriptor in descriptors:
                self._begin(socket.socket(fileno=descriptor))
            if not packet:
                return

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            if self._connections >= MAX_CONNECTIONS:
                connection.close()
                return
            self._connections += 1
        Thread(target=self._serve, args=(connection,), name="helper", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(Disconnected, OSError):
                while True:
                    content, descriptors = receive(connection, MAX_REQUEST_BYTES)
                    self._answer(connection, content, descriptors)
        finally:
            with self._lock:
                self._connections -= 1

    def _answer(self, connection: socket.socket, content: bytes, descriptors: list[int]) -> None:
        handled: Future[tuple[bytes, tuple[int, ...]] | None] = Future()
        try:
            run_to_future(handled, partial(self._handle, connection, content, descriptors))
        finally:
            close_all(descriptors)
        error = handled.exception()
        if error is not None:
            if not isinstance(error, EXPECTED):
                log.error("helper.failed", exc_info=error)
            send(connection, pack_error(error))
            return
        answered = handled.result()
        if answered is None:
            return
        answer, given = answered
        try:
            send(connection, answer, *given)
        finally:
            close_all(list(given))

    def _handle(
        self, connection: socket.socket, content: bytes, descriptors: list[int]
    ) -> tuple[bytes, tuple[int, ...]] | None:
        """Return the answer to a request and its descriptors; None: the connection was used up."""
        try:
            request = ask.REQUESTS.validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            log.warning("helper.refused", problem=first["msg"], at=str(first["loc"])[:200])
            raise Refused("the helper refuses what is not a message of the daemon") from error
        if isinstance(request, ask.Watch):
            self._watch(connection)
            return None
        if isinstance(request, ask.Exec):
            self._session(connection, request)
            return None
        value, given = self.do(request, descriptors)
        return pack(value), given

    def _watch(self, connection: socket.socket) -> None:
        """Send an empty answer whenever an attempt may have changed, until the other end is closed."""
        sending = Lock()

        def wake() -> None:
            with sending, suppress(OSError):
                send(connection, pack(None))

        end = self._chosen().watch(wake)
        wake()  # now somebody watches
        try:
            while connection.recv(1):
                pass
        finally:
            end()

    def _session(self, connection: socket.socket, request: ask.Exec) -> None:
        """Run a command inside of an attempt for the other end, until one of them ends."""
        self._check_instance(request.key.instance)
        self.walls.owner(request.request.owner.uid, request.request.owner.gid)
        commands = self.make_commands(self._choice[0])
        if commands is None:
            raise Refused("the executor is not chosen yet")
        session = serve_session(socket.socket(fileno=connection.detach()), commands, request)
        asyncio.run_coroutine_threadsafe(session, self._event_loop()).result()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of all sessions: what outlives its session is still looked after."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=self._loop.run_forever, name="helper-sessions", daemon=True).start()
            return self._loop

    # --- requests

    def do(self, request: ask.Message, descriptors: list[int]) -> Answer:
        """Do what a request asks for."""
        if isinstance(request, ask.OpenInDirectory):
            if len(descriptors) != 1:
                raise Refused("the helper needs one directory")
            opened = self._opener.in_directory(descriptors[0], request.path, directory=request.directory)
            return None, (opened,)
        if isinstance(request, ask.OpenInRun):
            return None, (self._opener.in_run(request.run, request.path, directory=request.directory),)
        if isinstance(request, ask.Connect):
            run = self._run(request)
            connection = run.connect(run.paths(request.attempt, request.lineage), request.name)
            return None, (connection.detach(),)
        if isinstance(request, ask.OpenBroker):
            return None, (self.users.open_broker(),)
        if isinstance(request, ask.BuildDockerfile):
            if len(descriptors) != 1:
                raise Refused("the helper needs one build context")
            return self._build_dockerfile(request, descriptors[0]), ()
        return self._do(request), ()

    @singledispatchmethod
    def _do(self, request: ask.Message) -> Any:  # noqa: ANN401  (JSON)
        raise Refused(f"the helper does not know {type(request).__name__}")

    @_do.register
    def _(self, request: ask.UseExecutor) -> None:
        if self.executor_setting not in {"auto", request.kind}:
            raise Refused(f"the settings say executor {self.executor_setting}")
        with self._lock:
            wanted = (request.kind, request.instance)
            if self._used and wanted != self._choice:
                raise Refused("the executor and the store stay what they are")
            if wanted != self._choice:
                self._executor = self.make_executor(*wanted)
                self._packages = self.make_packages(request.kind)
                self._network = self.make_network(request.instance, self._executor)
                self._choice = wanted

    def _chosen(self) -> Executor:
        """Return the executor; from now on it stays the same."""
        with self._lock:
            if self._executor is None:
                raise Refused("the executor is not chosen yet")
            self._used = True
            return self._executor

    @_do.register
    def _(self, request: ask.Plan) -> Any:  # noqa: ANN401  (JSON)
        if self._executor is None:
            raise Refused("the executor is not chosen yet")
        return self._executor.plan(request.request)

    @_do.register
    def _(self, request: ask.Launch) -> str:
        executor, launch = self._chosen(), request.request
        kind, instance = self._choice
        self.walls.check_launch(launch, kind, instance, self._network)
        if kind == "docker" and launch.image not in self._known_images():
            raise ImageGone(launch.image)
        return str(executor.launch(launch))

    @_do.register
    def _(self, request: ask.Signal) -> None:
        executor = self._chosen()
        self._check_instance(request.key.instance)
        executor.signal(request.key, request.signal)

    @_do.register
    def _(self, _: ask.Observe) -> Any:  # noqa: ANN401  (JSON)
        if self._executor is None:
            raise Refused("the executor is not chosen yet")
        return ask.observations_to_json(self._executor.observe())

    @_do.register
    def _(self, request: ask.MeasureDisk) -> Any:  # noqa: ANN401  (JSON)
        known = {key: self._alive[key] for key in request.keys if key in self._alive}
        if len(known) < len(set(request.keys)):
            seen = {each.key: each for each in self._chosen().observe() if isinstance(each, Alive)}
            known = {key: seen[key] for key in request.keys if key in seen}
        self._alive = known
        return ask.COUNTERS.dump_python(tuple(self._disk.counters(known.values()).items()), mode="json")

    @_do.register
    def _(self, request: ask.Remove) -> None:
        executor = self._chosen()
        self._check_instance(request.key.instance)
        executor.remove(request.key)

    def _check_instance(self, instance: str) -> None:
        if instance != self._choice[1]:
            raise Refused("the helper refuses an attempt of another store")

    # --- images

    def _known_images(self) -> frozenset[str]:
        """Return the ids of images that this state directory has built, or that the settings have offered."""
        return recorded(self.image_records) | recorded(self.image_records / "offered")

    @_do.register
    def _(self, request: ask.EnsureImage) -> str:
        image = self.images.ensure(request.accelerator, self.jobs / request.job / "build.log", request.job)
        record(self.image_records / "offered", image)
        return image

    @_do.register
    def _(self, request: ask.LeaveImage) -> None:
        self.images.leave(request.job)

    @_do.register
    def _(self, _: ask.CloseImages) -> None:
        self.images.close()

    @_do.register
    def _(self, request: ask.ResolveImage) -> str:
        if request.reference not in self.allowed_images.values():
            raise BuildFailed(f"image {request.reference}: is not offered by the settings")
        image = self.images.resolve(request.reference)
        record(self.image_records / "offered", image)
        return image

    @_do.register
    def _(self, request: ask.ImageDigest) -> str:
        return self.images.digest(request.accelerator)

    # --- packages

    def _the_packages(self) -> Packages:
        if self._packages is None:
            raise Refused("the executor is not chosen yet")
        return self._packages

    @_do.register
    def _(self, request: ask.ResolvePackages) -> str:
        if request.uid:
            self.walls.owner(request.uid, request.gid)
        base = request.request.base
        if base is not None and base not in self.allowed_images.values():
            raise BuildFailed(f"image {base}: is not offered by the settings")
        for name, reference in request.request.offered:
            if reference not in self.allowed_images.values():
                raise BuildFailed(f"image {name[:100]}: is not offered by the settings")
        for name in (each.partition("=")[0] for each in request.request.system):
            if not any(fnmatchcase(name, pattern) for pattern in self.allowed_system):
                raise Refused(f"{name[:100]}: is not on the list of the settings (packages.system)")
        log_file = self.image_records / "packages" / f"{request.job}.log"
        try:
            who = User(request.uid, request.gid, (request.gid,), str(request.uid))
            return self._the_packages().resolve(request.request, who, log_file, request.job)
        finally:
            log_file.unlink(missing_ok=True)

    @_do.register
    def _(self, request: ask.EnsurePackages) -> str:
        if self._choice[0] == "docker" and request.image not in self._known_images():
            raise BuildFailed(f"image {request.image[:100]}: is not offered by the settings")
        if not self.allowed_system and "[[tool.runner.system]]" in request.lock:
            raise Refused("the settings allow no Debian packages (packages.system)")
        place = self.jobs / request.job / "build.log"
        image = self._the_packages().ensure(
            request.lock, request.image, request.accelerator, place, request.job
        )
        record(self.image_records / "offered", image)
        return image

    def _build_dockerfile(self, request: ask.BuildDockerfile, descriptor: int) -> str:
        if not self.allows_dockerfiles:
            raise Refused("Dockerfiles are not allowed by the settings (packages.dockerfiles)")
        if request.image not in self._known_images():
            raise BuildFailed(f"image {request.image[:100]}: is not offered by the settings")
        place = self.jobs / request.job / "build.log"
        wanted = DockerfileRequest(request.path, request.image, request.accelerator, request.uid)
        with open(descriptor, "rb", closefd=False) as context:
            image = self._the_packages().build(wanted, context, place, request.job)
        record(self.image_records / "offered", image)
        return image

    @_do.register
    def _(self, request: ask.FindEnvironment) -> str | None:
        found = self._the_packages().environment(request.lock)
        return None if found is None else str(found)

    @_do.register
    def _(self, request: ask.EvictPackages) -> None:
        self._the_packages().evict(lambda: frozenset(request.needed))

    @_do.register
    def _(self, request: ask.LeavePackages) -> None:
        self._the_packages().leave(request.job)

    @_do.register
    def _(self, _: ask.ClosePackages) -> None:
        self._the_packages().close()

    # --- the network of containers

    @_do.register
    def _(self, _: ask.DescribeNetwork) -> Any:  # noqa: ANN401  (JSON)
        network = self._network
        if network is None:
            return None
        return {"name": network.name, "dns": network.dns, "is_for_all": network.is_for_all}

    def _the_network(self) -> OutboundNetwork:
        if self._network is None:
            raise Refused("attempts have the network of this host")
        return self._network

    @_do.register
    def _(self, _: ask.FindNetworkState) -> Any:  # noqa: ANN401  (JSON)
        state = self._the_network().state()
        return {"holds": state.holds, "problem": state.problem}

    @_do.register
    def _(self, _: ask.PrepareNetwork) -> str:
        return self._the_network().prepare()

    @_do.register
    def _(self, _: ask.CloseNetwork) -> None:
        self._the_network().close()

    # --- mount sources

    @_do.register
    def _(self, request: ask.Pin) -> str:
        path = Path(os.fsdecode(request.path))
        who = User(request.uid, request.gid, (), "")  # the process that opens it looks up the groups itself
        return str(self.pins.pin(who, path, f"{request.pin}/{request.number}"))

    @_do.register
    def _(self, request: ask.ReleasePins) -> None:
        self.pins.release(request.pin)

    @_do.register
    def _(self, _: ask.PinNames) -> list[str]:
        return list(self.pins.names())

    # --- run directories

    def _run(self, request: ask.InRunDirectory) -> HostRunDirectory:
        owner = self.walls.owner(request.uid, request.gid)
        with self._lock:
            key = (request.run, owner)
            made = HostRunDirectory(
                self.jobs / request.run,
                owner,
                find_damage=self.users.damage_as_owner,
                open_mount=self.users.open_as_owner,
            )
            run = self._runs.setdefault(key, made)
            self._runs.move_to_end(key)
            if len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
        return run

    @_do.register
    def _(self, request: ask.CreateRun) -> None:
        self._run(request).create()

    @_do.register
    def _(self, request: ask.PrepareRun) -> None:
        self._run(request).prepare(request.spec, request.secrets, request.said)

    @_do.register
    def _(self, request: ask.BeginSeed) -> str:
        self._run(request)
        draft = self._draft(request)
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        os.chown(draft, self.walls.daemon_uid, 0, follow_symlinks=False)
        return str(draft)

    @_do.register
    def _(self, request: ask.PublishSeed) -> None:
        owner, draft = self._run(request).owner, self._draft(request)
        self._give(draft, owner, keep_modes=False)
        draft.rename(draft.with_name(str(request.lineage)))

    def _draft(self, request: ask.BeginSeed | ask.PublishSeed) -> Path:
        return self.jobs / request.run / "lineages" / f".{request.lineage}.draft"

    @_do.register
    def _(self, request: ask.BeginWork) -> str | None:
        return self._run(request).begin_work(request.lineage, self.walls.daemon_uid)

    @_do.register
    def _(self, request: ask.NoteWork) -> None:
        self._run(request).note_work(request.lineage, request.snapshot)

    @_do.register
    def _(self, request: ask.PublishWork) -> None:
        run = self._run(request)
        draft = run.work_draft(request.lineage)
        self._give(draft, run.owner, keep_modes=True)
        run.publish_work(request.lineage, request.snapshot)

    @_do.register
    def _(self, request: ask.NoteLogSize) -> None:
        run = self._run(request)
        paths = run.paths(request.attempt, request.lineage)
        with self._lock:
            times = self._log_times.setdefault(paths.log, LogTimes(run.log_times(request.attempt), paths.log))
            self._log_times.move_to_end(paths.log)
            if len(self._log_times) > MOST_LOGS:
                self._log_times.popitem(last=False)
        times.note(request.now_s)

    def _give(self, draft: Path, owner: Owner, *, keep_modes: bool) -> None:
        descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            give_tree(descriptor, Gift(self.walls.daemon_uid, owner, keep_modes))
        finally:
            os.close(descriptor)

    @_do.register
    def _(self, request: ask.MoveRun) -> None:
        if (self.jobs / request.to).exists():
            raise Refused(f"job {request.to} has a run directory")
        self._run(request).move(request.to)

    @_do.register
    def _(self, request: ask.RemoveRun) -> None:
        self._run(request).remove()

    @_do.register
    def _(self, request: ask.ForgetSecrets) -> None:
        self._run(request).forget_secrets()

    @_do.register
    def _(self, request: ask.RemoveDrafts) -> None:
        self._run(request).remove_drafts()

    @_do.register
    def _(self, request: ask.IsLineageLocked) -> bool:
        run = self._run(request)
        return run.is_lineage_locked(run.paths(request.attempt, request.lineage))

    @_do.register
    def _(self, request: ask.FindReports) -> list[str]:
        run = self._run(request)
        return sorted(run.there(run.paths(request.attempt, request.lineage)))

    @_do.register
    def _(self, request: ask.LimitLog) -> int:
        run = self._run(request)
        paths = run.paths(request.attempt, request.lineage)
        return run.limit_log(paths, request.quota_bytes, request.keep_head, request.keep_tail)

    @_do.register
    def _(self, request: ask.FindTerminals) -> list[str]:
        run = self._run(request)
        return list(run.terminals(run.paths(request.attempt, request.lineage)))

    @_do.register
    def _(self, request: ask.FindTerminalUse) -> float | None:
        run = self._run(request)
        return run.terminal_touched(run.paths(request.attempt, request.lineage))

    @_do.register
    def _(self, request: ask.TellTerminals) -> None:
        run = self._run(request)
        run.tell_terminals(run.paths(request.attempt, request.lineage), request.text)

    @_do.register
    def _(self, request: ask.FindProgramCheckpoints) -> Any:  # noqa: ANN401  (JSON)
        run = self._run(request)
        paths = run.paths(request.attempt, request.lineage)
        return ask.SAVED.dump_python(run.program_saved(paths, request.wanted, request.how), mode="json")

    @_do.register
    def _(self, request: ask.ChooseProgramCheckpoint) -> Any:  # noqa: ANN401  (JSON)
        run = self._run(request)
        paths = run.paths(request.attempt, request.lineage)
        chosen = run.choose_program_checkpoint(paths, request.wanted, request.step, is_first=request.is_first)
        return ask.CHOSEN.dump_python(chosen, mode="json")

    @_do.register
    def _(self, request: ask.MeasureRun) -> int:
        return HostRunDirectories(self.jobs).size(request.job)

    @_do.register
    def _(self, request: ask.UseOfRun) -> list[int]:
        most = DiskUse(request.most_size, request.most_files)
        use = HostRunDirectories(self.jobs).use(request.job, most)
        return [use.size, use.files]

    @_do.register
    def _(self, request: ask.RemoveEndedRun) -> None:
        HostRunDirectories(self.jobs).remove(request.job)

    @_do.register
    def _(self, _: ask.SweepRuns) -> None:
        HostRunDirectories(self.jobs).sweep()

    @_do.register
    def _(self, _: ask.ReloadSettings) -> None:
        if self.reload is None:
            raise Refused("there are no settings to reload")
        settings = self.reload()
        run_as = settings.root_jobs_run_as
        self.allowed_images = settings.allowed_images
        self.allowed_system = settings.allowed_system_packages
        self.allows_dockerfiles = settings.allows_dockerfiles
        self.walls = replace(self.walls, root_jobs=(run_as.uid, run_as.gid))
        self.users.instead_of_root = (run_as.uid, run_as.gid)

    @_do.register
    def _(self, request: ask.Keep) -> None:
        self._run(request).keep(request.attempt, request.name, request.text)
