"""HTTP for the files of a job: what its attempts have written, as a tar archive."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import structlog
from fastapi import Query
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from runner.agent.attempts.output import locate_output
from runner.base.errors import RunnerError, Unavailable, UsageError
from runner.base.readable import readable_duration
from runner.core.ports.users import Archive
from runner.files.revision import parse_revision
from runner.server.api.deps import CallerDep, ServiceDep, make_router
from runner.server.api.threads import run_in_share
from runner.services.context import Caller
from runner.services.jobs import JobService

router: Final = make_router()

log = structlog.get_logger(__name__)

PART_BYTES: Final = 256 * 1024
SILENCE_S: Final = 60.0
"""Longest wait for the next bytes of a file system."""


@router.get("/jobs/{reference}/files")
async def get_files(
    reference: str, service: ServiceDep, caller: CallerDep, path: str = Query("", max_length=4096)
) -> Response:
    """Answer with a file or a directory of a job as a tar archive, in which it is called "."."""
    archive = await run_in_share(_open, service, caller, reference, path)
    parts = _parts(archive)
    first = await anext(parts)  # what is wrong from the beginning is an answer of its own
    return PartsResponse(_chain(first, parts), media_type="application/x-tar")


class PartsResponse(StreamingResponse):
    """An answer that is cut short, without a trace in the log, if its parts cannot be completed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer; the server closes the connection of one that is not complete."""
        try:
            await super().__call__(scope, receive, send)
        except RunnerError as error:
            log.info("files.cut_short", problem=str(error))


async def _chain(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in others:
        yield part


def _open(service: JobService, caller: Caller, reference: str, path: str) -> Archive:
    row = service.queries.readable(caller, reference)
    directory = service.attempt_service.directory(row)
    paths = directory.paths(max(row.job.attempts, 1), row.job.lineage)
    works = parse_revision(row.revision).working_directory() is not None
    where = locate_output(paths, path, works=works)
    try:
        return service.users.archive_as_owner(row.owner, directory.root, str(where))
    except OSError as error:
        raise UsageError(f"job {row.job.id}: has no files yet, or they were removed") from error


async def _parts(archive: Archive) -> AsyncIterator[bytes]:
    """Yield the archive; an archive that cannot be completed ends without its last part.

    Raises:
        UsageError: it cannot be completed.
        Unavailable: the file system or a worker does not answer.
    """
    try:
        while part := await _part(archive):
            yield part
        if (problem := await run_in_share(archive.problem)) is not None:
            raise UsageError(problem)
    finally:
        archive.close()


async def _part(archive: Archive) -> bytes:
    archive.stream.setblocking(False)  # noqa: FBT003  (the standard library's signature)
    receiving = asyncio.get_running_loop().sock_recv(archive.stream, PART_BYTES)
    try:
        return await asyncio.wait_for(receiving, SILENCE_S)
    except TimeoutError as error:
        raise Unavailable(f"no answer from the file system in {readable_duration(SILENCE_S)}") from error
