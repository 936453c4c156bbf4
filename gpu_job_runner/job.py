"""Jobs as values: submit one, find one, wait for it, control it, and read what it tells.

Everything goes through ``runner.client``, so a script sees the daemon that the commands see, also on another
machine (``RUNNER_HOST``, ``runner host use``), and gets their messages as exceptions.
"""

from __future__ import annotations

import asyncio
import codecs
import sys
import tarfile
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from runner.base.errors import Refused, RunnerError, Unavailable, UsageError
from runner.client.client import ChosenLog, Client, find_or_start
from runner.client.http import ErrorResponse, query_string, quote_path
from runner.client.log import pieces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from runner.client.http import Response
    from runner.client.types import JobDetail, JobEvent, JobSummary

T_co = TypeVar("T_co", covariant=True)

LOOK_S: Final = 30.0
"""Seconds that one request waits."""

AWAIT_S: Final = 1.0
"""Seconds that a thread waits for an asynchronous program, which ends once its threads have."""

READ_BYTES: Final = 256 * 1024

KINDS: Final = {each.exit_code: each for each in (UsageError, Refused, Unavailable)}

CALL: Final = "gpu_job_runner.call"
"""The word in a command that says that it calls a function."""


class JobFailed(RunnerError):
    """The job did not succeed: it failed, was cancelled, or is held."""

    exit_code: ClassVar[int] = 10

    def __init__(self, message: str, job: Job[object]) -> None:
        super().__init__(message)
        self.job = job


class Job(Generic[T_co]):
    """One job of the daemon; ``await job`` is the same as ``job.result()`` for asynchronous programs."""

    def __init__(self, summary: JobSummary, connection: Connection) -> None:
        self.id = summary["id"]
        self.name = summary["name"]
        self._connection = connection

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name}>"

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._result().__await__()

    async def _result(self) -> T_co:
        """Return ``result()``; one that is cancelled leaves no thread that waits."""
        client = self._connection.following()
        while not (await asyncio.to_thread(client.wait, self.id, AWAIT_S))[0]:
            continue
        return await asyncio.to_thread(self.result)

    @property
    def state(self) -> str:
        """The state at present, such as ``queued`` or ``running``; the outcome of a job that has ended."""
        return state_word(self.detail())

    @property
    def done(self) -> bool:
        """True if the job has ended or is held."""
        return self._connection.wait(self.id, 0.0)[0]

    def detail(self) -> JobDetail:
        """Return everything that ``runner show --json`` prints."""
        return self._connection.job(self.id)

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait until the job has ended or is held, and return its state.

        Raises:
            TimeoutError: it has not within ``timeout_s``.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        client = self._connection.following(deadline)
        while True:
            left_s = LOOK_S if deadline is None else min(deadline - time.monotonic(), LOOK_S)
            done, job = client.wait(self.id, max(left_s, 0.0))
            if done:
                return state_word(job)
            if left_s <= 0:
                why = f": {job['why']}" if job["why"] else ""
                raise TimeoutError(f"{self.name}: {job['state']} after {timeout_s:g} s{why}")

    def result(self, timeout_s: float | None = None) -> T_co:
        """Wait for the job, and return what its function returned; of other jobs, its last report.

        Raises:
            JobFailed: it did not succeed.
            RemoteError: its function raised an exception.
            TimeoutError: it has not ended within ``timeout_s``.
        """
        self.wait(timeout_s)
        detail = self.detail()
        if is_call(detail):
            from gpu_job_runner.function import returned

            value: T_co = returned(self, detail)
            return value
        self.check(detail)
        report: Any = detail["result"]
        return report  # type: ignore[no-any-return]  # of such a job T is a dictionary

    def check(self, detail: JobDetail) -> None:
        """Raise an error unless the job has succeeded."""
        if (word := state_word(detail)) != "succeeded":
            raise JobFailed(f"{self.name}: {word}{': ' if detail['why'] else ''}{detail['why']}", self)

    def logs(self, attempt: int | None = None, rank: int = 0) -> str:
        """Return what the newest attempt, or that of a number, has written to stdout and stderr so far.

        ``rank`` is one of its processes.
        """
        chosen = ChosenLog(attempt=attempt, rank=rank)
        found = b"".join(piece.body for piece in pieces(self._connection, self.id, chosen))
        return found.decode(errors="replace")

    def follow(self) -> Iterator[str]:
        """Yield the output of the job, piece by piece, from its first attempt on until it ends."""
        client, attempt, offset = self._connection.following(), 1, 0
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while not client.wait_for_start(self.id, LOOK_S)[0]:
            continue
        while True:
            piece = client.log(self.id, ChosenLog(attempt=attempt), offset=offset, wait_s=LOOK_S)
            if piece.next_offset > offset:
                offset = piece.next_offset
                yield decoder.decode(piece.body)
            elif piece.next_attempt is not None:
                attempt, offset = piece.next_attempt, 0
            elif piece.job_ended:
                return
            elif piece.attempt_ended:  # which is answered at once: the next one is to be waited for
                client.wait_for_start(self.id, LOOK_S)

    def metrics(self) -> dict[str, list[tuple[int | None, float]]]:
        """Return the curves that the job has reported: by name its points (step, value)."""
        curves = self._connection.get(f"/v1/jobs/{quote_path(self.id)}/curves")["curves"]
        return {name: [(row[1], row[2]) for row in rows] for name, rows in curves.items()}

    def events(self) -> list[JobEvent]:
        """Return the events of the job, the oldest first."""
        return list(self._connection.all_events(self.id))

    def why(self) -> str:
        """Return the reason why the job waits, or what it does."""
        return str(self._connection.why(self.id)["why"])

    def cancel(self) -> None:
        """Cancel the job; a job that has ended stays as it is."""
        self._connection.act(self.id, "cancel", {})

    def hold(self) -> None:
        """Stop the job until ``release``; its program may save a checkpoint."""
        self._connection.act(self.id, "hold", {})

    def release(self) -> None:
        """Let a held job go on from its newest checkpoint."""
        self._connection.act(self.id, "release", {})

    def restart(self, start: str | int = "checkpoint") -> None:
        """Start another attempt: from the newest ``checkpoint``, from ``scratch``, or from a step."""
        if start not in {"checkpoint", "scratch"} and not isinstance(start, int):
            raise UsageError(f"restart: begins from checkpoint, scratch or a step, not {start!r}")
        self._connection.act(self.id, "restart", {"from": start})

    def read(self, path: str) -> bytes:
        """Return the content of a file that the job has written; ``runner cp`` says where paths begin.

        Raises:
            UsageError: there is no such file.
        """
        return self._connection.read(self.id, path)

    def is_mine(self) -> bool:
        """Return True if the job is the caller's own."""
        newest = self._connection.get("/v1/jobs", {"mine": 1, "limit": 1, "cursor": int(self.id) + 1})
        return [each["id"] for each in newest["jobs"]] == [self.id]


class Connection(Client):
    """A client whose errors are those of ``runner.base.errors``."""

    def ask(self, method: str, target: str, body: bytes | None, limit_s: float) -> Response:
        """Return the answer to one request; see ``Client.ask``."""
        try:
            return super().ask(method, target, body, limit_s)
        except ErrorResponse as error:
            raise translated(error) from error

    def read(self, ref: str, path: str) -> bytes:
        """Return the content of a file of a job."""
        try:
            with (
                self.stream(f"/v1/jobs/{quote_path(ref)}/files{query_string({'path': path})}") as body,
                tarfile.open(fileobj=body, mode="r|") as archive,  # type: ignore[call-overload]  # only read
            ):
                file = archive.extractfile(next(iter(archive)))
                if file is None:
                    raise UsageError(f"{path}: is a directory or a link; name a file")
                content: bytes = file.read()
                while body.read(
                    READ_BYTES
                ):  # the rest of the archive: a daemon whose reader has left logs it
                    continue
                return content
        except ErrorResponse as error:
            raise translated(error) from error
        except (OSError, tarfile.ReadError) as error:
            raise Unavailable(f"{path}: the answer ended early ({error}); try again") from error


def translated(error: ErrorResponse) -> RunnerError:
    """Return an answer of the daemon as the error that the command line would exit with."""
    found = KINDS.get(error.code, RunnerError)(str(error))
    found.details = error.details
    return found


def connect() -> Connection:
    """Return a connection to the daemon that the commands would ask; the user's own is started."""
    found = find_or_start(_tell)
    return Connection(found.endpoint, _tell)


def _tell(line: str) -> None:
    """Print a message of the client, such as that it starts a daemon, as the commands do."""
    sys.stderr.write(f"{line}\n")


def state_word(job: JobSummary) -> str:
    """Return the outcome of a job that has ended, or the state of another one."""
    return job["outcome"] or job["state"]


def is_call(detail: JobDetail) -> bool:
    """Return True if a job calls a function of ``run`` or ``map``."""
    file = (detail["revision"] or {}).get("job") or {}
    command = (file.get("workload") or {}).get("command") or ()
    return CALL in command[3:4]


def find(ref: str | int) -> Job[Any]:
    """Return a job by its id or its name, as the commands understand it.

    Raises:
        UsageError: there is none.
    """
    connection = connect()
    return Job(connection.job(str(ref)), connection)


def find_all(*, label: str | None = None, mine: bool = True) -> list[Job[Any]]:
    """Return jobs, the newest first: one's own, or all of them; perhaps those with a label alone."""
    connection = connect()
    return [Job(each, connection) for each in connection.jobs(label=label, mine=mine)]
