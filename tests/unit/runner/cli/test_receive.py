"""Trees of files that a client sends, kept by content, and what a hostile or broken client sends."""

import errno
import hashlib
import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import UsageError
from runner.cli.receive import KEEP_S, take_tree

TEXT = b"print('hello')\n"
DIGEST = hashlib.sha256(TEXT).hexdigest()


def manifest(path: str = "home/ada/train.py", digest: str = DIGEST, **more: object) -> bytes:
    said = {"files": [[path, digest, len(TEXT), False]], "links": [], "directories": [], **more}
    return json.dumps(said).encode() + b"\n"


def take(place: Path, sent: bytes) -> list[dict[str, Any]]:
    answers = BytesIO()
    take_tree(place, BytesIO(sent), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_a_file_that_is_here_is_not_asked_for_again(tmp_path: Path) -> None:
    missing, made = take(tmp_path, manifest() + TEXT)
    assert missing == {"missing": [DIGEST]}
    assert (Path(made["tree"]) / "home/ada/train.py").read_bytes() == TEXT
    assert take(tmp_path, manifest()) == [{"missing": []}, made]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"[]\n",
        manifest("../train.py"),
        manifest("/etc/cron.d/x"),
        manifest("home/../../x"),
        manifest(""),
        manifest(digest="../../x"),
        manifest(directories=["../x"]),
        manifest(links=[["../x", "/etc"]]),
    ],
)
def test_what_is_no_tree_is_refused_and_leaves_nothing(tmp_path: Path, sent: bytes) -> None:
    with pytest.raises(UsageError, match="receive: "):
        take(tmp_path / "received", sent + TEXT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("body", "fact"), [(TEXT[:-1], "ended early"), (TEXT[::-1], "a file changed")])
def test_a_file_that_ends_early_or_is_another_one_is_not_kept(tmp_path: Path, body: bytes, fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        take(tmp_path, manifest() + body)
    assert list((tmp_path / "files").iterdir()) == []


def test_a_file_that_has_all_links_of_the_file_system_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_target: Path, _source: Path) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    _, made = take(tmp_path, manifest() + TEXT)
    copied = Path(made["tree"]) / "home/ada/train.py"
    assert (copied.read_bytes(), copied.stat().st_nlink) == (TEXT, 1)


def test_a_tree_that_nobody_has_asked_for_in_a_week_is_removed_with_its_files(tmp_path: Path) -> None:
    _, old = take(tmp_path, manifest() + TEXT)
    [blob] = (tmp_path / "files").iterdir()
    for path in (Path(old["tree"]), blob):
        os.utime(path, (0, path.stat().st_mtime - KEEP_S - 60))
    other = TEXT[::-1]
    take(tmp_path, manifest(digest=hashlib.sha256(other).hexdigest()) + other)
    assert not Path(old["tree"]).exists()
    assert not blob.exists()
