"""Files of a client on another machine are taken by content, into a tree that nothing leads out of."""

import errno
import hashlib
import json
import os
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.host.code_snapshot.sent import record_of
from runner.base.errors import UsageError
from runner.cli.receive import KEEP_S, take_tree

TRAIN, HELPER = b"print('train')\n", b"WORDS = 1\n"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def a_file(path: str, content: bytes, *, executable: bool = False) -> list[Any]:
    return [path, digest(content), len(content), executable]


def head(*files: list[Any], links: tuple[Any, ...] = (), directories: tuple[str, ...] = ()) -> bytes:
    return json.dumps({"files": files, "links": links, "directories": directories}).encode() + b"\n"


def send(place: Path, line: bytes, *contents: bytes) -> tuple[list[str], Path]:
    answers = BytesIO()
    take_tree(place, BytesIO(line + b"".join(contents)), answers)
    first, second = answers.getvalue().splitlines()
    return json.loads(first)["missing"], Path(json.loads(second)["tree"])


def test_a_tree_is_made_of_what_was_sent(tmp_path: Path) -> None:
    line = head(
        a_file("home/ada/train.py", TRAIN, executable=True),
        a_file("home/ada/lib/helper.py", HELPER),
        links=(("home/ada/latest", "lib"),),
        directories=("home/ada", "home/ada/empty"),
    )
    missing, tree = send(tmp_path, line, TRAIN, HELPER)
    assert missing == [digest(TRAIN), digest(HELPER)]
    assert (tree / "home/ada/train.py").read_bytes() == TRAIN
    assert os.access(tree / "home/ada/train.py", os.X_OK)
    assert (tree / "home/ada/latest/helper.py").read_bytes() == HELPER
    assert (tree / "home/ada/empty").is_dir()
    assert tree.stat().st_mode & 0o777 == 0o700


def test_a_group_may_read_what_it_is_to_read_and_nothing_else_is_opened(tmp_path: Path) -> None:
    line = head(a_file("ada/lib/train.py", TRAIN, executable=True), a_file("ada/helper.py", HELPER))
    answers, group = BytesIO(), 65532 if os.geteuid() == 0 else os.getgid()
    take_tree(tmp_path / "received", BytesIO(line + TRAIN + HELPER), answers, readers=group)
    tree = Path(json.loads(answers.getvalue().splitlines()[1])["tree"])
    below = [tree, *tree.rglob("*")]
    assert {each.stat().st_gid for each in below} == {group}
    assert {each.stat().st_mode & 0o777 for each in below if each.is_dir()} == {0o750}
    assert (tree / "ada/lib/train.py").stat().st_mode & 0o777 == 0o750
    assert (tree / "ada/helper.py").stat().st_mode & 0o777 == 0o640
    assert all(each.stat().st_mode & 0o050 == 0o050 for each in (tree.parent, tree.parent.parent))


def test_what_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    send(tmp_path, head(a_file("a.py", TRAIN)), TRAIN)
    assert send(tmp_path, head(a_file("a.py", TRAIN)))[0] == []
    missing, tree = send(tmp_path, head(a_file("b.py", TRAIN), a_file("c.py", HELPER)), HELPER)
    assert missing == [digest(HELPER)]
    assert (tree / "b.py").read_bytes() == TRAIN


def test_a_file_and_its_executable_twin_keep_their_modes(tmp_path: Path) -> None:
    _, tree = send(tmp_path, head(a_file("a", TRAIN), a_file("b", TRAIN, executable=True)), TRAIN)
    assert [os.access(tree / name, os.X_OK) for name in ("a", "b")] == [False, True]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", "a\0b"])
@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_no_path_leads_out_of_the_tree(tmp_path: Path, path: str, kind: str) -> None:
    line = {
        "file": head(a_file(path, TRAIN)),
        "link": head(links=((path, "x"),)),
        "directory": head(directories=(path,)),
    }[kind]
    with pytest.raises(UsageError, match="leads out of the tree"):
        send(tmp_path / "received", line, TRAIN)
    assert not (tmp_path / "received").exists()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"[]\n",
        b'{"files": 7}\n',
        b'{"files": [["a"]], "links": [], "directories": []}\n',
        b"\xff\n",
    ],
)
def test_what_is_no_tree_is_refused(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(UsageError, match="no tree was sent"):
        send(tmp_path, line)


@pytest.mark.parametrize("name", ["../../x", "A" * 64, "0" * 63])
def test_what_is_no_digest_names_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no digest"):
        send(tmp_path, head(["a", name, 1, False]), b"x")


def test_content_that_is_cut_short_or_another_one_makes_no_tree(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ended early; nothing was submitted"):
        send(tmp_path, head(a_file("a", TRAIN)), TRAIN[:3])
    with pytest.raises(UsageError, match="changed while it was sent"):
        send(tmp_path, head(a_file("a", TRAIN)), TRAIN[::-1])
    assert not list((tmp_path / "files").iterdir())
    assert not list((tmp_path / "trees").iterdir())


def test_trees_and_files_that_nobody_asked_for_in_a_week_are_removed(tmp_path: Path) -> None:
    _, old = send(tmp_path, head(a_file("a", TRAIN)), TRAIN)
    before = time.time() - KEEP_S - 60
    os.utime(old, (before, before))
    for blob in (tmp_path / "files").iterdir():
        os.utime(blob, (before, before))
    _, new = send(tmp_path, head(a_file("b", HELPER)), HELPER)
    assert not old.exists()
    assert [path.name for path in (tmp_path / "files").iterdir()] == [digest(HELPER)]
    assert (new / "b").read_bytes() == HELPER


def test_what_the_client_says_about_git_stands_beside_the_tree_and_goes_with_it(tmp_path: Path) -> None:
    said = {**json.loads(head(a_file("a", TRAIN))), "git": {"commit": "a" * 40}}
    _, tree = send(tmp_path, json.dumps(said).encode() + b"\n", TRAIN)
    record = Path(record_of(str(tree)))
    assert json.loads(record.read_text()) == {"git": {"commit": "a" * 40}}
    assert record.stat().st_mode & 0o777 == 0o600
    before = time.time() - KEEP_S - 60
    for each in (tree, record):
        os.utime(each, (before, before))
    _, other = send(tmp_path, head(a_file("b", TRAIN)))
    assert [each.name for each in (tmp_path / "trees").iterdir()] == [other.name]


def test_a_file_that_has_all_links_of_the_file_system_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_target: Path, _source: Path) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    _, tree = send(tmp_path, head(a_file("a", TRAIN, executable=True)), TRAIN)
    copied = (tree / "a").stat()
    assert ((tree / "a").read_bytes(), copied.st_nlink, copied.st_mode & 0o777) == (TRAIN, 1, 0o700)
