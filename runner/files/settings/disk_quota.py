"""Settings of the disk space of jobs that have not ended."""

from typing import Annotated

from pydantic import Field

from runner.files.types import Bytes, ClosedModel

Count = Annotated[int, Field(ge=1)]
Size = Annotated[Bytes, Field(ge=1)]


class DiskQuotaSettings(ClosedModel):
    """Limits of a running job and its owner below the run directories; null: no limit."""

    bytes_per_job: Size | None = None
    """Size of the directory of a job on the disk."""

    files_per_job: Count | None = None
    """Files and directories in the directory of a job.  An empty file takes no bytes, but an inode.  Null: no
    limit for one's own daemon, 500,000 for one that serves all users."""

    bytes_per_user: Size | None = None
    """Size of the directories of all jobs of a user, ended ones included."""

    files_per_user: Count | None = None
    """Files and directories in the directories of all jobs of a user, ended ones included."""

    every_s: Annotated[float, Field(ge=0.1, le=3600)] = 30.0
    """Seconds between two looks; a directory that takes long to measure is looked at less often."""
