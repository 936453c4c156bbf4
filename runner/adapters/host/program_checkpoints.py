"""Checkpoints that a program saves on its own: files that a pattern of the job file names.

All that the pattern names is one stream.  The newest is the one that was complete last: each gets a number in
the order in which the runner has seen them complete, which is kept beside the run directory, where the job
cannot change it.  Neither a clock nor a name decides; of those that were first seen in one look, the time of
the last write does.  A number in a name is shown as a step where it grows (``program_steps``).

Of a path that the program writes over again and again, a kill in the middle would leave nothing.  So whole
versions of it are kept beside the run directory, and the newest is put back if the present one is torn,
whatever else the pattern names.

A checkpoint is whole as far as that can be told from outside: no file is broken off, it has every file that
the one before has, and nothing was written to it while it was looked at.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from jobs.contract import CheckpointInvalid
from runner.adapters.host.checkpoint_copy import copy_content
from runner.adapters.host.clock import from_unix
from runner.adapters.host.file_formats import (
    MAX_HEADER_BYTES,
    find_first_damage,
    find_missing_part,
    find_missing_rank,
    shows_its_end,
)
from runner.adapters.host.program_files import (
    MAX_CHOICES,
    MAX_ENTRIES,
    Fingerprint,
    MatchedPath,
    TooMany,
    describe_miss,
    digest_files,
    directory_at,
    find_matches,
    is_beside,
    is_pointer,
    is_temporary,
    look_at,
    open_below,
    read_pointers,
    without_results,
)
from runner.adapters.host.program_steps import count_steps, show_steps, went_back
from runner.adapters.host.set_aside import GIVEN, NAME, SetAside, open_parents, remove
from runner.base.errors import Refused, disk_errors
from runner.core.ports.checkpoints import ProgramCheckpoint, ProgramFiles, SavedCheckpoints, Verification

HOME: Final = "/job/home/"
"""The beginning of a pattern below the home directory of the lineage; others are below its code."""

SETTLED_S: Final = 1.0
"""A file that was left alone for this time is complete, if its format does not show that it is."""

SETTLED_DIRECTORY_S: Final = 2.0
"""The same of a directory, to which more files may come."""

SKEW_NS: Final = 600 * 10**9
"""A time of a write further in the future was noted before the clock was set back."""

COPY_TRIES: Final = 3
"""Copies in one look of a file that is written over meanwhile."""

SURE: Final = 2
"""Number of the newest checkpoints that are read; of older ones it is only known that they are there."""

COPY_EVERY_S: Final = 60.0
"""The least time between two copies of a large checkpoint while its program runs."""

ADDED: Final = 64
"""Files that may be added to a checkpoint between two looks without making it a new one."""

REMEMBERED: Final = 200
"""Checkpoints that are not there any more, of which the number is remembered."""

LARGE_BYTES: Final = 64 * 1024**2
_DIGITS: Final = re.compile(r"[0-9]+")
_MARK: Final = re.compile(r"(?i)(?:.*[._-])?(?:done|completed?|success|finished|ok|stamp)")
"""A file by which a pipeline says that a stage is done; it may be empty."""

_PART: Final = re.compile(r"[^\s/\"']+")
_WILD: Final = re.compile(r"[*?\[{]")
_ANY: Final = re.compile(r"[*?\[]")
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Order:
    """The order in which the checkpoints of a lineage were seen complete."""

    last: int = 0
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)  # by digest: number and path
    written_over: set[str] = field(default_factory=set)  # paths
    aside: dict[str, int] = field(default_factory=dict)  # by digest: the number by which it was chosen
    began: dict[int, int] = field(default_factory=dict)  # the newest at the begin of each attempt
    matched: bool = False  # the pattern has named something at some time

    def give(self, match: MatchedPath) -> int:
        """Return the number of a checkpoint that is complete: the next one, if it was not seen before."""
        if match.digest not in self.seen:
            path = str(match.path)
            if any(path == each for _, each in self.seen.values()):
                self.written_over.add(path)
            self.place(match, path)
        return self.seen[match.digest][0]

    def place(self, match: MatchedPath, path: str) -> None:
        """Give a checkpoint the next number, at a path; an empty one while it is set aside."""
        self.last += 1
        self.seen[match.digest] = (self.last, path)

    def forget(self, there: set[str]) -> None:
        """Forget the oldest of those that are not there any more."""
        gone = sorted((n, digest) for digest, (n, _) in self.seen.items() if digest not in there)
        for _, digest in gone[:-REMEMBERED]:
            del self.seen[digest]
            self.aside.pop(digest, None)


@dataclass(frozen=True, slots=True)
class _Version:
    """A kept copy of a checkpoint that its program writes over."""

    number: int
    path: PurePosixPath
    files: Fingerprint
    is_directory: bool


@dataclass(frozen=True, slots=True)
class _Whole:
    """A checkpoint that is whole: it is in its place, or a version of it is kept, or both."""

    number: int  # in the order of the stream
    path: PurePosixPath
    written_ns: int
    match: MatchedPath | None
    version: _Version | None = None
    chosen_by: int = 0  # the number by which people choose it: its step if there are steps
    step: int | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    """Result of one look: whole ones, the newest first, and torn ones with what shows it."""

    whole: tuple[_Whole, ...] = ()
    torn: tuple[tuple[MatchedPath, str], ...] = ()
    missed: str = ""
    complete: bool = True

    @property
    def has_steps(self) -> bool:
        return any(each.step is not None for each in self.whole)

    @property
    def rejected(self) -> tuple[str, ...]:
        return tuple(f"{match.path}: {fact}" for match, fact in self.torn)


@dataclass(frozen=True, slots=True)
class _Before:
    """The checkpoint before another one."""

    name: str
    files: Fingerprint
    number: int  # in the order of the stream


@dataclass(slots=True)
class Seen:
    """State that one look at a run directory leaves to the next."""

    copied_s: float = 0.0
    first_s: dict[str, float] = field(default_factory=dict)  # by digest: when a look has first found it
    newest: MatchedPath | None = None

    def is_settled(self, match: MatchedPath) -> bool:
        """Return True if a checkpoint was left alone for a while, whatever the clock was set to meanwhile."""
        seconds = SETTLED_DIRECTORY_S if match.is_directory else SETTLED_S
        if len(self.first_s) > 10 * REMEMBERED:
            self.first_s.clear()
        first_s = self.first_s.setdefault(match.digest, time.monotonic())
        is_old = match.written_ns <= time.time_ns() - int(seconds * 1e9)
        return is_old or time.monotonic() - first_s >= seconds

    def grown_from(self, match: MatchedPath | None) -> MatchedPath | None:
        """Return the newest directory of the last look, if this one is the same with more files."""
        before, self.newest = self.newest, match
        if match is None or before is None or not match.is_directory or before.path != match.path:
            return None
        return before if set(before.files) < set(match.files) else None

    def may_copy(self, match: MatchedPath, now_s: float) -> bool:
        """Return True if a version is to be copied while its program runs: large ones in few looks."""
        if match.bytes > LARGE_BYTES and self.copied_s and 0 < now_s - self.copied_s < COPY_EVERY_S:
            return False
        self.copied_s = now_s
        return True


@dataclass(frozen=True, slots=True)
class ProgramLineage:
    """Checkpoints of one lineage that a look is asked for."""

    run: str  # the name of the run directory
    lineage: int
    attempt: int
    wanted: ProgramFiles
    within_s: float
    seen: Seen

    @property
    def in_home(self) -> bool:
        return self.wanted.pattern.startswith(HOME)


class ProgramReader:
    """One look at the checkpoints of a program in a lineage, with the rights of this process.

    ``base`` is the open directory that the pattern is below, and ``kept`` that of versions and notes, which
    the program cannot reach.  ``lineage`` is for what is set aside, unless the pattern is below a mount.
    ``check`` is called during copies, and may raise.
    """

    def __init__(
        self, base: int, kept: int, lineage: int, asked: ProgramLineage, check: Callable[[], None]
    ) -> None:
        if asked.wanted.mount:
            self._where = f".runner-{NAME}/{asked.run}/{asked.lineage}"
            self._aside = SetAside(base, PurePosixPath(self._where))
        else:
            self._where = f"lineages/{asked.lineage}/{NAME}"
            self._aside = SetAside(lineage, PurePosixPath(NAME))
        self._asked, self._check = asked, check
        self._seen, self._base = asked.seen, base
        self._pattern, self._keep = asked.wanted.pattern.removeprefix(HOME), asked.wanted.keep
        parts = reversed(PurePosixPath(self._pattern).parts)
        self._varies = next((place for place, part in enumerate(parts) if _ANY.search(part)), 0)
        self._kept_fd, self._kept = kept, Path(f"/proc/self/fd/{kept}")
        self._order = self._read_order()

    def saved(self, how: Verification) -> SavedCheckpoints:
        """Return the checkpoints; with ``CONTENT`` files are read, and versions kept."""
        look = self._look(how)
        newest = next(iter(look.whole), None)
        return SavedCheckpoints(
            steps=tuple(dict.fromkeys(each.chosen_by for each in look.whole)),
            rejected=look.rejected,
            changed=None if newest is None else from_unix(newest.written_ns / 1e9),
            unverified=() if look.complete else (f"{self._asked.wanted.pattern}: there are too many files",),
            complete=look.complete,
            set_aside=tuple(sorted({number for number, *_ in self._all_aside()}, reverse=True)),
            are_steps=newest is None or newest.step is not None,
            has_versions=newest is not None and not look.has_steps,
            advanced=newest is not None and newest.number > self._order.began.get(self._asked.attempt, 0),
            only_first=self._is_only_first(newest),
            missed=look.missed,
            went_back=self._went_back(look),
        )

    def _is_only_first(self, newest: _Whole | None) -> bool:
        """Return True if an attempt began with the first, a directory: no other shows what it lacks."""
        is_directory = newest is not None and newest.match is not None and newest.match.is_directory
        return is_directory and self._order.last == self._order.began.get(self._asked.attempt, 0) == 1

    def _name(self, path: PurePosixPath) -> str:
        """Return the part of a path that the last wildcard names, such as a directory for each step."""
        return path.parts[-min(self._varies + 1, len(path.parts))]

    def _went_back(self, look: _Look) -> str:
        """Return the checkpoints that show that an attempt did not go on from where it was to."""
        began = self._order.began.get(self._asked.attempt, 0)
        paths = (
            PurePosixPath(path) for number, path in self._order.seen.values() if path and number == began
        )
        before = next(paths, None)
        new = [each.path for each in reversed(look.whole) if each.number > began]
        first = next(
            (each for each in new if before and went_back(self._name(each), self._name(before))), None
        )
        return "" if first is None else f"it was given {before}, and has saved {first} after that"

    def begin_lineage(self) -> bool:
        """Leave out what is there before the first attempt of a lineage: it came with the code.

        A checkpoint that the lineage was given takes the place of what came; return whether there is one.

        Raises:
            Unavailable: the file system refuses it.
        """
        with suppress(TooMany):
            if there := self._present():
                self._note("ignored.json", {str(each.path): each.files for each in there})
        given = [match for attempt, match in self._aside.found(self._pattern) if attempt == GIVEN]
        with disk_errors(f"{self._asked.wanted.pattern}: the checkpoint cannot be put there"):
            for match in given:
                with suppress(FileNotFoundError), directory_at(self._base, match.path.parent) as parent:
                    remove(parent, match.path.name)
                self._aside.put_back(self._base, match.path, GIVEN)
        return bool(given)

    def give_newest(self, target: int) -> None:
        """Copy the newest whole checkpoint into the open directory of a lineage that has not begun.

        Raises:
            CheckpointInvalid: none stays as it is while it is copied.
            OSError: the file system refuses it.
            Unavailable: the notes cannot be written.
        """
        for _ in range(COPY_TRIES):
            newest = next(iter(self._look(Verification.CONTENT).whole), None)
            source = None if newest is None else newest.version or newest.match
            if source is not None and self._give(source, target):
                return
        raise CheckpointInvalid("its program writes over it or removes it meanwhile; try again")

    def _give(self, source: "MatchedPath | _Version", target: int) -> bool:
        """Copy a checkpoint into another lineage, and return whether it stayed the same meanwhile."""
        path = source.path
        parent = open_parents(target, (NAME, str(GIVEN), *path.parts[:-1]))
        try:
            try:
                self._write_back(parent, path.name, source)
            except FileNotFoundError:
                is_same = False
            else:
                present = self._look_again(path) if isinstance(source, MatchedPath) else source
                is_same = present is not None and present.files == source.files
            if not is_same:
                remove(parent, path.name)
            return is_same
        finally:
            os.close(parent)

    def choose(self, step: int | None) -> ProgramCheckpoint | None:
        """Return the checkpoint to resume from: that of a step, or the newest whole one.

        A kept version takes the place of a torn one.  Checkpoints after a step that is asked for are set
        aside for the attempt, so that a program that looks for its newest itself finds the one that is
        meant, and they do not take over after the next kill.  One that was set aside before is put back.

        Raises:
            Refused: there are too many files to tell which is the newest.
            Unavailable: the file system refuses it.
        """
        with disk_errors(f"{self._asked.wanted.pattern}: checkpoints cannot be put back or set aside"):
            return self._choose(self._asked.attempt, step)

    # --- looking

    def _present(self) -> list[MatchedPath]:
        """Return the paths that the pattern names, without what came with the code.

        A text that names the newest one, or what is written beside, counts where there is nothing else.

        Raises:
            TooMany: the directories have too many entries.
        """
        ignored = self._read("ignored.json")
        found = [
            each
            for each in find_matches(self._base, self._pattern)
            if each.files
            and not is_temporary(each.path, self._pattern)
            and ignored.get(str(each.path)) != [list(file) for file in each.files]
        ]
        return [
            each for each in found if not is_pointer(self._base, each) and not self._is_beside(each)
        ] or found

    def _is_beside(self, each: "MatchedPath | _Version") -> bool:
        return is_beside(each.path, each.files, self._pattern)

    def _look(self, how: Verification) -> _Look:
        """Return the whole and the torn checkpoints; what is new and whole gets its place in the order."""
        try:
            found = self._present()
        except TooMany:
            return _Look(complete=False)
        before = replace(self._order, seen={**self._order.seen}, written_over={*self._order.written_over})
        self._order.matched = self._order.matched or bool(found)
        seen, torn = self._in_order(found, how)
        if how is not Verification.KNOWN:
            self._keep_versions(seen, how)
        there = {each.digest for each in found}
        self._order.forget(there | {match.digest for _, _, match in self._aside_matches()})
        if how is not Verification.KNOWN and before != self._order:
            self._write_order()
        missed = "" if self._order.matched else describe_miss(self._base, self._pattern)
        return _Look(self._number(seen, found), tuple(torn), missed)

    def _in_order(
        self, found: list[MatchedPath], how: Verification
    ) -> tuple[list[MatchedPath], list[tuple[MatchedPath, str]]]:
        """Return the whole ones, each with its place in the order, and the newest torn ones."""
        for each in found:
            if (former := self._former(each)) is not None:  # an evaluation was added later
                self._order.seen[each.digest] = self._order.seen.pop(former)
        known = sorted(
            (each for each in found if each.digest in self._order.seen),
            key=lambda each: self._order.seen[each.digest][0],
            reverse=True,
        )
        new = [each for each in found if each.digest not in self._order.seen]
        ranked = [*sorted(new, key=_by_write, reverse=True), *known]
        whole: list[MatchedPath] = []
        torn: list[tuple[MatchedPath, str]] = []
        for place, each in enumerate(ranked):
            is_new = each.digest not in self._order.seen
            is_open = is_new and how is Verification.SIZES and not whole  # none that was written later counts
            if is_open and not self._may_count(each, ranked[place + 1 :]):
                continue
            is_read = len(whole) < SURE and (is_new or how is not Verification.SIZES)
            fact = each.problem or (self._lacks(each, ranked[place + 1 :]) if is_new and not whole else None)
            if fact is None and is_read:
                fact = self._damage(each)
            if fact is None:
                whole.append(each)
            elif how is not Verification.SIZES or self._seen.is_settled(each):
                torn.append((each, fact))
        newest = next(iter(whole), None)
        if newest and (less := self._seen.grown_from(newest)) and less.digest in self._order.seen:
            self._order.seen[newest.digest] = self._order.seen.pop(less.digest)  # it is still being filled
        for each in reversed(whole):
            self._order.give(each)
        return whole, torn

    def _former(self, match: MatchedPath) -> str | None:
        """Return the digest by which a directory with a step was seen before files were added to it."""
        path, seen = str(match.path), self._order.seen
        digests = {digest for digest, (_, each) in seen.items() if each == path}
        if not match.is_directory or not digests or match.digest in seen or self._has_no_step(match):
            return None
        times = sorted({each[3] for each in match.files})[-ADDED:]
        before = (tuple(each for each in match.files if each[3] < time) for time in reversed(times))
        return next(
            (less for files in before if (less := digest_files(files, is_directory=True)) in digests), None
        )

    def _may_count(self, match: MatchedPath, older: Sequence[MatchedPath]) -> bool:
        """Return True if a new checkpoint of a running program is complete, as far as can be told."""
        if self._seen.is_settled(match):
            return True
        names = [each[0] for each in match.files]
        if match.is_directory and (not self._before(match, older).files or self._lacks(match, older)):
            return False
        try:
            for name in names:
                with open_below(self._base, match.below(name)) as fd:
                    if not shows_its_end(fd, name):
                        return False
        except OSError:
            return False
        return True

    def _before(self, match: MatchedPath, older: Sequence[MatchedPath]) -> _Before:
        """Return the checkpoint before with the same name, apart from numbers."""
        name = _DIGITS.sub("#", match.path.name)
        for each in older:
            if each.is_directory and _DIGITS.sub("#", each.path.name) == name:
                number, _ = self._order.seen.get(each.digest, (sys.maxsize, ""))
                return _Before(each.path.name, each.files, number)
        for version in reversed(self._versions()):
            if version.is_directory and version.path == match.path:
                return _Before(f"version {version.number}", version.files, version.number)
        return _Before("", (), 0)

    def _lacks(self, match: MatchedPath, older: Sequence[MatchedPath]) -> str | None:
        """Return a file that this checkpoint lacks and the one before has, apart from numbers in names.

        Of one from the same attempt, it has the files of all ranks: another attempt may have fewer.
        """
        if not match.is_directory:
            return None
        before = self._before(match, older)
        own = _names_in(match.path.name, match.files)
        others = _names_in(before.name, without_results(before.files))
        names = {_DIGITS.sub("#", each) for each in own}
        lacking = next((name for name in others if _DIGITS.sub("#", name) not in names), None)
        if lacking is None and before.number > self._order.began.get(max(self._order.began, default=0), 0):
            lacking = find_missing_rank(own, others)
        return f"lacks {others[lacking]}, which {before.name} has" if lacking else None

    def _number(self, seen: Sequence[MatchedPath], there: Sequence[MatchedPath]) -> tuple[_Whole, ...]:
        """Return the whole ones and the kept versions as one stream, the newest first, with their steps."""
        kept = self._versions()
        others = [each for each in kept if not self._is_beside(each)]
        if others or not all(map(self._is_beside, there)):
            kept = others  # a log may have been copied before there was anything else
        versions = {each.number: each for each in kept}
        found: dict[int, _Whole] = {}
        for match in sorted(seen, key=self._has_no_step):  # of two names of one file, that with a step
            number = self._order.give(match)
            version = versions.pop(number, None)
            found.setdefault(number, _Whole(number, match.path, match.written_ns, match, version))
        for number, version in versions.items():
            found[number] = _Whole(number, version.path, _written(version.files), None, version)
        stream = sorted(found.values(), key=lambda each: each.number, reverse=True)
        constant = frozenset(
            place
            for place, each in enumerate(stream)
            if str(each.path) in self._order.written_over or not _WILD.search(self._pattern)
        )
        steps = show_steps([self._name(each.path) for each in stream], constant)
        has_steps = any(step is not None for step in steps)
        numbered = []
        for place, each in enumerate(stream):
            after = next((step for step in steps[place:] if step is not None), 0)
            numbered.append(replace(each, step=steps[place], chosen_by=after if has_steps else each.number))
        return tuple(numbered)

    def _damage(self, match: MatchedPath) -> str | None:
        """Return the sign that a checkpoint is not whole, or None."""
        if match.problem is not None:
            return match.problem
        if not match.bytes:
            is_mark = not match.is_directory and _MARK.fullmatch(match.path.name)
            return None if is_mark else "is empty"
        found = find_first_damage(self._base, [str(match.below(name)) for name, *_ in match.files])
        if found is None and not match.is_directory:
            return None
        if found is None:
            missing = find_missing_part([name for name, *_ in match.files], partial(self._content, match))
            return f"lacks {missing}" if missing else None
        index, fact = found
        return f"{match.files[index][0]} {fact}" if match.is_directory else fact

    def _content(self, match: MatchedPath, name: str) -> bytes:
        with open_below(self._base, match.below(name)) as fd:
            return os.pread(fd, MAX_HEADER_BYTES, 0)

    # --- choosing

    def _choose(self, attempt: int, step: int | None) -> ProgramCheckpoint | None:
        look = self._look(Verification.CONTENT)
        if not look.complete:
            raise Refused(
                f"{self._asked.wanted.pattern}: stands for more than {MAX_ENTRIES:,} files or {MAX_CHOICES}"
                " patterns, so its newest checkpoint is not known; move other files elsewhere, or begin at"
                " step 0 with runner restart --from scratch"
            )
        if step is not None and _find(look, step) is None and self._bring_back(step):
            look = self._look(Verification.CONTENT)
        chosen = None if step is None else _find(look, step)
        moved = [] if chosen is None else self._set_later_aside(look, chosen, attempt)
        chosen = chosen or next(iter(look.whole), None)
        put_back, renamed = ([], []) if chosen is None else self._mend_torn(look, chosen)
        if chosen is not None:
            others = [match.path for match, _ in look.torn if match.path not in put_back]
            self._point_to(chosen, [*others, *(each.path for each in look.whole if step is not None)])
            if chosen.match is None and chosen.version is not None:
                self._restore(chosen.version)
        self._order.began[attempt] = 0 if chosen is None else chosen.number
        self._write_order()
        if chosen is None:
            return None
        paths = tuple(str(each.path) for each in reversed(moved) if each.match is not None)
        versions = tuple(str(each.number) for each in reversed(moved) if each.match is None)
        kept = f"kept/{self._asked.lineage}/{NAME}/{attempt}"
        directory = (f"{self._where}/{attempt}" if paths else kept) if moved else ""
        return ProgramCheckpoint(
            chosen.chosen_by,
            str(chosen.path),
            in_home=self._asked.in_home,
            set_aside=paths or versions,
            directory=directory,
            known_as=_known_as(chosen, look),
            put_back=tuple(map(str, put_back)),
            torn=tuple(map(str, renamed)),
        )

    def _set_later_aside(self, look: _Look, chosen: _Whole, attempt: int) -> list[_Whole]:
        """Move what was saved after a checkpoint out of the way of an attempt, and return it."""
        counted = count_steps([self._name(each.path) for each in look.whole])
        later = [
            replace(each, chosen_by=each.chosen_by if count is None else count)
            for each, count in zip(look.whole, counted, strict=True)
            if each.number > chosen.number or (count or 0) > (chosen.step or sys.maxsize)
        ]
        for each in later:
            if each.match is not None and each.path != chosen.path:
                self._aside.move(self._base, each.path, attempt)
                self._order.seen[each.match.digest] = (each.number, "")
                self._order.aside[each.match.digest] = each.chosen_by
            if each.version is not None:
                place = self._kept / NAME / str(attempt)
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                (self._kept / str(each.number)).rename(place / str(each.number))
        return [replace(each, match=None) if each.path == chosen.path else each for each in later]

    def _aside_matches(self) -> list[tuple[int, int, MatchedPath]]:
        """Return the paths that are set aside, each with its number in the order, and its attempt."""
        return [
            (self._order.seen[match.digest][0] if match.digest in self._order.seen else 0, attempt, match)
            for attempt, match in self._aside.found(self._pattern)
        ]

    def _all_aside(self) -> list[tuple[int, int, int, MatchedPath | None]]:
        """Return the checkpoints set aside: the number that chooses it, its own, its attempt, its place."""
        found: list[tuple[int, int, int, MatchedPath | None]] = []
        for number, attempt, match in self._aside_matches():
            step = self._order.aside.get(match.digest, count_steps([self._name(match.path)])[0])
            found.append((number if step is None else step, number, attempt, match))
        for place in self._kept.joinpath(NAME).glob("[0-9]*/[0-9]*"):
            number = int(place.name)
            found.append((number, number, int(place.parent.name), None))
        return found

    def _bring_back(self, step: int) -> bool:
        """Put back what was set aside, up to a step; return whether there is such a step."""
        aside = self._all_aside()
        wanted = next(((number, attempt) for each, number, attempt, _ in aside if each == step), None)
        if wanted is None:
            return False
        for _, number, attempt, match in sorted(aside, key=lambda each: each[1]):
            if number > wanted[0]:
                continue
            if match is None and not (self._kept / str(number)).exists():
                (self._kept / NAME / str(attempt) / str(number)).rename(self._kept / str(number))
            elif match is None or attempt != wanted[1]:
                continue
            elif self._aside.put_back(self._base, match.path, attempt):
                self._order.place(match, str(match.path))  # the newest again, as it is asked for
        return True

    def _mend_torn(self, look: _Look, chosen: _Whole) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
        """Put back the newest kept version of each torn path, else rename it; return both kinds.

        So a script that looks for its newest finds a whole one.  If a directory cannot be changed, those
        without a version stay.
        """
        versions = {each.path: each for each in self._versions()}  # the newest of each path
        put_back = [match.path for match, _ in look.torn if match.path in versions]
        renamed: list[PurePosixPath] = []
        for path in (match.path for match, _ in look.torn):
            if path == chosen.path:
                continue  # it is put back last
            if path in versions:
                self._restore(versions[path])
                continue
            with suppress(OSError), directory_at(self._base, path.parent) as parent:
                aside = f".{path.name}.torn"
                remove(parent, aside)
                os.rename(path.name, aside, src_dir_fd=parent, dst_dir_fd=parent)
                renamed.append(path)
        return put_back, renamed

    def _point_to(self, chosen: _Whole, others: Sequence[PurePosixPath]) -> None:
        """Let a link or a text that names the newest name the chosen one, where it names another.

        If a directory cannot be changed, they stay.
        """
        name, place = (
            self._name(chosen.path),
            chosen.path.parents[min(self._varies, len(chosen.path.parts) - 1)],
        )
        names = dict.fromkeys(map(self._name, others), name)
        steps = {str(step): str(chosen.step) for step in count_steps([*names]) if chosen.step is not None}
        with suppress(OSError), directory_at(self._base, place) as directory:
            for pointer, text, is_link in read_pointers(directory):
                number = text.strip()
                written = (
                    text.replace(number, steps[number])
                    if number in steps
                    else _PART.sub(lambda part: names.get(part[0], part[0]), text)
                )
                if written == text:
                    continue
                draft = f".{pointer}.restored"
                remove(directory, draft)
                if is_link:
                    os.symlink(written, draft, dir_fd=directory)
                else:
                    fd = os.open(draft, _NEW_FILE, 0o600, dir_fd=directory)
                    with os.fdopen(fd, "w", encoding="utf-8") as file:
                        file.write(written)
                os.rename(draft, pointer, src_dir_fd=directory, dst_dir_fd=directory)

    # --- versions of what is written over

    def _keep_versions(self, seen: list[MatchedPath], how: Verification) -> None:
        """Keep versions of the newest ones that the program writes over; one without rest is left out."""
        now_s = time.monotonic()
        for match in seen[: self._keep]:
            if self._needs_copy(match, seen) and (
                how is Verification.CONTENT or self._seen.may_copy(match, now_s)
            ):
                self._keep_version(seen, match, how)

    def _keep_version(self, seen: list[MatchedPath], match: MatchedPath, how: Verification) -> None:
        """Keep a version of one; if it is written over while it is copied, the present one is copied."""
        place = seen.index(match)
        for _ in range(COPY_TRIES):
            if self._copy_version(match):
                return
            present = self._look_again(match.path)
            if present is None or self._damage(present) is not None:
                break
            if how is not Verification.CONTENT and not self._may_count(present, ()):
                break
            self._order.seen[present.digest] = self._order.seen.pop(match.digest)  # nobody has that any more
            seen[place] = match = present
        del seen[place]
        self._order.seen.pop(match.digest, None)

    def _needs_copy(self, match: MatchedPath, seen: Sequence[MatchedPath]) -> bool:
        """Return True if the program writes over a path, and nothing else is as new as its version before."""
        versions = self._versions()
        if any(each.files == match.files for each in versions):
            return False
        path, number = str(match.path), self._order.seen[match.digest][0]
        has_number = not self._has_no_step(match) and bool(_WILD.search(self._pattern))
        if has_number and path not in self._order.written_over:
            return False
        numbers = [n for n, each in self._order.seen.values() if each == path and n < number]
        before = max(numbers, default=0)
        stays = [each for each in seen if str(each.path) not in self._order.written_over]
        stays = [each for each in stays if not self._has_no_step(each)]
        if any(self._order.seen[each.digest][0] > before for each in stays):
            return False
        new = _Version(number, match.path, match.files, match.is_directory)
        return new not in self._surplus([*versions, new]) and self._damage(match) is None

    def _surplus(self, versions: Sequence[_Version]) -> list[_Version]:
        """Return the versions to remove: neither the newest ones, nor the newest of the newest paths."""
        ordered = sorted(versions, key=lambda each: each.number)
        last = {each.path: each.number for each in ordered}  # of each path
        kept = {*sorted(last.values())[-self._keep :], *(each.number for each in ordered[-self._keep :])}
        return [each for each in ordered if each.number not in kept]

    def _has_no_step(self, match: MatchedPath) -> bool:
        return show_steps([self._name(match.path)])[0] is None

    def _look_again(self, path: PurePosixPath) -> MatchedPath | None:
        with suppress(TooMany):
            found = look_at(self._base, path)
            return found if found is not None and found.files else None
        return None

    def _versions(self) -> list[_Version]:
        """Return the kept versions, the oldest first."""
        found = (self._read_version(number) for number in _numbers(self._kept))
        return [each for each in found if each is not None]

    def _read_version(self, number: int) -> _Version | None:
        try:
            note = json.loads((self._kept / str(number) / "version.json").read_bytes())
            files = tuple(
                (str(path), int(inode), int(size), int(ns)) for path, inode, size, ns in note["files"]
            )
            return _Version(number, PurePosixPath(note["path"]), files, bool(note["directory"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def _copy_version(self, live: MatchedPath) -> bool:
        """Copy a checkpoint, and return whether it stayed the same meanwhile; older versions are removed."""
        number = self._order.seen[live.digest][0]
        draft, place = f".{number}.draft", self._kept / str(number)
        try:
            remove(self._kept_fd, draft)
            os.mkdir(draft, 0o700, dir_fd=self._kept_fd)
            self._copy_files(live, self._kept / draft / "files")
            self._write_note(self._kept / draft, live.path, live.files, is_directory=live.is_directory)
            present = self._look_again(live.path)
            is_same = present is not None and present.files == live.files
            if is_same:
                remove(self._kept_fd, str(number))  # of which the note cannot be read
                (self._kept / draft).rename(place)
                for old in self._surplus(self._versions()):
                    remove(self._kept_fd, str(old.number))
            else:
                remove(self._kept_fd, draft)
        except OSError:
            return True  # no room: what is there is whole, and stays without a copy
        return is_same

    def _copy_files(self, match: MatchedPath, target: Path) -> None:
        """Copy the files of a checkpoint into a directory of the daemon."""
        for name, *_ in match.files:
            place = target / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_below(self._base, match.below(name)) as source:
                _copy_to(source, os.open(place, _NEW_FILE, 0o600), self._check)

    def _restore(self, version: _Version) -> None:
        """Put a kept version in the place of what is there now; may raise OSError."""
        kept, name = self._kept / str(version.number), version.path.name
        parent = open_parents(self._base, version.path.parts[:-1])
        draft, torn = f".{name}.restored", f".{name}.torn"
        try:
            for old in (draft, torn):
                remove(parent, old)
            self._write_back(parent, draft, version)
            with suppress(FileNotFoundError):
                os.rename(name, torn, src_dir_fd=parent, dst_dir_fd=parent)
            os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
            remove(parent, torn)
        finally:
            os.close(parent)
        present = self._look_again(version.path)
        if present is not None:
            self._order.seen[present.digest] = (version.number, str(version.path))
            self._write_note(kept, version.path, present.files, is_directory=version.is_directory)

    def _write_back(self, parent: int, draft: str, source: "MatchedPath | _Version") -> None:
        """Write the files of a checkpoint below a directory of the job."""
        if not source.is_directory:
            return self._write_file(parent, draft, source, source.path.name)
        os.mkdir(draft, 0o700, dir_fd=parent)
        with directory_at(parent, PurePosixPath(draft)) as fd:
            for path, *_ in source.files:
                inner = open_parents(fd, PurePosixPath(path).parts[:-1])
                try:
                    self._write_file(inner, PurePosixPath(path).name, source, path)
                finally:
                    os.close(inner)
        return None

    def _write_file(self, parent: int, name: str, source: "MatchedPath | _Version", file: str) -> None:
        with self._open(source, file) as old:
            fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
            _copy_to(old, fd, self._check)

    def _open(self, source: "MatchedPath | _Version", file: str) -> AbstractContextManager[int]:
        """Open a file of a checkpoint that is in its place, or of a kept version; may raise OSError."""
        if isinstance(source, MatchedPath):
            return open_below(self._base, source.below(file))
        return open_below(self._kept / str(source.number) / "files", PurePosixPath(file))

    # --- notes beside the run directory

    def _note(self, name: str, content: object) -> None:
        """Write a note beside the kept versions; may raise Unavailable."""
        with disk_errors("kept versions of checkpoints"):
            _publish(self._kept / name, content)

    def _write_note(
        self, place: Path, path: PurePosixPath, files: Fingerprint, *, is_directory: bool
    ) -> None:
        _publish(place / "version.json", {"path": str(path), "directory": is_directory, "files": files})

    def _read(self, name: str) -> Mapping[str, Any]:
        try:
            found = json.loads((self._kept / name).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _read_order(self) -> _Order:
        """Return the order as it was kept; versions of an older runner have numbers already."""
        note, versions = self._read("order.json"), self._versions()
        aside = [int(place.name) for place in self._kept.joinpath(NAME).glob("[0-9]*/[0-9]*")]
        highest = max((*_numbers(self._kept), *aside), default=0)
        seen = {
            digest_files(each.files, is_directory=each.is_directory): (each.number, str(each.path))
            for each in versions
        }
        return _Order(
            max(highest, int(note.get("last", 0))),
            {**seen, **{digest: (int(n), str(path)) for digest, (n, path) in note.get("seen", {}).items()}},
            {*note.get("written_over", ())},
            {str(digest): int(number) for digest, number in note.get("aside", {}).items()},
            {int(attempt): int(number) for attempt, number in note.get("began", {}).items()},
            matched=bool(note.get("matched", versions)),
        )

    def _write_order(self) -> None:
        order = self._order
        over = sorted(order.written_over)[:REMEMBERED]
        self._note(
            "order.json",
            {"last": order.last, "seen": order.seen, "written_over": over, "began": order.began}
            | {"aside": order.aside, "matched": order.matched},
        )


def _by_write(match: MatchedPath) -> tuple[bool, int, list[tuple[int, str]]]:
    """Return the sort key of checkpoints that were first seen in one look: by the last write, then by name.

    What was written in the future was written before the clock was set back.
    """
    name = [
        (int(digits or 0), text) for digits, text in re.findall(r"([0-9]{0,15})([^0-9]+|$)", str(match.path))
    ]
    return match.written_ns <= time.time_ns() + SKEW_NS, match.written_ns, name


def _find(look: _Look, step: int) -> _Whole | None:
    """Return the checkpoint that a number means: that of the step, else the newest after it."""
    found = [each for each in look.whole if each.chosen_by == step]
    return next((each for each in found if each.step == step), next(iter(found), None))


def _known_as(chosen: _Whole, look: _Look) -> str | None:
    """Return the name that people give a checkpoint that has no step."""
    if chosen.step is not None:
        return None
    return "" if look.has_steps else f"version {chosen.number}"


def _numbers(place: Path) -> list[int]:
    """Return the names in a directory that are numbers, the lowest first."""
    try:
        names = os.listdir(place)
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _names_in(checkpoint: str, files: Fingerprint) -> dict[str, str]:
    """Return the files in a checkpoint by their names without the numbers that are in its own name."""
    own = {int(each) for each in _DIGITS.findall(checkpoint)}
    return {
        _DIGITS.sub(lambda each: "#" if int(each[0]) in own else each[0], name): name for name, *_ in files
    }


def _written(files: Fingerprint) -> int:
    return max((each[3] for each in files), default=0)


def _publish(path: Path, content: object) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.rename(path)


def _copy_to(source: int, target: int, check: Callable[[], None]) -> None:
    """Copy an open file to a new one, with its holes, and close that."""
    try:
        check()
        copy_content(source, target, os.fstat(source).st_size, check)
    finally:
        os.close(target)
