"""The rights with which the daemon looks at what belongs to the owner of a job."""

from pathlib import Path

import pytest

from runner.adapters.host.users import HostUsers
from runner.core.ports.users import Owner, User

OWNER = Owner(1001, 1001, "bob")


def test_a_directory_is_opened_with_all_groups_of_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[User] = []

    def open_as_user(_users: HostUsers, who: User, _path: Path, _kind: str) -> int:
        asked.append(who)
        return 0

    monkeypatch.setattr(HostUsers, "find_user", lambda *_: User(1001, 1001, (1001, 3000), "bob"))
    monkeypatch.setattr(HostUsers, "open_as_user", open_as_user)
    HostUsers().open_as_owner(OWNER, Path("/scratch/lab"))
    assert [each.groups for each in asked] == [(1001, 3000)]
