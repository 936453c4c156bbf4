"""Copies a store while a daemon uses it, and puts a copy back.

SQLite keeps the newest transactions in a log (``-wal``) beside the file.  A copy of the file alone lacks
them, and a log that belongs to another file changes it silently.  So a copy is made through SQLite's
backup interface, is one file without a log, and replaces a store together with its log.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from runner.adapters.sqlite.integrity import check_integrity
from runner.adapters.sqlite.session import SESSION_KEY, session_file
from runner.adapters.sqlite.store import SQL, file_version, log_files, refuse_unknown
from runner.base.durable import sync
from runner.base.errors import Refused, Unavailable

GIVE_BACKUP: Final = "give a file that runner backup has made"
NOTHING_KEPT: Final = "there is nothing to back up; RUNNER_STATE_DIR names another state directory"

WAIT_S: Final = 10.0
"""Longest wait for a lock of the store that is copied."""


def back_up(store: Path, target: Path) -> int:
    """Write the present content of a store to a new file; return its size in bytes.

    A daemon may use the store meanwhile.  The file appears complete or not at all.

    Raises:
        Refused: there is no store, it is not readable or damaged, or ``target`` exists.
        Unavailable: the disk refuses it.
    """
    _check_store(store, NOTHING_KEPT)
    if os.path.lexists(target):
        raise Refused(f"{target}: exists; give a new file")
    if not target.parent.is_dir():
        raise Refused(f"{target.parent}: no such directory; make it, or give a file in another")
    draft = _copy(store, target.with_name(f".{target.name}.draft"))
    try:
        os.link(draft, target)  # fails, unlike a rename, if somebody else has made the file meanwhile
    except FileExistsError as error:
        raise Refused(f"{target}: exists; give a new file") from error
    except OSError as error:
        raise Unavailable(f"{target}: {error.strerror}") from error
    finally:
        draft.unlink()
    sync(target.parent)
    return target.stat().st_size


def restore(backup: Path, store: Path, at: datetime) -> tuple[Path, ...]:
    """Put a copy in the place of a store at a time; return the renamed files of the earlier store.

    The caller holds the lock of the state directory.  Nothing is changed before the copy is complete and
    checked. If this is interrupted, there is either the earlier store, the copy, or none, and a daemon
    refuses to start without one.

    Raises:
        Refused: the file is no store, is damaged, or was written by a newer runner.
        Unavailable: the disk refuses it.
    """
    _check_store(backup, GIVE_BACKUP)
    draft = _copy(backup, store.with_name(f".{store.name}.draft"))
    kept = []
    try:
        owner = store.parent.stat()
        if os.geteuid() == 0:
            os.chown(draft, owner.st_uid, owner.st_gid)
        since = f"{at:%Y%m%dT%H%M%SZ}"
        session_file(store).unlink(missing_ok=True)
        for path in (
            store,
            *log_files(store),
        ):  # the store first: a daemon refuses a log without one
            if os.path.lexists(path):
                suffix = path.name.removeprefix(store.name)
                kept.append(path.rename(_unused(store.with_name(f"{store.name}.before-{since}"), suffix)))
        draft.rename(store)
        sync(store.parent)
    except OSError as error:
        raise Unavailable(f"{error.filename or store}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return tuple(kept)


def _unused(path: Path, suffix: str) -> Path:
    """Return a name for a file that is kept; a second restore within a second gets another."""
    for number in range(1, 1000):
        named = Path(f"{path}{'' if number == 1 else f'-{number}'}{suffix}")
        if not os.path.lexists(named):
            return named
    raise Refused(f"{path}: too many files of this name; move them away")


def _check_store(path: Path, remedy: str) -> None:
    """Raise ``Refused`` with a remedy unless a file is a store that this version knows."""
    if not path.exists():
        raise Refused(f"{path}: no such file; {remedy}")
    if not path.is_file():
        raise Refused(f"{path}: is {'a directory' if path.is_dir() else 'no regular file'}; {remedy}")
    try:
        version = file_version(path)
    except PermissionError as error:
        raise Refused(f"{path}: {error.strerror}; ask the user to whom it belongs, or root") from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    except Refused as error:
        raise Refused(f"{path}: is not a job store; {remedy}") from error
    if version is None:
        raise Refused(f"{path}: is empty; {remedy}")
    if version == 0:
        raise Refused(f"{path}: is a database, but not a job store; {remedy}")
    refuse_unknown(path, version)


def _copy(source: Path, draft: Path) -> Path:
    """Copy a store with its log to one new file, and check it."""
    uri = source.absolute().as_uri()
    draft.unlink(missing_ok=True)
    try:
        with _removed_on_failure(draft), _translated(source, draft):
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            with (
                closing(sqlite3.connect(f"{uri}?mode=rw", uri=True, timeout=WAIT_S)) as live,
                closing(sqlite3.connect(draft, isolation_level=None)) as copy,
            ):
                live.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
                _check_copy(copy, source)
                copy.execute(SQL["drop_meta"], {"key": SESSION_KEY})
            with draft.open("rb") as file:
                os.fsync(file.fileno())
    except OSError as error:
        raise Unavailable(f"{error.filename or draft}: {error.strerror}") from error
    return draft


def _check_copy(copy: sqlite3.Connection, source: Path) -> None:
    if problems := check_integrity(copy):
        raise Refused(f"{source}: is damaged ({problems[0]}); take another copy")
    try:
        known = copy.execute(SQL["get_meta"], {"key": "instance"}).fetchone()
        copy.execute("SELECT count(*) FROM jobs").fetchone()
    except sqlite3.OperationalError:  # such a table does not exist
        known = None
    if known is None:
        raise Refused(f"{source}: is a database, but not a job store; {GIVE_BACKUP}")


@contextmanager
def _removed_on_failure(draft: Path) -> Iterator[None]:
    with ExitStack() as cleanup:
        for path in (draft, draft.with_name(f"{draft.name}-journal")):
            cleanup.callback(path.unlink, missing_ok=True)
        yield
        cleanup.pop_all()


@contextmanager
def _translated(source: Path, draft: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{source}: cannot be copied to {draft.parent} ({error})") from error
    except sqlite3.DatabaseError as error:
        raise Refused(f"{source}: is damaged ({error}); take another copy") from error
