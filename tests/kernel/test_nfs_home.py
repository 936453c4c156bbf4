"""Homes on an NFS server that takes root for nobody, closed to all but their owners."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.machine import IMAGE, RUNNER, here, own, ran, systemd_daemon, user

LIMITS = ("--cpus", "0.5", "--memory", "128M")
MOUNT = ("--mount", "/home/alice/data:/data/far")


@pytest.fixture(scope="module", autouse=True)
def home() -> Iterator[Path]:
    """The home of alice, whose engine lets her in."""
    here()
    far = Path("/srv/home")
    far.mkdir()
    Path("/etc/exports").write_text(f"{far} 127.0.0.1(rw,sync,root_squash,no_subtree_check)\n")
    ran("systemctl", "start", "nfs-server")
    ran("mount", "-t", "nfs", "-o", "vers=4.2", f"127.0.0.1:{far}", "/home")
    with user("alice", "--no-create-home", "--groups", "docker"):
        place = far / "alice"
        for folder in ("code", "data"):
            (place / folder).mkdir(parents=True)
        (place / "code" / "words").write_text("far away\n")
        (place / "data" / "more").write_text("and more\n")
        place.chmod(0o700)
        own(place, "alice")
        with pytest.raises(PermissionError):
            list(Path("/home/alice").iterdir())  # root is nobody there
        yield Path("/home/alice")
        ran(RUNNER, "stop", user="alice")
    ran("umount", "/home")


def test_a_daemon_of_ones_own_keeps_its_state_on_this_machine(home: Path) -> None:
    program = ("sh", "-c", "cat words && echo kept > $HOME/kept")
    options = ("--image", IMAGE, *LIMITS)
    told = ran(RUNNER, "run", *options, "--", *program, user="alice", where=home / "code")
    assert "far away\n" in told
    assert "/var/tmp/runner-" in told


def test_a_daemon_of_ones_own_says_why_the_engine_cannot_mount_what_lies_there(home: Path) -> None:
    options = ("--image", IMAGE, *LIMITS, *MOUNT, "--no-retry", "--no-code")
    told = ran(RUNNER, "run", *options, "--", "true", user="alice", where=home, code=10)
    assert "a file system whose server gives root no rights (NFS)" in told


def test_the_daemon_of_all_users_reads_what_only_they_may(home: Path) -> None:
    program = ("sh", "-c", "cat words && cat /data/far/more && echo kept > $HOME/kept")
    options = ("--image", "plain", *LIMITS, *MOUNT)
    with systemd_daemon(allowed_images={"plain": IMAGE}):
        told = ran(RUNNER, "run", *options, "--", *program, user="alice", where=home / "code")
    assert "far away\nand more\n" in told
