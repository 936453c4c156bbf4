"""Unpacks the wheels of a lock into a directory, with ``uv pip install``; nothing of them is executed."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EEXIST, EISDIR, ENOTDIR, ENOTEMPTY
from pathlib import Path
from threading import Thread
from typing import Final

from images.errors import BuildFailed, failure
from images.log import BuildLog
from images.packages.lock import Lock
from images.packages.program import find_python, find_uv, index_arguments, run, uv_environment
from images.packages.resolve import IndexUnavailable, platform
from images.packages.scratch import Scratch, make_scratch, own_directory, remove_tree
from images.packages.values import Account, Indexes, Limits, PythonFacts

MAX_SCRIPT_BYTES: Final = 1024**2
MAX_RECORD_BYTES: Final = 64 * 1024**2
"""Of the list of a package's files; that of the largest has some megabytes."""
MAX_DEPTH: Final = 64
"""Directories within each other; what reads them afterwards recurses."""

_SHEBANG: Final = re.compile(
    rb"#!/bin/sh\n'''exec' [^\n]*\n' '''\n|#![^\n]*python[^\n]*\n"  # of a long path, or of a short one
)


OF_THIS_HOST: Final = ("uv_cache.json", "uv_build.json", "direct_url.json")
"""Files that say when and from where this host has got a package; the lock says it for all hosts."""

_SCRIPT_LINE: Final = re.compile(r"^((?:\.\./)+bin/[^,\n]*),[^,\n]*,[0-9]*$", re.MULTILINE)
_REMOVED_LINE: Final = re.compile(
    rf"^[^,\n/]*/(?:{'|'.join(map(re.escape, OF_THIS_HOST))}),.*\n", re.MULTILINE
)
_REFUSED: Final = re.compile(r"HTTP status client error \((?!408|429)4")
"""Words of ``uv`` for an answer of an index that stays the same."""


@dataclass(frozen=True, slots=True)
class Unpacker:
    """Unpacks locks on this host; the wheels are kept for the next one."""

    cache_dir: Path
    indexes: Indexes
    account: Account | None = None
    """User whose rights ``uv`` has; ``None``: those of this process."""
    limits: Limits = field(default_factory=Limits)

    @contextmanager
    def unpacked(self, lock: Lock, facts: PythonFacts, log: BuildLog) -> Iterator[Path]:
        """Yield a directory with ``bin`` and ``lib`` of a virtual environment.

        It is removed when the block has ended, on a thread of its own: a large one takes seconds.

        Raises:
            BuildFailed: a wheel has vanished, or has another hash.
            BuildCancelled: the token of the log was cancelled.
        """
        home = own_directory(self.cache_dir / "wheels", self.account)
        with _removed_later(make_scratch(self.cache_dir / "unpacking", "unpack-", self.account)) as work:
            target = work.directory("environment")
            work.give("environment")
            work.write("pylock.toml", lock.for_installer)
            argv = [find_uv(), "pip", "install", *self._arguments(work.path, home, facts)]
            environment = uv_environment(home, self.indexes, work)
            told = Downloads(lock, log)
            outcome = run(argv, work.path, environment, self.account, self.limits, log.token, told.line)
            if outcome.exit_code != 0:
                raise _failure(outcome.output)
            with as_failure("what the packages hold does not fit together"):
                check_depth(target)
                arrange(target, facts)
            yield target

    def _arguments(self, work: Path, home: Path, facts: PythonFacts) -> list[str]:
        return [
            *["--no-config", "--no-progress", "--color=never", f"--cache-dir={home / 'cache'}"],
            *["--preview-features=pylock", "--no-python-downloads", "--no-build", "--no-deps"],
            *[
                "--link-mode=hardlink",
                f"--prefix={work / 'environment'}",
                f"--python={find_python(self.account)}",
            ],
            *[f"--python-version={facts.full_python}", f"--python-platform={platform(facts)}"],
            *index_arguments(self.indexes),
            f"--requirements={work / 'pylock.toml'}",
        ]


@contextmanager
def as_failure(fact: str) -> Iterator[None]:
    """Raise an error about the shape of a tree as ``BuildFailed``: wheels may make any."""
    try:
        yield
    except OSError as error:
        if error.errno not in {EEXIST, EISDIR, ENOTDIR, ENOTEMPTY}:
            raise
        raise BuildFailed(f"{fact}: {Path(error.filename or '').name}: {error.strerror}") from error


def check_depth(target: Path) -> None:
    """Refuse directories too deep within each other.

    Raises:
        BuildFailed: there are such.
    """
    waiting = [(str(target), 0)]
    while waiting:
        directory, depth = waiting.pop()
        if depth > MAX_DEPTH:
            top = Path(directory).relative_to(target).parts[3:4]
            raise BuildFailed(f"{''.join(top)}: has directories deeper than {MAX_DEPTH} levels")
        with os.scandir(directory) as entries:
            waiting += [(each.path, depth + 1) for each in entries if each.is_dir(follow_symlinks=False)]


class Downloads:
    """Passes what ``uv`` says on to the log, and says how much of all wheels is there by now."""

    def __init__(self, lock: Lock, log: BuildLog) -> None:
        self._log = log
        self._sizes = {each.name: each.wheel.size or 0 for each in lock.packages}
        self._total = lock.size_bytes
        self._there = 0

    def line(self, text: str) -> None:
        """Take one line of ``uv``."""
        self._log.line(f"  {text}")
        word, _, name = text.strip().partition(" ")
        if word == "Downloaded":  # it says so of the large ones
            self._there += self._sizes.pop(re.sub(r"[-_.]+", "-", name).lower(), 0)
            there, total = self._there / 1024**2, self._total / 1024**2
            self._log.line(f"packages: {there:.1f} of {total:.1f} MiB are downloaded")


@contextmanager
def _removed_later(made: Scratch) -> Iterator[Scratch]:
    """Yield a directory, and begin to remove it when the block has ended; the process ends after that."""
    try:
        yield made
    finally:
        Thread(target=remove_tree, args=(made.path,), name="removal").start()


def _failure(output: str) -> BuildFailed:
    text = output[max(output.find("error:"), 0) :]
    text = " ".join(re.sub(r"(error|cause):", " ", text).split())
    if "Failed to fetch" in text and _REFUSED.search(text) is None:
        return IndexUnavailable(text)
    return failure(text)


def arrange(target: Path, facts: PythonFacts) -> None:
    """Make a directory independent of this host: the name of its Python, and the paths in its scripts."""
    found = sorted(target.glob("lib/python*"))
    wanted = target / "lib" / f"python{facts.python}"
    if found and found[0] != wanted:
        found[0].rename(wanted)
    for leftover in (".lock", "lib64"):
        with_name = target / leftover
        if with_name.is_symlink() or with_name.is_file():
            with_name.unlink()
    scripts = target / "bin"
    for path in sorted(scripts.iterdir()) if scripts.is_dir() else ():
        _use_python(path, facts)
    for about in wanted.glob("site-packages/*.dist-info"):
        for name in OF_THIS_HOST:
            (about / name).unlink(missing_ok=True)
        _correct_record(about / "RECORD")


def _use_python(path: Path, facts: PythonFacts) -> None:
    """Let a script begin with the interpreter of the image; it is written anew, for it may be a hard link."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_SCRIPT_BYTES:
        return
    body = path.read_bytes()
    found = _SHEBANG.match(body)
    if found:
        _rewrite(path, f"#!{facts.prefix}/bin/python\n".encode() + body[found.end() :])


def _correct_record(record: Path) -> None:
    """Leave out the hashes of scripts, which depend on their interpreter, and the files that were removed.

    Raises:
        BuildFailed: it is larger than any, as that of a wheel of a few kilobytes may be.
    """
    if not record.is_file():
        return
    if record.stat().st_size > MAX_RECORD_BYTES:
        package, most = record.parent.name.removesuffix(".dist-info"), MAX_RECORD_BYTES // 1024**2
        raise BuildFailed(f"{package}: its list of files (RECORD) is larger than {most} MiB")
    text = record.read_text(encoding="utf-8", errors="surrogateescape")
    changed = _SCRIPT_LINE.sub(r"\1,,", _REMOVED_LINE.sub("", text))
    if changed != text:
        _rewrite(record, changed.encode(errors="surrogateescape"))


def _rewrite(path: Path, body: bytes) -> None:
    mode = path.stat().st_mode
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(body)
    os.chmod(partial, mode & 0o777)  # noqa: PTH101
    partial.replace(path)
