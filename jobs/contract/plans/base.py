"""What every built-in workload is told, whatever it trains."""

from typing import Final, Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from jobs.contract.base import BILLION, Spec

STDLIB: Final = "stdlib"
"""Instead of a directory of text: the library sources of the Python that runs the job."""


class TrainingPlan(Spec):
    """One training: how long, in which portions, and along which learning rate.

    The *effective batch* is the unit of a step, however small the micro-batch.
    """

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
