"""Sends the files of a job to the server that it is submitted to: its code, and the files that it names.

What is ignored at a submission on the server is not sent: ``.gitignore``, ``.runnerignore``.  Mounts, data
and secrets are paths of the server.  What is sent is removed there in time, so only a submission may read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import yaml

from jobs.contract import Program
from runner.adapters.host.code_snapshot.git import GitSilentError, ask_state, find_repository
from runner.adapters.host.code_snapshot.ignore import ENVIRONMENT_MARK, IgnoreRules, Repository
from runner.adapters.host.code_snapshot.left_out import LeftOutEntries, find_left_out
from runner.base.errors import Unavailable, UsageError
from runner.base.readable import readable_size
from runner.base.textfile import FileError, quoted, read_source
from runner.cli.console import complain
from runner.client.autostart import remote_host
from runner.client.remote import run_there
from runner.core.ports.code import LeftOut
from runner.files.field_checks import is_policy_path
from runner.files.job.load import parse_jobs
from runner.files.job.paths import named_paths
from runner.files.left_out import describe_unsent
from runner.files.requirements import decode, parse_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runner.base.textfile import Problem
    from runner.files.job.model import JobFile

MOST_BYTES: Final = 200 * 1024**2
"""Of all files of a submission; the server has a limit of its own for code."""

LARGEST: Final = 3

PIECE: Final = 1024**2

CODE: Final = ("workload", "code")

MOST_REQUIREMENTS: Final = 100
"""Files of requirements that are sent; the daemon refuses more than a few that include each other."""


def send_files(path: str, text: bytes) -> str:
    """Send the files of a job, and return the path that its file has on the server.

    Raises:
        FileError: a path of the job file is on the wrong machine.
        UsageError: a file cannot be read or sent, or there is too much.
        Unavailable: the connection broke; nothing was submitted.
    """
    host = remote_host(os.environ)
    if host is None:
        raise UsageError("no server is chosen; say --host")
    own = Path(path).parent.resolve() / Path(path).name
    wanted = list(_wanted(own, text))
    if problems := list(_misplaced(path, text, sends=bool(wanted))):
        raise FileError(Path(path), problems)
    tree = Tree()
    tree.directories.add(_key(own.parent))  # paths of the job file begin there, also with ..
    for each in wanted:
        tree.add(each)
    for line in describe_unsent([LeftOut(*row) for row in tree.left_out]):
        complain(f"warning: {line}")
    return f"{_send(host, tree)}{own}"


def _misplaced(path: str, text: bytes, *, sends: bool) -> Iterator[Problem]:
    """Yield the problems of paths that would lead into what is sent, which is removed while jobs run."""
    try:
        jobs = parse_jobs(text, Path(path)).jobs
    except FileError:  # the daemon says what is wrong with it
        return
    for job in jobs:
        yield from _kept_there(job)
        yield from _written_from_root(job)
        if sends and job.schedule is not None:
            yield job.origin.problem(("schedule",), "reads its files each time; submit it on the server")


def _kept_there(job: JobFile) -> Iterator[Problem]:
    """Yield the problems of what an attempt takes from the server, and not from its snapshot of the code."""
    for field, written, _ in named_paths(job):
        if field != CODE and not written.startswith("/"):
            yield job.origin.problem(field, f"{quoted(written)} is a path of the server; write it from /")
    if isinstance(job.workload, Program) and job.workload.code is not None and job.workload.code.live:
        yield job.origin.problem((*CODE, "live"), "the code is sent as it is now; leave it out")


def _written_from_root(job: JobFile) -> Iterator[Problem]:
    """Yield the problems of absolute paths to what is here: the server would take its own files there."""
    code = job.workload.code if isinstance(job.workload, Program) else None
    sent = {
        CODE: code and code.path,
        ("policy",): job.policy,
        ("image", "dockerfile"): job.image.dockerfile,
        ("image", "requirements"): job.image.requirements,
    }
    for field, written in sent.items():
        if isinstance(written, str) and written.startswith("/") and os.path.exists(written):
            fact = f"{quoted(written)} is sent from this machine; write it relative to the job file"
            yield job.origin.problem(field, fact)


def _wanted(own: Path, text: bytes) -> Iterator[Path]:
    """Yield the files and directories that a job file names, as far as it can be read."""
    said = _loaded(text)
    code = _field(said, CODE)
    code = code.get("path") if isinstance(code, dict) else code
    if isinstance(code, str):
        yield _existing(own.parent / code, code)
    policy, dockerfile = _field(said, ("policy",)), _field(said, ("image", "dockerfile"))
    if isinstance(policy, str) and is_policy_path(policy):
        yield from _policies(own.parent / policy)
    if isinstance(dockerfile, str) and (own.parent / dockerfile).is_file():
        yield own.parent / dockerfile
    asked = _field(said, ("image", "requirements"))
    if isinstance(asked, str):
        yield from _requirements(own.parent / asked, set())
    elif isinstance(asked, list):
        yield from _included("\n".join(each for each in asked if isinstance(each, str)), own.parent, set())


def _loaded(text: bytes) -> dict[str, Any]:
    try:
        said = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _policies(path: Path) -> Iterator[Path]:
    """Yield a policy and those that it extends, as far as they are here; absolute paths are of the server."""
    seen = set[str]()
    while path.is_file() and (name := os.path.normpath(path)) not in seen:
        seen.add(name)
        yield path
        above = _field(_loaded(read_source(path)), ("extends",))
        if not isinstance(above, str) or above.startswith("/"):
            return
        path = path.parent / above


def _requirements(path: Path, seen: set[str]) -> Iterator[Path]:
    """Yield a file of requirements and those that it includes, as far as they are here."""
    name = os.path.normpath(path)
    if name in seen or len(seen) >= MOST_REQUIREMENTS or not path.is_file():
        return
    seen.add(name)
    yield path
    lock = path.with_name("uv.lock" if path.name == "pyproject.toml" else f"{path.name}.lock")
    if path.suffix in {".toml", ".py"} and lock.is_file():
        yield lock
    if path.suffix != ".toml":
        try:
            text = decode(path.read_bytes())
        except (OSError, ValueError):  # the daemon says what is wrong with it
            return
        yield from _included(text, path.parent, seen)


def _included(text: str, directory: Path, seen: set[str]) -> Iterator[Path]:
    """Yield the files that ``-r FILE`` and ``-c FILE`` include; absolute paths are those of the server."""
    for line in parse_lines(text):
        if line.include is not None and not line.include[1].startswith("/"):
            yield from _requirements(directory / line.include[1], seen)


def _field(said: Mapping[str, Any], path: tuple[str, ...]) -> Any:  # noqa: ANN401  what YAML holds
    found: Any = said
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _existing(path: Path, typed: str) -> Path:
    if not path.exists():
        raise UsageError(
            f"workload.code: {typed}: there is no such directory on this machine; its files are sent"
        )
    return path


class Tree:
    """Files, links and directories to send, by their absolute paths without the first slash."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, int, bool]] = {}
        self.links: dict[str, str] = {}
        self.directories: set[str] = set()
        self.sources: dict[str, Path] = {}
        self.git: dict[str, Any] | None = None
        """Place of the code in git; empty: git does not say; None: in no repository."""
        self.left_out: list[list[Any]] = []
        """Paths that git ignores, as the listing of a snapshot has them."""

    def add(self, path: Path) -> None:
        """Add a file, or all of a directory that is not ignored."""
        path = Path(os.path.normpath(path))
        if path.is_dir():
            with _standing_in(path):
                place = find_repository()
                rows: list[list[Any]] = []
                self._walk(path, "", IgnoreRules("", Repository(place)), rows)
                self.left_out += find_left_out(rows)
                self.git = None if place is None else _ask_git()
        else:
            self._add_file(path)

    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(size for _, size, _ in self.files.values())

    def check(self) -> None:
        """Refuse a tree that is too large.

        Raises:
            UsageError: it is; names the largest files.
        """
        if self.size() > MOST_BYTES:
            largest = sorted(self.files.items(), key=lambda each: -each[1][1])[:LARGEST]
            named = ", ".join(f"/{path} ({readable_size(size)})" for path, (_, size, _) in largest)
            raise UsageError(
                f"the code has {readable_size(self.size())}, and {readable_size(MOST_BYTES)} can be sent;"
                f" list in .runnerignore what is not needed; the largest: {named}"
            )

    def head(self) -> bytes:
        """Return the line that says what the tree holds."""
        said = {
            "files": [[path, *known] for path, known in sorted(self.files.items())],
            "links": sorted([path, to] for path, to in self.links.items()),
            "directories": sorted(self.directories),
            "git": self.git,
        }
        return json.dumps(said).encode() + b"\n"

    def _walk(self, root: Path, inside: str, rules: IgnoreRules, rows: list[list[Any]]) -> None:
        try:
            with os.scandir(inside or ".") as found:
                entries = sorted(found, key=lambda each: each.name)
        except OSError as error:
            raise _unreadable(root / inside, error) from error
        if inside and any(entry.name == ENVIRONMENT_MARK for entry in entries):
            return
        self.directories.add(_key(root / inside))
        left = LeftOutEntries()
        for entry in entries:
            path = f"{inside}/{entry.name}" if inside else entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if (whose := rules.ignored_by(path, is_directory=is_directory)) is not None:
                if whose == "git":
                    left.add_ignored(entry, path)
            elif is_directory:
                self._walk(root, path, rules.below(path), rows)
            elif entry.is_symlink():
                self.links[_key(root / path)] = os.readlink(path)
            elif entry.is_file(follow_symlinks=False):
                self._add_file(root / path)
            else:
                complain(f"warning: {root / path}: is no file, link or directory, and is not sent")
        rows.append([inside, left.rows()])

    def _add_file(self, path: Path) -> None:
        known, size = hashlib.sha256(), 0
        try:
            with path.open("rb") as file:
                while piece := file.read(PIECE):
                    known.update(piece)
                    size += len(piece)
                executable = bool(os.fstat(file.fileno()).st_mode & 0o100)
        except OSError as error:
            raise _unreadable(path, error) from error
        self.files[_key(path)] = known.hexdigest(), size, executable
        self.sources[known.hexdigest()] = path


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path}: cannot be read: {error.strerror}; list it in .runnerignore")


def _ask_git() -> dict[str, Any]:
    try:
        return ask_state()
    except GitSilentError:
        return {}


def _key(path: Path) -> str:
    return os.path.normpath(path).removeprefix("/") or "."


def _send(host: str, tree: Tree) -> str:
    """Send what a server lacks, and return the path of the tree there."""
    tree.check()
    receiver = run_there(host, os.environ, "receive", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        with receiver:
            receiver.stdin.write(tree.head())
            receiver.stdin.flush()
            for digest in _answer(receiver.stdout)["missing"]:
                with tree.sources[digest].open("rb") as file:
                    while piece := file.read(PIECE):
                        receiver.stdin.write(piece)
            receiver.stdin.close()
            return str(_answer(receiver.stdout)["tree"])
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable(f"{host}: the files of the job could not be sent; nothing was submitted") from error


def _answer(stream: IO[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stream.readline())
    return found


@contextmanager
def _standing_in(directory: Path) -> Iterator[None]:
    """Be in a directory meanwhile: the rules of what is ignored are those of the current one."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)
