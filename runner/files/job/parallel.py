"""The section ``parallel`` of the job file: how several processes share a training."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from jobs import contract
from runner.files.job.queue import FieldProblem
from runner.files.types import Wait


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        raise ValueError(f"must be a power of two: {below} or {min(2 * below, contract.MAX_SHARDS)}")
    return value


Shards = Annotated[int, Field(ge=1, le=contract.MAX_SHARDS), AfterValidator(_power_of_two)]
Processes = Annotated[int, Field(ge=1, le=contract.MAX_PROCESSES)]

USUAL_SHARDS: Final = 8


class ParallelFields(contract.Spec):
    """Data-parallel training of a built-in workload on one machine."""

    processes: Processes | Literal["auto"] = Field(
        1, description="Processes of one attempt, one per GPU; auto: as many as resources.gpus, else 1."
    )
    shards: Shards | None = Field(
        None,
        description="Parts of a batch, a power of two that processes divides; the bits depend on it, and not"
        " on processes; null: the batch is not cut.",
    )
    reduction: contract.Reduction = Field(
        "exact",
        description="exact: gradients are added in one fixed order; fast: as they come"
        " (DistributedDataParallel).",
    )
    timeout: Wait = Field(
        timedelta(minutes=5),
        description="How long a process waits for the others in a step; then the attempt ends.",
    )

    def resolve(self, gpus: int) -> contract.Parallel:
        """Return what an attempt with so many GPUs is told."""
        return contract.Parallel(
            processes=max(1, gpus) if self.processes == "auto" else self.processes,
            shards=self.shards,
            reduction=self.reduction,
            timeout_s=max(1.0, self.timeout.total_seconds()),
        )


def find_parallel_problems(fields: ParallelFields, plan: contract.Plan, gpus: int) -> Iterator[FieldProblem]:
    """Yield the contradictions of the section with the workload and the number of GPUs."""
    if isinstance(plan, contract.Program):
        if plan.processes > 1 and plan.launcher is None:
            fact = "needs a launcher that starts so many; set workload.launcher to gang"
            yield ("workload", "processes"), fact
        if fields != ParallelFields():
            fact = "is for built-in workloads; a program sets workload.launcher and workload.processes"
            yield ("parallel",), fact
        return
    told, where = fields.resolve(gpus), ("parallel", "processes")
    count, shards = told.processes, told.shards
    if gpus > 1 and count == 1:
        fact = f"{plan.kind} computes on one GPU, and the others would idle; set it to 1, or set"
        yield ("resources", "gpus"), f"{fact} parallel: {{processes: auto, shards: {usual_shards(gpus)}}}"
    elif gpus and gpus != count:
        yield where, f"is {count}, and resources.gpus is {gpus}; one process has one GPU: make them equal"
    elif count > 1 and shards is None and told.reduction == "exact":
        yield where, f"{count} processes need parallel.shards, for example {usual_shards(count)}"
    elif shards is not None and shards % count:
        yield where, f"{count} does not divide parallel.shards, {shards}; choose 1, 2, 4 and so on"
    elif max(count, shards or 1) > plan.batch_size:
        parts = f"parallel.shards, {shards}" if shards else f"parallel.processes, {count}"
        yield ("workload", "batch_size"), f"{plan.batch_size} is less than {parts}; a part would be empty"


def usual_shards(processes: int) -> int:
    """Return a number of shards to propose for some processes."""
    return max(USUAL_SHARDS, 1 << (processes - 1).bit_length())
