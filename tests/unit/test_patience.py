"""No clock decides a test: a limit of time is ``patience``, and what something takes is not compared."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.fakes import patience as module
from tests.fakes.patience import patience, slowness

TESTS: Final = Path(__file__).parents[1]
CLOCKS: Final = ("monotonic()", "perf_counter()", "process_time()", "thread_time()")
LIMITED: Final = (".wait", ".join", ".settimeout", "asyncio.wait_for")
NO_LIMITS: Final = ("restart", "stop", "timeout")
"""What an engine is told, and the limit of a test, which is scaled by ``tests/conftest.py``."""
IMITATED: Final = (
    " host.wait(",
    " site.wait(",
    "backoff.wait(",
    "broadcast.wait(",
    "listener.wait(",
    "client_of(api)",
)
"""Waits of a clock that is the test's own, and of what the test ends."""


def limits(call: ast.Call) -> Iterator[ast.expr]:
    """Yield what limits the time of a call."""
    said = ast.unparse(call.func)
    if not said.endswith(NO_LIMITS):
        yield from (each.value for each in call.keywords if each.arg == "timeout")
    if said.endswith(LIMITED):
        yield from call.args[-1:]


def is_fixed(limit: ast.expr) -> bool:
    """Return True if a limit is a number of seconds; less than one is a pause."""
    return isinstance(limit, ast.Constant) and isinstance(limit.value, int | float) and limit.value >= 1


def decided_by_a_clock(text: str) -> Iterator[int]:
    """Yield the lines that ask for something in so many seconds."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call() if any(is_fixed(each) for each in limits(node)):
                yield node.lineno
            case ast.Compare(left=ast.BinOp(op=ast.Sub(), left=ast.Call() as clock)):
                if ast.unparse(clock).endswith(CLOCKS):
                    yield node.lineno
            case _:
                pass


def test_no_test_is_decided_by_a_clock() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {path.read_text().splitlines()[line - 1].strip()}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for line in decided_by_a_clock(path.read_text())
    ]
    assert [each for each in found if not any(words in each for words in IMITATED)] == []


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run(argv, timeout=60)",
        "assert done.wait(10)",
        "connection.settimeout(5)",
        "await asyncio.wait_for(answer, 20)",
        "assert time.monotonic() - began < 2",
    ],
)
def test_a_clock_that_decides_is_found(line: str) -> None:
    assert list(decided_by_a_clock(line)) == [1]


def test_a_slow_machine_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.MEASURED, "3.0")
    assert (slowness(), patience(2.0)) == (3.0, 2.0 * 3.0 * module.GENEROUS)


def test_a_limit_is_a_whole_number_that_any_library_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.MEASURED, "1.44")
    assert (patience(), type(patience())) == (432, int)
