"""The store: one transaction per event, other threads may read, a newer file is left alone."""

from pathlib import Path

import pytest

from runner.adapters.sqlite.store import SqliteStore
from runner.base.errors import Unavailable
from runner.core.job.events import ImageReady
from runner.core.job.lifecycle import advance
from runner.core.ports.store import RecordedTransition
from tests.unit.runner.adapters.sqlite.test_store import NOW, RUN, add, fill, follow


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


def test_a_full_disk_is_unavailable_and_changes_nothing(tmpfs: Path) -> None:
    store = SqliteStore(tmpfs / "store.db")
    job = add(store)
    fill(tmpfs / "ballast")
    after, _ = advance(job, ImageReady(NOW, "i" * 100_000))
    with pytest.raises(Unavailable, match="is the disk full"):
        store.record_all((RecordedTransition(job, after, ImageReady(NOW, "i" * 100_000)),))
    (tmpfs / "ballast").unlink()
    assert [row.job.state.kind for row in store.unfinished()] == ["preparing"]
    follow(store, job, *RUN)
