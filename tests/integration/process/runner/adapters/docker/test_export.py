"""Images that are unpacked where all users see them."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from runner.adapters.docker.export import CHUNK, _extract
from runner.base.errors import Unavailable


def archive(*members: tuple[str, int, bytes]) -> bytes:
    """Return an archive with entries of somebody else: name, mode and type of each."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, mode, kind in members:
            member = tarfile.TarInfo(name)
            member.mode, member.type, member.uid, member.gid = mode, kind, 4242, 4242
            tar.addfile(member)
    return made.getvalue()


def test_no_file_of_an_image_gives_rights_to_those_who_see_it(tmp_path: Path) -> None:
    image = archive(
        ("bin", 0o777, tarfile.DIRTYPE),
        ("bin/su", 0o6755, tarfile.REGTYPE),
        ("bin/notes", 0o666, tarfile.REGTYPE),
        ("tmp", 0o1777, tarfile.DIRTYPE),
        ("dev/null", 0o666, tarfile.CHRTYPE),
    )
    _extract(iter([image]), tmp_path)
    found = {str(path.relative_to(tmp_path)): path.stat() for path in tmp_path.rglob("*")}
    assert {name: stat.S_IMODE(about.st_mode) for name, about in found.items() if name != "dev"} == {
        "bin": 0o755,
        "bin/su": 0o755,
        "bin/notes": 0o644,
        "tmp": 0o755,
    }
    assert {about.st_uid for about in found.values()} == {os.geteuid()}


def test_nothing_but_the_devices_of_an_image_is_left_out(tmp_path: Path) -> None:
    image = archive(
        ("dev/null", 0o644, tarfile.REGTYPE),
        ("dev/shm/left", 0o644, tarfile.REGTYPE),
        ("opt/data/dev/part.jsonl", 0o644, tarfile.REGTYPE),
        ("opt/site-packages/package/dev/__init__.py", 0o644, tarfile.REGTYPE),
    )
    _extract(iter([image]), tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "opt/data/dev/part.jsonl",
        "opt/site-packages/package/dev/__init__.py",
    }


def test_an_image_brings_no_device_to_those_who_see_it(tmp_path: Path) -> None:
    """Each device that is left out is told by tar: here in more words than a pipe holds."""
    devices = [(f"usr/share/chroot/dev/sd{number}", 0o666, tarfile.BLKTYPE) for number in range(2000)]
    image = archive(*devices, ("usr/share/chroot/bin/sh", 0o755, tarfile.REGTYPE))
    _extract(iter([image]), tmp_path)
    left = {path for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left == {tmp_path / "usr/share/chroot/bin/sh"}


def test_an_image_that_lacks_more_than_its_devices_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "usr/share/in/its/way").mkdir(parents=True)
    image = archive(("dev2/sda", 0o666, tarfile.BLKTYPE), ("usr/share", 0o644, tarfile.REGTYPE))
    with pytest.raises(Unavailable, match=r"unpacked: .*usr/share: Cannot open"):
        _extract(iter([image]), tmp_path)


def test_an_archive_that_breaks_off_is_told_with_the_directory(tmp_path: Path) -> None:
    broken = archive(("file", 0o644, tarfile.REGTYPE))[:300] + os.urandom(CHUNK)
    with pytest.raises(Unavailable, match="the image cannot be unpacked"):
        _extract(iter([broken]), tmp_path)
