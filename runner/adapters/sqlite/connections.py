"""The connections to a store: one that writes, and readers, borrowed for one question each.

No thread has a connection of its own: threads come and go, and what they had would stay open.  So there are
at most as many readers as questions at one time, and a few of them are kept for the next questions.  Readers
cannot write.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from runner.base.errors import Unavailable

KEPT_READERS: Final = 4
"""Readers that stay open while nobody uses them; each has a cache of 2 MiB."""

CACHED_STATEMENTS: Final = 128

CLOSE_WAIT_S: Final = 2.0
"""Longest wait for threads that still use the store while it is closed."""

_decode: Final = partial(str, encoding="utf-8", errors="replace")
"""A damaged text is shown with replacement characters; it must not keep other rows from being read."""


class StoreConnections:
    """All connections of this process to one store; any thread may borrow one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.RLock()
        self._writing_thread: int | None = None
        self._writer: sqlite3.Connection | None = None
        self._changed = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._snapshots: dict[int, sqlite3.Connection] = {}  # by thread
        self._lent = 0
        self._closed = False

    @contextmanager
    def writer(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection that writes; other threads wait meanwhile; may raise Unavailable."""
        with self._writing:
            self._refuse_closed()
            outer, self._writing_thread = self._writing_thread, threading.get_ident()
            try:
                yield self._opened_writer()
            finally:
                self._writing_thread = outer
                if self._closed and outer is None:
                    self._close_writer()

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection that reads; a thread that writes gets its own, which sees what it has written.

        Raises:
            Unavailable: the store is closed.
        """
        self._refuse_closed()
        if self._writer is not None and self._writing_thread == threading.get_ident():
            yield self._writer
            return
        if (snapshot := self._snapshots.get(threading.get_ident())) is not None:
            yield snapshot
            return
        connection = self._borrow()
        try:
            yield connection
        finally:
            self._give_back(connection)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all questions of this thread in the block see the store as it was at the first one."""
        with self.reader() as connection:
            connection.execute("BEGIN")
            self._snapshots[threading.get_ident()] = connection
            try:
                yield
            finally:
                del self._snapshots[threading.get_ident()]
                connection.rollback()

    def close(self, *, keep_log: bool = False) -> None:
        """Close everything; what a thread still uses after ``CLOSE_WAIT_S`` is closed when it is given back.

        Whoever closes last copies the log into the store and removes it, except for a reader, which cannot.

        Args:
            keep_log: leave the log as it is.
        """
        last = self._borrow() if keep_log and not self._closed else None
        if last is not None:
            last.execute("PRAGMA schema_version").fetchone()  # now it has its lock on the file
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._lent == (last is not None), CLOSE_WAIT_S)
            while self._idle:
                self._idle.pop().close()
        if self._writing.acquire(timeout=CLOSE_WAIT_S):
            self._close_writer()
            self._writing.release()
        if last is not None:
            self._give_back(last)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._path}: is closed, because the daemon is stopping")

    def _borrow(self) -> sqlite3.Connection:
        with self._changed:
            self._refuse_closed()
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        with ExitStack() as on_error:
            on_error.callback(self._count_returned)
            connection = self._connect("ro")
            on_error.pop_all()
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._changed:
            keep = not self._closed and len(self._idle) < KEPT_READERS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        self._count_returned()

    def _count_returned(self) -> None:
        with self._changed:
            self._lent -= 1
            self._changed.notify_all()

    def _opened_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            with ExitStack() as on_error:
                connection = on_error.enter_context(closing(self._connect("rw")))
                # FULL: what was recorded before an action must survive a power cut, not only a kill.
                for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                    connection.execute(f"PRAGMA {pragma}")
                on_error.pop_all()
            self._writer = connection
        return self._writer

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=10,
            isolation_level=None,
            cached_statements=CACHED_STATEMENTS,
            check_same_thread=False,  # one thread at a time uses it
        )
        connection.row_factory = sqlite3.Row
        connection.text_factory = _decode
        return connection
