"""Snapshots of directories: what is kept, what is refused, and what a second look reads."""

import json
import os
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

import pytest

from runner.adapters.host.code_snapshot import git as git_facts
from runner.adapters.host.code_snapshot import walk
from runner.adapters.host.code_snapshot.frames import read_frames
from runner.adapters.host.code_snapshot.snapshots import CodeLimits, HostCodeSnapshots
from runner.adapters.host.users import HostUsers
from runner.base.errors import Refused
from runner.core.ports.code import CodeRefused, CodeSnapshot, GitState, LeftOut, WorkingDirectory
from runner.core.ports.users import Owner, User
from runner.files.left_out import describe

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can look as somebody else")
USERS = HostUsers()
ME = USERS.find_user(os.getuid(), os.getgid())
NOBODY = User(65534, 65534, (65534,), "nobody")
OWNER = Owner(65534, 65534, "nobody") if ROOT else Owner(os.getuid(), os.getgid(), "me")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with the code in it."""
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        code = Path(path) / "code"
        code.mkdir()
        (code / "train.py").write_text("print(1)\n")
        yield Path(path)


def snapshots(place: Path, limits: CodeLimits = CodeLimits()) -> HostCodeSnapshots:  # noqa: B008  (frozen)
    return HostCodeSnapshots(place / "store", USERS, limits, (place,))


def names(kept: HostCodeSnapshots, taken: CodeSnapshot, who: User = ME) -> list[str]:
    return list(kept.entries(who.uid, taken.id) or ())


def filled(kept: HostCodeSnapshots, taken: CodeSnapshot, target: Path, *, read_only: bool = False) -> Path:
    target.mkdir()
    kept.fill(ME.uid, WorkingDirectory(taken.id, read_only), target, OWNER)
    return target


def packed(kept: HostCodeSnapshots, snapshot: str) -> bytes:
    with TemporaryFile() as out:
        kept.pack(ME.uid, snapshot, out)
        out.seek(0)
        return out.read()


def test_a_tar_of_a_snapshot_depends_on_its_content_alone(place: Path) -> None:
    code, kept = place / "code", snapshots(place)
    (code / "src").mkdir()
    (code / "src" / "run.sh").write_text("true\n")
    (code / "src" / "run.sh").chmod(0o755)
    (code / "link").symlink_to("src/run.sh")
    taken = kept.take(ME, code)
    body = packed(kept, taken.id)
    with tarfile.open(fileobj=BytesIO(body)) as tar:
        found = {each.name: (each.mode, each.linkname, each.mtime, each.uid) for each in tar}
        assert found == {
            "link": (0o644, "src/run.sh", 0, 0),
            "src": (0o755, "", 0, 0),
            "src/run.sh": (0o755, "", 0, 0),
            "train.py": (0o644, "", 0, 0),
        }
        script = tar.extractfile("src/run.sh")
        assert script is not None
        assert script.read() == b"true\n"
    os.utime(code / "train.py", (1, 1))
    assert packed(kept, kept.take(ME, code).id) == body
    with pytest.raises(Refused, match="is gone; submit it again"):
        kept.pack(ME.uid, "0" * 64, BytesIO())
    for path in (place / "store").rglob("*"):
        if path.is_file() and path.read_bytes() == b"true\n":
            path.unlink()
    with pytest.raises(Refused, match=r"src/run\.sh is gone"):
        kept.pack(ME.uid, taken.id, BytesIO())


def test_a_snapshot_holds_what_the_directory_held(place: Path) -> None:
    code, kept = place / "code", snapshots(place)
    (code / "src" / "deep").mkdir(parents=True)
    (code / "empty").mkdir()
    (code / "src" / "deep" / "run.sh").write_bytes(bytes(range(256)) * 9000)
    (code / "src" / "deep" / "run.sh").chmod(0o750)
    (code / "nothing").touch()
    (code / "link").symlink_to("src/deep/run.sh")
    (code / "absolute").symlink_to(code / "src")
    taken = kept.take(ME, code)
    (code / "train.py").write_text("print(2)\n")
    made = filled(kept, taken, place / "made")
    assert (made / "train.py").read_text() == "print(1)\n"
    assert (made / "src" / "deep" / "run.sh").read_bytes() == bytes(range(256)) * 9000
    assert (made / "src" / "deep" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (made / "train.py").stat().st_mode & 0o777 == 0o644
    assert ((made / "link").readlink(), (made / "absolute").readlink()) == (
        Path("src/deep/run.sh"),
        Path("src"),
    )
    assert ((made / "nothing").read_bytes(), (made / "empty").is_dir()) == (b"", True)
    assert taken.files == 5
    assert {path.lstat().st_uid for path in made.rglob("*")} == {OWNER.uid}


def test_the_same_content_is_the_same_snapshot_and_is_kept_once(place: Path) -> None:
    kept = snapshots(place)
    (place / "code" / "copy.py").write_text("print(1)\n")
    first = kept.take(ME, place / "code")
    assert kept.take(ME, place / "code") == first
    assert len(list((place / "store").rglob("files/*/*"))) == 1
    (place / "code" / "train.py").write_text("print(3)\n")
    assert kept.take(ME, place / "code").id != first.id


def test_a_file_in_the_store_is_not_the_file_of_a_working_directory(place: Path) -> None:
    kept = snapshots(place)
    taken = kept.take(ME, place / "code")
    made = filled(kept, taken, place / "made")
    (made / "train.py").write_text("broken")
    assert (filled(kept, taken, place / "next") / "train.py").read_text() == "print(1)\n"
    assert (filled(kept, taken, place / "still", read_only=True) / "train.py").stat().st_mode & 0o777 == 0o444


def test_ignore_files_leave_out_and_have_back(place: Path) -> None:
    code = place / "code"
    for name in (
        "a.log",
        "keep.log",
        "data/big.bin",
        "src/b.log",
        "src/own.txt",
        "x/__pycache__/c.pyc",
        ".git/HEAD",
    ):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / ".gitignore").write_text("*.log\ndata/\n!keep.log\n")
    (code / "src" / ".gitignore").write_text("/own.txt\n")
    (code / "src" / ".runnerignore").write_text("!b.log\n")
    (code / "env" / "bin").mkdir(parents=True)
    (code / "env" / "pyvenv.cfg").touch()
    kept = snapshots(place)
    assert names(kept, kept.take(ME, code)) == [
        ".gitignore", "keep.log", "src", "src/.gitignore", "src/.runnerignore", "src/b.log", "train.py", "x",
    ]  # fmt: skip


def test_what_cannot_be_kept_is_left_out_and_told(place: Path) -> None:
    code = place / "code"
    with socket.socket(socket.AF_UNIX) as listener:
        os.mkfifo(code / "pipe")
        listener.bind(str(code / "socket"))
        (code / "out").symlink_to("../store")
        (code / "far").symlink_to("/usr/bin")
        (code / "gone").symlink_to("/nowhere/data")
        (code / "sub").mkdir()
        (code / "sub" / "in").symlink_to(code / "train.py")
        kept = snapshots(place)
        taken = kept.take(ME, code)
    assert names(kept, taken) == ["sub", "sub/in", "train.py"]
    told = (
        LeftOut("far", "link", target="/usr/bin"),
        LeftOut("gone", "special", target="a link to /nowhere/data, which is not there"),
        LeftOut("out", "link", target="../store"),
        LeftOut("pipe", "special", target="a named pipe"),
        LeftOut("socket", "special", target="a socket"),
    )
    assert (taken.left_out, kept.take(ME, code).left_out) == (told, told)
    (code / ".runnerignore").write_text("pipe\nsocket\nout\nfar\ngone\n")
    assert kept.take(ME, code).left_out == ()  # its owner has said so to the runner


def test_a_name_with_a_line_break_is_refused(place: Path) -> None:
    (place / "code" / "a\nb").touch()
    with pytest.raises(CodeRefused) as refused:
        snapshots(place).take(ME, place / "code")
    fact = "a\\nb: has a line break in its name; rename it, or list it in .runnerignore"
    assert refused.value.facts == (fact,)


@pytest.mark.skipif(not ROOT, reason="only root makes devices")
def test_a_device_is_left_out(place: Path) -> None:
    os.mknod(place / "code" / "null", 0o20666, os.makedev(1, 3))
    taken = snapshots(place).take(ME, place / "code")
    assert taken.left_out == (LeftOut("null", "special", target="a device"),)


def test_ignored_data_are_told_the_largest_first_and_what_is_made_again_is_not(place: Path) -> None:
    code, kept = place / "code", snapshots(place)
    for name, size in {
        "data/train/a.bin": 3000, "data/b.bin": 2000, "runs/x.txt": 10, "one.npy": 400, "two.npy": 500,
        "three.npy": 600, "weights.pt": 9000, "__pycache__/a.pyc": 9, ".venv/pyvenv.cfg": 9,
        "env/pyvenv.cfg": 1, "env/big": 99999,
    }.items():  # fmt: skip
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes(bytes(size))
    (code / ".gitignore").write_text("data\nruns/\n*.npy\n*.pt\n__pycache__\n.venv\nenv/\n")
    told = [
        LeftOut("weights.pt", "file", 1, 9000),
        LeftOut("data", "directory", 2, 5000),
        LeftOut("*.npy", "file", 3, 1500),
        LeftOut("runs", "directory", 1, 10),
    ]
    assert kept.take(ME, code).left_out == tuple(told)
    (code / "data/train/more.bin").write_bytes(bytes(8000))  # no directory of the code changes
    told[:2] = [LeftOut("data", "directory", 3, 13000), told[0]]
    assert kept.take(ME, code).left_out == tuple(told)


@pytest.mark.parametrize("path", ["data", "deep/data", "deep/x.npy", "deep/*.csv"])
def test_the_line_that_is_told_about_ignored_data_works(place: Path, path: str) -> None:
    code, kept = place / "code", snapshots(place)
    (code / "data").mkdir()
    (code / "deep/data").mkdir(parents=True)
    for name in ("data/a", "deep/data/a", "deep/x.npy", "deep/1.csv", "deep/2.csv", "deep/3.csv"):
        (code / name).write_text("x")
    (code / ".gitignore").write_text("data/\n*.npy\n")
    (code / "deep/.gitignore").write_text("*.csv\n")
    [left] = [each for each in kept.take(ME, code).left_out if each.path == path]
    [told] = describe([left], code)
    line, file = told.partition("write ")[2].partition("; ")[0].split(" into ")
    (code / file).write_text(f"{line}\n")
    assert path not in {each.path for each in kept.take(ME, code).left_out}


def test_names_and_patterns_that_are_not_utf_8_count_by_their_bytes(place: Path) -> None:
    code, kept = place / "code", snapshots(place)
    for name in (b"caf\xe9.txt", b"caf\xe8.txt", "sch\u00f6n.txt".encode(), b"\xff/a.py"):
        path = code / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (code / ".gitignore").write_bytes(b"caf\xe9.txt\nsch\xc3\xb6n.*\n")
    taken = kept.take(ME, code)
    there = filled(kept, taken, place / "there")
    found = sorted(os.fsencode(path.relative_to(there)) for path in there.rglob("*"))
    assert found == [b".gitignore", b"caf\xe8.txt", b"train.py", b"\xff", b"\xff/a.py"]
    assert b"caf\xe8.txt" in packed(kept, taken.id)
    assert kept.take(ME, code).id == taken.id


def test_too_much_names_the_largest_files(place: Path) -> None:
    (place / "code" / "big.bin").write_bytes(bytes(5000))
    (place / "code" / "small.bin").write_bytes(bytes(1000))
    with pytest.raises(CodeRefused) as refused:
        snapshots(place, CodeLimits(max_bytes=4096)).take(ME, place / "code")
    (fact,) = refused.value.facts
    assert fact.startswith(
        ".: has 5.9 KiB, and 4 KiB may be; the largest: big.bin (4.9 KiB), small.bin (1000 B), train.py (9 B)"
    )
    with pytest.raises(CodeRefused, match="has more than 2 files and directories"):
        snapshots(place, CodeLimits(max_files=2)).take(ME, place / "code")


@needs_root
def test_a_directory_is_read_with_the_rights_of_its_submitter(place: Path) -> None:
    kept = snapshots(place)
    secret = place / "code" / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    with pytest.raises(CodeRefused) as refused:
        kept.take(NOBODY, place / "code")
    assert refused.value.facts == ("secret: you do not have permission to read it; list it in .runnerignore",)
    secret.chmod(0o644)
    taken = kept.take(NOBODY, place / "code")
    assert kept.entries(ME.uid, taken.id) is None
    with pytest.raises(Refused, match="is gone; submit it again"):
        kept.fill(ME.uid, WorkingDirectory(taken.id), place / "made", OWNER)


def test_a_directory_that_is_not_there_is_refused(place: Path) -> None:
    with pytest.raises(CodeRefused, match="absent: does not exist"):
        snapshots(place).take(ME, place / "absent")
    with pytest.raises(CodeRefused, match="belongs to the system"):
        snapshots(place).take(ME, Path("/etc"))


def test_the_daemons_own_directory_in_the_code_is_left_out(place: Path) -> None:
    state = place / "code" / "state"
    state.mkdir()
    kept = HostCodeSnapshots(state / "store", USERS, CodeLimits(), (state,))
    assert names(kept, kept.take(ME, place / "code")) == ["train.py"]
    assert names(kept, kept.take(ME, place / "code")) == ["train.py"]


def unneeded(*, finished: bool) -> frozenset[str]:
    del finished
    return frozenset()


def test_what_no_job_needs_is_swept_and_what_is_young_is_not(place: Path) -> None:
    kept = snapshots(place)
    old = kept.take(ME, place / "code")
    (place / "code" / "train.py").write_text("print(2)\n")
    new = kept.take(ME, place / "code")
    kept.in_use = unneeded
    assert kept.sweep() == 0
    for path in (place / "store").rglob("*"):
        os.utime(path, (1, 1))
    kept.in_use = lambda *, finished: frozenset({new.id} if finished else ())
    assert kept.sweep() == len("print(1)\n")
    assert (kept.entries(ME.uid, old.id), names(kept, new)) == (None, ["train.py"])
    kept.in_use = unneeded
    assert kept.sweep() == len("print(2)\n")
    assert names(kept, kept.take(ME, place / "code")) == ["train.py"]
    assert (filled(kept, kept.take(ME, place / "code"), place / "made") / "train.py").exists()


def test_new_code_leaves_to_a_program_what_it_has_changed(place: Path) -> None:
    code, kept = place / "code", snapshots(place)
    for name in ("same", "edited", "gone", "written", "src/inner", "old/file"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text(f"{name} 1")
    (code / "link").symlink_to("same")
    before = kept.take(ME, code)
    made = filled(kept, before, place / "made")
    os.chown(made, OWNER.uid, OWNER.gid)
    (made / "written").write_text("by the program")
    (made / "output").write_text("of the program")
    (made / "old" / "more").write_text("of the program")
    for name in ("edited", "written", "src/inner"):
        (code / name).write_text(f"{name} 2")
    (code / "edited").chmod(0o755)
    (code / "gone").unlink()
    (code / "old" / "file").unlink()
    (code / "old").rmdir()
    (code / "link").unlink()
    (code / "link").symlink_to("src")
    (code / "added" / "deep").mkdir(parents=True)
    (code / "added" / "deep" / "x").write_text("x 2")
    (code / "output").write_text("as code")
    after = WorkingDirectory(kept.take(ME, code).id)
    told = kept.update(ME.uid, before.id, after, made, OWNER)
    assert set(told) == {"written", "output", "old"}
    texts = {
        path.name: path.read_text() for path in made.rglob("*") if path.is_file() and not path.is_symlink()
    }
    assert texts == {
        "same": "same 1",
        "edited": "edited 2",
        "written": "by the program",
        "inner": "src/inner 2",
        "output": "of the program",
        "more": "of the program",
        "x": "x 2",
        "train.py": "print(1)\n",
    }
    assert ((made / "link").readlink(), (made / "edited").stat().st_mode & 0o777) == (Path("src"), 0o755)
    assert set(kept.update(ME.uid, before.id, after, made, OWNER)) == set(told)


def test_new_code_follows_no_link_that_a_program_has_made(place: Path) -> None:
    code, kept = place / "code", snapshots(place)
    (code / "src").mkdir()
    (code / "src" / "a").write_text("1")
    before = kept.take(ME, code)
    made, elsewhere = filled(kept, before, place / "made"), place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").write_text("1")
    for path in (made, elsewhere, elsewhere / "a"):
        os.chown(path, OWNER.uid, OWNER.gid)
    (made / "src" / "a").unlink()
    (made / "src").rmdir()
    (made / "src").symlink_to(elsewhere)
    (code / "src" / "a").write_text("2")
    told = kept.update(ME.uid, before.id, WorkingDirectory(kept.take(ME, code).id), made, OWNER)
    assert (told, (elsewhere / "a").read_text()) == (("src/a",), "1")


def git(place: Path, *arguments: str) -> str:
    named = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *named, *arguments], cwd=place, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(place: Path) -> Path:
    code = place / "code"
    git(code, "init", "-q", "-b", "trunk")
    git(code, "add", ".")
    git(code, "commit", "-qm", "first")
    return code


def test_a_snapshot_knows_commit_branch_remote_and_whether_something_differs(place: Path) -> None:
    code, kept = repository(place), snapshots(place)
    first = git(code, "rev-parse", "HEAD")
    assert kept.take(ME, code).git == GitState(first, "trunk", None, dirty=False)
    git(code, "remote", "add", "upstream", "https://ann:secret@example.org/x")
    (code / "train.py").write_text("print(2)")
    assert kept.take(ME, code).git == GitState(first, "trunk", "upstream", dirty=True)
    git(code, "commit", "-qam", "second")
    second = git(code, "rev-parse", "HEAD")
    assert kept.take(ME, code).git == GitState(second, "trunk", "upstream", dirty=False)
    git(code, "checkout", "-q", "--detach")
    assert kept.take(ME, code).git == GitState(second, None, "upstream", dirty=False)
    (code / "new.py").touch()
    assert kept.take(ME, code).git == GitState(second, None, "upstream", dirty=True)
    assert kept.take(ME, code).git == GitState(second, None, "upstream", dirty=True)


def test_no_program_of_a_repository_is_run(place: Path) -> None:
    code, kept = repository(place), snapshots(place)
    trap = f"touch {place}/trapped; cat"
    (code / ".gitattributes").write_text("*.py filter=trap\n")
    for name in ("filter.trap.clean", "filter.trap.process", "core.fsmonitor"):
        git(code, "config", name, trap)
    git(code, "config", "filter.trap.required", "true")
    (code / "train.py").write_text("print(3)")
    found = kept.take(ME, code).git
    assert found is not None
    assert (found.dirty, (place / "trapped").exists()) == (True, False)


def test_what_git_tracks_is_kept_although_it_is_ignored_unless_the_runner_is_told(place: Path) -> None:
    code = place / "code"
    (code / "data").mkdir()
    for name in ("data/vocabulary", "data/big", "notes.log"):
        (code / name).write_text(name)
    (code / ".gitignore").write_text("data/\n*.log\n")
    git(repository(place), "add", "-f", "data/vocabulary", "notes.log")
    kept = snapshots(place)
    assert names(kept, kept.take(ME, code)) == [
        ".gitignore", "data", "data/vocabulary", "notes.log", "train.py",
    ]  # fmt: skip
    (code / ".runnerignore").write_text("data\n")
    assert names(kept, kept.take(ME, code)) == [".gitignore", ".runnerignore", "notes.log", "train.py"]


def test_a_part_of_a_repository_has_the_patterns_of_the_whole(place: Path) -> None:
    code, kept = repository(place), snapshots(place)
    (code / "part" / "out").mkdir(parents=True)
    for name in ("a.log", "b.tmp", "c.py", "out/x"):
        (code / "part" / name).touch()
    (code / ".gitignore").write_text("*.log\n/part/out\n")
    (code / ".git" / "info" / "exclude").write_text("*.tmp\n")
    assert names(kept, kept.take(ME, code / "part")) == ["c.py"]
    (code / ".gitignore").write_text("*.py\n")
    assert names(kept, kept.take(ME, code / "part")) == ["a.log", "out", "out/x"]


def own_ignored(code: Path) -> list[str]:
    """Return what git itself has or would add in a repository and those within."""
    found = git(code, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    inner = [path for path in found if path and (code / path).is_dir()]
    below = [f"{path.rstrip('/')}/{each}" for path in inner for each in own_ignored(code / path)]
    return sorted([path for path in found if path and path not in inner] + below)


def files_of(kept: HostCodeSnapshots, taken: CodeSnapshot) -> list[str]:
    entries = kept.entries(ME.uid, taken.id) or {}
    return sorted(path for path, entry in entries.items() if entry.kind == "file")


def files_here() -> list[str]:
    """Return the files that a look at the current directory finds."""
    out = BytesIO()
    walk.send_tree(out, {}, walk.WalkLimits(None, 1000), frozenset())
    out.seek(0)
    *_, (_, listing) = read_frames(out)
    found = json.loads(listing)["directories"]
    return sorted(f"{path}/{name}".removeprefix("/") for path, _, files, *_ in found for name, *_ in files)


@pytest.mark.parametrize(
    ("above", "within", "tracked"),
    [
        ("é\nsrc/**/b\n*.tmp\n", "!*/\n", None),  # what was had back is a directory, and not what is in it
        ("é\n*.tmp\n", "!**/b\n", None),
        ("!*/\nsrc/\n*/data\n!data/\n", "", "src/b/data/x"),  # nothing else of what is ignored is had back
        ("/*\n!x\n", "", "src/b/é"),
        ("a/**/\n", "", None),  # directories alone
        ("**/\n!src/\n", "a/**/\n!b/\n", None),
    ],
)
def test_patterns_about_directories_mean_what_they_mean_to_git(
    place: Path, monkeypatch: pytest.MonkeyPatch, above: str, within: str, tracked: str | None
) -> None:
    code = repository(place)
    monkeypatch.chdir(code)
    for name in ("a/x", "a/in/x", "src/a/x", "src/a/in/x", "src/b/é", "src/b/y.tmp", "src/b/data/x", "x"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).touch()
    (code / ".gitignore").write_text(above)
    (code / "src/.gitignore").write_text(within)
    if tracked is not None:
        git(code, "add", "-f", tracked)
    git(code, "config", "core.quotePath", "false")
    assert files_here() == own_ignored(code)


FORMS: Final = (
    *(
        "a",
        "/a",
        "a/",
        "b/a",
        "a*",
        "*b",
        "?",
        "[ab]",
        "[!a]",
        "[^a]",
        "[]a]",
        "[a",
        "[[:alpha:]]",
        "**",
        "**/",
    ),
    *(
        "/**",
        "a/**",
        "a/**/b",
        "**/b",
        "a/*",
        "*/b",
        "*",
        "*/",
        "!",
        "!a",
        "!b/",
        "!*",
        "!/b",
        "\\",
        "a\\",
        "a\\ ",
    ),
    *(
        "a\\  ",
        "a ",
        "a b",
        "\\#a",
        "#a",
        "\\!a",
        "./a",
        "a//b",
        "/",
        "",
        " ",
        "a\t",
        "*.*",
        "é*",
        "*\\é",
        "[é]",
    ),
)
"""Patterns, with some that make no sense."""


@pytest.mark.parametrize("seed", range(12))
def test_files_of_patterns_mean_what_they_mean_to_git(
    place: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    drawn, code = Random(seed), repository(place)  # noqa: S311  (not a secret)
    monkeypatch.chdir(code)
    names = ["a", "b", "a b", "#a", "!a", "[a", "a ", "a\t", "ab", "a.b", "é", "]"]
    paths = [[drawn.choice(names) for _ in range(drawn.randint(1, 4))] for _ in range(40)]
    for path in ("/".join(parts) for parts in paths):
        with suppress(OSError):
            (code / path).parent.mkdir(parents=True, exist_ok=True)
            (code / path).touch()
    for directory in (code, *(each for each in code.iterdir() if each.is_dir() and each.name != ".git")):
        text = "\n".join(drawn.choices(FORMS, k=4))
        (directory / ".gitignore").write_text(text)
    git(code, "add", "-f", "--", f":(literal){drawn.choice(['.gitignore', *files_here()])}")
    git(code, "config", "core.quotePath", "false")
    assert files_here() == own_ignored(code)


@pytest.mark.parametrize("kind", ["default", "named", "linked", "bom", "crlf", "form feed"])
def test_the_ignore_file_of_a_user_counts_as_in_git(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    code, home = repository(place), place / "home"
    users = home / ".config/git/ignore"
    monkeypatch.setattr(git_facts, "find_home", lambda: str(home))
    monkeypatch.setenv("HOME", str(home))  # for git itself
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(code)
    for name in ("a.log", "notes.tmp", "keep.txt", "x\fy"):
        (code / name).touch()
    home.mkdir()
    if kind == "named":
        users = home / "ignored by me"
        (home / ".gitconfig").write_text('[core]\n  excludesFile = "~/ignored by me"\n')
    users.parent.mkdir(parents=True, exist_ok=True)
    if kind == "linked":
        (home / "dotfiles").write_text("*.tmp\n")
        users.symlink_to(home / "dotfiles")
    else:
        users.write_text("*.tmp\n")
    patterns = {"bom": b"\xef\xbb\xbf*.log\n", "crlf": b"*.log\r\n", "form feed": b"x\fy\n*.log"}
    (code / ".gitignore").write_bytes(patterns.get(kind, b"*.log\n"))
    assert files_here() == own_ignored(code)
    assert "notes.tmp" not in files_here()
    users.write_text("")
    assert "notes.tmp" in files_here()


def test_a_submodule_has_the_rules_of_its_own_repository(place: Path) -> None:
    library = place / "library"
    (library / "deep").mkdir(parents=True)
    for name in ("weights.bin", "deep/a.bin", "b.tmp", "c.py"):
        (library / name).write_text(name)
    (library / ".gitignore").write_text("*.tmp\n")
    git(library, "init", "-q", "-b", "trunk")
    git(library, "add", ".")
    git(library, "commit", "-qm", "first")
    code = repository(place)
    git(code, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "libs/x")
    for name in ("new.bin", "d.tmp", "deep/new.py"):
        (code / "libs/x" / name).write_text(name)
    (code / "top.bin").touch()
    (code / ".gitignore").write_text("*.bin\nlibs/\n")
    kept = snapshots(place)
    assert "libs/x/weights.bin" in (found := files_of(kept, kept.take(ME, code)))
    wanted = {each for each in own_ignored(code) if not each.endswith(".git")}
    assert {each for each in found if each != "libs/x/.git"} == wanted
    (code / ".runnerignore").write_text("*.py\n")
    assert "libs/x/c.py" not in files_of(kept, kept.take(ME, code))


def test_an_edited_file_of_a_submodule_differs_from_the_commit_and_runs_no_program_of_it(place: Path) -> None:
    library = place / "library"
    library.mkdir()
    (library / "c.py").write_text("1")
    git(library, "init", "-q", "-b", "trunk")
    git(library, "add", ".")
    git(library, "commit", "-qm", "first")
    code, kept = repository(place), snapshots(place)
    git(code, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "libs/x")
    git(code, "commit", "-qam", "second")
    found = kept.take(ME, code).git
    assert found is not None
    assert found.dirty is False
    inner = code / "libs/x"
    for name in ("filter.trap.clean", "filter.trap.process", "core.fsmonitor"):
        git(inner, "config", name, f"touch {place}/trapped; cat")
    (inner / "c.py").write_text("2")
    (library.parent / "code/.git/modules/libs/x/info/attributes").write_text("*.py filter=trap\n")
    found = kept.take(ME, code).git
    assert found is not None
    assert (found.dirty, (place / "trapped").exists()) == (True, False)


def test_a_worktree_is_read_as_git_does(place: Path) -> None:
    code = repository(place)
    (code / ".git/info/exclude").write_text("*.tmp\n")
    git(code, "worktree", "add", "-q", str(place / "other"))
    for name in ("a.tmp", "b.py", "sub/c.tmp", "sub/d.py"):
        (place / "other" / name).parent.mkdir(exist_ok=True)
        (place / "other" / name).touch()
    kept = snapshots(place)
    taken = kept.take(ME, place / "other")
    assert files_of(kept, taken) == own_ignored(place / "other") == ["b.py", "sub/d.py", "train.py"]
    assert (taken.git is not None and taken.git.commit) == git(code, "rev-parse", "HEAD")
    assert files_of(kept, kept.take(ME, place / "other/sub")) == ["d.py"]


def test_what_git_is_told_to_track_after_a_look_is_in_the_next_one(place: Path) -> None:
    code, kept = repository(place), snapshots(place)
    (code / ".gitignore").write_text("*.bin\n")
    (code / "sub").mkdir()
    (code / "sub/a.bin").touch()
    for path in (code, *code.rglob("*")):
        os.utime(path, (1, 1))
    assert "sub/a.bin" not in files_of(kept, kept.take(ME, code))
    git(code, "add", "-f", "sub/a.bin")
    assert "sub/a.bin" in files_of(kept, kept.take(ME, code))


@needs_root
def test_of_a_repository_of_somebody_else_nothing_is_known(place: Path) -> None:
    code, kept = repository(place), snapshots(place)
    for path in (code, *code.rglob("*")):
        os.chown(path, 1234, 1234)
    assert kept.take(ME, code).git == GitState()
    assert kept.take(NOBODY, code).git == GitState()


def test_a_user_who_has_used_up_his_room_loses_the_code_of_jobs_that_have_finished(place: Path) -> None:
    kept = snapshots(place, CodeLimits(bytes_per_user=20_000))
    (place / "code" / "a").write_bytes(os.urandom(12_000))
    first = kept.take(ME, place / "code")
    for path in (place / "store").rglob("*"):
        os.utime(path, (1, 1))
    (place / "code" / "a").write_bytes(os.urandom(12_000))
    kept.in_use = lambda *, finished: frozenset({first.id, str(finished)})
    with pytest.raises(Refused, match=r"takes 23\.\d KiB, and 19\.5 KiB may be \(code_bytes_per_user\)"):
        kept.take(ME, place / "code")
    kept.in_use = lambda *, finished: frozenset({first.id} if finished else ())
    second = kept.take(ME, place / "code")
    assert kept.entries(ME.uid, first.id) is None
    assert names(kept, second) == ["a", "train.py"]


@needs_root
@pytest.mark.parametrize("mark", [".git", ".gitignore"])
def test_what_others_put_above_the_code_leaves_nothing_out(place: Path, mark: str) -> None:
    """As ``/tmp/.git`` and ``/tmp/.gitignore`` of another user would below ``/tmp``."""
    kept = snapshots(place)
    (place / ".git" / "info").mkdir(parents=True)
    (place / ".git" / "info" / "exclude").write_text("*.py\n" if mark == ".git" else "")
    (place / ".gitignore").write_text("*.py\n")
    assert names(kept, kept.take(ME, place / "code")) == []
    for each in (place / mark, *(place / mark).rglob("*")):
        os.chown(each, 1234, 1234)
    (place / ".git" / "info" / "exclude").write_text("")
    assert names(kept, kept.take(ME, place / "code")) == ["train.py"]


def test_empty_directories_with_long_names_count_for_the_room_of_a_user(place: Path) -> None:
    kept = snapshots(place, CodeLimits(bytes_per_user=20_000))
    for number in range(200):
        (place / "code" / f"{number}{'x' * 200}").mkdir()
    kept.take(ME, place / "code")
    (place / "code" / "one-more").mkdir()
    kept.in_use = lambda *, finished: frozenset({str(finished)})
    with pytest.raises(Refused, match=r"19\.5 KiB may be \(code_bytes_per_user\)"):
        kept.take(ME, place / "code")
