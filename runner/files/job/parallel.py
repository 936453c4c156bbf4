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
    """Data-parallel training of a built-in workload."""

    processes: Processes | Literal["auto"] = Field(
        1,
        description="Processes of one attempt on each node, one per GPU; auto: as many as resources.gpus,"
        " else 1.",
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
    sharded: bool = Field(
        default=False,
        description="true: every process holds a part of the model, for one that does not fit one device"
        " (FSDP2, fully_shard).",
    )
    timeout: Wait = Field(
        timedelta(minutes=5),
        description="How long a process waits for the others in a step; then the attempt ends.",
    )

    def of_node(self, gpus: int) -> int:
        """Return the number of processes on each node."""
        return max(1, gpus) if self.processes == "auto" else self.processes

    def resolve(self, gpus: int, nodes: int = 1) -> contract.Parallel:
        """Return the processes of an attempt on some nodes with so many GPUs each."""
        return contract.Parallel(
            processes=self.of_node(gpus) * nodes,
            nodes=nodes,
            shards=self.shards,
            reduction=self.reduction,
            sharded=self.sharded,
            timeout_s=max(1.0, self.timeout.total_seconds()),
        )


def find_parallel_problems(
    fields: ParallelFields, plan: contract.Plan, gpus: int, nodes: int = 1
) -> Iterator[FieldProblem]:
    """Yield the contradictions of the section with the workload, and the numbers of GPUs and nodes."""
    of_node = plan.processes if isinstance(plan, contract.Program) else fields.of_node(gpus)
    if of_node * nodes > contract.MAX_PROCESSES:
        most = f"an attempt has at most {contract.MAX_PROCESSES} processes"
        yield ("resources", "nodes"), f"{nodes} nodes with {of_node} processes each are too many; {most}"
        return
    if isinstance(plan, contract.Program):
        if nodes > 1 and plan.launcher is None:
            fact = f"{nodes} nodes need a launcher on each of them; set workload.launcher to gang"
            yield ("resources", "nodes"), fact
        if plan.processes > 1 and plan.launcher is None:
            fact = "needs a launcher that starts so many; set workload.launcher to gang"
            yield ("workload", "processes"), fact
        if fields != ParallelFields():
            fact = "is for built-in workloads; a program sets workload.launcher and workload.processes"
            yield ("parallel",), fact
        return
    told, where = fields.resolve(gpus, nodes), ("parallel", "processes")
    count, shards = told.processes, told.shards
    if gpus > 1 and of_node == 1:
        fact = f"{plan.kind} computes on one GPU, and the others would idle; set it to 1, or set"
        yield ("resources", "gpus"), f"{fact} parallel: {{processes: auto, shards: {usual_shards(gpus)}}}"
    elif gpus and gpus != of_node:
        yield where, f"is {of_node}, and resources.gpus is {gpus}; one process has one GPU: make them equal"
    elif told.sharded and told.reduction == "fast":
        yield ("parallel", "reduction"), "fast is for whole copies of a model; leave it out, or sharded"
    elif told.sharded and plan.swa is not None:
        yield ("workload", "swa"), "averages whole weights, and with parallel.sharded no process has them"
    elif told.sharded and plan.batch_size % max(count, shards or 1):
        parts = f"parallel.shards, {shards}" if shards else f"parallel.processes, {count}"
        fact = f"{plan.batch_size} is not divisible by {parts}; sharded processes take parts of one size"
        yield ("workload", "batch_size"), fact
    elif count > 1 and shards is None and told.reduction == "exact" and not told.sharded:
        yield where, f"{count} processes need parallel.shards, for example {usual_shards(count)}"
    elif shards is not None and shards % count:
        yield where, f"{count} does not divide parallel.shards, {shards}; choose 1, 2, 4 and so on"
    elif max(count, shards or 1) > plan.batch_size:
        parts = f"parallel.shards, {shards}" if shards else f"parallel.processes, {count}"
        yield ("workload", "batch_size"), f"{plan.batch_size} is less than {parts}; a part would be empty"


def usual_shards(processes: int) -> int:
    """Return a number of shards to propose for some processes."""
    return max(USUAL_SHARDS, 1 << (processes - 1).bit_length())
