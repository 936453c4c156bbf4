"""Asking Slurm about a job before it is submitted: ``sbatch --test-only`` queues nothing."""

import math
import os
import time
from dataclasses import dataclass, field
from typing import Final

from runner.adapters.slurm.commands import Over, SlurmCommands
from runner.adapters.slurm.options import SlurmRules, gpu_type, resource_options
from runner.base.errors import Unavailable
from runner.base.textfile import quoted
from runner.core.ports.executor import BatchRequest, LaunchRefused
from runner.core.ports.users import Owner

ACCEPTED_S: Final = 30.0
"""Time for which Slurm is not asked again what it has accepted, for equal jobs of the same user."""

MOST_ACCEPTED: Final = 1000

FIELDS: Final = (
    ("qos", "slurm.qos", "sacctmgr show qos lists them"),
    ("account", "slurm.account", "sacctmgr show associations lists yours"),
    ("partition", "slurm.partition", "sinfo lists the partitions"),
    ("feature", "slurm.constraint", "sinfo --format='%N %f' lists the features of nodes"),
    ("reservation", "slurm.reservation", "scontrol show reservation lists them"),
    ("time limit", "resources.time_limit", "sinfo --format='%P %l' lists the limits of partitions"),
    ("node configuration", "resources", "no node has so much; sinfo --format='%N %c %m %G' lists them"),
    ("memory", "resources.memory", "sinfo --format='%N %m' lists the memory of nodes"),
    ("cpu", "resources.cpus", "sinfo --format='%N %c' lists the CPUs of nodes"),
    ("gres", "resources.gpus", "sinfo --format='%N %G' lists the GPUs of nodes"),
)
"""A word in an error of ``sbatch``, the field of the job file that it is about, and the next step."""


@dataclass(frozen=True, slots=True)
class SlurmCheck:
    """Satisfies ``runner.agent.ports.BatchCheck``."""

    commands: SlurmCommands
    rules: SlurmRules
    any_partition: bool = True  # that Slurm offers; False: the settings say which
    _accepted: dict[tuple[int, tuple[str, ...]], float] = field(default_factory=dict)

    def problem(self, request: BatchRequest, owner: Owner) -> tuple[str, str] | None:
        models = request.gpus.models if request.gpus.count else ()
        if models and gpu_type(models, self.rules.gpu_types) is None:
            fact = f"{quoted(models[0])} is no type of a GPU in Slurm"
            return "devices.model", f"{fact}; sinfo --format='%N %G' lists the GPUs of nodes"
        user = [f"--uid={owner.uid}", f"--gid={owner.gid}"] if os.geteuid() == 0 else []
        options = resource_options(request, self.rules)
        asked, now_s = (owner.uid, tuple(options)), time.monotonic()
        if now_s - self._accepted.get(asked, -math.inf) < ACCEPTED_S:
            return None  # one of many equal jobs
        try:
            self.commands.ask("sbatch", "--test-only", *options, *user, "--wrap=true")
            if user and self.any_partition and (name := self._roots_partition(request.options.partition)):
                fact = f"{quoted(name)} is for root alone; sinfo lists the partitions"
                return "slurm.partition", f"{fact}; or ask the operator (slurm.partitions)"
        except LaunchRefused as error:
            return explain_refusal(str(error))
        except (Unavailable, Over):
            return None  # the launch asks again
        if len(self._accepted) >= MOST_ACCEPTED:
            self._accepted.clear()
        self._accepted[asked] = now_s
        return None

    def _roots_partition(self, named: str | None) -> str | None:
        """Return a partition that is for root alone: root submits, so Slurm refuses it to nobody."""
        for name in [] if named is None else named.split(","):
            said = self.commands.ask("scontrol", "--oneliner", "show", "partition", name)
            if "RootOnly=YES" in said.split():
                return name
        return None


def explain_refusal(said: str) -> tuple[str, str]:
    """Return the field that an error of ``sbatch`` is about, and the error with the next step."""
    text = said.removeprefix("sbatch: ").removeprefix("allocation failure: ")
    for word, place, step in FIELDS:
        if word in text.lower():
            return place, f"Slurm says: {text}; {step}"
    return "slurm", f"Slurm says: {text}"
