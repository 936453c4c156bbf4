"""Recognises a log of SQLite (``-wal``) that belongs to another file than the store beside it.

If a store is replaced while a log lies beside it, SQLite applies that log to the wrong file.  The result
is malformed, or is silently not the file that was put there.  Therefore each daemon marks its session
with a new token: in the store itself, behind the log, and in a file beside it.  Copies of the store
differ: those of ``runner backup`` have no token, those of other sessions another one, and SQLite's own
have a lower schema number.
"""

import json
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from runner.base.durable import publish
from runner.base.errors import Refused

SESSION_KEY: Final = "session"
"""The key of the token in the store's table ``meta``."""


class StoreHeader(NamedTuple):
    """Header of the store file itself, without its log."""

    token: str
    schema: int


def session_file(store: Path) -> Path:
    """Return the file that names the session whose log lies beside a store."""
    return store.with_name(f"{store.name}-session")


def refuse_foreign_log(store: Path, log: Path) -> None:
    """Check that a log belongs to the store beside it; a log without a session is trusted.

    Raises:
        Refused: it belongs to another store, or there is no store.
    """
    if not _has_content(log):
        return
    if not _has_content(store):
        raise Refused(
            f"{store}: is missing or empty, and {log.name} lies beside it; "
            "runner restore FILE puts a backup back"
        )
    wrote, found = _read_session(session_file(store)), read_marked(store)
    if wrote is None or found is None:
        return
    if found.token != wrote.token or found.schema < wrote.schema:
        raise Refused(
            f"{log}: belongs to another file than the {store.name} beside it, and would change it; "
            f"runner restore FILE puts a backup back; to keep this {store.name} as it is, "
            f"move {log.name} and {store.name}-shm away"
        )


def read_marked(store: Path) -> StoreHeader | None:
    """Return the session of a store file without its log; None if that cannot be read."""
    try:
        with closing(sqlite3.connect(f"{store.absolute().as_uri()}?immutable=1", uri=True)) as file:
            token = file.execute("SELECT value FROM meta WHERE key = ?", (SESSION_KEY,)).fetchone()
            (schema,) = file.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error:  # torn, because a daemon was killed while it copied the log into the file
        return None
    return StoreHeader("" if token is None else str(token[0]), int(schema))


def new_token() -> str:
    return secrets.token_hex(8)


def write_session(store: Path, session: StoreHeader) -> None:
    """Write the session of a store beside it; may raise OSError."""
    publish(session_file(store), json.dumps(session._asdict()).encode(), durable=True)


def _read_session(path: Path) -> StoreHeader | None:
    try:
        said = json.loads(path.read_bytes())
        return StoreHeader(str(said["token"]), int(said["schema"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
