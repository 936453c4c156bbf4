"""The person behind a uid: subordinate ids belong to the owner of their range."""

import os
import pwd
from pathlib import Path

import pytest

from runner.adapters.host.accounts import SubordinateIds
from runner.adapters.host.users import HostUsers
from runner.core.ports.users import UnknownUids

ANN = pwd.getpwuid(1)
LINES = f"# comment\n{ANN.pw_name}:100000:65536\n4711:300000:10\nnobody-here:500000:10\n\nbad:line\n:1:x\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "subuid"
    path.write_text(LINES)
    return path


@pytest.mark.parametrize(
    ("uid", "person"),
    [
        (1, 1),
        (99_999, 99_999),
        (100_000, 1),
        (165_535, 1),
        (165_536, 165_536),
        (300_009, 4711),
        (500_001, 500_001),
    ],
)
def test_a_subordinate_id_is_the_owner_of_its_range(file: Path, uid: int, person: int) -> None:
    assert SubordinateIds(file).person(uid) == person


def test_a_changed_file_is_read_again_and_a_missing_one_gives_nobody_a_range(file: Path) -> None:
    ids = SubordinateIds(file)
    assert ids.person(100_000) == 1
    file.write_text("")
    os.utime(file, ns=(1, 1))
    assert ids.person(100_000) == 100_000
    file.unlink()
    assert ids.person(100_000) == 100_000


@pytest.mark.parametrize(
    ("unknown", "names", "refused"),
    [
        ("refuse", [ANN.pw_name, "400000"], [100_000, 165_535, 400_000]),
        ("owner", [ANN.pw_name, "400000"], [400_000]),
        ("accept", ["100000", "400000"], []),
    ],
)
def test_what_is_done_with_uids_without_an_account_is_a_setting(
    file: Path, unknown: UnknownUids, names: list[str], refused: list[int]
) -> None:
    users = HostUsers(unknown, SubordinateIds(file))
    assert [users.find_user(uid, uid).name for uid in (100_000, 400_000)] == names
    assert [uid for uid in (0, 1, 100_000, 165_535, 400_000) if users.account_problem(uid)] == refused


def test_a_uid_that_counts_as_its_owner_keeps_its_own_rights(file: Path) -> None:
    found = HostUsers("owner", SubordinateIds(file)).find_user(100_000, 100_001)
    assert (found.uid, found.gid, found.groups) == (100_000, 100_001, (100_001,))


def test_a_refusal_says_whose_id_it_is(file: Path) -> None:
    assert HostUsers("refuse", SubordinateIds(file)).account_problem(100_007) == (
        "uid 100007 has no account on this machine, and belongs to uid 1; ask the operator (unknown_uids)"
    )
