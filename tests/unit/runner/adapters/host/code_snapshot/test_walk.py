"""Reading a code directory: what is sent, and what a second look leaves out."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.host.code_snapshot import walk
from runner.adapters.host.code_snapshot.frames import read_frames
from runner.adapters.host.code_snapshot.ignore import IgnoreRules, Repository
from runner.adapters.host.code_snapshot.walk import WalkLimits, send_tree

ANYTHING = WalkLimits(None, 1000)
Frames = list[tuple[bytes, bytes]]


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in no repository, which this process is in; its files count as old at once."""
    monkeypatch.setattr(walk, "find_repository", lambda: None)
    monkeypatch.setattr(walk, "MARGIN_NS", -(10**18))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("two")
    return tmp_path


def look(known: dict[str, Any] | None = None, out: io.BytesIO | None = None) -> Frames:
    out = out or io.BytesIO()
    send_tree(out, known or {}, ANYTHING, frozenset())
    out.seek(0)
    return [frame for frame in read_frames(out) if frame[0] != walk.WORKING]


def listing(frames: Frames) -> dict[str, Any]:
    """Return a listing as the daemon keeps it: with the digests of what was sent."""
    found: dict[str, Any] = json.loads(frames[-1][1])
    for _, _, files, *_ in found["directories"]:
        for file in files:
            file[2] = file[2] or "d" * 64
    return found


def sent(frames: Frames) -> list[str]:
    return [json.loads(content) for kind, content in frames if kind == walk.END_OF_FILE]


def test_the_first_look_sends_every_file_and_the_second_none(code: Path) -> None:
    first = look()
    assert sent(first) == ["a.py", "sub/b.py"]
    assert look(listing(first)) == [(walk.SAME, b'{"git": null, "left_out": []}')]
    assert code.exists()


def test_an_edited_file_alone_is_read_again(code: Path) -> None:
    known = listing(look())
    (code / "sub" / "b.py").write_text("three")
    again = look(known)
    assert (sent(again), again[-1][0]) == (["sub/b.py"], walk.LISTING)


def test_a_file_of_the_same_size_and_time_in_another_inode_is_read_again(code: Path) -> None:
    known, before = listing(look()), (code / "a.py").stat()
    (code / "new").write_text("eno")
    os.utime(code / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (code / "new").replace(code / "a.py")
    assert sent(look(known)) == ["a.py"]


def test_a_file_without_a_digest_is_read_again(code: Path) -> None:
    known = listing(look())
    known["directories"][0][2][0][2] = ""  # it was too young at the last look
    assert sent(look(known)) == ["a.py"]
    assert code.exists()


def test_new_rules_count_for_directories_that_have_not_changed(code: Path) -> None:
    known = listing(look())
    (code / ".gitignore").write_text("b.py\n")
    found = json.loads(look(known)[-1][1])
    assert [[path, [file[0] for file in files]] for path, _, files, *_ in found["directories"]] == [
        ["", [".gitignore", "a.py"]],
        ["sub", []],
    ]


class Interfering(io.BytesIO):
    """A stream that does something whenever the content of a file is written to it."""

    def __init__(self, interfere: Callable[[], object], times: int) -> None:
        super().__init__()
        self._interfere, self._times = interfere, times

    def write(self, content: Any) -> int:
        if self._times and bytes(content).startswith(b"one"):
            self._times -= 1
            self._interfere()
        return super().write(content)


def test_a_file_that_changes_once_while_it_is_read_is_read_again(code: Path) -> None:
    frames = look(out=Interfering(lambda: (code / "a.py").write_text("one and more"), 1))
    kinds = [kind for kind, _ in frames[:4]]
    assert kinds == [walk.CONTENT, walk.AGAIN, walk.CONTENT, walk.END_OF_FILE]
    assert frames[2][1] == b"one and more"


def test_a_file_that_changes_whenever_it_is_read_is_refused(code: Path) -> None:
    def grow() -> None:
        with (code / "a.py").open("a") as file:
            file.write("+")

    kind, content = look(out=Interfering(grow, 10))[-1]
    fact = "a.py: changes while it is read; submit when it is complete, or list it in .runnerignore"
    assert (kind, json.loads(content)) == (walk.PROBLEMS, [fact])


def test_a_file_that_grows_beyond_the_limit_while_it_is_read_is_refused(code: Path) -> None:
    out = Interfering(lambda: (code / "a.py").write_text("one" * 1000), 1)
    send_tree(out, {}, WalkLimits(100, 1000), frozenset())
    out.seek(0)
    kind, content = list(read_frames(out))[-1]
    assert kind == walk.PROBLEMS
    assert json.loads(content)[0].startswith(".: has 2.9 KiB, and 100 B may be")


def test_a_file_that_is_gone_before_it_is_read_is_told(code: Path) -> None:
    (code / "b.py").write_text("x")
    kind, content = look(out=Interfering((code / "b.py").unlink, 1))[-1]
    assert (kind, json.loads(content)) == (
        walk.PROBLEMS,
        ["b.py: no such file or directory; list it in .runnerignore"],
    )


def test_a_stream_that_is_cut_short_is_told() -> None:
    with pytest.raises(EOFError):
        list(read_frames(io.BytesIO(b"C\0\0\0\x05ab")))
    with pytest.raises(EOFError):
        list(read_frames(io.BytesIO(b"C\0")))


def test_paths_that_are_too_long_together_are_refused_before_all_are_read(code: Path) -> None:
    """Each directory is listed with its whole path."""
    inner = code
    for _ in range(10):
        inner = inner / ("x" * 200)
    inner.mkdir(parents=True)
    for number in range(20):
        (inner / str(number)).mkdir()
    out = io.BytesIO()
    send_tree(out, {}, WalkLimits(None, 50), frozenset())
    out.seek(0)
    frames = [frame for frame in read_frames(out) if frame[0] != walk.WORKING]
    assert [kind for kind, _ in frames] == [walk.PROBLEMS]
    [problem] = json.loads(frames[0][1])
    assert problem.startswith(".: the paths of its files and directories are longer than 25 KiB together")
    out = io.BytesIO()
    send_tree(out, {}, WalkLimits(None, 1000), frozenset())
    out.seek(0)
    assert walk.LISTING in [kind for kind, _ in read_frames(out)]


def test_the_paths_of_a_directory_that_is_known_count_as_those_of_a_new_one(code: Path) -> None:
    known = listing(look())
    (code / "new").touch()
    counted: list[int] = []
    for before in ({}, known):
        seen = walk._Walk(ANYTHING, {each[0]: each for each in before.get("directories", ())}, frozenset(), 0)
        seen.device = os.lstat(".").st_dev
        walk._walk_all(io.BytesIO(), seen, IgnoreRules("", Repository(None)), reusable=bool(before))
        counted.append(seen.name_bytes)
    assert counted[0] == counted[1] == len("a.py") + len("sub") + len("sub/b.py") + len("new")


def test_pointers_of_git_lfs_are_sent_and_told_until_their_content_is_there(code: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 123456\n"
    for name in ("x.pt", "y.pt"):
        (code / name).write_text(pointer)
    (code / "z.py").write_text("#" * len(pointer))
    first = listing(look())
    assert first["left_out"] == [["x.pt", "pointer", 2, 0, "", False]]
    assert json.loads(look(first)[-1][1])["left_out"] == first["left_out"]
    for name in ("x.pt", "y.pt"):
        (code / "new").write_text("weights")
        (code / "new").rename(code / name)
    again = look(first)
    assert sent(again) == ["x.pt", "y.pt"]
    assert listing(again)["left_out"] == []


def test_a_file_of_the_size_of_a_pointer_that_may_not_be_read_is_a_problem_of_its_own(code: Path) -> None:
    assert not walk._is_pointer(str(code / "gone"), 130)
