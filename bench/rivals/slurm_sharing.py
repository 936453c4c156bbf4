"""Trainings that share a node of Slurm in the three ways that it has: requeue, suspension and time slices.

Each training is the runner's own program with a run directory of its own, so that it saves when it gets
SIGTERM and goes on from its newest checkpoint.  The script around it does what a user of Slurm writes for
that: it runs the program as a step, which gets the signal, and asks for the job to be queued again.

Partitions of two tiers stand in for two qualities of service: ``preempt/qos`` decides alike, and wants a
database for its accounts.
"""

import getpass
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.cases import burst
from bench.rivals.protocol import run_command
from bench.rivals.slurm import ClusterConfig, start_cluster
from bench.support import interleave
from bench.support.arrivals import SHORT, End, Training
from bench.support.packages import find
from bench.support.result import CannotMeasure
from jobs.contract import AttemptSpec, ExitCode, RunPaths
from runner.adapters.host.run_directory import HostRunDirectory
from runner.core.ports.users import Owner

DAY_LIMIT_S: Final = 1800.0
GRACE_S: Final = 30
CREDENTIAL_S: Final = 5
"""A job that was requeued waits for so long; Slurm's default is 120 s.  It is not shortened where jobs are
suspended: their steps cannot begin later than that."""

QUICK_PARTITION, PATIENT_PARTITION = "quick", "patient"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to share a node, and whether users must say which trainings are short."""

    name: str
    declared: bool
    settings: tuple[str, ...]
    partitions: tuple[str, ...]
    credential_s: int | None = None  # ``cred_expire``


def _partition(name: str, *settings: str) -> str:
    head = f"PartitionName={name} Nodes=localhost MaxTime=INFINITE State=UP"
    return " ".join((head, *settings))


WAYS: Final = (
    Way(
        "requeue of declared long ones",
        declared=True,
        settings=(
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
        ),
        partitions=(
            _partition(QUICK_PARTITION, "PriorityTier=2", "PreemptMode=OFF"),
            _partition(
                PATIENT_PARTITION,
                "PriorityTier=1",
                "PreemptMode=REQUEUE",
                f"GraceTime={GRACE_S}",
                "Default=YES",
            ),
        ),
        credential_s=CREDENTIAL_S,
    ),
    Way(
        "suspension of declared long ones",
        declared=True,
        settings=(
            "PreemptType=preempt/partition_prio",
            "PreemptMode=SUSPEND,GANG",
            "SchedulerTimeSlice=5",
        ),
        partitions=(
            _partition(QUICK_PARTITION, "PriorityTier=2", "PreemptMode=OFF", "OverSubscribe=FORCE:1"),
            _partition(
                PATIENT_PARTITION,
                "PriorityTier=1",
                "PreemptMode=SUSPEND",
                "OverSubscribe=FORCE:1",
                "Default=YES",
            ),
        ),
    ),
    Way(
        "time slices of 5 s",
        declared=False,
        settings=("PreemptMode=GANG", "SchedulerTimeSlice=5"),
        partitions=(_partition(PATIENT_PARTITION, "OverSubscribe=FORCE:10", "Default=YES"),),
    ),
)


@dataclass(slots=True)
class SlurmDay:
    """A day on a node of Slurm."""

    way: Way
    environment: Mapping[str, str]
    directory: Path
    spec_of: Callable[[Training], Mapping[str, Any]]  # what the runner would give to the program
    submitted_s: dict[str, float] = field(default_factory=dict)

    def submit(self, training: Training) -> None:
        place = self.directory / training.name
        script = write_script(place, self.spec_of(training), f"{find('srun')} ")
        partition = QUICK_PARTITION if self.way.declared and training.kind == SHORT else PATIENT_PARTITION
        self.submitted_s[training.name] = time.time()
        options = ("--parsable", "--ntasks=1", "--cpus-per-task=1", "--requeue")
        out = (f"--output={place}/out.txt", "--open-mode=append", f"--partition={partition}")
        run_command([find("sbatch"), *options, *out, str(script)], self.environment, self.directory)

    def ends(self, trainings: Sequence[Training]) -> dict[str, End]:
        """Wait until all have ended, and return what became of them.

        Raises:
            CannotMeasure: one did not finish.
        """
        interleave.wait_for("the end of the day of Slurm", self._is_over, DAY_LIMIT_S, 0.5)
        return {each.name: self._end(each) for each in trainings}

    def clear(self) -> None:
        """End what is left."""
        with suppress(CannotMeasure):
            run_command([find("scancel"), f"--user={getpass.getuser()}"], self.environment)
            interleave.wait_for("the end of Slurm's jobs", self._is_over, 60, 0.2)

    def _is_over(self) -> bool:
        with suppress(CannotMeasure):  # a busy controller does not answer at once
            return not run_command([find("squeue"), "-h"], self.environment)
        return False

    def _end(self, training: Training) -> End:
        place = self.directory / training.name
        try:
            result = json.loads(RunPaths(place / "job", 1, 1).result.read_text())
            ended_s = float((place / "ended").read_text())
            weights = str(result["weights_sha256"])
        except (OSError, ValueError, KeyError) as error:
            said = (place / "out.txt").read_text(errors="replace") if (place / "out.txt").exists() else ""
            last = said.strip().rpartition("\n")[2][:200]
            raise CannotMeasure(f"{training.name} did not finish on Slurm: {last or error}") from error
        starts = len((place / "starts").read_text().splitlines())
        return End(self.submitted_s[training.name], ended_s, weights, starts)


def write_script(place: Path, spec: Mapping[str, Any], launch: str = "") -> Path:
    """Make a run directory as the daemon does, and return a script that runs its program.

    In a job of Slurm, ``launch`` is ``srun``, whose processes get SIGTERM when the job is to be preempted.
    """
    run_dir = HostRunDirectory(place / "job", Owner(os.geteuid(), os.getegid(), "bench"))
    run_dir.create()
    known = AttemptSpec.model_validate_json(json.dumps(spec))
    run_dir.prepare(known, {})
    numbers = ("--attempt", str(known.attempt), "--lineage", str(known.lineage))
    argv = (sys.executable, "-P", "-m", "jobs", "--root", str(run_dir.root), *numbers)
    script = place / "train.sh"
    script.write_text(f"""\
#!/bin/sh
echo start >> {shlex.quote(str(place))}/starts
{launch}{shlex.join(argv)}
code=$?
if [ $code = {int(ExitCode.STOPPED)} ]; then
    {shlex.quote(shutil.which("scontrol") or "scontrol")} requeue $SLURM_JOB_ID
    exec sleep 60
fi
date +%s.%N > {shlex.quote(str(place))}/ended
exit $code
""")
    return script


@dataclass(frozen=True, slots=True)
class Node:
    """Parts of the Slurm node."""

    directory: Path
    cpus: int
    may_install: bool


@contextmanager
def slurm_day(way: Way, node: Node, spec_of: Callable[[Training], Mapping[str, Any]]) -> Iterator[SlurmDay]:
    """Yield a node of Slurm on which a day may be played; stop it at the end.

    Raises:
        CannotMeasure: Slurm is not here and may not be installed, or does not start.
    """
    settings = (*burst.TUNING, "KillWait=2", *way.settings)
    config = ClusterConfig(node.cpus, "UP", settings, way.partitions, way.credential_s)
    with start_cluster(node.directory, config, may_install=node.may_install) as environment:
        place = node.directory / "trainings"
        place.mkdir(mode=0o755)
        played = SlurmDay(way, environment, place, spec_of)
        try:
            yield played
        finally:
            played.clear()
