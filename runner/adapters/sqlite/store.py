"""The store: jobs, attempts, events and decisions in one SQLite file (WAL), which survives a crash.

One thread at a time writes.  An event and the state that it leads to are written in one transaction, which is
durable before the daemon acts on it.  Any thread reads.  A file of a newer version is refused before SQLite
opens it, and so is one from before the first release; others are migrated.
"""

import json
import re
import secrets
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import structlog
from pydantic_core import from_json

from runner.adapters.sqlite.connections import StoreConnections
from runner.adapters.sqlite.integrity import check_integrity, repair_indexes
from runner.adapters.sqlite.rows import (
    Row,
    attempt_row,
    decision_row,
    decision_values,
    event_row,
    event_values,
    first_revision,
    job_columns,
    job_row,
    json_object,
    new_job_values,
    revision_row,
    revision_text,
    text_values,
    transition_statements,
)
from runner.adapters.sqlite.session import (
    SESSION_KEY,
    StoreHeader,
    new_token,
    read_marked,
    refuse_foreign_log,
    session_file,
    write_session,
)
from runner.base.errors import Refused, Unavailable
from runner.base.textfile import one_line
from runner.core.job.revision_text import RevisionText, SharedText
from runner.core.job.states import Finished
from runner.core.ports.store import (
    AttemptEndRow,
    AttemptRow,
    DecisionRow,
    EventRow,
    JobRow,
    RecordedTransition,
    RevisionRow,
    RuleUseRow,
)

log = structlog.get_logger()

R = TypeVar("R")
RowT = TypeVar("RowT", sqlite3.Row, Row)

VERSION: Final = 6
_HEADER_BYTES: Final = 100
_USER_VERSION_OFFSET: Final = 60

MOST_NAMED: Final = 5
"""Jobs of one name that a refusal lists."""


def statements(text: str) -> dict[str, str]:
    """Return the statements of an SQL file by name; each extends to the next name."""
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


SQL: Final = statements((Path(__file__).parent / "queries.sql").read_text())

OLDEST: Final = 5
MIGRATIONS: Final = {6: "version_6"}
"""The statements that lead to each version from the one before it; a new store goes through all of them."""

RESERVED_PAGES: Final = 512
RESERVED_BYTES: Final = 2 * 1024 * 1024
"""Free pages in the store, and bytes in its log, below which the reserve is made again."""

ROOM_BYTES: Final = 32 * 1024 * 1024
"""Free space on the disk below which no reserve is made, so that the jobs can use it."""

CLEANED_UP: Final = "cleaned_up"
"""The key in ``meta`` of the event up to which all clean-ups are done."""

KEPT_ROWS: Final = 8192
"""Unfinished jobs that are kept as they were read: a list of thousands that wait goes through all of them
again.  Jobs that have ended are more with each day, and are read anew."""

MOST_ROWS: Final = 64
"""Rows that one statement writes; SQLite limits the variables of a statement, and its cache."""


@lru_cache(maxsize=512)
def multi_row_statement(name: str, count: int) -> tuple[str, tuple[str, ...]]:
    """Return a named statement for ``count`` rows of VALUES, and the names of the values in a row."""
    head, row, rest = re.split(r"(?<=VALUES )(\([^)]*\))", SQL[name])
    names = tuple(re.findall(r":(\w+)", row))
    places = f"({', '.join('?' * len(names))})"
    return f"{head}{', '.join([places] * count)}{rest}", names


def _migration(since: int) -> str:
    """Return the statements that lead from a version to the present one."""
    return "".join(SQL[MIGRATIONS[number]] for number in range(since + 1, VERSION + 1))


def file_version(path: Path) -> int | None:
    """Return the schema version of a store without opening it as a database.

    Return None if the file does not exist or is empty.

    Raises:
        Refused: the file is not a store.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return None
    if not header:
        return None
    if len(header) < _HEADER_BYTES or not header.startswith(b"SQLite format 3\0"):
        raise Refused(f"{path}: is not a job store; move it away to start with an empty one")
    (version,) = struct.unpack_from(">I", header, _USER_VERSION_OFFSET)
    return int(version)


def refuse_unknown(path: Path, version: int) -> None:
    """Check that a store has a version that can be read.

    Raises:
        Refused: it is newer than this program, or older than the first version that is converted.
    """
    if version > VERSION:
        raise Refused(
            f"{path}: written by a newer runner (store version {version}, known: {VERSION}); "
            "install that version or choose another state directory"
        )
    if version < OLDEST:
        raise Refused(
            f"{path}: made by a development version before 0.1.0 (store version {version}, converted: "
            f"{OLDEST} and later); let its jobs end with that version, then move {path.parent} away"
        )


def log_files(path: Path) -> tuple[Path, Path]:
    """Return the log of a store and the index of that log, which need not exist."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def refuse_lost(path: Path, run_directories: int) -> None:
    """Check that a state directory with run directories has a store; may raise Refused."""
    if run_directories and file_version(path) is None:
        raise Refused(
            f"{path}: is missing or empty, but there are run directories of jobs up to {run_directories}; "
            "runner restore FILE puts a backup back; "
            f"to start with an empty store, move {path.parent / 'jobs'} away"
        )


class SqliteStore:
    """The store of one state directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.connections = StoreConnections(path)
        self._unreadable: dict[str, tuple[str | None, str]] = {}  # by row: its job, and what is wrong with it
        self._kept_rows: dict[int, tuple[tuple[object, ...], JobRow]] = {}  # of unfinished jobs
        self._shared_texts: WeakValueDictionary[int, SharedText] = WeakValueDictionary()  # in use, by number
        self._used = 0
        with ExitStack() as on_error:
            on_error.callback(self.connections.close)
            self._open()
            on_error.pop_all()
        self.instance = str(self._value("get_meta", key="instance"))

    def _open(self) -> None:
        version = file_version(self._path)
        if version:
            refuse_unknown(self._path, version)
        refuse_foreign_log(self._path, log_files(self._path)[0])
        with _translated(self._path):
            if version:
                self._check_integrity()
            if not version:
                self._create()
                return
            if version < VERSION:
                self._migrate(version)

    def _check_integrity(self) -> None:
        """Check the file before anything is written to it; write damaged indexes again; may raise Refused."""
        with self.connections.writer() as connection:
            problems = check_integrity(connection)
            if not problems:
                return
            log.error("store.damaged", path=str(self._path), problems=problems)
            problems = repair_indexes(connection, problems)
        if problems:
            raise Refused(damaged(self._path, problems[0]))
        log.warning("store.indexes_repaired", path=str(self._path))

    def begin_session(self) -> None:
        """Mark the store and its log as belonging together, for the next start.

        Nothing is marked if the disk is full or another process reads the store: then the next start trusts
        the log.
        """
        session_file(self._path).unlink(missing_ok=True)
        try:
            token = new_token()
            with self.transaction() as connection:
                connection.execute(SQL["set_meta"], {"key": SESSION_KEY, "value": token})
            with self.connections.writer() as connection:
                connection.execute("PRAGMA wal_checkpoint(FULL)")
            marked = read_marked(self._path)
            if marked is not None and marked.token == token:
                write_session(self._path, StoreHeader(token, marked.schema))
        except (Unavailable, sqlite3.OperationalError, OSError) as error:
            log.warning("store.session_not_marked", problem=str(error))

    def close(self) -> None:
        """Close all connections, so that everything is in one file; later calls raise ``Unavailable``.

        The log stays if a thread still uses the store.  It also stays on a disk that is nearly full: it is
        the reserve of the next daemon.
        """
        self.connections.close(keep_log=shutil.disk_usage(self._path.parent).free < ROOM_BYTES)
        if not log_files(self._path)[0].exists():
            session_file(self._path).unlink(missing_ok=True)

    def _create(self) -> None:
        self._path.touch(mode=0o600)  # users must not read the job files of others
        with self.connections.writer() as connection:
            connection.executescript(f"BEGIN;{SQL['schema']}{_migration(since=OLDEST)}")
            connection.execute(SQL["set_meta"], {"key": "instance", "value": secrets.token_hex(4)})
            connection.commit()
            # The version must be in the file itself and not in its log: an older program reads it there.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _migrate(self, version: int) -> None:
        """Migrate a store of an earlier version to the present one, completely or not at all."""
        with self.connections.writer() as connection:
            with connection:  # it commits, and rolls back whatever is raised
                connection.executescript(f"BEGIN IMMEDIATE;{_migration(since=version)}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def reserve(self) -> bool:
        """Reserve space for what must be recorded on a full disk; return whether the reserve exists.

        SQLite reuses free pages of the file and of its log before either grows.
        """
        log = log_files(self._path)[0]
        with self.connections.writer() as connection:
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if free >= RESERVED_PAGES and log.exists() and log.stat().st_size >= RESERVED_BYTES:
                return True
            if (
                shutil.disk_usage(self._path.parent).free < ROOM_BYTES
            ):  # the log is not shortened, so this cannot be undone
                return False
            try:
                connection.executescript(f"BEGIN IMMEDIATE;{SQL['reserve']}COMMIT")
                connection.execute("PRAGMA wal_checkpoint")
            except sqlite3.OperationalError:
                if connection.in_transaction:
                    connection.rollback()
                return False
            return True

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write everything in the block durably, or nothing; only for the thread that may write.

        A transaction within another one is a part of it.
        """
        with _translated(self._path), self.connections.writer() as connection:
            if connection.in_transaction:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # it commits, and rolls back whatever is raised
                yield connection

    def rows(self, name: str, /, **values: object) -> list[sqlite3.Row]:
        """Return the rows that a named statement selects; any thread may call this."""
        with _translated(self._path), self.connections.reader() as connection:
            return connection.execute(SQL[name], values).fetchall()

    def _value(self, name: str, /, **values: object) -> object:
        rows = self.rows(name, **values)
        return rows[0][0] if rows else None

    @property
    def executor(self) -> str | None:
        """The kind of executor that last ran the jobs of this store."""
        known = self._value("get_meta", key="executor")
        return None if known is None else str(known)

    def has_run_in(self, other_than: str) -> bool:
        """Return True if an attempt of this store had another image than this."""
        return self._value("other_image", image=other_than) is not None

    def known(self, ids: Iterable[str]) -> frozenset[str]:
        """Return those of some ids that are ids of jobs."""
        asked = json.dumps([int(each) for each in ids])
        return frozenset(str(row["id"]) for row in self.rows("ids_among", ids=asked))

    # --- writing, by the thread that may write

    def remember_executor(self, kind: str) -> None:
        with self.transaction() as connection:
            connection.execute(SQL["set_meta"], {"key": "executor", "value": kind})

    def next_id(self) -> str:
        """Return the id of the next job; ids are small numbers, because people type them."""
        return str(max(int(str(self._value("next_id"))), self._used + 1))

    def skip(self, used: int) -> bool:
        """Give new jobs ids above ``used`` only; return whether the store has no job with that id.

        A restored store may be older than the run directories beside it.  A new job would otherwise get the
        directory and the containers of another job, possibly of another user.
        """
        self._used = used
        return used >= int(str(self._value("next_id")))

    def add_all(self, rows: Sequence[JobRow], texts: Sequence[str], token: str | None = None) -> None:
        """Write new jobs, all of them or none; the first one gets the token of the submission."""
        with self.transaction() as connection:
            shared = {row.text.shared for row in rows}
            digests = {each: self._add_text(connection, each) for each in shared}
            for row, text in zip(rows, texts, strict=True):
                event = event_values(row.job.id, row.submitted_at, "submitted", text)
                token_of_row = token if row is rows[0] else None
                connection.execute(SQL["add_job"], new_job_values(row, token_of_row))
                connection.execute(SQL["add_event"], event)
                connection.execute(SQL["add_revision"], first_revision(row, digests[row.text.shared]))

    def _add_text(self, connection: sqlite3.Connection, shared: SharedText) -> object:
        """Write a text unless the store has it, and return its digest."""
        values = text_values(shared.text)
        connection.execute(SQL["add_text"], values)
        (text_id,) = connection.execute(SQL["text_id"], values).fetchone()
        self._shared_texts.setdefault(text_id, shared)  # rows that are read later share it in memory
        return values["digest"]

    def record_all(self, changes: Sequence[RecordedTransition]) -> None:
        """Merge equal statements into one with several rows: after each call of SQLite, this thread waits."""
        first = ("update_job", "add_event", "add_lending")  # before "end_lending" of any job
        merged: dict[str, list[Mapping[str, object]]] = {name: [] for name in first}
        for change in changes:
            for name, values in transition_statements(change):
                merged.setdefault(name, []).append(values)
        with self.transaction() as connection:
            for name, rows in merged.items():
                _write(connection, name, rows)
        for change in changes:
            if isinstance(change.after.state, Finished):
                self._kept_rows.pop(int(change.after.id), None)

    def decided(self, decision: DecisionRow) -> None:
        with self.transaction() as connection:
            connection.execute(SQL["add_decision"], decision_values(decision))

    def note(self, job_id: str, at: datetime, kind: str, text: str) -> None:
        with self.transaction() as connection:
            connection.execute(SQL["add_event"], event_values(job_id, at, kind, text))

    # --- rows that cannot be read

    def _job(self, rows: Sequence[sqlite3.Row]) -> JobRow | None:
        """Return the first row as a job; may raise Refused."""
        if not rows:
            return None
        found = self._jobs(rows[:1])
        if not found:
            raise Refused(damaged(self._path, f"the row of job {rows[0]['id']} cannot be read"))
        return found[0]

    def _jobs(self, rows: Sequence[Row]) -> tuple[JobRow, ...]:
        return tuple(found for row in rows for found in self._converted("jobs", self._kept_row, row))

    def _kept_row(self, row: Row) -> JobRow:
        """Return a row as a job; an unchanged one that has not ended is not parsed again."""
        number = int(row["id"])
        if row["ended_at"] is not None:
            return job_row(self._shared_text, row)
        known, columns = self._kept_rows.get(number), job_columns(row)
        if known is not None and known[0] == columns:
            return known[1]
        found = job_row(self._shared_text, row)
        self._kept_rows[number] = columns, found
        while len(self._kept_rows) > KEPT_ROWS:
            with suppress(KeyError, RuntimeError):  # another thread has removed it, or adds one
                del self._kept_rows[next(iter(self._kept_rows))]
        return found

    def _shared_text(self, text_id: int) -> SharedText:
        """Return a text that revisions refer to; as long as one is in use, it is in memory once."""
        known = self._shared_texts.get(text_id)
        if known is not None:
            return known
        text = self._value("text_by_id", id=text_id)
        if text is None:
            raise ValueError(f"there is no text {text_id}")
        json_object(str(text))
        return self._shared_texts.setdefault(text_id, SharedText(str(text)))

    def read(self, name: str, convert: Callable[[sqlite3.Row], R], /, **values: object) -> tuple[R, ...]:
        """Return the converted rows that a named statement selects, without those that cannot be read.

        One damaged row must not keep the others from being served.  Each is logged once, and remembered.
        """
        found = self.rows(name, **values)
        return tuple(each for row in found for each in self._converted(_table(name), convert, row))

    def unreadable(self, job_id: str) -> tuple[str, ...]:
        """Return the rows of a job that could not be read, each with its fault."""
        return tuple(f"{row}: {problem}" for row, (job, problem) in self._unreadable.items() if job == job_id)

    def _converted(self, table: str, convert: Callable[[RowT], R], row: RowT) -> tuple[R, ...]:
        try:
            return (convert(row),)
        except (ValueError, TypeError, KeyError) as error:
            what = {name: row[name] for name in _IDENTITY if name in row.keys()}  # noqa: SIM118  a Row is no mapping
            where = f"{table}: {', '.join(f'{name}={value}' for name, value in what.items())}"
            if where not in self._unreadable:
                problem = one_line(str(error).partition("\n")[0])
                job = what.get("job_id", what.get("id") if table == "jobs" else None)
                self._unreadable[where] = None if job is None else str(job), problem
                log.error("store.row_unreadable", path=str(self._path), row=where, problem=problem)  # noqa: TRY400  a traceback says no more
            return ()

    # --- reading, from any thread

    def unfinished(self) -> tuple[JobRow, ...]:
        return self._jobs(self.rows("unfinished"))

    def get(self, job_id: str) -> JobRow | None:
        rows = self.rows("job_by_id", id=int(job_id)) if job_id.isdecimal() and len(job_id) < 19 else []
        return self._job(rows)

    def find(self, reference: str, owner: str | None = None) -> JobRow | None:
        """Return a job by its id or its name; of several with a name, the owner's newest.

        Raises:
            Refused: several users have jobs of that name, and the owner is none of them.
        """
        found = self.get(reference)
        if found is None and owner is not None:
            found = self.newest_of(owner, reference)
        if found is not None:
            return found
        rows = self.rows("jobs_by_name", name=reference, limit=MOST_NAMED + 1)
        if len(rows) > 1:
            raise Refused(_ambiguous(reference, [(row["id"], row["owner"]) for row in rows]))
        return self._job(rows)

    def newest_of(self, owner: str, name: str) -> JobRow | None:
        """Return the newest job of a user with a name."""
        rows = self.rows("job_by_owner", owner=owner, name=name)
        return self._job(rows)

    def following(self, first: str, count: int) -> tuple[JobRow, ...]:
        """Return ``count`` jobs from one on, in the order of their ids."""
        rows = self.rows("jobs_following", first=int(first), count=count)
        return self._jobs(rows)

    def submitted_as(self, token: str) -> JobRow | None:
        """Return the job that was submitted with a token."""
        rows = self.rows("job_by_token", token=token)
        return self._job(rows)

    def recent(
        self,
        since: datetime | None,
        uid: int | None,
        limit: int,
        before: int | None = None,
        ended: bool | None = None,  # noqa: FBT001
    ) -> tuple[JobRow, ...]:
        """Return unfinished jobs and those that ended after ``since``, the newest first; as ``JobStore``."""
        page = {"since": None if since is None else since.isoformat(), "uid": uid, "limit": limit}
        found: list[JobRow] = []
        while len(found) < limit:
            ids = self._recent_ids(ended, {**page, "before": before})
            rows = self._page("jobs_among", ids=json.dumps(ids))
            found += self._jobs(sorted(rows, key=itemgetter("id"), reverse=True))
            if len(ids) < limit:
                break
            before = ids[-1]  # some of them cannot be read, perhaps
        return tuple(found[:limit])

    def _recent_ids(self, ended: bool | None, page: Mapping[str, Any]) -> list[int]:  # noqa: FBT001
        """Return the ids of one page, the newest first; nothing is looked at that is older than it."""
        ids: list[int] = []
        if ended is not True:
            asked = {name: page[name] for name in ("uid", "before", "limit")}
            ids += self._page("unfinished_ids", **asked)
        if ended is not False:
            name = "ended_ids" if page["since"] is None else "ended_ids_since"
            if page["uid"] is not None:
                name = "ended_ids_of_owner"
            ids += self._page(name, **page)
        return sorted(ids, reverse=True)[: page["limit"]]

    def _page(self, name: str, /, **values: object) -> list[Any]:
        """Return the array that a named statement makes of all its rows."""
        found: list[Any] = from_json(str(self._value(name, **values)))
        return found

    def labelled(  # noqa: PLR0913, PLR0917  (one per condition)
        self,
        since: datetime,
        uid: int | None,
        limit: int,
        key: str,
        value: str | None,
        before: int | None = None,
    ) -> tuple[JobRow, ...]:
        """Return the jobs of ``recent`` that have a label; a value of None matches every value."""
        label = {"key": key, "value": value}
        rows = self.rows("labelled", since=since.isoformat(), uid=uid, limit=limit, before=before, **label)
        return self._jobs(rows)

    def attempts(self, job_id: str) -> tuple[AttemptRow, ...]:
        return self.read("attempts_of", attempt_row, job_id=int(job_id))

    def events(self, after: int, job_id: str | None, limit: int) -> tuple[tuple[EventRow, str], ...]:
        """Return the events after ``after``, each with the name of its job, in order of ``seq``."""
        number = None if job_id is None else int(job_id)
        return self.read(
            "events_after",
            lambda row: (event_row(row), str(row["name"])),
            after=after,
            job_id=number,
            limit=limit,
        )

    def decisions(self, job_id: str, attempt: int | None = None) -> tuple[DecisionRow, ...]:
        return self.read("decisions_of", decision_row, job_id=int(job_id), attempt=attempt)

    def revisions(self, job_id: str) -> tuple[RevisionRow, ...]:
        """Return every revision of a job file, the first one first."""
        return self.read("revisions_of", revision_row, job_id=int(job_id))

    def revision(self, job_id: str, number: int) -> RevisionText | None:
        convert = partial(revision_text, self._shared_text)
        return next(iter(self.read("revision_text", convert, job_id=int(job_id), number=number)), None)

    def noted(self, job_id: str, kind: str) -> tuple[str, ...]:
        return tuple(str(row["text"]) for row in self.rows("noted", job_id=int(job_id), kind=kind))

    def interruptions(self) -> tuple[float, int]:
        """Return for how many seconds the latest attempts ran, and how many of them were interrupted.

        An interruption is an end by neither the program nor an operator: a kill from outside, a preemption, a
        reboot, a lost device.
        """
        [row] = self.rows("interruptions")
        return float(row["ran"]), int(row["taken"])

    def last_seq(self) -> int:
        return int(str(self._value("last_seq")))

    def changed_after(self, seq: int) -> tuple[str, ...]:
        return tuple(str(row["job_id"]) for row in self.rows("changed_after", after=seq))

    def cleaned_up_to(self) -> int:
        return self.noted_number(CLEANED_UP) or 0

    def noted_number(self, key: str) -> int | None:
        """Return a number that was noted under a key; None if there is none that can be read."""
        return next(iter(self.read("get_meta", lambda row: int(row["value"]), key=key)), None)

    def record_cleaned_up(self, seq: int) -> None:
        with self.transaction() as connection:
            connection.execute(SQL["set_meta"], {"key": CLEANED_UP, "value": str(seq)})

    def last_decision(self) -> int:
        """Return the ``seq`` of the newest decision."""
        return int(str(self._value("last_ruling")))

    def attempt_ends(self, after: int, limit: int) -> tuple[AttemptEndRow, ...]:
        """Return the events behind ``after``, in order of ``seq``."""
        rows = self.rows("attempts_ended_after", after=after, limit=limit)
        return tuple(AttemptEndRow(row["seq"], row["kind"], row["cause"]) for row in rows)

    def rule_uses(self, after: int, limit: int) -> tuple[RuleUseRow, ...]:
        """Return the decisions behind ``after``, in order of ``seq``."""
        rows = self.rows("rulings_after", after=after, limit=limit)
        return tuple(RuleUseRow(row["seq"], row["moment"], row["rule"] or "") for row in rows)

    def count_states(self) -> dict[str, int]:
        return {str(row[0]): int(row[1]) for row in self.rows("count_states")}


_IDENTITY: Final = ("job_id", "id", "number", "attempt", "seq", "schedule", "at", "uuid", "key")
"""Columns that tell which row of a table is meant."""


def _table(name: str) -> str:
    """Return the table that a named statement reads rows of."""
    found = re.search(r"\bFROM (\w+)", SQL[name])
    named = "rows" if found is None else found[1]
    return {"whole_jobs": "jobs", "used_attempts": "lendings"}.get(named, named)


def _write(connection: sqlite3.Connection, name: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows in as few statements as possible."""
    if "VALUES" not in SQL[name]:
        connection.executemany(SQL[name], rows)
        return
    for first in range(0, len(rows), MOST_ROWS):
        batch = rows[first : first + MOST_ROWS]
        text, names = multi_row_statement(name, len(batch))
        connection.execute(text, [row[each] for row in batch for each in names])


def _ambiguous(name: str, known: Sequence[tuple[int, str]]) -> str:
    """Return the message for a name that jobs of several users have."""
    newest = ", ".join(f"{number} ({owner})" for number, owner in known[:MOST_NAMED])
    more = ", ..." if len(known) > MOST_NAMED else ""
    return f"{one_line(name)}: several users have a job of that name: {newest}{more}; give the id"


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{path}: {error}; is the disk full or the file unreadable?") from error
    except sqlite3.DatabaseError as error:
        raise Refused(damaged(path, str(error))) from error


def damaged(path: Path, problem: str) -> str:
    """Return the message about a damaged store, with what a restore loses."""
    return (
        f"{path}: is damaged ({problem}); stop the daemon, and runner restore FILE puts a backup back: "
        "what was recorded since the backup was made is lost, run directories stay"
    )
