"""A revision: a job file made independent of where and when it was written.

Paths are absolute, ``auto`` is decided, and who asked is part of it; the store keeps the
JSON of this, and every attempt is derived from it and from nothing else.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from jobs.contract import STDLIB, AttemptSpec, CausalLm, Profile
from runner.adapters.as_user import Person
from runner.core.lifecycle import Attempt, From
from runner.core.placement import Needs
from runner.spec import JobFile, checkpoint_plan, resolve_profile
from runner.spec_rules import WORKLOAD_TARGET

VENDORS = {"cuda": "nvidia", "rocm": "amd"}


class Resolved(BaseModel):
    """One version of what a user asked for, ready to be run at any time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: JobFile
    path: str
    accelerator: Literal["cuda", "rocm", "cpu"]
    uid: int
    gid: int
    groups: tuple[int, ...]
    user: str

    @property
    def base(self) -> Path:
        return Path(self.path).parent

    @property
    def person(self) -> Person:
        return Person(self.uid, self.gid, self.groups, self.user)

    @property
    def data(self) -> Path | None:
        """Where the workload's data lies on the host; None when it comes with the image."""
        return None if self.job.workload.data == STDLIB else self.base / self.job.workload.data

    def needs(self) -> Needs:
        resources = self.job.resources
        vendor = VENDORS.get(self.accelerator)
        return Needs(resources.cpus, resources.memory, resources.gpus, vendor)

    def profile(self) -> Profile:
        return resolve_profile(self.job)

    def spec(self, job_id: str, attempt: Attempt, *, in_container: bool) -> AttemptSpec:
        """Return what one attempt is told."""
        return AttemptSpec(
            job_id=job_id,
            attempt=attempt.number,
            lineage=attempt.lineage,
            seed=self.job.seed,
            workload=self._workload(in_container=in_container),
            profile=self.profile(),
            checkpoint=checkpoint_plan(self.job),
            resume_step=attempt.start.step if attempt.start.source is From.STEP else None,
            accelerator=self.accelerator,
            cpus=self.job.resources.cpus,
        )

    def _workload(self, *, in_container: bool) -> CausalLm:
        if self.data is None:
            return self.job.workload
        where = str(WORKLOAD_TARGET) if in_container else str(self.data)
        return self.job.workload.model_copy(update={"data": where})
