from dataclasses import replace
from pathlib import Path

import pytest

from runner.adapters.docker.accounts import account_files, write_account_files
from runner.adapters.docker.hardening import HardeningSettings, engine_arguments
from runner.base.errors import Unavailable
from runner.core.ports.executor import LaunchRequest
from runner.core.ports.users import Owner
from tests.unit.runner.adapters.docker.test_hardening import REQUEST

DIRECTORY = Path("/state/accounts")


def test_the_files_name_the_user_and_the_groups_of_the_request() -> None:
    request = replace(REQUEST, owner=Owner(1001, 1002, "ada"), groups=(1003,))
    (_, passwd, users), (_, group, groups) = account_files(request, DIRECTORY)
    assert [str(passwd), str(group)] == ["/etc/passwd", "/etc/group"]
    assert users.decode().splitlines()[1:] == ["ada:x:1001:1002::/job/home:/bin/sh"]
    assert groups.decode().splitlines()[1:] == ["ada:x:1002:", "group-1003:x:1003:ada"]


def environment(request: LaunchRequest) -> list[str]:
    found: list[str] = engine_arguments(request, HardeningSettings("i1"))["config"]["Env"]
    return found


@pytest.mark.parametrize(
    "name",
    ["ada", "LAB\\ada", "ada lovelace", "ü", "1000", "a$", "ada.lovelace@students.example-university.org"],
)
def test_variables_and_the_account_have_the_name_of_the_host(name: str) -> None:
    request = replace(REQUEST, owner=Owner(1001, 1002, name))
    (_, _, users), _ = account_files(request, DIRECTORY)
    assert users.decode().splitlines()[1].split(":")[0] == name
    assert {f"USER={name}", f"LOGNAME={name}"} <= set(environment(request))


@pytest.mark.parametrize("name", ["root", "a:b", "a\nroot::0:0", "", "+ada", "a,b", "a\udcfcb"])
def test_a_name_that_would_be_another_entry_is_not_written(name: str) -> None:
    request = replace(REQUEST, owner=Owner(1001, 1002, name))
    (_, _, users), _ = account_files(request, DIRECTORY)
    assert users.decode().splitlines()[1:] == ["user-1001:x:1001:1002::/job/home:/bin/sh"]
    assert {"USER=user-1001", "LOGNAME=user-1001"} <= set(environment(request))


def test_two_attempts_of_a_user_share_the_files_and_another_user_does_not() -> None:
    sources = [
        [source for source, _, _ in account_files(replace(REQUEST, owner=Owner(uid, 5, "ada")), DIRECTORY)]
        for uid in (7, 7, 8)
    ]
    assert sources[0] == sources[1]
    assert sources[0] != sources[2]


def test_the_files_are_written_for_everybody_to_read(tmp_path: Path) -> None:
    write_account_files(REQUEST, tmp_path / "accounts")
    write_account_files(REQUEST, tmp_path / "accounts")
    written = sorted((tmp_path / "accounts").iterdir())
    assert [path.stat().st_mode & 0o777 for path in written] == [0o644, 0o644]
    assert {path.read_bytes() for path in written} == {
        text for _, _, text in account_files(REQUEST, tmp_path)
    }


def test_a_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file/accounts"):
        write_account_files(REQUEST, tmp_path / "file" / "accounts")
