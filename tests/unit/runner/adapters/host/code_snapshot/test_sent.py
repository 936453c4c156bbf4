"""Code that a client on another machine has sent: what it said about git, and what of the code counts."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.host.code_snapshot import walk
from runner.adapters.host.code_snapshot.frames import read_frames
from runner.adapters.host.code_snapshot.sent import SentCode, find_sent, record_of
from runner.adapters.host.code_snapshot.walk import WalkLimits, send_tree

GIT = {"commit": "a" * 40, "branch": "main", "remote": "origin", "dirty": True}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the code of another machine, which this process is in."""
    tree = tmp_path / "received/trees" / ("0" * 32)
    code = tree / "home/ada/project"
    code.mkdir(parents=True)
    (code / "train.py").write_text("")
    monkeypatch.chdir(code)
    return tree


def say(tree: Path, git: object) -> None:
    Path(record_of(str(tree))).write_text(json.dumps({"git": git}))


def look(known: dict[str, Any] | None = None) -> tuple[bytes, Any]:
    out = io.BytesIO()
    send_tree(out, known or {}, WalkLimits(None, 1000), frozenset())
    out.seek(0)
    kind, content = list(read_frames(out))[-1]
    return kind, json.loads(content)


def names(listing: dict[str, Any]) -> set[str]:
    return {file[0] for directory in listing["directories"] for file in directory[2]}


@pytest.mark.parametrize(
    ("git", "known"),
    [
        (GIT, GIT),
        (None, None),
        ({}, dict.fromkeys(GIT)),
        ({"commit": "b" * 64, "dirty": False}, {**dict.fromkeys(GIT), "commit": "b" * 64, "dirty": False}),
    ],
)
def test_what_the_client_said_is_known(tree: Path, git: object, known: dict[str, Any] | None) -> None:
    assert find_sent() is None
    say(tree, git)
    assert find_sent() == SentCode(known)


@pytest.mark.parametrize(
    "wrong",
    [
        {"commit": "A" * 40},
        {"commit": 7},
        {"commit": "a" * 39},
        {"branch": ""},
        {"branch": "x" * 256},
        {"remote": ["origin"]},
        {"dirty": "yes"},
    ],
)
def test_what_cannot_be_true_counts_as_silence(tree: Path, wrong: dict[str, Any]) -> None:
    say(tree, {**GIT, **wrong})
    assert find_sent() == SentCode({})


def test_a_record_that_is_no_file_or_of_somebody_else_is_none(tree: Path) -> None:
    record = Path(record_of(str(tree)))
    record.mkdir()
    assert find_sent() is None
    record.rmdir()
    os.mkfifo(record)
    assert find_sent() is None
    record.unlink()
    record.write_text("[" * 100_000)
    assert find_sent() is None
    if os.geteuid() == 0:
        say(tree, GIT)
        os.chown(record, 1234, 1234)
        assert find_sent() is None


def test_git_of_the_client_counts_and_no_repository_above_the_tree(tree: Path) -> None:
    (tree.parents[2] / ".git").mkdir()
    (tree.parents[2] / ".gitignore").write_text("train.py\n")
    say(tree, GIT)
    kind, listing = look()
    assert (kind, listing["git"]) == (walk.LISTING, GIT)
    assert names(listing) == {"train.py"}


def test_what_git_has_in_its_index_is_in_the_code_although_it_is_ignored(tree: Path) -> None:
    Path(".gitignore").write_text("*.bin\n")
    Path(".runnerignore").write_text("notes.txt\n")
    for name in ("weights.bin", "notes.txt"):  # sent: git has one, a job file names the other one
        Path(name).write_text("")
    say(tree, GIT)
    assert names(look()[1]) == {"train.py", "weights.bin", ".gitignore", ".runnerignore"}
