"""The section ``slurm`` of the settings: how jobs are handed to Slurm, and what they may ask for."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from runner.base.textfile import quoted
from runner.files.types import Bytes, ClosedModel, WrittenPath

RESERVED: Final = frozenset(
    {
        "uid", "gid", "output", "error", "input", "chdir", "job-name", "comment", "wrap", "export",
        "export-file", "requeue", "no-requeue", "array", "parsable", "test-only", "wait", "open-mode",
        "signal",
        "time", "ntasks", "nodes", "mem", "cpus-per-task", "gres", "clusters", "get-user-env", "propagate",
        "bb", "bbf", "spank", "container", "dependency", "begin", "hold", "quiet", "version", "help",
        "partition", "account", "qos", "constraint", "reservation",
    }
)  # fmt: skip
"""Options of sbatch that are the runner's own, or would give a job more than its user has."""


def _options(value: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of options without their dashes."""
    for name in value:
        if name.removeprefix("--") in RESERVED:
            raise ValueError(f"{quoted(name)} is the runner's own option of sbatch; leave it out")
    return tuple(name.removeprefix("--") for name in value)


class SlurmClass(ClosedModel):
    """Partition and QOS of the jobs of a priority class that name neither themselves."""

    partition: str | None = None
    qos: str | None = None


class LocalRoom(ClosedModel):
    """Resources of the daemon's machine for attempts of jobs with ``executor: [local, slurm]`` together."""

    cpus: float = Field(gt=0)
    memory_bytes: Bytes = Field(gt=0)


class SlurmSettings(ClosedModel):
    """Hand-over of jobs to Slurm (docs/operate/slurm.md)."""

    conf: WrittenPath | None = None
    """``slurm.conf``; null: ``SLURM_CONF``, then Slurm's own default."""

    containers: Literal["none", "crun"] = "none"
    """Form of attempts: plain processes of nodes, or containers that crun runs there as the job's user."""

    nodes_network: Literal["none", "host"] = "none"
    """host: containers of jobs with several nodes or ``network: outbound`` have the network of their nodes, a
    wall less; none: such jobs are refused. Without containers it has no effect."""

    cdi_directories: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    """Directories of nodes with the CDI specification of their NVIDIA cards, for containers."""

    images_dir: WrittenPath | None = None
    """Directory in which images are unpacked for nodes; null: ``slurm-images`` in the state directory."""

    init: str = "/usr/bin/tini-static"
    """The init of containers on nodes: a static program that reaps children and forwards signals."""

    partition: str | None = None
    """Partition of jobs that name none; null: Slurm's default."""

    account: str | None = None
    """Account of jobs that name none; null: the user's default."""

    qos: str | None = None
    """QOS of jobs that name none; null: the account's default."""

    classes: dict[str, SlurmClass] = {}
    """Partition and QOS by priority class, for jobs that name none."""

    nice_per_priority: int = Field(100, ge=0, le=1_000_000)
    """By how much each point of a job's priority below 50 lowers its priority in Slurm (``--nice``); 0: not
    at all."""

    local: LocalRoom | None = None
    """Share of the daemon's own machine for jobs with ``executor: [local, slurm]``, which has no GPUs for
    them; null: nothing, they run in Slurm."""

    partitions: tuple[str, ...] | None = None
    """Partitions that a job may name; null: any that Slurm lets its user use."""

    accounts: tuple[str, ...] | None = None
    """Accounts that a job may name; null: any that Slurm lets its user use."""

    qoses: tuple[str, ...] | None = None
    """QOS that a job may name; null: any that Slurm lets its user use."""

    constraints: tuple[str, ...] | None = None
    """Constraints that a job may name, as they are written; null: any."""

    reservations: tuple[str, ...] | None = None
    """Reservations that a job may name; null: any that Slurm lets its user use."""

    extra: Annotated[tuple[str, ...], AfterValidator(_options)] = ()
    """Further options of sbatch that a job may use (``slurm.extra``), without dashes."""

    interface: str | None = None
    """Network interface through which the processes of several nodes talk; null: the one that leads to the
    first node."""

    gpu_types: dict[str, str] = {}
    """Type of a GPU in Slurm's ``Gres`` by a part of its model's name; else the first ``devices.model`` in
    lower case."""

    poll_every_s: float = Field(5.0, ge=0.2, le=300)
    """Seconds between two questions to slurmctld, whatever the number of jobs; starts and ends are seen in
    files."""

    timeout_s: float = Field(30.0, ge=1, le=600)
    """Longest wait for one of Slurm's commands."""

    def allowed(self, field: str) -> frozenset[str] | None:
        """Return the values that a job may write into a field; None: anything."""
        lists = {
            "partition": self.partitions,
            "account": self.accounts,
            "qos": self.qoses,
            "constraint": self.constraints,
            "reservation": self.reservations,
        }
        found = lists[field]
        return None if found is None else frozenset(found)
