"""The processes of one attempt: who leads, what they agree on, and sums in one fixed order.

Every process computes its part of each batch and holds the same weights.  The process with rank 0 leads: it
alone locks the lineage, saves, publishes and reports.  Numbers that all must agree on go over the CPU (gloo),
gradients on GPUs over NCCL.

A collective that waits too long, or whose peer is gone, raises ``RankLost``.  The timeout is that of the
spec inside of a step, and ``PATIENT_S`` for a process that may work while the others wait.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from jobs.contract import AttemptSpec, Parallel
from jobs.training.checksum import checksum
from jobs.training.failures import InvalidSpec, RankLost, ReplicasDiffer
from jobs.training.launcher import own_rank, process_count

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

PATIENT_S: Final = 1800.0
"""Longest wait of processes for one that loads, saves or evaluates; the runner watches it meanwhile."""

COMPARE_EVERY: Final = 50
"""Steps between two comparisons of the weights of all processes."""

PLAIN: Final = Parallel()


@dataclass(frozen=True)
class Ranks:
    """The processes of an attempt; without a group, there is one."""

    rank: int = 0
    parallel: Parallel = PLAIN

    @property
    def world(self) -> int:
        """The number of processes."""
        return 1

    @property
    def leads(self) -> bool:
        """Return True if this process saves and reports."""
        return self.rank == 0

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """Return each flag: true if any process says so."""
        return flags

    def first_with(self, *, problem: bool) -> int | None:
        """Return the lowest rank of those that have a problem."""
        return self.rank if problem else None

    def from_leader(self, number: int) -> int:
        """Return the number that the leader gives."""
        return number

    def meet(self) -> None:
        """Return when all processes have come here; each of them may have worked meanwhile."""

    def wait_for_leader(self) -> None:
        """Return when all processes have come here; only the leader may have worked meanwhile."""

    def compare(self, tensors: Callable[[], Iterable[Tensor]], step: int) -> None:
        """Compare what all processes hold, bit for bit.

        Raises:
            ReplicasDiffer: They differ.
        """

    def add(self, buffers: Sequence[Tensor]) -> None:
        """Add the buffers of all processes, in pairs, then pairs of pairs; every process gets the sums."""

    def close(self) -> None:
        """Leave the group."""


@dataclass(frozen=True)
class RankGroup(Ranks):
    """Several processes, connected."""

    size: int = 2
    quick: "ProcessGroup | None" = None  # all processes, for small numbers inside of a step
    pairs: Sequence["ProcessGroup"] = field(
        default_factory=tuple
    )  # with the rank at distance 1, 2, 4 and so on
    devices: "ProcessGroup | None" = None  # all processes, for gradients in any order

    @property
    def group_of_devices(self) -> "ProcessGroup":
        """The group of all processes for gradients."""
        if self.devices is None:
            raise RuntimeError("the processes are not connected")
        return self.devices

    @property
    def world(self) -> int:
        return self.size

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        told = torch.tensor(flags, dtype=torch.uint8)
        with _collective():
            torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX, group=self.quick)
        return tuple(bool(each) for each in told.tolist())

    def first_with(self, *, problem: bool) -> int | None:
        told = torch.tensor([self.rank if problem else self.size], dtype=torch.int32)
        with _collective():
            torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MIN, group=self.quick)
        first = int(told.item())
        return None if first == self.size else first

    def from_leader(self, number: int) -> int:
        told = torch.tensor([number])
        with _collective():
            torch.distributed.broadcast(told, 0)
        return int(told.item())

    def meet(self) -> None:
        with _collective():
            torch.distributed.barrier()

    def wait_for_leader(self) -> None:
        patience_s = self.parallel.timeout_s if self.leads else PATIENT_S
        with _collective():
            torch.distributed.monitored_barrier(timeout=timedelta(seconds=patience_s))

    def compare(self, tensors: Callable[[], Iterable[Tensor]], step: int) -> None:
        mine = checksum(tensors())
        seen = [torch.zeros_like(mine) for _ in range(self.size)]
        with _collective():
            torch.distributed.all_gather(seen, mine, group=self.quick)
        sums = [int(each.item()) for each in seen]
        usual = Counter(sums).most_common(1)[0][0]
        others = [str(rank) for rank, each in enumerate(sums) if each != usual]
        if others:
            raise ReplicasDiffer(
                f"step {step}: rank {', '.join(others)} of {self.size} holds other bits; they were not saved;"
                " suspect the device or its memory"
            )

    def add(self, buffers: Sequence[Tensor]) -> None:
        with _collective():
            for pair in self.pairs:
                for buffer in buffers:
                    torch.distributed.all_reduce(buffer, group=pair)

    def close(self) -> None:
        torch.distributed.destroy_process_group()


@contextmanager
def _collective() -> Iterator[None]:
    """Name the error of a collective: a peer is gone or does not answer.

    Raises:
        RankLost: The collective failed or timed out.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        first_line = f"{error}\n".splitlines()[0][:300]
        raise RankLost(f"another process of this attempt is gone or does not answer: {first_line}") from error


@contextmanager
def joined(spec: AttemptSpec, device: torch.device) -> Iterator[Ranks]:
    """Yield the processes of an attempt, connected.

    Raises:
        InvalidSpec: The launcher has started another number of processes than the spec says.
        RankLost: The others did not come.
    """
    ranks = _join(spec, device)
    try:
        yield ranks
    finally:
        _close(ranks)


def _close(ranks: Ranks) -> None:
    try:
        ranks.close()
    except RuntimeError:  # a peer is gone: the error that is on its way says so
        return


def _join(spec: AttemptSpec, device: torch.device) -> Ranks:
    parallel, started = spec.parallel, process_count()
    if started != parallel.processes:
        raise InvalidSpec(f"parallel.processes {parallel.processes}: the launcher has started {started}")
    if parallel.processes == 1:
        return Ranks(0, parallel)
    import torch.distributed as dist  # noqa: PLC0415 - takes long to load, and one process needs none of it

    rank, world = own_rank(), parallel.processes
    backend = "nccl" if device.type == "cuda" else "gloo"
    soon = timedelta(seconds=parallel.timeout_s)  # a new group does not inherit a timeout
    with _collective():
        dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENT_S), rank=rank, world_size=world)
        quick = dist.new_group(backend="gloo", timeout=soon)
        devices = dist.new_group(backend=backend, timeout=soon)
        exact = parallel.reduction == "exact" and not parallel.sharded
        pairs = tuple(_pairs(rank, world, backend, soon)) if exact else ()
    return RankGroup(rank, parallel, world, quick, pairs, devices)


def _pairs(rank: int, world: int, backend: str, timeout: timedelta) -> Iterator["ProcessGroup"]:
    """Yield the groups of this process with one other; all processes make all groups in the same order."""
    distance = 1
    while distance < world:
        for first in range(world):
            if first & distance:
                continue
            pair = [first, first | distance]
            group = torch.distributed.new_group(pair, backend=backend, timeout=timeout)
            if rank in pair:
                yield group
        distance *= 2
