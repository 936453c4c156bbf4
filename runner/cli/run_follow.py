"""Following a job of ``runner run``: its output on stdout, and what the runner does with it on stderr."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from runner.cli import formatting
from runner.cli.console import complain, harmless, leave_with_reader, say_json
from runner.cli.failure import complain_of_failure
from runner.cli.follow import ReportedState, new_build_lines
from runner.cli.job_output import JsonOutput, OutputReader, RawOutput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType
    from typing import Self

    from runner.client.client import Client
    from runner.client.types import JobDetail

LOOK_S: Final = 0.5
"""The longest time until a change of the job's state is noticed."""

SHORT_S: Final = 2.0
"""The end of a job that is shorter is noticed at once, and the output of a longer one."""


class Follower:
    """Reports on one job until it ends; ``follow`` can be called again after an interrupt."""

    def __init__(self, client: Client, job_id: str, *, as_json: bool) -> None:
        self._client = client
        self._job_id = job_id
        self._as_json = as_json
        self._output = OutputReader(client, job_id)
        self._printed = JsonOutput() if as_json else RawOutput(ends_line=True)
        self._reported = ReportedState()
        self._status = StatusLine()
        self._last: JobDetail | None = None
        self._waits_for = ""
        self._running_since: float | None = None

    def follow(self) -> int:
        """Print the output of the job and its changes, and return the exit code for its outcome.

        Raises:
            KeyboardInterrupt: an interrupt; no output is lost or printed twice by another call.
        """
        leave_with_reader()
        limit_s = 0.0
        with Interrupts() as interrupts, self._status:
            while True:
                with interrupts.allowed():
                    done, job = self._client.wait(self._job_id, limit_s)
                self._report(job, has_waited=limit_s > 0)
                limit_s = 0.0 if self._print_output(job, interrupts, wait=not done) else LOOK_S
                if done:
                    break
        self._printed.end()
        if not self._as_json:
            complain(formatting.end_line(job))
            complain_of_failure(self._client, job, with_log=False)
        return formatting.exit_code(job)

    def _report(self, job: JobDetail, *, has_waited: bool) -> None:
        """Print what has changed since the last call."""
        if self._as_json:
            if job != self._last:
                self._last = job
                say_json(job)
            return
        for line in self._reported.ended_attempts(job):
            self._status.clear()
            self._printed.end()
            complain(f"{job['name']}: {line}")
        if self._reported.build_open:
            for line in new_build_lines(self._client, self._job_id, self._reported):
                self._status.show(f"{job['name']}: preparing the image: {line}")
            self._reported.build_open = job["state"] == "preparing"
        if has_waited and (
            job["state"] in {"preparing", "queued"} or (job["state"] == "starting" and job["why"])
        ):
            self._tell_wait(job)
        elif job["state"] == "running":
            self._status.clear()

    def _tell_wait(self, job: JobDetail) -> None:
        """Print what a job waits for; without a terminal only a reason that is not told yet."""
        line = formatting.state_line(job)
        if self._status.is_visible:
            if job["state"] != "preparing":  # of which the lines of the build tell more
                self._status.show(line)
        elif (reason := formatting.without_counts(line)) != self._waits_for:
            self._waits_for = reason
            complain(line)

    def _print_output(self, job: JobDetail, interrupts: Interrupts, *, wait: bool) -> bool:
        """Print the new output, and return whether the call has waited for some."""
        waits = self._has_run_long(job) and wait
        pieces = self._output.new_pieces(job, LOOK_S if waits else 0.0)
        while True:
            with interrupts.allowed():
                piece = next(pieces, None)
            if piece is None:
                return waits
            self._status.clear()
            self._printed.write(piece)

    def _has_run_long(self, job: JobDetail) -> bool:
        if job["state"] != "running":
            self._running_since = None
            return False
        now = time.monotonic()
        self._running_since = now if self._running_since is None else self._running_since
        return now - self._running_since >= SHORT_S


class StatusLine:
    """One line on a terminal's stderr that is replaced by the next; nothing elsewhere."""

    def __init__(self) -> None:
        self.is_visible = sys.stderr.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, line: str) -> None:
        """Replace the line, cut to the width of the terminal."""
        if self.is_visible and line != self._shown:
            self._shown = line
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            self._write(f"\r\x1b[K{harmless(line)[: columns - 1]}")

    def clear(self) -> None:
        if self._shown:
            self._shown = ""
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


class Interrupts:
    """Delays SIGINT to the next ``allowed`` section, so that output is written whole and once."""

    def __init__(self) -> None:
        self._is_allowed = False
        self._is_pending = False

    def __enter__(self) -> Self:
        self._former = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._former)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let an interrupt raise ``KeyboardInterrupt`` in the body; one that is pending raises now."""
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt
        self._is_allowed = True
        try:
            yield
        finally:
            self._is_allowed = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_allowed:
            raise KeyboardInterrupt
        self._is_pending = True
