"""``runner receive``: takes files that a client on another machine sends by ssh.

Files are kept by content below ``~/.cache/runner/received``, so only what is not here travels.  Job files
name a tree of links to them.  The daemon reads such a tree as it reads every directory of its user: with the
user's rights, at submission, into a snapshot.  So nothing needs it afterwards, and old trees are removed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple

import click

from runner.adapters.host.code_snapshot.sent import record_of
from runner.base.errors import Unavailable, UsageError

MOST_MANIFEST_BYTES: Final = 64 * 1024**2

KEEP_S: Final = 7 * 86400.0
"""For how long a tree stays after it was last asked for."""

PIECE: Final = 1024**2


class SentFile(NamedTuple):
    """A file of a tree."""

    path: str
    digest: str
    size: int
    executable: bool


class Blobs(NamedTuple):
    """Directory of files by content, and a group that may read them beside their owner."""

    directory: Path
    readers: int | None

    def of(self, file: SentFile) -> Path:
        """Return the place of a file: links share a mode, so an executable is another file."""
        return self.directory / f"{file.digest}{'-x' if file.executable else ''}"

    def share(self, path: Path) -> None:
        """Let the group read a file or directory, as far as its owner may."""
        if self.readers is not None:
            os.chown(path, -1, self.readers)
            mode = path.stat().st_mode
            path.chmod(mode & 0o700 | (mode & 0o500) >> 3)


@click.command(hidden=True)
def receive() -> None:
    """Take a tree: a line with what it holds, then the files that are not here yet."""
    base = os.environ.get("XDG_CACHE_HOME") or _usual_cache()
    try:
        take_tree(Path(base) / "runner" / "received", sys.stdin.buffer, sys.stdout.buffer, _readers())
    except OSError as error:
        raise Unavailable(f"{error.filename or base}: {error.strerror}") from error


def _usual_cache() -> str:
    """Return the directory of caches; root's home is never shown to a job, so root has that of the system."""
    return "/var/cache" if os.geteuid() == 0 else str(Path.home() / ".cache")


def _readers() -> int | None:
    """Return the group that must read what root sends, None for other users.

    A daemon in two parts opens the files of root with the rights of ``root_jobs_run_as``.
    """
    if os.geteuid() != 0:
        return None
    from runner.files.settings.model import load_settings

    return load_settings(None).root_jobs_run_as.gid


def take_tree(place: Path, source: IO[bytes], answers: IO[bytes], readers: int | None = None) -> None:
    """Answer with the digests that are missing, take them, and answer with the path of the tree.

    ``readers`` is a group that may read the tree beside its owner.

    Raises:
        UsageError: what is sent is no tree, or ends early.
    """
    head = source.readline(MOST_MANIFEST_BYTES)
    try:
        said = json.loads(head)
        files = [SentFile(str(a), str(b), int(c), bool(d)) for a, b, c, d in said["files"]]
        links = [(str(a), str(b)) for a, b in said["links"]]
        directories = [str(each) for each in said["directories"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError("receive: no tree was sent") from error
    for path in (*(file.path for file in files), *(path for path, _ in links), *directories):
        _check(path)
    for file in files:
        if len(file.digest) != 64 or not set(file.digest) <= set("0123456789abcdef"):
            raise UsageError("receive: no digest")
    blobs = Blobs(place / "files", readers)
    blobs.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    trees = place / "trees"
    trees.mkdir(exist_ok=True, mode=0o700)
    for directory in (place, trees):
        blobs.share(directory)
    missing = {file.digest: file.size for file in files if not blobs.of(file).exists()}
    modes = {file.digest: [each for each in files if each.digest == file.digest] for file in files}
    _say(answers, {"missing": list(missing)})
    for digest, size in missing.items():
        _take(source, blobs, digest, size, modes[digest])
    tree = trees / hashlib.sha256(head).hexdigest()[:32]
    if not tree.exists():
        if "git" in said:  # clients of an earlier version do not say it
            _write_record(Path(record_of(str(tree))), blobs, said["git"])
        _link(tree, blobs, files, links, directories)
    os.utime(tree)
    with suppress(FileNotFoundError):
        os.utime(record_of(str(tree)))
    _sweep(place)
    _say(answers, {"tree": str(tree)})


def _write_record(place: Path, blobs: Blobs, git: object) -> None:
    """Keep what the client has said about git beside a tree; whoever reads it checks it."""
    draft = place.with_name(f".{place.name}-{os.getpid()}")
    draft.write_text(json.dumps({"git": git}))
    draft.chmod(0o600)
    blobs.share(draft)
    draft.replace(place)


def _check(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not path or path.startswith("/") or ".." in parts or "\0" in path:
        raise UsageError("receive: a path leads out of the tree")


def _take(source: IO[bytes], blobs: Blobs, digest: str, size: int, users: list[SentFile]) -> None:
    """Take the content of one file.

    Raises:
        UsageError: it ends early, or is another one.
    """
    draft, known, left = blobs.directory / f".draft-{os.getpid()}", hashlib.sha256(), size
    with draft.open("wb") as file:
        while left:
            piece = source.read(min(left, PIECE))
            if not piece:
                draft.unlink()
                raise UsageError("receive: the connection ended early; nothing was submitted")
            known.update(piece)
            file.write(piece)
            left -= len(piece)
    if known.hexdigest() != digest:
        draft.unlink()
        raise UsageError("receive: a file changed while it was sent; try again")
    for target, each in {blobs.of(each): each for each in users}.items():
        part = blobs.directory / f".part-{os.getpid()}"
        if not target.exists():
            shutil.copyfile(draft, part)
            part.chmod(0o700 if each.executable else 0o600)
            blobs.share(part)
            part.replace(target)
    draft.unlink()


def _link(
    tree: Path, blobs: Blobs, files: list[SentFile], links: list[tuple[str, str]], directories: list[str]
) -> None:
    draft = tree.with_name(f".{tree.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    for path in directories:
        (draft / path).mkdir(parents=True, exist_ok=True)
    for file in files:
        target = draft / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        _hold(target, blobs.of(file), blobs)
    for path, to in links:
        (draft / path).parent.mkdir(parents=True, exist_ok=True)
        (draft / path).symlink_to(to)
    for directory in (draft, *(each for each in draft.rglob("*") if each.is_dir() and not each.is_symlink())):
        blobs.share(directory)
    try:
        draft.rename(tree)
    except OSError:  # another command has made the same tree meanwhile
        shutil.rmtree(draft)
        if not tree.exists():
            raise


def _hold(target: Path, blob: Path, blobs: Blobs) -> None:
    """Link a kept file into a tree; a file that has all links that the file system allows is copied."""
    try:
        target.hardlink_to(blob)
    except OSError as error:
        if error.errno != errno.EMLINK:
            raise
        shutil.copy(blob, target)
    blobs.share(target)


def _sweep(place: Path) -> None:
    """Remove trees that nobody has asked for in a while, and files that no tree holds any more.

    Other commands rename their drafts meanwhile, and sweep, too.
    """
    old = time.time() - KEEP_S
    for tree in (place / "trees").iterdir():
        with suppress(FileNotFoundError):
            if tree.stat().st_mtime < old and tree.is_file():
                tree.unlink()
            elif tree.stat().st_mtime < old:
                shutil.rmtree(tree, ignore_errors=True)
    for blob in (place / "files").iterdir():
        with suppress(FileNotFoundError):
            found = blob.stat()
            if found.st_nlink == 1 and found.st_mtime < old:
                blob.unlink()


def _say(answers: IO[bytes], value: dict[str, Any]) -> None:
    answers.write(json.dumps(value).encode() + b"\n")
    answers.flush()
