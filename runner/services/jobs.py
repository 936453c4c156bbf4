"""The services of one daemon, by use case; the routes of ``runner.server.api`` translate them to HTTP."""

from runner.services.context import ServiceContext
from runner.services.job_control import JobControlService
from runner.services.queries import JobQueries
from runner.services.submission.service import SubmissionService


class JobService(ServiceContext):
    """The context of a daemon with its services for jobs."""

    __slots__ = ()

    @property
    def submission(self) -> SubmissionService:
        """Submitting jobs."""
        return SubmissionService(self)

    @property
    def job_control(self) -> JobControlService:
        """Control of jobs: cancel, hold, release, restart, signal."""
        return JobControlService(self)

    @property
    def queries(self) -> JobQueries:
        """Looking up jobs."""
        return JobQueries(self)
