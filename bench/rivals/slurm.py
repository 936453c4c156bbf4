"""A Slurm cluster of one node on the loopback, from Debian's packages, with its own ports and files.

For the measurement of submissions alone, its partition is ``DOWN``: jobs queue, and none of them runs.
"""

import os
import pwd
import secrets
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rivals.protocol import REST_LIMIT_S, Queue, run_command
from bench.support import interleave
from bench.support.jobfile import CPUS
from bench.support.packages import find, require

PACKAGES: Final = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "squeue")
START_LIMIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Ports:
    controller: int
    node: int


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The settings that differ between clusters."""

    cpus: int = 1
    state: str = "DOWN"  # jobs are accepted but do not run
    more: tuple[str, ...] = ()  # lines of slurm.conf
    partitions: tuple[str, ...] = ()  # lines of slurm.conf in place of the only partition
    credential_s: int | None = None  # how long a requeued job waits


def render_configuration(directory: Path, user: str, ports: Ports, plan: ClusterConfig | None = None) -> str:
    """Return a ``slurm.conf`` that touches nothing outside ``directory``."""
    plan = plan or ClusterConfig()
    more = "".join(f"{line}\n" for line in plan.more)
    only = f"PartitionName=bench Nodes=localhost Default=YES MaxTime=INFINITE State={plan.state}"
    partitions = "".join(f"{line}\n" for line in plan.partitions or (only,))
    credential = f",cred_expire={plan.credential_s}" if plan.credential_s else ""
    return f"""\
ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports.controller}
SlurmdPort={ports.node}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket{credential}
CryptoType=crypto/munge
MailProg=/bin/true
MpiDefault=none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
{more}NodeName=localhost NodeAddr=127.0.0.1 CPUs={plan.cpus} RealMemory=100 State=UNKNOWN
{partitions}"""


@contextmanager
def blocked_cluster(directory: Path, *, may_install: bool) -> Iterator[Callable[[], float]]:
    """Yield a contestant that submits with ``sbatch``; stop the cluster at the end.

    Raises:
        CannotMeasure: Slurm is not here and may not be installed, or does not start.
    """
    with start_cluster(directory, ClusterConfig(), may_install=may_install) as environment:
        yield interleave.time_command([find("sbatch"), "--wrap", "true"], environment, directory)


@contextmanager
def running_cluster(directory: Path, *, may_install: bool, more: tuple[str, ...] = ()) -> Iterator[Queue]:
    """Yield a running cluster with as many CPUs as the runner's queue; stop it at the end.

    Raises:
        CannotMeasure: Slurm is not here and may not be installed, or does not start.
    """
    with start_cluster(directory, ClusterConfig(CPUS, "UP", more), may_install=may_install) as environment:
        yield SlurmQueue(directory, environment)


@dataclass(frozen=True, slots=True)
class SlurmQueue:
    """Satisfies ``bench.rivals.protocol.Queue``."""

    directory: Path
    environment: dict[str, str]

    def submit(self, argv: Sequence[str], slots: int = 1) -> str:
        return self._said("sbatch", *self._options(slots), "--wrap", shlex.join(argv))

    def _options(self, slots: int) -> tuple[str, ...]:
        return ("--parsable", "--ntasks=1", f"--cpus-per-task={slots}", "--output=/dev/null")

    def submit_typed(self, argv: Sequence[str]) -> str:
        return self.submit(argv)

    def wait_until_idle(self, jobs: Sequence[str]) -> None:
        del jobs
        interleave.wait_for(
            "the end of Slurm's jobs", lambda: not self._said("squeue", "-h"), REST_LIMIT_S, 0.1
        )

    def _said(self, program: str, *arguments: str) -> str:
        return run_command([find(program), *arguments], self.environment, self.directory)


@contextmanager
def start_cluster(directory: Path, plan: ClusterConfig, *, may_install: bool) -> Iterator[dict[str, str]]:
    """Start a cluster, and yield the environment variables that select it; stop it at the end.

    Raises:
        CannotMeasure: Slurm is not here and may not be installed, or does not start.
    """
    require(PROGRAMS, PACKAGES, may_install=may_install)
    environment = _prepare_directory(directory, plan)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for argv in _daemon_commands(directory):
            daemons.append(_launch(argv, environment, directory))
            if argv[0] == find("munged"):
                _await_file(directory / "munge" / "socket")
        interleave.wait_for(
            "the controller of Slurm", lambda: controller_answers(environment), START_LIMIT_S, 0.1
        )
        if plan.state == "UP":
            interleave.wait_for("the node of Slurm", lambda: _node_is_idle(environment), START_LIMIT_S, 0.1)
        yield environment
    finally:
        for process in reversed(daemons):
            _terminate(process)


def _node_is_idle(environment: dict[str, str]) -> bool:
    return run_command([find("sinfo"), "-h", "-o", "%t"], environment) == "idle"


def _prepare_directory(directory: Path, plan: ClusterConfig) -> dict[str, str]:
    """Create the files that the Slurm daemons need, and return the environment variables that select them."""
    directory.chmod(0o711)  # all users must be able to reach munge's socket
    (directory / "munge").mkdir(mode=0o755)
    for name in ("keys", "state", "spool"):
        (directory / name).mkdir(mode=0o700)
    key = directory / "keys" / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    conf = directory / "slurm.conf"
    user = pwd.getpwuid(os.geteuid()).pw_name
    conf.write_text(render_configuration(directory, user, _free_ports(), plan))
    return dict(os.environ) | {"SLURM_CONF": str(conf)}


def _free_ports() -> Ports:
    with socket.socket() as one, socket.socket() as other:
        for door in (one, other):
            door.bind(("127.0.0.1", 0))
        return Ports(one.getsockname()[1], other.getsockname()[1])


def _daemon_commands(directory: Path) -> tuple[Sequence[str], ...]:
    keys, conf = directory / "keys", str(directory / "slurm.conf")
    munge = (
        f"--socket={directory}/munge/socket",
        f"--key-file={keys}/munge.key",
        f"--pid-file={keys}/munge.pid",
        f"--seed-file={keys}/munge.seed",
        f"--log-file={keys}/munge.log",
    )
    return (
        (find("munged"), "--foreground", "--num-threads=10", *munge),
        (find("slurmctld"), "-D", "-f", conf),
        (find("slurmd"), "-D", "-N", "localhost", "-f", conf),
    )


def _launch(argv: Sequence[str], environment: dict[str, str], directory: Path) -> subprocess.Popen[bytes]:
    with (directory / f"{Path(argv[0]).name}.out").open("wb") as out:
        return subprocess.Popen(
            argv, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )


def _await_file(path: Path) -> None:
    interleave.wait_for("munge", path.exists, START_LIMIT_S, 0.05)


def controller_answers(environment: dict[str, str]) -> bool:
    """Return True if slurmctld of the cluster that the environment selects answers.

    Raises:
        CannotMeasure: Slurm is not installed.
    """
    asked = subprocess.run([find("sinfo")], env=environment, capture_output=True, check=False)
    return asked.returncode == 0 and not asked.stderr


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
