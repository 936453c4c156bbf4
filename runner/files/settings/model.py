"""The settings of an operator: one YAML file, in which unknown keys are refused.

The file is ``/etc/runner/settings.yaml`` for a system daemon and ``<config>/runner/settings.yaml`` for a
user's own daemon; ``RUNNER_SETTINGS`` names another file. The file is optional: every value has a default.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from jobs.contract import plugin_names, profiles_dir
from runner.base import privileges, yaml
from runner.base.errors import UsageError
from runner.base.identity import MAX_ID
from runner.base.textfile import FileError, NotRegular, Problem, open_source, quoted
from runner.base.units import written_size
from runner.files.job.image import is_offered, is_reference
from runner.files.profiles.load import profile_names
from runner.files.settings.dashboard import DashboardSettings
from runner.files.settings.disk_quota import DiskQuotaSettings
from runner.files.settings.network import NetworkSettings, expand_network
from runner.files.settings.notify import NotificationRule
from runner.files.settings.packages import IndexUrl, PackagesSettings
from runner.files.settings.queue import QueueSettings
from runner.files.settings.retention import RetentionSettings
from runner.files.settings.slurm import SlurmSettings
from runner.files.types import Bytes, ClosedModel, WrittenPath
from runner.files.validation import describe_non_mapping, format_choices, suggest_profile, validate_model

HOST_PROGRAMS: Final = (
    "Xorg", "Xwayland", "gnome-shell", "gdm-x-session", "sddm", "nvidia-persiste", "nvidia-cuda-mps",
)  # fmt: skip
"""Display servers and services of NVIDIA; the kernel keeps 15 letters of a name."""

SYSTEM_SETTINGS: Final = Path("/etc/runner/settings.yaml")

SHIPPED_SECCOMP: Final = {
    name: Path(__file__).with_name("seccomp") / f"{name}.json" for name in ("runner", "runner-numa")
}
"""The seccomp profiles that the runner ships, written by ``scripts/seccomp_profiles.py``."""

APPARMOR_PROFILE: Final = Path(__file__).with_name("apparmor") / "runner-job"
"""The AppArmor profile that the runner ships; an operator loads it (``runner serve --apparmor-profile``)."""

OWN_EXECUTORS: Final = ("docker", "process", "slurm")
"""The executors that come with the runner."""

_LISTEN: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):([0-9]{1,9})")
_LAST_PORT: Final = 65535


def _executor(value: str) -> str:
    known = ("auto", *OWN_EXECUTORS)
    if value not in known and value not in (others := plugin_names("executors")):
        raise ValueError(f"must be {format_choices((*known, *others))}, not {quoted(value)}")
    return value


def _offered_image(value: str) -> str:
    """Return the reference of an image, or a pattern that names the registry or the owner of the images."""
    if "*" in value and "/" not in value.partition("*")[0]:
        fact = "must name the registry or the owner before the *, such as nvcr.io/nvidia/*"
        raise ValueError(f"{fact}, not {quoted(value)}")
    return value


def _listen(value: str) -> str:
    """Return ``host:port``."""
    found = _LISTEN.fullmatch(value)
    if not found:
        raise ValueError(f"must be host:port such as 127.0.0.1:9835, not {quoted(value)}")
    if int(found[2]) > _LAST_PORT:
        raise ValueError(f"there is no port {found[2]}; the highest is {_LAST_PORT}")
    return value


LockName = Annotated[str, Field(pattern=r"^(cpu|cuda|rocm)(-[0-9]+\.[0-9]+)?$")]
OfferedImage = Annotated[str, AfterValidator(_offered_image)]


class RunAs(ClosedModel):
    """Numeric uid and gid; never 0 for containers."""

    uid: int = Field(65532, ge=0, le=MAX_ID)
    gid: int = Field(65532, ge=0, le=MAX_ID)


class Alarm(ClosedModel):
    """Alarm for a job that uses little of its devices."""

    below_percent: float = Field(70.0, ge=0, le=100)
    """Mean utilisation below which the job gets an alarm; 0: never."""

    window_s: float = Field(600.0, ge=10, le=86400)
    """Time for which the utilisation must have been low, in seconds."""

    profiles: dict[str, Annotated[float, Field(ge=0, le=100)]] = {}
    """Other thresholds for jobs with certain profiles, by name of the profile."""

    def strangers(self) -> Iterator[str]:
        """Yield a warning for each threshold of a profile that does not exist."""
        names = profile_names(profiles_dir())
        for name in self.profiles:
            if name.partition("+")[0] not in names:  # "cuda+threads" is what changes to cuda are called
                hint = suggest_profile(name, names)
                only = "the entry applies only to jobs whose own profile has this name"
                yield f"alarm.profiles: there is no profile {quoted(name)}{hint}; {only}"


class Metrics(ClosedModel):
    """Addresses at which metrics are served, besides ``/metrics`` on the socket."""

    listen: Annotated[str, AfterValidator(_listen)] | None = None
    """``host:port`` for TCP; null: only the socket."""

    per_user: bool = False
    """True: metrics name users and what each has running, waiting and allocated.  Whoever reads metrics sees
    it: every user of the machine on the socket, and everybody who reaches the port.  With ``private_jobs``
    only root and the daemon's own user, on the socket."""

    most_users: int = Field(50, ge=1, le=1000)
    """Users who have a label of their own; the others are counted as ``(others)``."""


class SilenceLimits(ClosedModel):
    """Longest silence of an attempt by phase, in seconds; null: no limit."""

    init: Annotated[float, Field(ge=1)] | None = 3600.0
    """From the launch to the first step: imports, data, and finding a checkpoint."""
    data: Annotated[float, Field(ge=1)] | None = 3600.0
    compile: Annotated[float, Field(ge=1)] | None = 7200.0
    train: Annotated[float, Field(ge=1)] | None = 3600.0
    """Before the fifth step; later the limit is learned."""
    eval: Annotated[float, Field(ge=1)] | None = 7200.0
    save: Annotated[float, Field(ge=1)] | None = 3600.0
    drain: Annotated[float, Field(ge=1)] | None = 3600.0


class Settings(ClosedModel):
    """All settings of a daemon."""

    executor: Annotated[str, AfterValidator(_executor)] = "auto"
    """Place of attempts.  ``auto``: the engine, or processes where none was ever there.  ``slurm``: as
    jobs of a Slurm cluster.  Plug-ins add others."""

    slurm: SlurmSettings = SlurmSettings()
    """Way to hand jobs to Slurm (docs/operate/slurm.md)."""

    engine: str | None = None
    """URL of the engine; None: ``DOCKER_HOST``, then the default socket."""

    runtime: str = "runc"
    """OCI runtime.  Named, so that an engine's ``default-runtime: nvidia`` cannot expose every GPU."""

    gpu_injection: Literal["auto", "cdi", "hook"] = "auto"
    """Injection of NVIDIA devices into a container; the hook is for engines without CDI (before 25)."""

    seccomp: WrittenPath | None = None
    """A seccomp profile (JSON) instead of the engine's own; None: the engine's.  ``runner`` and
    ``runner-numa``: the shipped ones."""

    apparmor: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] | None = None
    """An AppArmor profile that is loaded on the engine's host, such as the shipped ``runner-job``; None: the
    engine's own.  Where the host has no AppArmor, it is left out and the log says so."""

    user_namespace: Literal["engine", "host"] = "engine"
    """``engine``: as the engine does it; one that maps users (``userns-remap``), under which jobs cannot
    write to their run directories, is asked for ``host`` all the same.  ``host``: never with a mapping."""

    root_jobs_run_as: RunAs = RunAs()
    """The user that root's jobs run as.  Containers refuse uid 0 in any case."""

    private_jobs: bool = False
    """True: users other than the owner, root and the daemon's own see no names, labels, reasons, programs
    and events of a job: only its id, owner, state and what it holds."""

    system_wide: bool | None = None
    """True: every user may submit (socket mode 0666).  None: yes exactly when the daemon is root."""

    daemon_user: str | None = None
    """The user of the part of root's daemon that parses, stores, answers and plans; a helper stays root.
    ``root``: no such part.  None: the system user ``runner`` if there is one, else no such part."""

    unknown_uids: Literal["refuse", "owner", "accept"] | None = None
    """Uids without an account: refused, counted as the owner of their range in ``/etc/subuid`` (the others
    refused), or taken for users.  None: refused by a daemon of root for all users, else accepted."""

    memlock_unlimited: bool = False
    """Pinned memory without a limit; fails where the engine itself may not raise limits."""

    open_files: int = Field(16384, ge=64)
    """Open files of one attempt; must not exceed the engine's own hard limit."""

    network: Annotated[NetworkSettings, BeforeValidator(expand_network)] = NetworkSettings()
    """Reach of jobs, and who decides it (docs/howto/network.md).  A text: an engine network for every job."""

    pin_mounts: bool = True
    """True: a root daemon pins mount sources against swapping; false for an engine elsewhere."""

    cpus: float | None = Field(None, gt=0, le=65536)
    """CPUs to allocate in total; None: those of this host."""

    memory_bytes: Bytes | None = Field(None, gt=0, le=2**60)
    """Memory to allocate in total, bytes; None: nine tenths of this host's."""

    base: str | None = None
    """Base image tag; None: found, pulled or bootstrapped (docs/operate/packages.md)."""

    pull: str | None = "python:3.11-slim-bookworm"
    """Reference to pull when there is no local base; None: never pull."""

    builder: Literal["auto", "buildx", "engine", "classic"] = "auto"
    """The image builder; ``auto`` tries them in this order."""

    ca_file: WrittenPath | None = None
    """An extra CA bundle for builds behind a TLS-inspecting proxy; never copied into an image."""

    image_locks: dict[Literal["cpu", "cuda", "rocm"], LockName] = {}
    """The lock of an accelerator's image by name, such as ``cuda: cuda-12.6``.  Without an entry the newest
    that this machine's driver and GPUs can run."""

    torch_indexes: dict[LockName, IndexUrl | None] = {}
    """The index of torch for an accelerator or a lock, besides those of pip; that of an accelerator is also
    for jobs that ask for another torch.  Without an entry: PyTorch's own for a lock that names its build
    (``+rocm7.2``), else none.  null: none."""

    allowed_images: dict[str, OfferedImage] = {}
    """Names that a job file may give as ``image``, and their image references.  A reference with a ``*``,
    such as ``nvcr.io/nvidia/*``, offers every image that fits it by its own reference; those are pulled."""

    registry_login: WrittenPath | None = None
    """The file of ``docker login`` (``config.json``) for pulls; None: that of the daemon's user."""

    packages: PackagesSettings = PackagesSettings()
    """Sources of the packages of jobs, and limits of what a job may have."""

    log_quota_bytes: Bytes = Field(256 * 1024**2, ge=1024**2)
    """Disk space of one attempt's log; the middle of a longer log is removed."""

    observe_every_s: float = Field(1.0, ge=0.05, le=60)
    """Seconds between polls of the engine while something runs; its events arrive sooner."""

    watch_every_s: float = Field(5.0, ge=0.05, le=60)
    """Seconds between checks of the reports of a running attempt and of its devices."""

    silence_floor_s: float = Field(300.0, ge=1, le=86400)
    """The shortest silence after which an attempt may count as hung, however short its steps are."""

    silence_limits_s: SilenceLimits = SilenceLimits()
    """The silence after which an attempt counts as hung where no limit is learned, by phase."""

    verify_within_s: float = Field(600.0, ge=1, le=86400)
    """Longest verification of the checkpoints of one attempt before they count as unknown, in seconds."""

    stop_within_s: float = Field(60.0, ge=1, le=3600)
    """Longest stop of the daemon, in seconds, whatever its threads wait for.  Then it writes their
    stacks to its log and ends with code 1; the next daemon goes on as after a kill."""

    launches_at_once: int = Field(4, ge=1, le=64)
    """Number of containers that are created in parallel."""

    sessions_per_user: int = Field(32, ge=0, le=1000)
    """Commands, terminals and forwarded connections of one user inside of jobs at a time; 0: none."""

    session_bytes_per_s: Annotated[float, BeforeValidator(written_size)] | None = Field(16 * 1024**2, ge=1024)
    """Bytes a second of all sessions of one user, in both directions, on average; None: no limit."""

    requests_per_s: float | None = Field(20.0, ge=1)
    """Requests of one user a second, on average; more wait, or are refused with 429.  None: no limit."""

    submission_bytes: Bytes | None = Field(32 * 1024**2, ge=1024**2)
    """Size of the job files of one submission; the jobs of a matrix share what is equal; None: no limit."""

    job_file_bytes_per_user: Bytes | None = Field(128 * 1024**2, ge=1024**2)
    """Size of the job files of one user's unfinished jobs, which are in memory; None: no limit."""

    code_bytes: Bytes | None = Field(200 * 1024**2, ge=1024)
    """Size of the code of one job, which is kept at its submission; None: no limit."""

    code_files: int = Field(50_000, ge=1, le=1_000_000)
    """Files and directories in the code of one job."""

    code_bytes_per_user: Bytes | None = Field(10 * 1024**3, ge=1024)
    """Size of all code that is kept for one user's jobs; equal files count once; None: no limit."""

    notify: tuple[NotificationRule, ...] = Field((), max_length=16)
    """Notifications by webhook, mail or command; each rule has its own thread."""

    dashboard: DashboardSettings = DashboardSettings()
    """Address of the operator's dashboard, to which notifications link."""

    queue: QueueSettings = QueueSettings()
    """Order of jobs, and who may have how much (docs/explanation/quotas.md)."""

    alarm: Alarm = Alarm()
    """Alarm for a job that uses little of its devices."""

    metrics: Metrics = Metrics()
    """Metrics over TCP, without encryption or authentication."""

    disk_quota: DiskQuotaSettings = DiskQuotaSettings()
    """Limits of jobs and users below the run directories."""

    retention: RetentionSettings = RetentionSettings()
    """Removal of the run directories of ended jobs."""

    shared_devices: tuple[str, ...] = ()
    """Devices that several jobs may share by memory: UUIDs, names (GPU-3), or parts of a model's name."""

    clean_within_s: float = Field(60.0, ge=5, le=3600)
    """Longest time until a released device is clean; then it is quarantined, in seconds."""

    host_programs: tuple[str, ...] = HOST_PROGRAMS
    """Host programs that may use an allocated device, by the first 15 letters of their name."""

    @property
    def serves_all_users(self) -> bool:
        """Return True if the daemon is root's and everybody may submit."""
        return privileges.acts_for_root() and self.system_wide is not False

    def image_reference(self, name: str) -> str | None:
        """Return the reference of an image that a job names, None if it may not have it.

        In one's own daemon a job may have any image of the engine or of a registry.
        """
        if name in self.named_images:
            return self.named_images[name]
        if not is_reference(name):
            return None
        return name if not self.serves_all_users or is_offered(name, self.allowed_images.values()) else None

    @property
    def named_images(self) -> dict[str, str]:
        """The images that have names of the operator's, without the patterns."""
        return {name: each for name, each in self.allowed_images.items() if "*" not in each}

    @property
    def allowed_system_packages(self) -> tuple[str, ...]:
        """The Debian packages that jobs may have, as patterns."""
        said = self.packages.system
        if said is not None:
            return said
        return () if self.serves_all_users else ("*",)

    @property
    def allows_dockerfiles(self) -> bool:
        """Return True if jobs may be built from a Dockerfile of their own."""
        said = self.packages.dockerfiles
        return not self.serves_all_users if said is None else said

    @property
    def dockerfile_network(self) -> bool:
        """Return True if the commands of such a Dockerfile have the engine's default network."""
        said = self.packages.dockerfile_network
        return not self.serves_all_users if said is None else said == "bridge"

    @property
    def requires_firewall(self) -> bool:
        """Return True if a job may have a network only behind firewall rules that hold."""
        said = self.network.require_firewall
        return self.serves_all_users if said is None else said

    def strangers(self) -> Iterator[str]:
        """Yield a warning for each name that does not exist on this machine; it may be added later."""
        yield from self.queue.strangers()
        yield from self.network.strangers(frozenset(self.queue.classes))
        yield from self.alarm.strangers()
        for number, rule in enumerate(self.notify):
            if rule.stranger:
                yield f"notify[{number}].{rule.stranger}"

    def seccomp_text(self) -> str | None:
        """Return the text of the seccomp profile; engines take the JSON and not a path.

        Raises:
            UsageError: the file cannot be read.
        """
        if self.seccomp is None:
            return None
        try:
            with open_source(SHIPPED_SECCOMP.get(str(self.seccomp), self.seccomp)) as file:
                return file.read().decode()
        except OSError as error:
            raise UsageError(f"{self.seccomp}: seccomp profile: {error.strerror}") from error


def settings_path() -> Path:
    """Return the path of the settings file of this user."""
    named = os.environ.get("RUNNER_SETTINGS")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return SYSTEM_SETTINGS
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "runner" / "settings.yaml"


def load_settings(path: Path | None) -> Settings:
    """Return the settings in a file, or the defaults if no file is named and none exists.

    Raises:
        UsageError: the file cannot be read, or is not valid; all problems are reported with positions.
    """
    where = path or settings_path()
    try:
        with open_source(where) as file:
            raw = file.read()
    except FileNotFoundError as error:
        if path is not None or os.environ.get("RUNNER_SETTINGS"):
            raise UsageError(f"{where}: there is no such settings file") from error
        return Settings()
    except NotRegular as error:
        raise UsageError(f"{where}: is not a regular file") from error
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error}") from error
    return _parse(where, raw)


def _parse(where: Path, raw: bytes) -> Settings:
    tree, problems = yaml.compose(raw)
    if not problems and (tree is None or yaml.to_plain(tree) in (None, {})):
        return Settings()
    if not isinstance(tree, yaml.MappingNode):
        at_top = [] if tree is None else [Problem(tree.at, "", describe_non_mapping(tree))]
        raise FileError(where, [*problems, *at_top])
    entries = {name: yaml.to_plain(node) for name, node in tree.entries.items()}
    found, more = validate_model(Settings, entries, tree, of_a_job=False)
    if found is None or problems:
        raise FileError(where, [*problems, *more])
    return found
