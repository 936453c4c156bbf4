"""Settings of the run directories of jobs that have ended."""

from typing import Annotated

from pydantic import Field

from runner.files.settings.queue import Days
from runner.files.types import Bytes, ClosedModel


class RetentionSettings(ClosedModel):
    """Removal of run directories of jobs that have ended; all null: never."""

    age: Days | None = None
    """Removed so long after the end of the job."""

    bytes_per_user: Annotated[Bytes, Field(ge=0)] | None = None
    """Size of the run directories of one user's ended jobs; the oldest are removed first."""

    count_per_user: Annotated[int, Field(ge=0)] | None = None
    """Number of run directories of one user's ended jobs; the oldest are removed first."""

    @property
    def is_unlimited(self) -> bool:
        """Return True if nothing is ever removed."""
        return self.age is None and self.bytes_per_user is None and self.count_per_user is None
