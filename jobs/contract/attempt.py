"""``attempts/N/spec.json``: the complete input of one attempt."""

from typing import Literal

from pydantic import Field

from jobs.contract.base import Spec
from jobs.contract.parallel import Parallel
from jobs.contract.plans import Plan
from jobs.contract.profile import Profile
from jobs.contract.tracking import Tracking


class CheckpointPlan(Spec):
    """Times of saves, and the number to keep; both clocks may run, whichever is due first."""

    every_steps: int | None = Field(None, ge=1)
    every_s: float | None = Field(None, gt=0)
    mean_between_s: float | None = Field(
        None,
        gt=0,
        description="Seconds between two interruptions of this host. Given: every_s is only a beginning,"
        " and what a save costs settles it.",
    )
    on_stop: bool = Field(default=True, description="Save when asked to stop; false: exit at once.")
    keep: int = Field(3, ge=2, description="The newest may be torn: never fewer than two.")
    milestone_every: int | None = Field(
        None, ge=1, description="Steps between checkpoints that are never deleted."
    )
    before_eval: bool | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that earlier images read the spec
        description="Save before each evaluation; null: where one takes longer than a save.",
    )
    pauses: tuple[int, ...] = Field(
        (),
        exclude_if=lambda value: not value,  # so that earlier images read the spec
        description="Steps after which it saves and leaves, unless it was told to resume from there.",
    )


class AttemptSpec(Spec):
    """The input of one attempt."""

    contract_version: Literal[1] = 1
    job_id: str
    revision: int = Field(1, ge=1)
    attempt: int = Field(ge=1)
    lineage: int = Field(ge=1)
    seed: int = Field(0, ge=0, lt=2**63)
    workload: Plan
    profile: Profile = Profile()
    checkpoint: CheckpointPlan = CheckpointPlan()
    resume_step: int | None = Field(None, ge=0, description="A given step; null: the newest valid one.")
    accelerator: Literal["cuda", "rocm", "cpu"] = "cpu"
    cpus: float = Field(1.0, gt=0, description="The cpu quota, for the thread count.")
    parallel: Parallel = Parallel()
    init_weights: str | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that earlier images read the spec
        description="Directory of the weights to begin with, as the attempt sees it.",
    )
    device_bytes: int | None = Field(
        None, gt=0, description="The part of each device's memory that is this job's; null: all of it."
    )
    track: Tracking | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that earlier images read the spec
        description="Trackers that get the metrics, too; null: none.",
    )
