"""``runner`` that writes down when functions of interest are called, and by whom.

``python -m tests.fakes.walk_trace ARGUMENTS`` does what ``runner ARGUMENTS`` does.  ``TRACED_FUNCTIONS`` has
the dotted names, one a line; a line of JSON for each call is appended to the file ``TRACED_CALLS``.
"""

import json
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any


class Tracer:
    """Follows the calls of all threads of this process."""

    def __init__(self, functions: frozenset[str], calls: int) -> None:
        self.functions, self.calls = functions, calls
        self._names: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = next((name for name in (_name(frame),) if name in self.functions), None)
        name = self._names[code]
        if name is not None:
            line = json.dumps({"at": time.monotonic_ns(), "function": name, "callers": _callers(frame)})
            os.write(self.calls, f"{line}\n".encode())


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"


def _callers(frame: FrameType) -> list[str]:
    """Return the functions of the runner on the stack, the nearest first."""
    found, above = [], frame.f_back
    while above is not None:
        name = _name(above)
        if name.startswith("runner."):
            found.append(name)
        above = above.f_back
    return found


def main() -> None:
    """Trace a command of the runner."""
    functions = frozenset(os.environ["TRACED_FUNCTIONS"].splitlines())
    tracer = Tracer(
        functions, os.open(os.environ["TRACED_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    )
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    from runner.cli.main import main as runner

    runner()


if __name__ == "__main__":
    main()
