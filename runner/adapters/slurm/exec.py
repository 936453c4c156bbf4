"""Commands inside of attempts on nodes: refused, with the command of Slurm that does it."""

from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from runner.adapters.launch import attempt_name
from runner.adapters.slurm.records import SlurmRecord
from runner.base.errors import Refused
from runner.core.ports.exec import ExecProcess, ExecRequest
from runner.core.ports.executor import Key


@dataclass(frozen=True, slots=True)
class SlurmExec:
    """Satisfies ``runner.core.ports.exec.ExecPort``."""

    directory: Path
    """That of the executor's records."""

    async def start(
        self, key: Key, request: ExecRequest, recorded: Awaitable[None] | None = None
    ) -> ExecProcess:
        del request
        if recorded is not None:
            await recorded
        number = SlurmRecord(self.directory / attempt_name(key)).number
        fact = "runs on a node of Slurm, where exec, shell and forward do not reach"
        if number is None:
            raise Refused(f"job {key.job_id}: attempt {key.attempt} {fact}")
        step = f"as its user, type: srun --jobid={number} --overlap --pty sh"
        raise Refused(f"job {key.job_id}: attempt {key.attempt} {fact}; {step}")
