"""Words for a submitter about what his snapshot of code lacks, and where it is missed."""

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath
from typing import Final, TypeAlias

from runner.base.readable import readable_size
from runner.base.textfile import one_line
from runner.core.ports.code import LeftOut
from runner.files.field_checks import suggest_mount

MOST_NAMED: Final = 3
"""Of what is ignored; the largest."""

NOT_FOR_JOBS: Final = "it belongs to the system, which no job sees"

MOST_LINES: Final = 5
"""About links and the like."""


Given: TypeAlias = tuple[PurePath, PurePosixPath]
"""A path of the host that a job has, and where it has it."""


def describe(
    left_out: Sequence[LeftOut], directory: Path | None, given: Sequence[Given] = ()
) -> tuple[str, ...]:
    """Return the few lines about left-out files that a submitter should know.

    What the job is ``given`` at another place is not told.
    """
    lacking = [each for each in left_out if _place_in_job(each, directory, given) is None]
    single = [each for each in lacking if each.kind not in {"file", "directory"}]
    ignored = [each for each in lacking if each.kind in {"file", "directory"}]
    lines = [_line(each, directory) for each in single[:MOST_LINES]]
    if len(single) > MOST_LINES:
        lines.append(f"workload.code: {len(single) - MOST_LINES} more links and the like are left out")
    if ignored:
        named = ", ".join(_sized(each) for each in ignored[:MOST_NAMED])
        rest = f", and {len(ignored) - MOST_NAMED} more" if len(ignored) > MOST_NAMED else ""
        fact = f"workload.code: git ignores {named}{rest}, and the job does not get them"
        lines.append(f"{fact}; {_way(ignored[0], directory)}")
    return tuple(lines)


def describe_unsent(left_out: Sequence[LeftOut]) -> tuple[str, ...]:
    """Return the part of the code that is not sent to another machine, where data would have to be, too."""
    left_out = [each for each in left_out if each.kind != "pointer"]  # the server tells of them
    if not left_out:
        return ()
    named = ", ".join(_sized(each) for each in left_out[:MOST_NAMED])
    rest = f", and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
    step = "copy them to the server and mount them, or name them in .runnerignore, such as !/"
    return (f"workload.code: git ignores {named}{rest}, and they are not sent; {step}{left_out[0].path}",)


def find_missed(
    left_out: Iterable[LeftOut], directory: Path | None, path: str, given: Sequence[Given] = ()
) -> str | None:
    """Return the reason why a path is not in the code of a job, and what to do; None if nothing says so.

    The path is as a program names it: below its working directory, or absolute.
    """
    inner = PurePosixPath(path)
    if inner.is_absolute():
        roots = [PurePosixPath("/code"), *([] if directory is None else [PurePosixPath(directory)])]
        root = next((each for each in roots if inner.is_relative_to(each)), None)
        if root is None:
            return None
        inner = inner.relative_to(root)
    places = [str(inner), *map(str, inner.parents)]
    for each in left_out:
        is_pattern = each.files > 1 and each.kind == "file"
        named = fnmatchcase(str(inner), each.path) if is_pattern else each.path in places
        if named:
            place = _place_in_job(each, directory, given)
            return (
                _line(each, directory)
                if place is None
                else f"{one_line(each.path)}: the job has it at {place}"
            )
    return None


def _place_in_job(each: LeftOut, directory: Path | None, given: Iterable[Given]) -> PurePosixPath | None:
    """Return the place at which a job has what its code lacks; None: it has it nowhere."""
    path = _source(each, directory)
    for source, target in given if each.kind in {"file", "directory", "link"} else ():
        if path.is_relative_to(normal := os.path.normpath(source)):
            return target / path.relative_to(normal)
    return None


def _line(each: LeftOut, directory: Path | None) -> str:
    shown = one_line(each.path)
    if each.kind == "pointer":
        more = (
            f" and {each.files - 1} more files beside it are pointers" if each.files > 1 else " is a pointer"
        )
        return f"workload.code: {shown}{more} of Git LFS without content; git lfs pull fetches it"
    if each.kind == "special":
        return f"workload.code: {shown} is {one_line(each.target)}, and is left out"
    if each.kind == "link":
        fact = f"workload.code: {shown} is a link to {one_line(each.target)}, and is left out"
        return f"{fact}; {_mount(_source(each, directory)) or NOT_FOR_JOBS}"
    return f"workload.code: git ignores {_sized(each)}, and the job does not get it; {_way(each, directory)}"


def _sized(each: LeftOut) -> str:
    files = "" if each.files == 1 else f"{each.files} files, "
    size = (
        f"more than {files}{readable_size(each.bytes)}"
        if each.is_more
        else f"{files}{readable_size(each.bytes)}"
    )
    return f"{one_line(each.path)} ({size})"


def _way(each: LeftOut, directory: Path | None) -> str:
    """Return the way to give ignored files to a job: small things with the code, others as a mount."""
    place = PurePosixPath(each.path)
    file = one_line(str(place.parent / ".runnerignore"))
    take = f"to take {one_line(place.name)} along, write !/{one_line(place.name)} into {file}"
    whole = each if each.kind == "directory" else LeftOut(str(place.parent), "directory")
    mount = _mount(_source(whole, directory))
    return f"{take}; or {mount}" if mount else take


def _source(each: LeftOut, directory: Path | None) -> PurePosixPath:
    """Return the absolute path of what is left out, that of a link where it leads."""
    base, place = PurePosixPath(directory or "."), PurePosixPath(each.path)
    found = base / place.parent / each.target if each.kind == "link" else base / place
    return PurePosixPath(os.path.normpath(found))


def _mount(source: PurePosixPath) -> str | None:
    option = suggest_mount(source)
    return None if option is None else f"mount it ({option}) and name that path"
