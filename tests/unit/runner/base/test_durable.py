import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.base.durable import publish, sync


@pytest.fixture
def strict() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_with_the_mode_that_is_asked_for(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "value.json"
    path.write_text("old")
    publish(path, b"new", 0o644, durable=durable)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["value.json"]


def test_what_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "value.json"
    path.write_text("old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        publish(path, b"new", durable=True)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["value.json"]


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("theirs")
    (tmp_path / "value").symlink_to(tmp_path / "other")
    publish(tmp_path / "value", b"mine")
    assert (tmp_path / "other").read_text() == "theirs"
    assert (tmp_path / "value").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        sync(tmp_path / "link")


def test_several_writers_never_leave_a_mixture(tmp_path: Path) -> None:
    contents = [bytes([each]) * 100_000 for each in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: publish(tmp_path / "value", each), contents * 5))
    assert (tmp_path / "value").read_bytes() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["value"]
