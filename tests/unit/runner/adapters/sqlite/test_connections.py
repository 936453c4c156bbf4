"""The connections to a store: few, however many threads come and go, and closed at the end."""

import gc
import sqlite3
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from runner.adapters.sqlite.connections import KEPT_READERS, StoreConnections
from runner.adapters.sqlite.store import SqliteStore
from runner.base.errors import Unavailable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store, closed."""
    path = tmp_path / "a store ?#%.db"
    SqliteStore(path).close()
    return path


def open_files(path: Path) -> int:
    """Return the number of descriptors that this process has of a store and its log."""
    links = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(each.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return sum(link.startswith(str(path)) for link in links)


def in_threads(count: int, work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_come_and_go_leave_no_descriptor(path: Path) -> None:
    store = SqliteStore(path)
    with ExitStack() as lent:  # the most that the threads below can have at once
        for _ in range(12):
            lent.enter_context(store.connections.reader()).execute("SELECT * FROM meta").fetchall()
        most = open_files(path)
    for _ in range(20):
        in_threads(10, store.unfinished)
        in_threads(2, lambda: store.remember_executor("process"))
        assert open_files(path) <= most
    store.close()
    assert open_files(path) == 0


def test_as_many_readers_as_are_asked_at_once_are_lent_and_a_few_are_kept(path: Path) -> None:
    connections = StoreConnections(path)
    with ExitStack() as lent:
        readers = {id(lent.enter_context(connections.reader())) for _ in range(3 * KEPT_READERS)}
        assert len(readers) == 3 * KEPT_READERS
    assert open_files(path) <= 3 * KEPT_READERS  # of each the store, its log and the index of that
    connections.close()
    assert open_files(path) == 0


def test_a_reader_cannot_write(path: Path) -> None:
    connections = StoreConnections(path)
    with connections.writer(), connections.reader() as own:
        own.execute("INSERT INTO meta VALUES ('key', 'value')")  # a thread that writes reads what it wrote
    with connections.reader() as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM meta")
    connections.close()


def test_what_is_lent_while_the_store_is_closed_is_closed_when_it_comes_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.adapters.sqlite.connections.CLOSE_WAIT_S", 0.0)
    connections = StoreConnections(path)
    with connections.reader() as reader, connections.writer():
        reader.execute("SELECT * FROM meta").fetchall()
        closing = threading.Thread(target=connections.close)
        closing.start()
        closing.join()
        assert open_files(path) > 0
        with pytest.raises(Unavailable, match="is closed"), connections.reader():
            pass
    assert open_files(path) == 0


def test_no_connection_is_left_to_the_garbage_collector(path: Path) -> None:
    """Python 3.13 warns of each; earlier versions do not, so the descriptors are counted as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = SqliteStore(path)
        in_threads(4, store.unfinished)
        store.close()
        del store
        gc.collect()
    path.write_bytes(b"no store" * 100)
    with pytest.raises(Exception, match="is not a job store"):
        SqliteStore(path)
    assert open_files(path) == 0


def test_on_a_nearly_full_disk_the_log_stays_for_the_next_daemon(path: Path) -> None:
    store = SqliteStore(path)
    store.remember_executor("process")
    log = path.with_name(f"{path.name}-wal")
    held = log.stat().st_size
    store.connections.close(keep_log=True)
    assert open_files(path) == 0
    assert log.stat().st_size == held > 0
    store = SqliteStore(path)
    assert store.executor == "process"
    store.close()
    assert not log.exists()
