"""The files in an answer of ``/diff``, line by line as ``git diff`` writes them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

from runner.base.textfile import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_LINES: Final = 20_000
"""Lines of one file that are compared; comparing takes the square of them."""


def file_lines(file: Mapping[str, Any], most: int = MAX_LINES) -> Iterator[str]:
    """Yield what differs in one file; the lines of its text are as they are, control characters included."""
    path, before, after = one_line(file["path"]), file["before"], file["after"]
    texts = file["texts"]
    if (before or after)["kind"] == "directory":
        yield f"{'new' if before is None else 'removed'} directory {path}"
        return
    if before and after and before["executable"] != after["executable"]:
        yield f"{path}: {'may' if after['executable'] else 'may not'} be executed now"
    if texts is None:
        yield f"{path}: {_size(before)} -> {_size(after)}; not compared line by line"
        return
    old, new = (text.splitlines() for text in texts)
    if max(len(old), len(new)) > most:
        yield f"{path}: {len(old)} -> {len(new)} lines; too many to be compared"
        return
    yield from _lines(path, old, new, is_new=before is None, is_gone=after is None)


def _lines(
    path: str, old: Sequence[str], new: Sequence[str], *, is_new: bool, is_gone: bool
) -> Iterator[str]:
    """Yield a unified diff as ``git diff`` writes it."""
    names = ("/dev/null" if is_new else f"a/{path}", "/dev/null" if is_gone else f"b/{path}")
    lines = list(difflib.unified_diff(old, new, *names, lineterm=""))
    if not lines and (is_new or is_gone):
        yield f"{'new' if is_new else 'removed'} empty file {path}"
    yield from lines


def _size(entry: Mapping[str, Any] | None) -> str:
    return "absent" if entry is None else f"{entry['kind']} of {entry['size']} bytes"
