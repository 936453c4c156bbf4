"""State directories and installations that a daemon refuses before it makes anything."""

import os
from pathlib import Path

import pytest

from runner.base import privileges
from runner.base.errors import UsageError
from runner.client.autostart import local_place
from runner.files.settings.model import Settings
from runner.server import state_place
from runner.server.state_place import check_installation, check_state_place

OWN = Settings(system_wide=False)


def _on(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    monkeypatch.setattr(state_place, "remote_type", lambda _: kind)


def test_a_local_disk_is_taken(tmp_path: Path) -> None:
    check_state_place(tmp_path / "state", OWN)


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs"])
def test_a_remote_file_system_is_refused_with_a_place_to_choose(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    _on(monkeypatch, kind)
    with pytest.raises(UsageError, match=f"^/home/s: is on a file system of type {kind}, .*RUNNER_STATE_DIR"):
        check_state_place(Path("/home/s"), OWN)


def test_slurm_needs_a_file_system_that_its_nodes_see(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Settings(executor="slurm", system_wide=False)
    _on(monkeypatch, "nfs4")
    check_state_place(Path("/home/s"), slurm)
    with pytest.raises(UsageError, match="nodes of Slurm do not see this directory; set RUNNER_STATE_DIR"):
        check_state_place(Path(local_place(os.geteuid())), slurm)


@pytest.mark.parametrize("closed", ["parent", "state"])
def test_a_daemon_of_all_users_refuses_a_directory_that_they_cannot_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed: str
) -> None:
    monkeypatch.setattr(privileges, "acts_for_root", lambda: True)
    state = tmp_path / "parent" / "state"
    state.mkdir(parents=True)
    for each in (*tmp_path.parents, tmp_path, state, state.parent):
        if each.stat().st_uid == os.getuid() and not each.stat().st_mode & 0o1001:
            each.chmod(0o755)  # pytest closes what it makes, at a depth that depends on xdist
    check_state_place(state, Settings())
    found = state if closed == "state" else state.parent
    found.chmod(0o700)
    with pytest.raises(UsageError, match=f"{found} is closed to the users .* chmod o.x {found}$"):
        check_state_place(state, Settings())
    with pytest.raises(UsageError, match=f"{found} is closed"):
        check_state_place(state / "made" / "later", Settings())
    check_state_place(state, OWN)


def test_a_daemon_of_all_users_refuses_an_installation_that_they_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(privileges, "acts_for_root", lambda: True)
    monkeypatch.setattr(state_place, "closed_installation", lambda: Path("/root"))
    with pytest.raises(
        UsageError, match=r"/root is closed to the users .* chmod o.x /root; .* system_wide: false"
    ):
        check_installation(Settings())
    check_installation(OWN)
    monkeypatch.setattr(privileges, "acts_for_root", lambda: False)
    check_installation(Settings())  # of one's own, the users of which are its owner
