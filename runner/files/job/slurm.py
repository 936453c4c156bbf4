"""The section ``slurm`` of the job file: what a job asks of Slurm, where the daemon hands jobs to it.

What of it a job may ask for is in the operator's settings; whether a partition exists is what Slurm is asked.
"""

import re
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field

from jobs import contract
from runner.base.textfile import quoted
from runner.core.ports.executor import BatchOptions
from runner.files.field_checks import check_pattern

MAX_EXTRA: Final = 16

_name: Final = check_pattern(r"[A-Za-z0-9_][A-Za-z0-9_.,-]{0,254}", "a name of Slurm such as gpu or gpu,long")
_constraint: Final = check_pattern(
    r"[A-Za-z0-9_\[(][A-Za-z0-9_.,*&|()\[\]-]{0,254}", 'features of nodes such as "h100" or "h100&nvlink"'
)
_OPTION: Final = re.compile(r"--[a-z][a-z0-9-]*(=[ -~]{0,1000})?")


def _extra(value: tuple[str, ...]) -> tuple[str, ...]:
    """Return further options of sbatch, each with its value."""
    for option in value:
        if not _OPTION.fullmatch(option):
            raise ValueError(
                f"must be long options such as --exclusive or --licenses=a:1, not {quoted(option)}"
            )
    return value


SlurmName: TypeAlias = Annotated[str, AfterValidator(_name)]


class SlurmFields(contract.Spec):
    """Requests of a job to Slurm."""

    partition: SlurmName | None = Field(None, description="Partition; null: as the operator's settings say.")
    account: SlurmName | None = Field(None, description="Account; null: as the operator's settings say.")
    qos: SlurmName | None = Field(None, description="QOS; null: as the operator's settings say.")
    constraint: Annotated[str, AfterValidator(_constraint)] | None = Field(
        None, description="Features that the node must have, as in sbatch --constraint."
    )
    reservation: SlurmName | None = Field(None, description="Reservation of Slurm to run in.")
    extra: Annotated[tuple[str, ...], AfterValidator(_extra)] = Field(
        (), max_length=MAX_EXTRA, description="Further options of sbatch that the operator allows."
    )

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """The fields that name something, with their values."""
        fields = ("partition", "account", "qos", "constraint", "reservation")
        return tuple((field, value) for field in fields if (value := getattr(self, field)) is not None)


def batch_options(said: SlurmFields) -> BatchOptions:
    """Return the options of a job file for a batch system."""
    return BatchOptions(said.partition, said.account, said.qos, said.constraint, said.reservation, said.extra)
