"""The type of the file system of a path, from made-up mount tables."""

import os
from pathlib import Path

import pytest

from runner.base.file_systems import remote_type

NFS_DEVICE = os.makedev(0, 52)


def table(tmp_path: Path, kind: str) -> str:
    place = tmp_path / "mountinfo"
    place.write_text(
        "23 28 0:21 / /proc rw,nosuid - proc proc rw\n"
        "28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"99 28 0:52 / /home rw,relatime shared:70 master:2 - {kind} server:/home rw,vers=4.2\n"
    )
    return str(place)


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "fuse", "fuse.sshfs", "9p", "beegfs", "ceph"]
)
def test_a_remote_file_system_is_named(tmp_path: Path, kind: str) -> None:
    assert remote_type("/home/ada", table(tmp_path, kind), lambda _: NFS_DEVICE) == kind


@pytest.mark.parametrize("kind", ["tmpfs", "overlay", "btrfs", "zfs", "fuse.fuse-overlayfs"])
def test_a_file_system_of_this_host_is_none(tmp_path: Path, kind: str) -> None:
    assert remote_type("/home/ada", table(tmp_path, kind), lambda _: NFS_DEVICE) is None


def test_a_disk_is_local_whatever_the_table_says(tmp_path: Path) -> None:
    assert remote_type("/home/ada", table(tmp_path, "nfs4"), lambda _: os.makedev(254, 0)) is None


def test_a_directory_that_is_made_later_is_on_the_file_system_of_its_nearest_parent(tmp_path: Path) -> None:
    def device_of(path: str) -> int:
        if path != "/home":
            raise FileNotFoundError(path)
        return NFS_DEVICE

    assert remote_type("/home/ada/.local/state/runner", table(tmp_path, "nfs4"), device_of) == "nfs4"


def test_what_cannot_be_seen_is_not_called_remote(tmp_path: Path) -> None:
    def closed(path: str) -> int:
        raise PermissionError(path)

    def nothing(path: str) -> int:
        raise FileNotFoundError(path)

    assert remote_type("/home/ada", table(tmp_path, "nfs4"), closed) is None
    assert remote_type("/home/ada", table(tmp_path, "nfs4"), nothing) is None
    assert remote_type("/home/ada", str(tmp_path / "none"), lambda _: NFS_DEVICE) is None


def test_the_mount_table_of_this_host_is_read(tmp_path: Path) -> None:
    assert remote_type("/proc") is None
    assert remote_type(str(tmp_path / "later")) is None
