"""``runner submit --follow``: report the progress of one job until it ends.

The daemon may restart meanwhile.  Every request can be repeated, and the build log is read by offset, so
nothing is missed or printed twice.
"""

from __future__ import annotations

import codecs
import time
from typing import TYPE_CHECKING, ClassVar, Final

from runner.cli import formatting
from runner.cli.console import leave_with_reader, say, say_json, takes_escapes
from runner.cli.failure import complain_of_failure
from runner.cli.job_output import OutputReader, RawOutput
from runner.client.client import ChosenLog
from runner.client.http import ErrorResponse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from runner.client.client import Client, LogChunk
    from runner.client.types import JobDetail

LOOK_S: Final = 0.5
QUIET_S: Final = 10.0
"""A program that has run for so long and has not said how far it is may never say it."""

PLAIN_EVERY_S: Final = 5.0  # between progress lines in a pipe, by the program's timestamps


class View:
    """The output of a followed job: lines about changes of its state, and now and then about its progress."""

    shows_output: ClassVar = True

    def __init__(self) -> None:
        self._shown_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def say(self, line: str) -> None:
        """Print a permanent line."""
        say(line)

    def build(self, line: str) -> None:
        """Show a line of the build log."""
        say(f"build: {line}")

    def output(self, piece: LogChunk) -> None:
        """Print what the program of the job has written."""
        RawOutput().write(piece)

    def look(self, job: JobDetail, eta_s: float | None) -> None:
        """Show the current state of the job."""
        progress = job["progress"]
        if progress is None or job["state"] != "running":
            return
        at = progress.get("time", 0.0)
        if self._shown_at is None or abs(at - self._shown_at) >= PLAIN_EVERY_S:
            self._shown_at = at
            say(formatting.progress_line(progress, eta_s))


class JsonView(View):
    """The job as one JSON object per line, printed at each change."""

    shows_output: ClassVar = False

    def __init__(self) -> None:
        super().__init__()
        self._last: JobDetail | None = None

    def say(self, line: str) -> None:
        """Do nothing: the object contains this information."""

    def build(self, line: str) -> None:
        """Do nothing: ``runner logs --build --json`` prints the build log."""

    def look(self, job: JobDetail, eta_s: float | None) -> None:  # noqa: ARG002  the reader can tell
        if job != self._last:
            self._last = job
            say_json(job)


class ReportedState:
    """The part of a job's history that has been reported already."""

    def __init__(self) -> None:
        self.state: tuple[str, int, str] | None = None
        self.attempts = 0  # whose end has been reported
        self.build_offset = 0
        self.build_open = True
        self.pace = formatting.RateEstimate()
        self._quiet_since: float | None = None
        self._hinted = False
        self._rest = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def news(self, job: JobDetail) -> list[str]:
        """Return the lines about changes since the last call."""
        lines = self.ended_attempts(job)
        kept_by = formatting.without_counts(job["why"]) if job["state"] == "starting" else ""
        state = (job["state"], job["attempt"], kept_by)
        if state != self.state and job["state"] not in {"finished", "held"}:
            lines.append(formatting.state_line(job))
        if self.state is None or state[1] != self.state[1]:
            self.pace = formatting.RateEstimate()
        self.state = state
        return lines + self._hint(job)

    def ended_attempts(self, job: JobDetail) -> list[str]:
        """Return a line for each attempt that has ended since the last call, but the last of an ended job."""
        lines = []
        for attempt in job["attempts"]:
            if attempt["ended_at"] and attempt["number"] > self.attempts:
                self.attempts = attempt["number"]
                if job["outcome"] is None or attempt is not job["attempts"][-1]:  # else the end says it
                    lines.append(formatting.attempt_line(attempt))
        return lines

    def _hint(self, job: JobDetail) -> list[str]:
        """Return once where the output is, for a program that reports no progress."""
        if job["state"] != "running" or job["progress"] is not None or self._hinted or is_program(job):
            self._quiet_since = None
            return []
        now = time.monotonic()
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        self._hinted = now - self._quiet_since >= QUIET_S
        hint = f"{job['name']}: has not said how far it is; runner logs -f {job['id']} shows what it prints"
        return [hint] if self._hinted else []

    def eta_s(self, job: JobDetail) -> float | None:
        """Return the remaining seconds, estimated from the steps seen so far."""
        if job["progress"] is None:
            return None
        self.pace.see(job["progress"])
        return self.pace.eta_s(job["progress"])

    def build_lines(self, piece: bytes) -> list[str]:
        """Return the lines that ``piece`` completes."""
        *lines, self._rest = (self._rest + self._decode(piece)).split("\n")
        return [line.rstrip() for line in lines if line.strip()]


def follow_to_the_end(client: Client, ref: str, *, as_json: bool = False) -> int:
    """Report on a job until it ends, and return the exit code for its outcome."""
    leave_with_reader()
    with _view(as_json=as_json) as view:
        job = follow(client, ref, view)
    if not as_json:
        say(formatting.end_line(job))
        complain_of_failure(client, job, with_log=not is_program(job))  # else its output has been shown
    return formatting.exit_code(job)


def is_program(job: JobDetail) -> bool:
    """Return True if a job is a program of the user's own, whose output tells more than its reports."""
    workload = ((job["revision"] or {}).get("job") or {}).get("workload") or {}
    return bool(workload.get("kind") == "program")


def follow(client: Client, ref: str, view: View) -> JobDetail:
    """Report on a job to ``view`` until it ends, and return the job."""
    told, limit_s, output = ReportedState(), 0.0, OutputReader(client, ref)
    while True:
        done, job = client.wait(ref, limit_s)
        if told.build_open:
            for line in new_build_lines(client, ref, told):
                view.build(line)
            told.build_open = job["state"] == "preparing"
        for line in told.news(job):
            view.say(line)
        if is_program(job) and view.shows_output:
            for piece in output.new_pieces(job):
                view.output(piece)
        view.look(job, told.eta_s(job))
        if done:
            return job
        limit_s = LOOK_S


def new_build_lines(client: Client, ref: str, told: ReportedState) -> Iterator[str]:
    """Yield the new lines of the build log."""
    try:
        piece = client.log(ref, ChosenLog("build"), offset=told.build_offset)
        while piece.next_offset > told.build_offset:
            told.build_offset = piece.next_offset
            yield from told.build_lines(piece.body)
            piece = client.log(ref, ChosenLog("build"), offset=told.build_offset)
    except ErrorResponse as error:
        if error.kind != "not_found":  # without a build there is no build log
            raise


def _view(*, as_json: bool) -> View:
    if as_json:
        return JsonView()
    if takes_escapes():
        from runner.cli.live_progress import LiveView

        return LiveView()
    return View()
