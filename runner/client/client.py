"""Requests to the daemon: the class ``Client`` with one method per request.

Few standard modules are imported, so that a submission takes little longer than the start of Python.
The module does not print; the callback ``tell`` receives messages for the user.
"""

from __future__ import annotations

import json
import os
from binascii import b2a_base64
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runner.base.errors import RunnerError, Unavailable
from runner.base.readable import readable_duration
from runner.client.autostart import (
    SYSTEM_SOCKET,
    NoDaemon,
    answers,
    connect,
    endpoints,
    reap_children,
    remote_host,
    start,
    was_stopped,
)
from runner.client.http import Response, begin, exchange, query_string, quote_path, raise_for_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Self

    from runner.client.autostart import Endpoint, Tell
    from runner.client.http import Query, StreamedBody
    from runner.client.types import JobDetail, JobEvent, JobSummary

ANSWER_LIMIT_S: Final = 30.0  # in addition to the wait that the request asks for
STREAM_LIMIT_S: Final = 120.0  # between two pieces of an answer
ABSENCE_LIMIT_S: Final = 60.0  # how long a client waits for a daemon that it may not start
ABSENCE_POLL_S: Final = 0.2
QUESTION_TRIES: Final = 5  # of a read-only request, if the daemon dies during it
FOLLOW_PATIENCE_S: Final = 30.0  # how long a following client tries to restart the daemon
FOLLOW_PAUSE_S: Final = (0.1, 2.0)  # between tries of a following client: first, longest
SUBMIT_PATIENCE_S: Final = 30.0  # how long a submission is repeated if the daemon keeps dying
SUBMIT_PAUSE_S: Final = 0.1
EVENTS_WAIT_S: Final = 30.0  # of a request for events that come
PENDING_S: Final = 2.0  # how long a submission waits for its packages before it tells what goes on
INTERRUPTED_LIMIT_S: Final = 2.0  # for the answer to what is known of an interrupted submission
TELLERS: Final = {
    "apply": "runner revisions JOB",
    "devices": "runner gpus",
    "schedules": "runner schedule list",
    "stop": "runner version",
}
AWAY_S: Final = 2.0  # how long a daemon elsewhere is waited for before that is told
AWAY: Final = (
    "{}: its daemon does not answer; jobs go on, and this command waits until one does (runner list starts"
    " yours there); Ctrl-C ends the wait"
)
ENDED: Final = 200
"""Jobs that have ended that a list has unless more are asked for."""

EVERY: Final = 10**9
"""A limit that no list reaches."""

TOO_MANY: Final = 429
"""The status of a request that was refused before anything was done, and may be sent again."""

CROWDED_PATIENCE_S: Final = 30.0
"""Time for which a request is sent again that is refused because its user asks too often."""

UNREADABLE: Final = "the store has a row that cannot be read, and is left out: "
STOPPED: Final = (
    "the daemon was stopped; jobs go on, and this command waits until another one starts it"
    " (runner list does); Ctrl-C ends the wait"
)


def file_fields(path: str, text: bytes, shown: str) -> dict[str, str]:
    """Return a job file as requests have it; ``shown`` is its name in messages."""
    content = b2a_base64(text, newline=False).decode()
    return {"path": os.path.abspath(path), "shown": shown, "text_b64": content}


def _silent(_line: str) -> None:
    """Discard a message."""


class ChosenLog(NamedTuple):
    """The log that is to be read, and where it begins if not at an offset."""

    part: str = "job"
    attempt: int | None = None  # None: the newest
    tail: int | None = None  # lines
    since: float | None = None  # Unix time
    rank: int | None = None  # None: the first process


class LogChunk(NamedTuple):
    """A piece of a log, and the offset of the next one."""

    body: bytes
    offset: int
    next_offset: int
    attempt: int | None  # None: there is no attempt yet
    cut: tuple[int, int] | None  # the range that the quota took out of this piece
    attempt_ended: bool
    next_attempt: int | None
    job_ended: bool


class InterruptedRequest(KeyboardInterrupt):
    """Somebody interrupted a request that changes something before its answer; says what is known."""


class ConnectionLost(Unavailable):
    """The daemon closed the connection before it answered; the request may have taken effect."""


class NoAnswer(Unavailable):
    """The daemon did not answer in time; the request may have taken effect."""


class Client:
    """Requests to the daemon at one endpoint; methods raise only subclasses of ``RunnerError``."""

    def __init__(
        self, endpoint: Endpoint, tell: Tell = _silent, *, follows: bool = False, until_s: float | None = None
    ) -> None:
        self.endpoint = endpoint
        self.tell = tell
        self.more = False  # whether the last list of jobs left out some that have ended
        self.unrecorded: list[str] = []  # run directories that the last list of jobs knew no job of
        self._follows = follows
        self._until_s = until_s  # time of ``monotonic``; None: no limit

    def following(self, until_s: float | None = None) -> Self:
        """Return a client that repeats requests if the daemon dies, until a time of ``monotonic``.

        The client gives up a daemon that cannot be restarted: at that time, or after ``FOLLOW_PATIENCE_S``.
        It does not restart a daemon that somebody has stopped, but waits until somebody else does.
        """
        return type(self)(self.endpoint, self.tell, follows=True, until_s=until_s)

    def get(self, path: str, query: Query | None = None, wait_s: float = 0.0) -> Any:  # noqa: ANN401  JSON
        """Return the JSON answer to a GET request; a daemon that has exited is started again."""
        return json.loads(self._get(path, query, wait_s).body)

    def post(self, path: str, body: Mapping[str, object]) -> Any:  # noqa: ANN401  JSON
        """Return the JSON answer to a request that changes something; it is sent at most once."""
        return json.loads(self.ask("POST", path, json.dumps(body).encode(), ANSWER_LIMIT_S).body)

    def version(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.get("/v1/version")
        return answer

    def submit(  # noqa: PLR0913  one per field of the request
        self,
        path: str,
        text: bytes,
        name: str | None,
        *,
        dry_run: bool = False,
        instead: Mapping[str, object] | None = None,
        shown: str | None = None,
    ) -> dict[str, Any]:
        """Return ``{"job": Summary, "jobs": [Summary, ...], "warnings": [...]}``; a plan if ``dry_run``.

        ``path`` is as the user typed it, and ``shown`` its name in messages, if that differs; ``instead``
        replaces fields of the file.  The submission has a
        token, so that a repetition after the death of the daemon creates no second job.
        """
        body = {
            **file_fields(path, text, shown or path),
            "name": name,
            "token": os.urandom(16).hex(),
            "dry_run": dry_run,
            "wait_s": PENDING_S,
            **({"instead": instead} if instead else {}),
        }
        try:
            return self._until_answered(body)
        except KeyboardInterrupt as stopped:
            raise InterruptedRequest(f"interrupted; {self._submitted(str(body['token']))}") from stopped

    def _submitted(self, token: str) -> str:
        """Return the record of a submission in a daemon; it is asked once, and not for long."""
        try:
            answer = self.ask("GET", f"/v1/submissions/{token}", None, INTERRUPTED_LIMIT_S)
            ids = [str(job["id"]) for job in json.loads(answer.body)["jobs"]]
        except RunnerError:
            return "whether it was submitted is unknown: runner list --mine shows it"
        if not ids:
            return "nothing is submitted so far: runner list --mine shows if that changes"
        which = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
        return f"it is submitted as {which} all the same: runner cancel {' '.join(ids)} ends it"

    def _until_answered(self, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a submission until a daemon answers, and return the answer; the token makes it idempotent.

        Raises:
            Unavailable: no daemon answered for ``SUBMIT_PATIENCE_S``.
        """
        from threading import Event

        pause, deadline, told = Event(), monotonic() + SUBMIT_PATIENCE_S, ""
        while True:
            overdue = monotonic() >= deadline  # checked before sending, so that a late daemon is asked too
            try:
                answer: dict[str, Any] = self.post("/v1/jobs", body)
            except (NoDaemon, ConnectionLost) as error:
                lost = self._lost(error)
            else:
                if "pending" not in answer:
                    return answer
                deadline = monotonic() + SUBMIT_PATIENCE_S
                told = self._tell_pending(answer["pending"], told)
                continue
            if overdue:
                raise lost
            pause.wait(SUBMIT_PAUSE_S)

    def _tell_pending(self, pending: Mapping[str, Any], told: str) -> str:
        """Tell what a submission waits for, unless that was told last; return what was told."""
        text = str(pending["text"])
        if text != told:
            self.tell(text)
        return text

    def _lost(self, error: Unavailable) -> Unavailable:
        """Try to start a daemon again, and return the error of an exchange without an answer."""
        try:
            self.await_return()
        except Unavailable as worse:  # it may have been killed while it started
            return worse
        return error

    def jobs(  # noqa: PLR0913  one per part of the query
        self,
        *,
        everything: bool = False,
        mine: bool = False,
        limit: int | None = None,
        label: str | None = None,
        wanted: Callable[[JobSummary], bool] | None = None,
        ended: bool | None = None,
        last: bool = False,
    ) -> list[JobSummary]:
        """Return jobs, the newest first, fetched page by page; only those that ``wanted`` accepts.

        Without a limit there are all jobs that have not ended, and the newest ``ENDED`` of those that have,
        in one request if they are few; ``more`` says whether there would be others.  ``ended`` leaves out the
        ones or the others.  With ``last`` jobs have the last numbers of those that have ended.
        """
        query: Query = {"all": int(everything), "mine": int(mine), "label": label, "last": int(last) or None}
        self.unrecorded, self.more = [], False
        if limit is not None or label is not None:
            return self._pages(query, limit, wanted)
        found: list[JobSummary] = []
        over: list[JobSummary] = []
        cursor: int | None = None
        if ended is None:
            page, cursor = self._page(query, None, None, wanted)
            if cursor is None:
                return page
            found = [job for job in page if job["state"] != "finished"]
            over = [job for job in page if job["state"] == "finished"]
        if ended is not True:
            found += self._pages({**query, "ended": 0}, None, wanted, cursor)
        if ended is not False:
            over += self._pages({**query, "ended": 1}, ENDED + 1 - len(over), wanted, cursor)
        self.more = len(over) > ENDED
        known = {job["id"] for job in found}  # one may have ended since
        new = [job for job in over[:ENDED] if job["id"] not in known]
        return sorted(found + new, key=lambda job: -int(job["id"])) if new else found

    def _pages(
        self,
        query: Query,
        limit: int | None,
        wanted: Callable[[JobSummary], bool] | None,
        cursor: int | None = None,
    ) -> list[JobSummary]:
        found: list[JobSummary] = []
        while limit is None or len(found) < limit:
            left = None if limit is None or wanted else limit - len(found)
            page, cursor = self._page(query, left, cursor, wanted)
            found += page
            if cursor is None:
                break
        return found if limit is None else found[:limit]

    def _page(
        self, query: Query, limit: int | None, cursor: int | None, wanted: Callable[[JobSummary], bool] | None
    ) -> tuple[list[JobSummary], int | None]:
        """Return the wanted jobs of a page, and the cursor of the next one."""
        answer = self.get("/v1/jobs", {**query, "limit": limit, "cursor": cursor})
        self.unrecorded += [job for job in answer.get("unrecorded", ()) if job not in self.unrecorded]
        return list(filter(wanted, answer["jobs"])) if wanted else answer["jobs"], answer.get("next")

    def sweep(self, ref: str, *, last: bool = False) -> list[JobSummary]:
        """Return all jobs of a matrix, in order; ``ref`` is one of its jobs, or the matrix itself."""
        query: Query = {"sweep": ref, "last": int(last) or None}
        answer: list[JobSummary] = self.get("/v1/jobs", query)["jobs"]
        return answer

    def job(self, ref: str) -> JobDetail:
        answer: JobDetail = self.get(f"/v1/jobs/{quote_path(ref)}")
        return answer

    def with_account(self, job: JobDetail) -> JobDetail:
        """Return a job with its account, if the caller may have it and the daemon makes one."""
        if job["revision"] is None:
            return job
        try:
            return {**job, "account": self.get(f"/v1/jobs/{quote_path(job['id'])}/account")}
        except RunnerError:  # curves that cannot be read now
            return job

    def why(self, ref: str) -> dict[str, Any]:
        """Return the pending reason or the activity of a job, with an estimate of its end."""
        answer: dict[str, Any] = self.get(f"/v1/jobs/{quote_path(ref)}/why")
        return answer

    def wait(self, ref: str, timeout_s: float) -> tuple[bool, JobDetail]:
        """Return (is the job finished or held, the job) when it is, or after ``timeout_s``."""
        answer = self.get(f"/v1/jobs/{quote_path(ref)}/wait", {"timeout": timeout_s}, wait_s=timeout_s)
        return bool(answer["done"]), answer["job"]

    def wait_for_start(self, ref: str, timeout_s: float) -> tuple[bool, JobDetail]:
        """Return (does the job run or wait no more, the job) when that is so, or after ``timeout_s``."""
        query: Query = {"timeout": timeout_s, "started": 1}
        answer = self.get(f"/v1/jobs/{quote_path(ref)}/wait", query, wait_s=timeout_s)
        return bool(answer["done"]), answer["job"]

    def act(self, ref: str, verb: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Return the answer to ``cancel``, ``hold``, ``release``, ``signal`` or ``restart``."""
        answer: dict[str, Any] = self.post(f"/v1/jobs/{quote_path(ref)}/{verb}", body)
        return answer

    def cancel_all(self, refs: Sequence[str] = (), sweep: str | None = None) -> list[dict[str, Any]]:
        """Cancel jobs in one request, by reference or all of a matrix; return the jobs with what changed."""
        answer: list[dict[str, Any]] = self.post("/v1/cancel", {"jobs": list(refs), "sweep": sweep})["jobs"]
        return answer

    def decisions(self, ref: str, attempt: int | None = None) -> list[dict[str, Any]]:
        """Return the records of the decisions about a job, the oldest first; tell what is damaged."""
        answer = self.get(f"/v1/jobs/{quote_path(ref)}/decisions", {"attempt": attempt})
        for row in answer.get("unreadable", ()):
            self.tell(f"{UNREADABLE}{row}")
        found: list[dict[str, Any]] = answer["decisions"]
        return found

    def log(
        self, ref: str, chosen: ChosenLog | None = None, *, offset: int = 0, wait_s: float = 0.0
    ) -> LogChunk:
        """Return the bytes of one log from ``offset`` on; wait up to ``wait_s`` if there are none yet."""
        query: Query = {"offset": offset, "wait": wait_s, **(chosen or ChosenLog())._asdict()}
        return parse_log_chunk(self._get(f"/v1/jobs/{quote_path(ref)}/log", query, wait_s), offset)

    def events(
        self, ref: str | None, after: int, *, wait_s: float = 0.0, limit: int = 1000
    ) -> tuple[list[JobEvent], int]:
        """Return (events after a sequence number, the sequence number for the next request)."""
        query: Query = {"job": ref, "after": after, "wait": wait_s, "limit": limit}
        answer = self.get("/v1/events", query, wait_s)
        return answer["events"], answer["next"]

    def all_events(self, ref: str | None, after: int = 0, *, follow: bool = False) -> Iterator[JobEvent]:
        """Yield the events after a sequence number, fetched page by page; with ``follow`` without end."""
        following, seen = after, -1
        while follow or following != seen:  # a page of what is others' alone is empty, and not the last one
            seen = following
            page, following = self.events(ref, seen, wait_s=EVENTS_WAIT_S if follow else 0.0)
            yield from page

    def stop(self) -> None:
        """Ask the daemon to exit; a daemon that has already exited is no error."""
        with suppress(NoDaemon, ConnectionLost):
            self.post("/v1/stop", {})

    def _get(self, path: str, query: Query | None, wait_s: float) -> Response:
        target = path + query_string(query or {})
        if self._follows:
            return self._get_persistently(target, wait_s)
        for _ in range(QUESTION_TRIES):
            try:
                return self.ask("GET", target, None, wait_s + ANSWER_LIMIT_S)
            except (NoDaemon, ConnectionLost):
                self.await_return()
        return self.ask("GET", target, None, wait_s + ANSWER_LIMIT_S)

    def _get_persistently(self, target: str, wait_s: float) -> Response:
        """Repeat a request until it is answered, and return the answer; see ``following``."""
        from threading import Event

        never, (pause_s, longest_s) = Event(), FOLLOW_PAUSE_S
        reached_s = lost_s = monotonic()
        told = self.endpoint.state_dir is not None  # one of the user's own has words of its own
        is_silent = False
        while True:
            if not told and monotonic() - lost_s > AWAY_S + wait_s:
                told = True
                self.tell(AWAY.format(remote_host(os.environ) or self.endpoint.socket))
            try:
                return self.ask("GET", target, None, wait_s + ANSWER_LIMIT_S)
            except ConnectionLost as error:  # a daemon had accepted the connection
                lost: Unavailable = error
                reached_s, is_silent = monotonic(), False
            except NoAnswer as error:  # ssh finds out later that the line is dead: one more try
                if is_silent or remote_host(os.environ) is None:
                    raise
                lost = error
                reached_s, is_silent = monotonic(), True
            except NoDaemon as error:
                lost = error
            try:
                if self.was_stopped():
                    self._await_another_daemon()
                else:
                    self.await_return()  # one answers now
                reached_s = monotonic()
            except Unavailable as error:  # it may have been killed while it started
                lost = error
            if monotonic() >= (self._until_s or reached_s + FOLLOW_PATIENCE_S):
                raise lost
            never.wait(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    def was_stopped(self) -> bool:
        """Return True if the daemon is gone because somebody has stopped it."""
        directory = self.endpoint.state_dir
        return directory is not None and not answers(self.endpoint.socket) and was_stopped(directory)

    def _await_another_daemon(self) -> None:
        """Wait until another command has started a daemon, after one that was stopped.

        Raises:
            Unavailable: there is none at the time until which this client follows.
        """
        from threading import Event

        self.tell(f"{self.endpoint.state_dir}: {STOPPED}")
        never = Event()
        while not answers(self.endpoint.socket):
            if self._until_s is not None and monotonic() >= self._until_s:
                raise Unavailable(f"{self.endpoint.state_dir}: the daemon was stopped; jobs go on")
            never.wait(ABSENCE_POLL_S)

    def await_return(self) -> None:
        """Wait until the same daemon answers again; start it if the user may."""
        reap_children()
        if remote_host(os.environ) is not None:
            endpoints(os.environ, os.geteuid(), starts=False)  # connects again, to the same place
        elif self.endpoint.state_dir is None:
            _await_daemon(self.endpoint.socket)
        elif not answers(self.endpoint.socket):
            start(self.endpoint, self.tell)

    @contextmanager
    def stream(self, target: str) -> Iterator[StreamedBody]:
        """Yield the body of the answer to a GET request, to be read piece by piece.

        Raises:
            ErrorResponse: the daemon refused the request.
            ConnectionLost: the daemon closed the connection early.
        """
        with connect(self.endpoint.socket) as connection, connection.makefile("rb") as stream:
            connection.settimeout(STREAM_LIMIT_S)
            try:
                answer = begin(connection, stream, target)
            except OSError as error:
                raise ConnectionLost(f"{self.endpoint.socket}: the daemon stopped ({error})") from error
            if isinstance(answer, Response):
                raise_for_error(answer)
            yield answer

    def ask(self, method: str, target: str, body: bytes | None, limit_s: float) -> Response:
        """Return the answer to one request, sent once, or again while the daemon refuses it as one too many.

        Raises:
            ErrorResponse: the daemon refused the request.
            NoDaemon: no process listens at the socket.
            ConnectionLost: the daemon closed the connection before it answered.
            NoAnswer: the answer took too long.
        """
        until_s = monotonic() + CROWDED_PATIENCE_S
        while (answer := self._ask_once(method, target, body, limit_s)).status == TOO_MANY:
            from threading import Event

            after = answer.headers.get("retry-after", "")
            wait_s = float(after) if after.isdecimal() else 1.0
            if monotonic() + wait_s > until_s:
                break
            Event().wait(wait_s)
        if answer.status >= 300:
            raise_for_error(answer)
        return answer

    def _ask_once(self, method: str, target: str, body: bytes | None, limit_s: float) -> Response:
        with connect(self.endpoint.socket) as connection:
            connection.settimeout(limit_s)
            try:
                return exchange(connection, method, target, body)
            except KeyboardInterrupt as stopped:
                if method == "GET":
                    raise
                fact = "the daemon was asked, and whether it has done it is unknown"
                raise InterruptedRequest(f"interrupted; {fact}: {_teller(target)} shows it") from stopped
            except TimeoutError as error:
                done = "" if method == "GET" else "; it may have been done: see runner list"
                raise NoAnswer(
                    f"{self.endpoint.socket}: no answer within {readable_duration(limit_s)}{done}"
                ) from error
            except OSError as error:
                raise ConnectionLost(
                    f"{self.endpoint.socket}: the daemon stopped before the answer ({error}); see runner list"
                ) from error


def _teller(target: str) -> str:
    """Return the command that shows whether a request has taken effect."""
    _, _, what, *names = target.split("/")
    if what == "jobs" and names:
        return f"runner show {'JOB' if '%' in names[0] else names[0]}"
    return TELLERS.get(what, "runner list")


def parse_log_chunk(answer: Response, offset: int) -> LogChunk:
    """Return a piece of a log with the offsets from the headers of the answer."""
    headers = answer.headers
    start, _, end = headers.get("x-runner-cut", "").partition("-")
    return LogChunk(
        body=answer.body,
        offset=offset,
        next_offset=int(headers.get("x-runner-next-offset", offset + len(answer.body))),
        attempt=_optional(headers.get("x-runner-attempt")),
        cut=(int(start), int(end)) if end else None,
        attempt_ended=headers.get("x-runner-attempt-ended") == "1",
        next_attempt=_optional(headers.get("x-runner-next-attempt")),
        job_ended=headers.get("x-runner-job-ended") == "1",
    )


def _optional(text: str | None) -> int | None:
    return int(text or 0) or None


def find(tell: Tell = _silent, *, starts: bool = False) -> Client:
    """Return a client of the first daemon that answers; with ``starts`` another machine starts one there.

    Raises:
        NoDaemon: no daemon answers; the message is about the last endpoint.
    """
    *others, last = endpoints(os.environ, os.geteuid(), starts=starts)
    for endpoint in others:
        try:
            connect(endpoint.socket).close()
            return Client(endpoint, tell)
        except NoDaemon:
            continue
    connect(last.socket).close()
    return Client(last, tell)


def find_running(tell: Tell = _silent) -> Client:
    """Return a client of the first daemon that answers, for what only a daemon that runs can do.

    Raises:
        NoDaemon: no daemon answers; the message says how to start one.
    """
    try:
        return find(tell)
    except NoDaemon as absent:
        advice = "start that of all users with: systemctl start runner; your own with: runner list"
        raise NoDaemon(f"{absent}; {advice}") from absent


def find_or_start(tell: Tell = _silent) -> Client:
    """Return a client of the first daemon that answers; otherwise start the user's own daemon.

    If the daemon of all users is down, the function waits for it.
    """
    try:
        return find(tell, starts=True)
    except NoDaemon as absent:
        last = endpoints(os.environ, os.geteuid())[-1]
        if remote_host(os.environ) is not None:
            connect(last.socket).close()  # another command of this user was making the connection anew
        elif last.socket == SYSTEM_SOCKET:
            tell(f"{absent}; waiting for the daemon of all users")
            _await_daemon(last.socket)
        else:
            start(last, tell)
        return Client(last, tell)


def job_names(limit_s: float) -> list[str]:
    """Return the job names for completion, or none after ``limit_s``; no daemon is started."""
    try:
        client = find()
        return [job["name"] for job in json.loads(client.ask("GET", "/v1/jobs", None, limit_s).body)["jobs"]]
    except RunnerError:
        return []


def _await_daemon(path: str) -> None:
    """Wait until a daemon answers that this client may not start.

    Raises:
        NoDaemon: no daemon answered within a minute.
    """
    from threading import Event

    never = Event()
    for _ in range(round(ABSENCE_LIMIT_S / ABSENCE_POLL_S)):
        if answers(path):
            return
        never.wait(ABSENCE_POLL_S)
    connect(path).close()
