"""What every built-in workload is told, whatever it trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from jobs.contract.base import BILLION, Spec

STDLIB: Final = "stdlib"
"""Instead of a directory of text: the library sources of the Python that runs the job."""


@dataclass(frozen=True, slots=True)
class CheckpointFields:
    """What a change of each field of a plan does to a checkpoint; a field stands in exactly one of them."""

    data: tuple[str, ...] = ()  # other data, or data that are read differently: no checkpoint fits
    shape: tuple[str, ...] = ()  # parameters of another shape: no checkpoint fits
    trajectory: tuple[str, ...] = ()  # a checkpoint fits, and training goes elsewhere from there


class TrainingPlan(Spec):
    """One training: how long, in which portions, and along which learning rate.

    The *effective batch* is the unit of a step, however small the micro-batch.

    A subclass is the one description of its workload: the class variables below are all that the job file,
    the profiles, the policy's comparison of revisions, the trainer and the benchmarks know about it.
    """

    implementation: ClassVar[str]
    """``module:class`` of the workload; the trainer imports it when a job asks for it."""
    checkpoint_fields: ClassVar[CheckpointFields]
    """The fields that the workload adds to those below, each with its effect on a checkpoint."""
    switches: ClassVar[frozenset[str]] = frozenset()
    """Switches of a profile that not every workload knows and this one does."""
    benchmark: ClassVar[Mapping[str, Any]]
    """Fields of a job that ``runner bench KIND`` measures: at most two minutes on two cores."""

    if TYPE_CHECKING:
        kind: str  # a Literal in each plan, after the fields below: their order is that of stored revisions

    data: str = Field(
        description="Directory or file, relative to the job file; or the name of a prepared data set."
    )
    steps: int = Field(200, ge=1, le=BILLION, description="Optimiser steps of the whole job.")
    batch_size: int = Field(16, ge=1, le=BILLION, description="Rows in one step, the effective batch.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak, reached after the warm-up.")
    warmup_steps: int = Field(20, ge=0, le=BILLION, description="Steps over which the learning rate rises.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate goes from its peak to its floor."
    )
    floor: float = Field(0.1, ge=0, le=1, description="The learning rate's end, as a share of its peak.")
    weight_decay: float = Field(0.1, ge=0, description="AdamW; on matrices alone.")
    grad_clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    eval_every: int | None = Field(50, ge=1, le=BILLION, description="Steps between evaluations; null: none.")
    eval_batches: int = Field(4, ge=1, le=BILLION, description="Batches in one evaluation.")
    log_every: int = Field(10, ge=1, le=BILLION, description="Steps between lines of the log.")

    def misfit(self, fact: str, *names: str) -> PydanticCustomError:
        """Return the error that some fields do not fit together, at the first of them that was given."""
        given = [name for name in names if name in self.model_fields_set]
        return PydanticCustomError("below", "{fact}", {"fact": fact, "path": (*given, *names)[:1]})


TRAJECTORY: Final = (
    "steps",
    "batch_size",
    "learning_rate",
    "warmup_steps",
    "schedule",
    "floor",
    "weight_decay",
    "grad_clip",
)
"""Fields of every plan that decide where a training goes, and not what it can take up."""
