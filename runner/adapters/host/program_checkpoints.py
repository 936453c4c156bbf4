"""Checkpoints that a program saves on its own: files that a pattern of the job file names.

If their names have numbers, the number is the step, and the program keeps and removes them as it likes.  If
not, the program writes over one path again and again, and a kill in the middle would leave nothing: so the
daemon keeps copies of whole versions beside the run directory, where the job cannot change them, numbers
them from 1, and puts the newest one back before the next attempt if the present one is torn.

A checkpoint is whole as far as that can be told from outside: no file is empty or broken off, it has every
file that the one before has, and nothing was written to it while it was looked at.
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final, TypeAlias

from runner.adapters.host.file_formats import find_first_damage, shows_its_end
from runner.adapters.host.program_files import (
    MAX_FILES,
    Fingerprint,
    MatchedPath,
    TooMany,
    find_matches,
    open_below,
)
from runner.adapters.host.set_aside import NAME, SetAside, open_parents, remove
from runner.base.errors import Unavailable
from runner.core.ports.checkpoints import ProgramCheckpoint, ProgramFiles, SavedCheckpoints, Verification
from runner.core.ports.users import Owner

HOME: Final = "/job/home/"
"""The beginning of a pattern below the home directory of the lineage; others are below its code."""

SETTLED_S: Final = 2.0
"""What was written to within this time may not be complete yet."""

UNKNOWN_SETTLED_S: Final = 1.0
"""The same of a file over which a program writes, and whose format does not show where it ends."""

COPY_TRIES: Final = 3
"""How often one look copies a file that is written over meanwhile."""

SURE: Final = 2
"""How many of the newest checkpoints are read; of older ones it is only known that they are there."""

COPY_EVERY_S: Final = 60.0
"""The least time between two copies of a large checkpoint while its program runs."""

LARGE_BYTES: Final = 64 * 1024**2
_FICLONE: Final = 0x40049409  # linux/fs.h: share the blocks of another file
_DIGITS: Final = re.compile(r"[0-9]+")
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Version:
    """A kept copy of a checkpoint without a number in its name."""

    number: int
    path: PurePosixPath
    files: Fingerprint


FindDamage: TypeAlias = Callable[[Owner, int, Sequence[str]], tuple[int, str] | None]
"""Returns the index of the first file of an owner below an open directory that is not whole, and the fact."""


def find_here(_owner: Owner, directory: int, paths: Sequence[str]) -> tuple[int, str] | None:
    """Read the files with the rights of this process, where they are their owner's."""
    return find_first_damage(directory, paths)


class ProgramCheckpoints:
    """The checkpoints of a program in one run directory."""

    def __init__(self, root: Path, owner: Owner, find_damage: FindDamage = find_here) -> None:
        self._root = root
        self._owner = owner
        self._aside = SetAside(root, owner)
        self._find_damage = find_damage
        self._copied_s = 0.0
        self._lock = Lock()

    def saved(self, lineage: int, wanted: ProgramFiles, how: Verification) -> SavedCheckpoints:
        """Return the checkpoints of a lineage; with ``CONTENT`` files are read, and versions kept."""
        with self._lock:
            try:
                found = self._matches(lineage, wanted)
            except TooMany:
                return SavedCheckpoints(
                    unverified=(f"{wanted.pattern}: there are too many files",), complete=False
                )
            has_numbers = any(each.number is not None for each in found)
            if how is Verification.SIZES and has_numbers:
                found = [each for each in found if _is_settled(each, SETTLED_S)]
            saved = (self._numbered if has_numbers else self._versioned)(lineage, wanted, found, how)
            aside = {*self._aside.steps(lineage, self._base(lineage, wanted)[1])}
            aside |= {*self._versions_aside(lineage)}
            return replace(saved, set_aside=tuple(sorted(aside, reverse=True)))

    def ignore_present(self, lineage: int, wanted: ProgramFiles) -> None:
        """Leave out what is there now, before the first attempt of a lineage: it came with the code.

        Raises:
            Unavailable: the file system refuses it.
        """
        with self._lock, suppress(TooMany):
            there = {str(each.path): each.files for each in self._matches(lineage, wanted)}
            parent = self._kept(lineage)
            if not there:
                return
            try:
                parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                draft = parent / ".ignored.json.draft"
                draft.write_text(json.dumps(there), encoding="utf-8")
                draft.rename(parent / "ignored.json")
            except OSError as error:
                raise Unavailable(f"{parent}: {error.strerror}") from error

    def choose(
        self, lineage: int, attempt: int, wanted: ProgramFiles, step: int | None
    ) -> ProgramCheckpoint | None:
        """Return the checkpoint to resume from: that of a step, or the newest whole one.

        A kept version takes the place of a torn one.  Checkpoints after a step that is asked for are set
        aside for the attempt, so that a program that looks for its newest itself finds the one that is
        meant, and they do not take over after the next kill.  One that was set aside before is put back.

        Raises:
            Unavailable: the file system refuses it.
        """
        saved = self.saved(lineage, wanted, Verification.CONTENT)
        if step is not None and step not in saved.steps and step in saved.set_aside:
            with self._lock:
                self._bring_back(lineage, wanted, step)
            saved = self.saved(lineage, wanted, Verification.CONTENT)
        is_there = step is not None and step in saved.steps
        if step is not None and is_there:
            with self._lock:
                self._set_later_aside(lineage, attempt, wanted, step)
        with self._lock:
            self._set_torn_aside(lineage, wanted, saved)
            chosen = step if is_there else saved.newest
            return None if chosen is None else self._chosen(lineage, attempt, wanted, chosen)

    def _chosen(self, lineage: int, attempt: int, wanted: ProgramFiles, chosen: int) -> ProgramCheckpoint:
        """Return a checkpoint by its number; the version of one path is put in its place."""
        found = self._matches(lineage, wanted)
        numbered = next((each for each in found if each.number == chosen), None)
        pattern = self._base(lineage, wanted)[1]
        if numbered is not None:
            moved = self._aside.of_attempt(lineage, attempt, pattern)
            directory = self._aside.place(lineage, attempt) if moved else ""
            return ProgramCheckpoint(chosen, str(numbered.path), _in_home(wanted), moved, directory)
        version = next(each for each in self._versions(lineage) if each.number == chosen)
        if not any(each.files == version.files for each in found):
            self._restore(lineage, wanted, version)
        numbers = sorted(n for n, names in self._versions_aside(lineage).items() if attempt in names)
        directory = f"kept/{lineage}/{NAME}/{attempt}" if numbers else ""
        moved = tuple(map(str, numbers))
        return ProgramCheckpoint(chosen, str(version.path), _in_home(wanted), moved, directory)

    # --- set aside

    def _set_later_aside(self, lineage: int, attempt: int, wanted: ProgramFiles, step: int) -> None:
        """Move what was saved after a step out of the way of an attempt that resumes from it.

        What has no number in its name (``last.ckpt`` beside numbered ones) goes by its last write.

        Raises:
            Unavailable: the file system refuses it.
        """
        base = self._base(lineage, wanted)[0]
        present = self._present(lineage, wanted)
        chosen = next((each for each in present if each.number == step), None)
        later = [each for each in present if each.number is not None and each.number > step]
        if chosen is not None and later:
            later += [e for e in present if e.number is None and e.written_ns > chosen.written_ns]
        try:
            for match in later if chosen is not None else ():
                self._aside.move(base, match.path, lineage, attempt)
            if chosen is None:
                self._set_versions_aside(lineage, attempt, step)
        except OSError as error:
            fact = f"checkpoints after {step} cannot be set aside: {error.strerror}"
            raise Unavailable(f"{wanted.pattern}: {fact}") from error

    def _set_versions_aside(self, lineage: int, attempt: int, step: int) -> None:
        kept = self._kept(lineage)
        for version in self._versions(lineage):
            if version.number > step:
                place = kept / NAME / str(attempt)
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                (kept / str(version.number)).rename(place / str(version.number))

    def _versions_aside(self, lineage: int) -> dict[int, list[int]]:
        """Return the numbers of the versions that are set aside, each with the attempts it was moved for."""
        found: dict[int, list[int]] = {}
        for place in self._kept(lineage).joinpath(NAME).glob("[0-9]*/[0-9]*"):
            found.setdefault(int(place.name), []).append(int(place.parent.name))
        return found

    def _bring_back(self, lineage: int, wanted: ProgramFiles, step: int) -> None:
        """Put back what was set aside, up to a step.

        Raises:
            Unavailable: the file system refuses it.
        """
        base, pattern = self._base(lineage, wanted)
        aside, kept = self._versions_aside(lineage), self._kept(lineage)
        try:
            self._aside.bring_back(base, lineage, pattern, step)
            for number, attempts in aside.items() if step in aside else ():
                if number <= step and not (kept / str(number)).exists():
                    (kept / NAME / str(max(attempts)) / str(number)).rename(kept / str(number))
        except OSError as error:
            raise Unavailable(
                f"{wanted.pattern}: step {step} cannot be put back: {error.strerror}"
            ) from error

    def _set_torn_aside(self, lineage: int, wanted: ProgramFiles, saved: SavedCheckpoints) -> None:
        """Rename torn checkpoints with numbers, so that a script that looks for its newest finds a whole one.

        Without a whole one, and if a directory cannot be changed, they stay.
        """
        if not (saved.steps and saved.rejected):
            return
        base, torn = self._base(lineage, wanted)[0], {each.partition(": ")[0] for each in saved.rejected}
        for match in self._matches(lineage, wanted):
            if match.number is None or str(match.path) not in torn:
                continue
            with suppress(OSError):
                parent = open_parents(base, match.path.parts[:-1], self._owner)
                try:
                    aside = f".{match.path.name}.torn"
                    remove(parent, aside)
                    os.rename(match.path.name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                finally:
                    os.close(parent)

    # --- with numbers in their names

    def _matches(self, lineage: int, wanted: ProgramFiles) -> list[MatchedPath]:
        """Return what the pattern names, the newest first; if names have numbers, those alone."""
        found = self._present(lineage, wanted)
        if any(each.number is not None for each in found):
            found = [each for each in found if each.number is not None]
        return sorted(found, key=lambda each: (each.number or 0, each.written_ns), reverse=True)

    def _present(self, lineage: int, wanted: ProgramFiles) -> list[MatchedPath]:
        """Return what the pattern names; nothing of another user, nor what came with the code."""
        base, pattern = self._base(lineage, wanted)
        strangers, ignored = os.geteuid() == 0, self._ignored(lineage)
        return [
            each
            for each in find_matches(base, pattern)
            if each.files
            and ignored.get(str(each.path)) != [list(file) for file in each.files]
            and (not strangers or each.owners <= {self._owner.uid})
        ]

    def _ignored(self, lineage: int) -> Mapping[str, object]:
        try:
            found = json.loads((self._kept(lineage) / "ignored.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _base(self, lineage: int, wanted: ProgramFiles) -> tuple[Path, str]:
        if _in_home(wanted):
            return self._root / "homes" / str(lineage), wanted.pattern.removeprefix(HOME)
        return self._root / "work" / str(lineage), wanted.pattern

    def _numbered(
        self, lineage: int, wanted: ProgramFiles, found: list[MatchedPath], how: Verification
    ) -> SavedCheckpoints:
        base, _ = self._base(lineage, wanted)
        steps: list[int] = []
        rejected: list[str] = []
        newest: MatchedPath | None = None
        for index, each in enumerate(found):
            before = found[index + 1] if index + 1 < len(found) else None
            fact = _missing(each, before) if not steps and not rejected else None
            if fact is None and how is not Verification.SIZES and len(steps) < SURE:
                fact = self._damage(base, each)
            if fact is not None:
                rejected.append(f"{each.path}: {fact}")
            elif each.number not in steps:
                newest = newest or each
                steps.append(each.number or 0)
        return SavedCheckpoints(tuple(steps), tuple(rejected), _moment(newest))

    def _damage(self, base: Path, match: MatchedPath) -> str | None:
        """Return what shows that a checkpoint is not whole, or None."""
        if len(match.files) > MAX_FILES:
            return f"has {len(match.files)} files, and the limit is {MAX_FILES}"
        try:
            directory = os.open(base, _DIRECTORY)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        try:
            paths = [str(_file_path(match, name)) for name, *_ in match.files]
            found = self._find_damage(self._owner, directory, paths)
        finally:
            os.close(directory)
        if found is None:
            return None
        index, fact = found
        return f"{match.files[index][0]} {fact}" if match.is_directory else fact

    # --- without

    def _versioned(
        self, lineage: int, wanted: ProgramFiles, found: list[MatchedPath], how: Verification
    ) -> SavedCheckpoints:
        versions, rejected = self._versions(lineage), []
        live = _latest(found)
        is_kept = live is not None and any(version.files == live.files for version in versions)
        is_new = live is not None and not is_kept and how is not Verification.KNOWN
        if live is not None and is_new and (how is Verification.CONTENT or self._may_copy(live)):
            versions, fact = self._keep_latest(lineage, wanted, versions, how)
            if fact is not None and (how is Verification.CONTENT or _is_settled(live, SETTLED_S)):
                rejected.append(f"{live.path}: {fact}")
        numbers = tuple(version.number for version in reversed(versions))
        return SavedCheckpoints(numbers, tuple(rejected), _moment(live) if numbers else None)

    def _keep_latest(
        self, lineage: int, wanted: ProgramFiles, versions: list[_Version], how: Verification
    ) -> tuple[list[_Version], str | None]:
        """Copy what is there now, again if it is written over meanwhile.

        While its program runs, what is there counts if its formats show that it is whole, however lately it
        was written; other formats must have been left alone for a while.

        Returns:
            The versions that are kept, and what shows that the present one is not whole.
        """
        base = self._base(lineage, wanted)[0]
        fact = None
        for _ in range(COPY_TRIES):
            live = _latest(self._matches(lineage, wanted))
            if live is None or any(version.files == live.files for version in versions):
                return versions, None
            fact = self._damage(base, live)
            is_sure = how is Verification.CONTENT or _is_settled(live, UNKNOWN_SETTLED_S)
            if fact is not None or not (is_sure or _shows_wholeness(base, live, versions)):
                continue
            kept = self._keep(lineage, wanted, live, versions)
            if kept is not versions:
                return kept, None
        return versions, fact

    def _may_copy(self, live: MatchedPath) -> bool:
        """Return whether to copy a version while its program runs: large ones not too often."""
        now_s = time.monotonic()
        if live.bytes > LARGE_BYTES and self._copied_s and now_s - self._copied_s < COPY_EVERY_S:
            return False
        self._copied_s = now_s
        return True

    def _kept(self, lineage: int) -> Path:
        return self._root / "kept" / str(lineage)

    def _versions(self, lineage: int) -> list[_Version]:
        """Return the kept versions, the oldest first."""
        try:
            names = os.listdir(self._kept(lineage))  # noqa: PTH208
        except OSError:
            return []
        found = (self._read_version(lineage, int(name)) for name in names if name.isdecimal())
        return sorted((each for each in found if each is not None), key=lambda each: each.number)

    def _highest(self, lineage: int) -> int:
        """Return the highest number of a version, readable or not; 0 if there is none."""
        try:
            names = os.listdir(self._kept(lineage))  # noqa: PTH208
        except OSError:
            return 0
        numbers = [int(name) for name in names if name.isdecimal()]
        return max((*numbers, *self._versions_aside(lineage)), default=0)

    def _read_version(self, lineage: int, number: int) -> _Version | None:
        try:
            note = json.loads((self._kept(lineage) / str(number) / "version.json").read_bytes())
            files = tuple(
                (str(path), int(inode), int(size), int(ns)) for path, inode, size, ns in note["files"]
            )
            return _Version(number, PurePosixPath(note["path"]), files)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(
        self,
        lineage: int,
        wanted: ProgramFiles,
        live: MatchedPath,
        versions: list[_Version],
    ) -> list[_Version]:
        """Copy a version, and return all that are kept; without room or if it changes, those of before."""
        parent, base = self._kept(lineage), self._base(lineage, wanted)[0]
        number = self._highest(lineage) + 1
        draft, place = parent / f".{number}.draft", parent / str(number)
        try:
            shutil.rmtree(draft, ignore_errors=True)
            (draft / "files").mkdir(mode=0o700, parents=True)
            _copy_files(base, live, draft / "files")
            note = {"path": str(live.path), "directory": live.is_directory, "files": live.files}
            (draft / "version.json").write_text(json.dumps(note), encoding="utf-8")
            is_same = self._state(base, live) == live.files
            if is_same:
                draft.rename(place)
        except OSError:
            is_same = False
        if not is_same:
            shutil.rmtree(draft, ignore_errors=True)
            return versions
        kept = [*versions, _Version(number, live.path, live.files)]
        for old in kept[: -wanted.keep]:
            shutil.rmtree(parent / str(old.number), ignore_errors=True)
        return kept[-wanted.keep :]

    @staticmethod
    def _state(base: Path, live: MatchedPath) -> Fingerprint:
        """Return the present fingerprint of a path."""
        found = find_matches(base, re.sub(r"([*?[])", r"[\1]", str(live.path)))
        return found[0].files if found else ()

    def _restore(self, lineage: int, wanted: ProgramFiles, version: _Version) -> None:
        """Put a kept version in the place of a torn one.

        Raises:
            Unavailable: the file system refuses it.
        """
        base, kept = self._base(lineage, wanted)[0], self._kept(lineage) / str(version.number)
        try:
            is_directory = json.loads((kept / "version.json").read_bytes())["directory"]
            parent = open_parents(base, version.path.parts[:-1], self._owner)
            try:
                self._write_back(parent, version, kept / "files", is_directory=bool(is_directory))
            finally:
                os.close(parent)
            now = self._state(base, MatchedPath(version.path, (), bool(is_directory), frozenset()))
            note = {"path": str(version.path), "directory": is_directory, "files": now}
            draft = kept / ".version.json.draft"
            draft.write_text(json.dumps(note), encoding="utf-8")
            draft.rename(kept / "version.json")
        except (OSError, ValueError) as error:
            raise Unavailable(f"{version.path}: the kept checkpoint cannot be put back: {error}") from error

    def _write_back(self, parent: int, version: _Version, kept: Path, *, is_directory: bool) -> None:
        """Write the files of a version below a directory of the job, and exchange it for the torn one."""
        name = version.path.name
        draft, torn = f".{name}.restored", f".{name}.torn"
        for old in (draft, torn):
            remove(parent, old)
        if is_directory:
            os.mkdir(draft, 0o700, dir_fd=parent)
            fd = os.open(draft, _DIRECTORY, dir_fd=parent)
            try:
                self._own(fd)
                for path, *_ in version.files:
                    inner = open_parents(fd, PurePosixPath(path).parts[:-1], self._owner)
                    try:
                        self._write_file(inner, PurePosixPath(path).name, kept / path)
                    finally:
                        os.close(inner)
            finally:
                os.close(fd)
        else:
            self._write_file(parent, draft, kept / name)
        with suppress(FileNotFoundError):
            os.rename(name, torn, src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
        remove(parent, torn)

    def _write_file(self, parent: int, name: str, source: Path) -> None:
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            self._own(fd)
            with source.open("rb") as file:
                _copy(file.fileno(), fd)
        finally:
            os.close(fd)

    def _own(self, fd: int) -> None:
        if os.geteuid() == 0:
            os.fchown(fd, self._owner.uid, self._owner.gid)


def _in_home(wanted: ProgramFiles) -> bool:
    return wanted.pattern.startswith(HOME)


def _file_path(match: MatchedPath, name: str) -> PurePosixPath:
    return match.path / name if match.is_directory else match.path


def _missing(newest: MatchedPath, before: MatchedPath | None) -> str | None:
    """Return which file the newest checkpoint lacks that the one before has, apart from numbers in names."""
    if before is None or not newest.is_directory:
        return None
    names = {_DIGITS.sub("#", each[0]) for each in newest.files}
    lacking = next((each[0] for each in before.files if _DIGITS.sub("#", each[0]) not in names), None)
    return f"lacks {lacking}, which {before.path.name} has" if lacking else None


def _latest(found: list[MatchedPath]) -> MatchedPath | None:
    return max(found, key=lambda each: each.written_ns, default=None)


def _is_settled(match: MatchedPath, seconds: float) -> bool:
    return match.written_ns <= time.time_ns() - int(seconds * 1e9)


def _shows_wholeness(base: Path, live: MatchedPath, versions: list[_Version]) -> bool:
    """Return whether every format tells its end, and no file of the last version lacks."""
    names = [each[0] for each in live.files]
    if live.is_directory and not (versions and {each[0] for each in versions[-1].files} <= {*names}):
        return False
    try:
        for name in names:
            with open_below(base, _file_path(live, name)) as fd:
                if not shows_its_end(fd, name):
                    return False
    except OSError:
        return False
    return True


def _moment(match: MatchedPath | None) -> datetime | None:
    return None if match is None else datetime.fromtimestamp(match.written_ns / 1e9, UTC)


def _copy_files(base: Path, match: MatchedPath, target: Path) -> None:
    """Copy the files of a checkpoint into a directory of the daemon."""
    for name, *_ in match.files:
        place = target / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_below(base, _file_path(match, name)) as source:
            fd = os.open(place, _NEW_FILE, 0o600)
            try:
                _copy(source, fd)
            finally:
                os.close(fd)


def _copy(source: int, target: int) -> None:
    """Copy a file to an empty one, by sharing its blocks where the file system can."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        offset, size = 0, os.fstat(source).st_size
        while offset < size:
            done = os.sendfile(target, source, offset, size - offset)
            if not done:
                break  # it has become shorter
            offset += done
