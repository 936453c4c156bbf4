"""Division of a training between the processes of one attempt: ``parallel`` of the spec."""

from typing import Final, Literal

from pydantic import Field

from jobs.contract.base import Spec

MAX_PROCESSES: Final = 64
MAX_SHARDS: Final = 1024

Reduction = Literal["exact", "fast"]


class Parallel(Spec):
    """Data-parallel training: every process computes its part of each batch.

    The batch of a step is cut into ``shards``, each with its own randomness, and their gradients are added
    in one binary tree.  So the bits depend on the number of shards, and not on that of processes.
    """

    processes: int = Field(1, ge=1, le=MAX_PROCESSES, description="On all nodes together.")
    nodes: int = Field(1, ge=1, le=MAX_PROCESSES, description="Machines, with equally many processes each.")
    shards: int | None = Field(None, ge=1, le=MAX_SHARDS, description="A power of two; null: not cut.")
    reduction: Reduction = Field(
        "exact", description="exact: gradients are added in that tree; fast: by DistributedDataParallel."
    )
    sharded: bool = Field(
        default=False,
        description="Every process holds a part of weights, gradients and optimiser state, by FSDP2.",
    )
    timeout_s: float = Field(
        300.0, gt=0, description="Seconds that a process waits for the others in a step."
    )

    @property
    def is_plain(self) -> bool:
        """Return True if one process computes the whole batch, as without this section."""
        return self.processes == 1 and self.shards is None

    @property
    def cpu_shares(self) -> int:
        """The number of parts of the cpu quota of a node, of which the threads of one process take one.

        With shards it does not depend on the number of processes, because threads change the rounding.
        """
        return self.shards or max(self.processes // self.nodes, 1)
