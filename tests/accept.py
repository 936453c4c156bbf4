"""``pytest --accept``: takes the wording that a program has now over into the tests that compare it.

A text that differs from the one expected is written where that one stands: as a literal of the test's file,
if it stands there once, or as an ``.expected`` file beside it.  The test fails all the same, and what has
changed is reviewed like any other change.  Without ``-n``, and ``make fix`` afterwards.
"""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import pytest

_running: list[pytest.Item] = []


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _running[:] = [item]


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Accept the texts of a comparison that has failed, and say so instead of the difference."""
    if op != "==" or not _running:
        return None
    path = _running[0].path
    told = [*_accept_lines(path.parent, left, right), *_accept_literals(path, left, right)]
    return [f"{op} --accept", *told] if told else None


def _accept_lines(folder: Path, left: object, right: object) -> Iterator[str]:
    if _are_lines(left) and _are_lines(right):
        for path in folder.rglob("*.expected"):
            if path.read_text(encoding="utf-8").splitlines() == list(right):
                path.write_text("".join(f"{line}\n" for line in left), encoding="utf-8")
                yield f"accepted: {path.name}"


def _are_lines(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _accept_literals(path: Path, left: object, right: object) -> Iterator[str]:
    for said, expected in _texts(left, right):
        if replace_literal(path, expected, said):
            yield f"accepted: {said!r}"
        elif replace_literal(path, said, expected):  # the other way round
            yield f"accepted: {expected!r}"


def _texts(left: object, right: object) -> Iterator[tuple[str, str]]:
    """Yield the pairs of texts that differ."""
    if isinstance(left, str) and isinstance(right, str) and left != right:
        yield left, right
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        for one, other in zip(left, right, strict=True):
            yield from _texts(one, other)


def replace_literal(path: Path, before: str, after: str) -> bool:
    """Replace a literal of a module, and return whether it stands there exactly once."""
    source = path.read_bytes()
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and node.value == before
    ]
    if len(found) != 1 or found[0].end_lineno is None or found[0].end_col_offset is None:
        return False
    lines = source.splitlines(keepends=True)
    begins = sum(map(len, lines[: found[0].lineno - 1])) + found[0].col_offset
    ends = sum(map(len, lines[: found[0].end_lineno - 1])) + found[0].end_col_offset
    literal = json.dumps(after, ensure_ascii=False).encode()
    path.write_bytes(source[:begins] + literal + source[ends:])
    return True
