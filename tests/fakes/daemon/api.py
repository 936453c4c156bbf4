"""A daemon's HTTP side without a daemon: answers from dictionaries that a test fills.

``turns`` holds what happens just before the next answers of one kind (``wait``, ``log``,
``events``, ``submit``), so a job can go through its life at the pace of the questions, without a clock.
Started as a program, it stands in for ``runner serve``.
"""

import io
import json
import os
import re
import signal
import socketserver
import sys
import tarfile
import threading
from base64 import b64decode
from collections import defaultdict, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

AT = "2026-03-01T12:00:00.000Z"
Json = dict[str, Any]

RESOLVED: Final = {
    "accelerator": "cuda",
    "network": "outbound",
    "code": {"snapshot": "0123456789abcdef"},
    "job": {
        "name": "train",
        "workload": {"kind": "program", "command": ["python", "train.py", "--name", "a b"]},
        "image": {"name": "auto", "requirements": ["x"]},
        "resources": {"gpus": 2, "cpus": 1.5, "memory": 4 * 1024**3, "time_limit": "2h"},
        "mounts": [{"source": "data", "target": "/data/x", "read_only": True}],
        "checkpoint": {"files": "out/c-*"},
        "queue": {"priority_class": "normal"},
        "priority": 50,
        "policy": "default",
        "retry": {"max_attempts": 3},
    },
}
"""What a dry run answers with, in part."""


class Vanish(Exception):
    """The connection breaks instead of an answer, as when the daemon is killed."""


class Problem(Exception):
    """An answer other than 2xx, in the agreed form."""

    def __init__(self, status: int, kind: str, exit_code: int, *lines: str) -> None:
        super().__init__(lines[0])
        self.status = status
        self.body = {
            "error": {"kind": kind, "message": lines[0], "lines": list(lines), "exit_code": exit_code}
        }


class FakeApi:
    """The state that is served, and a record of what was asked."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path
        self.jobs: dict[str, Json] = {}
        self.limits: list[Json] = []
        self.logs: dict[tuple[str, int], bytes] = {}
        self.builds: dict[str, bytes] = {}
        self.cuts: dict[tuple[str, int], tuple[int, int]] = {}
        self.events: list[Json] = []
        self.decisions: dict[str, list[Json]] = {}
        self.unreadable: list[str] = []  # rows of the store
        self.blocked: set[str] = set()  # paused jobs whose sweep waits for somebody
        self.secret: set[str] = set()  # jobs whose decisions and events are for others
        self.curves: dict[str, Json] = {}  # by job
        self.accounts: dict[str, Json] = {}  # by job
        self.files: dict[tuple[str, str], bytes] = {}  # by job and path
        self.whys: dict[str, Json] = {}
        self.changes: dict[str, list[Json]] = {}  # answers to come, by what is asked
        self.answers: dict[str, Json] = {}  # to every other question, by its first word
        self.asked: list[tuple[str, str, Json | None]] = []
        self.submitted: list[bytes] = []
        self.warnings: list[str] = []
        self.schedules: list[Json] = []
        self.made: Json | None = None  # the schedule that a submission makes
        self.problem: Problem | None = None  # of the next submission
        self.matrix = 0  # jobs that the next submission makes, if it has a matrix
        self.turns: dict[str, deque[Callable[[], None]]] = defaultdict(deque)
        self.left = threading.Event()
        self._server = _listen(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.socket_path.unlink(missing_ok=True)

    def add(self, name: str = "train", **facts: object) -> Json:
        """Return a new job, in the middle of its first attempt unless told otherwise."""
        job = {**a_job(f"{len(self.jobs) + 1:06}", name), **facts}
        self.jobs[job["id"]] = job
        return job

    def happen(self, kind: str, *turns: Callable[[], None] | Json) -> None:
        """Append to what happens before the next answers of one kind: a call, or facts of the first job."""
        first = next(iter(self.jobs.values()))
        for turn in turns:
            self.turns[kind].append(turn if callable(turn) else _change(first, turn))

    def take_turn(self, kind: str) -> None:
        if self.turns[kind]:
            self.turns[kind].popleft()()

    def find(self, ref: str) -> Json:
        named = [job for job in self.jobs.values() if job["name"] == ref]
        begun = [job for job in self.jobs.values() if job["id"].startswith(ref)]
        for found in (*named[-1:], *begun):
            return found
        raise Problem(404, "not_found", 2, f"{ref}: there is no job of that id or name")


def a_job(job_id: str = "000001", name: str = "train") -> Json:
    """Return the detail of a job that is running."""
    progress = {"phase": "train", "time": 1000.0, "step": 10, "total_steps": 100, "items_per_s": 5123.0}
    return {
        "id": job_id, "name": name, "owner": "ada", "state": "running", "outcome": None, "why": "",
        "since": AT, "submitted_at": AT, "attempt": 1, "attempts_max": 5, "priority": 0, "gpus": [],
        "progress": {**progress, "loss": 2.5}, "labels": {}, "attempts": [an_attempt(1)],
        "run_dir": f"/state/jobs/{job_id}", "image": "sha256:1234", "revision": {}, "result": None,
        "network": {"access": "", "holds": None, "problem": ""}, "lineage": 1, "lineages": 1,
        "next_start": [], "epochs": None, "trace": None, "disk": None, "unreadable": [],
        "settings": {},
        "advice": [],
    }  # fmt: skip


def an_attempt(number: int, **facts: object) -> Json:
    row = {
        "number": number, "lineage": 1, "placed_at": AT, "launched_at": AT, "ended_at": None,
        "exit_code": None, "cause": None, "message": None, "verdict": None, "resumed_from": None,
        "checkpoint_step": None, "set_aside": [],
    }  # fmt: skip
    return {**row, **facts}


def ended(outcome: str = "succeeded", why: str = "completed") -> Json:
    """Return the facts of a job that has ended."""
    return {"state": "finished", "outcome": outcome, "why": why, "progress": None}


def _change(job: Json, facts: Json) -> Callable[[], None]:
    return lambda: job.update(facts)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 128  # a connection that finds no room is as good as no daemon
    daemon_threads = True
    api: FakeApi

    def handle_error(self, request: object, client_address: object) -> None:
        """Let a client hang up; anything else is printed, and fails whoever looks at stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # only passed on


def _listen(api: FakeApi) -> _Server:
    """Return a server at a path of any length."""
    directory = os.open(api.socket_path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        server = _Server(f"/proc/self/fd/{directory}/{api.socket_path.name}", _Exchange)
    finally:
        os.close(directory)
    server.api = api
    return server


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one write: who has read the head of an empty body hangs up

    @property
    def api(self) -> FakeApi:
        return cast("_Server", self.server).api

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent."""

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Json | None) -> None:
        url = urlsplit(self.path)
        words = [unquote(word) for word in url.path.split("/")[2:]]
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.api.asked.append((self.command, self.path, body))
        try:
            self._route(words, query, body or {})
        except Problem as problem:
            self._json(problem.body, problem.status)
        except Vanish:
            self.close_connection = True

    def _route(self, words: list[str], query: dict[str, str], body: Json) -> None:  # noqa: PLR0915  one case per route
        match self.command, words:
            case "GET", ["version"]:
                self._json(_version(self.api))
            case "POST", ["jobs"]:
                self._submit(body)
            case "GET", ["jobs"]:
                self._json(
                    {"jobs": self._sweep(query["sweep"]) if "sweep" in query else [*self.api.jobs.values()]}
                )
            case "GET", ["jobs", ref]:
                self._json(self.api.find(ref))
            case "GET", ["jobs", ref, "wait"]:
                self.api.take_turn("wait")
                job = self.api.find(ref)
                ends = {"finished", "held", *(("running", "stopping") if "started" in query else ())}
                is_paused = (job["why"] or "").startswith("paused at step ")
                goes_on = is_paused and job["id"] not in self.api.blocked
                self._json({"done": job["state"] in ends and not goes_on, "job": job})
            case "GET", ["jobs", ref, "log"]:
                self.api.take_turn("log")
                self._log(self.api.find(ref), query)
            case "GET", ["jobs", ref, "files"]:
                self._file(self.api.find(ref), query["path"])
            case "GET", ["jobs", ref, "account"] if ref in self.api.accounts:
                self._json(self.api.accounts[ref])
            case "GET", ["jobs", ref, "curves"]:
                self._curves(self.api.find(ref))
            case "GET", ["jobs", ref, "why"]:
                job = self.api.find(ref)
                waits = {"job": job["id"], "name": job["name"], "state": job["state"], "why": job["why"]}
                self._json(self.api.whys.get(job["id"], {**waits, "never": False}))
            case "POST", ["jobs", ref, "cancel"]:
                self._json(self._cancelled(self.api.find(ref)))
            case "POST", ["cancel"]:
                self._cancel_all(body)
            case "POST", ["jobs", ref, "diff"]:
                if self.api.find(ref)["id"] in self.api.secret:
                    raise Problem(403, "forbidden", 3, f"job {ref}: belongs to somebody else")
                self._json(self.api.answers["diff"])
            case "GET", ["jobs", ref, "decisions"]:
                attempt = query.get("attempt")
                if self.api.find(ref)["id"] in self.api.secret:
                    raise Problem(403, "forbidden", 3, f"job {ref} is somebody else's")
                kept = self.api.decisions.get(self.api.find(ref)["id"], [])
                found = [r for r in kept if attempt in {None, str(r["attempt"])}]
                self._json({"decisions": found, "unreadable": self.api.unreadable})
            case "POST", ["jobs", ref, "limits"]:
                self._json({"job": self.api.find(ref), "changes": self.api.limits, "revision": 2})
            case "POST", ["jobs", ref, "signal" | "restart" | "hold" | "release" as verb]:
                self.api.take_turn(verb)
                begins = {"begins": f"from {body['from']}"} if verb == "restart" else {}
                begins = {"begins": "from the newest checkpoint"} if verb == "release" else begins
                self._json({"job": self.api.find(ref), **begins})
            case "GET", ["events"]:
                self.api.take_turn("events")
                self._events(int(query["after"]), query.get("job"))
            case _, ["apply" | "canaries" as kind] | [
                "jobs",
                _,
                "canaries" | "rollback" | "revisions" as kind,
                *_,
            ]:
                self._json(self.api.changes[kind].pop(0))
            case _, ["schedules", *more]:
                self._schedule(more)
            case _, ["devices", *_]:
                self._json(self.api.changes["devices"].pop(0))
            case "POST", ["stop"]:
                self.api.take_turn("stop")
                self._json({})
                self.api.left.set()
            case "GET" | "POST", [kind, *_] if kind in self.api.answers:
                self.api.take_turn(kind)
                self._json(self.api.answers[kind])
            case _:
                self._json({"detail": "Not Found"}, 404)

    def _json(self, answer: Json, status: int = 200) -> None:
        headers = {"Content-Type": "application/json", **({"Retry-After": "0"} if status == 429 else {})}
        self._send(json.dumps(answer).encode(), status, headers)

    def _send(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def _file(self, job: Json, path: str) -> None:
        content = self.api.files.get((job["id"], path))
        if content is None:
            raise Problem(404, "not_found", 2, f"{path}: there is no such file")
        member = tarfile.TarInfo(path.rpartition("/")[2])
        member.size, archive = len(content), io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.addfile(member, io.BytesIO(content))
        self._send(archive.getvalue(), 200, {"Content-Type": "application/x-tar"})

    def _curves(self, job: Json) -> None:
        self._json({"job": job["id"], "name": job["name"], "curves": self.api.curves.get(job["id"], {})})

    def _schedule(self, words: list[str]) -> None:
        if not words:
            self._json({"schedules": self.api.schedules})
            return
        found = [each for each in self.api.schedules if words[0] in {str(each["id"]), each["name"]}]
        if not found:
            raise Problem(404, "not_found", 2, f"{words[0]}: there is no schedule of that id or name")
        steered = words[1:] and words[1] != "next"
        self._json({"schedule": found[0]} if steered else found[0])

    def _submit(self, body: Json) -> None:
        self.api.take_turn("submit")
        if self.api.problem:
            problem, self.api.problem = self.api.problem, None
            raise problem
        self.api.submitted.append(b64decode(body["text_b64"]))
        if self.api.made is not None:
            self._json({"schedule": self.api.made, **({"job": {}} if body["dry_run"] else {})}, 201)
            return
        name, count = body["name"] or Path(body["path"]).stem, self.api.matrix
        names = [f"{name}-{number}" for number in range(1, count + 1)] or [name]
        if body["dry_run"]:
            jobs = [{"name": each, "values": {"seed": 1}} for each in names]
            job = {
                **cast("Json", RESOLVED["job"]),
                "sweep": yaml.safe_load(self.api.submitted[-1]).get("sweep"),
            }
            resolved = {**RESOLVED, "job": job}
            plan = {"job": resolved, "spec": {"attempt": 1}, "engine": {"user": "1000:1000"}}
            self._json({**plan, "jobs": jobs})
            return
        self.api.matrix = 0
        made = [self.api.add(each) for each in names]
        self._json({"job": made[0], "jobs": made, "warnings": self.api.warnings}, 201)

    def _sweep(self, ref: str) -> list[Json]:
        """Return the jobs of a matrix by its name; all jobs by the id of one."""
        jobs = list(self.api.jobs.values())
        found = jobs if ref in self.api.jobs else [job for job in jobs if job["name"].startswith(f"{ref}-")]
        if not found:
            raise Problem(404, "not_found", 2, f"{ref}: is not a job of a matrix")
        return found

    def _cancelled(self, job: Json) -> Json:
        changed = job["state"] != "finished"
        if changed:
            job.update(ended("cancelled", "cancelled by ada"))
        return {"job": job, "changed": changed}

    def _cancel_all(self, body: Json) -> None:
        self.api.take_turn("cancel")
        if body["sweep"] is None:
            found = [self.api.find(ref) for ref in body["jobs"]]  # before anything is changed
        else:
            found = [job for job in self.api.jobs.values() if job["state"] != "finished"]
        self._json({"jobs": [self._cancelled(job) for job in found]})

    def _log(self, job: Json, query: dict[str, str]) -> None:
        offset, newest = int(query["offset"]), max((a["number"] for a in job["attempts"]), default=0)
        settled = job["state"] in {"finished", "held"}
        if query["part"] == "build":
            over, number, later = job["state"] != "preparing", 0, None
            whole, cut = self.api.builds.get(job["id"], b""), None
        else:
            number = int(query.get("attempt", newest))
            rows = {a["number"]: a for a in job["attempts"]}
            over = bool(rows.get(number, {}).get("ended_at")) if number else settled
            later = number + 1 if number + 1 in rows else None
            whole, cut = self.api.logs.get((job["id"], number), b""), self.api.cuts.get((job["id"], number))
        if "tail" in query:
            body, next_offset = (
                b"".join(re.findall(rb"[^\n]*\n|[^\n]+", whole)[-int(query["tail"]) :]),
                len(whole),
            )
        else:
            body, next_offset = _piece(whole, offset, cut)
        headers = {
            "X-Runner-Attempt": str(number),
            "X-Runner-Next-Offset": str(next_offset),
            "X-Runner-Attempt-Ended": str(int(over and next_offset == offset)),
            "X-Runner-Job-Ended": str(int(settled and next_offset == offset)),
        }
        if later:
            headers["X-Runner-Next-Attempt"] = str(later)
        if not body and next_offset > offset:
            headers["X-Runner-Cut"] = f"{offset}-{next_offset}"
        self._send(body, 200, headers)

    def _events(self, after: int, ref: str | None) -> None:
        wanted = self.api.find(ref)["id"] if ref else None
        found = [e for e in self.api.events if e["seq"] > after and wanted in {None, e["job"]}][:2]
        seen = [event for event in found if event["job"] not in self.api.secret]
        self._json({"events": seen, "next": found[-1]["seq"] if found else after})


def _piece(whole: bytes, offset: int, cut: tuple[int, int] | None) -> tuple[bytes, int]:
    """Return a few bytes from ``offset`` on, none of a hole, and where to go on."""
    start, end = cut or (len(whole), len(whole))
    if start <= offset < end:
        return b"", end
    body = whole[offset : offset + 64 if offset >= end else min(offset + 64, start)]
    return body, offset + len(body)


def _version(api: FakeApi) -> Json:
    return {
        "version": "0.1.0", "contract_version": 1, "api": 1, "instance": "fake", "executor": "fake",
        "state_dir": str(api.socket_path.parent), "pid": os.getpid(), "started_at": AT,
        "jobs": {"running": len(api.jobs)},
    }  # fmt: skip


def main(socket_path: Path) -> None:
    """Serve one running job until SIGTERM, or until asked to stop."""
    api = FakeApi(socket_path)
    api.add()  # before anything is answered: the first question may already wait
    signal.signal(signal.SIGTERM, lambda *_: api.left.set())
    with api:
        api.left.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
