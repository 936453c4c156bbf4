"""Mount sources that cannot be swapped: attacks 4 and 5 on paths, as the user who would try them."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.users import HostUsers
from runner.base.errors import UsageError
from runner.core.ports.users import User

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can attach a file system")
NOBODY = User(65534, 65534, (65534,), "nobody")


@pytest.fixture
def place() -> Iterator[Path]:
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def pins(place: Path) -> Iterator[PinnedMounts]:
    pins = PinnedMounts(place / "pins", HostUsers())
    yield pins
    for name in pins.names():
        pins.release(name)


def folder(place: Path) -> Path:
    source = place / "data"
    source.mkdir(mode=0o755)
    (source / "corpus.txt").write_text("hello")
    return source


def test_a_pinned_directory_is_the_directory(place: Path, pins: PinnedMounts) -> None:
    pinned = pins.pin(NOBODY, folder(place), "1-1/0")
    assert (pinned / "corpus.txt").read_text() == "hello"
    assert pins.pin(NOBODY, place / "data", "1-1/0") == pinned
    assert pins.names() == ("1-1",)


def test_a_directory_swapped_for_a_link_after_the_check_stays_what_it_was(
    place: Path, pins: PinnedMounts
) -> None:
    source = folder(place)
    pinned = pins.pin(NOBODY, source, "1-1/0")
    source.rename(place / "moved")
    source.symlink_to("/root")
    assert [entry.name for entry in pinned.iterdir()] == ["corpus.txt"]


def test_a_single_file_can_be_pinned(place: Path, pins: PinnedMounts) -> None:
    pinned = pins.pin(NOBODY, folder(place) / "corpus.txt", "1-1/0")
    assert pinned.read_text() == "hello"


@pytest.mark.parametrize("kind", ["private", "link to private", "system", "link to system", "pipe", "absent"])
def test_what_its_owner_may_not_show_is_refused(place: Path, pins: PinnedMounts, kind: str) -> None:
    (place / "private").mkdir(mode=0o700)
    (place / "link to private").symlink_to("private")
    (place / "link to system").symlink_to("/etc")
    os.mkfifo(place / "pipe", mode=0o666)
    with pytest.raises(UsageError):
        pins.pin(NOBODY, Path("/etc") if kind == "system" else place / kind, "1-1/0")
    assert pins.names() == ()


def test_releasing_leaves_the_source_and_other_pins_alone(place: Path, pins: PinnedMounts) -> None:
    source = folder(place)
    pins.pin(NOBODY, source, "1-1/0")
    other = pins.pin(NOBODY, source, "2-1/0")
    pins.release("1-1")
    pins.release("1-1")
    assert pins.names() == ("2-1",)
    assert (other / "corpus.txt").exists()
    pins.release("2-1")
    assert (source / "corpus.txt").read_text() == "hello"
    assert pins.names() == ()


def test_what_is_pinned_gives_no_rights_away_and_has_no_devices(place: Path, pins: PinnedMounts) -> None:
    pinned = pins.pin(NOBODY, folder(place), "1-1/0")
    flags = os.statvfs(pinned).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV
