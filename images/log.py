"""A build's log: written line by line as it comes, its end kept for the error message."""

import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from images.cancellation import CancellationToken
from images.errors import BuildFailed

LAST_LINES: Final = 20


class BuildLog:
    """Appends to a file, so that somebody else can follow it, and knows whether anybody still waits."""

    def __init__(
        self, path: Path, echo: Callable[[str], None] | None = None, interest: CancellationToken | None = None
    ) -> None:
        self.interest = interest or CancellationToken()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8", errors="replace")
        self._echo = echo
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def line(self, text: str) -> None:
        self._file.write(text + "\n")
        self._last.append(text)
        if self._echo is not None:
            self._echo(text)

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    def tail(self) -> str:
        """Return the last lines, what a failed build is explained with."""
        return "\n".join(self._last)

    def program(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        interest: CancellationToken | None = None,
    ) -> None:
        """Run a program to its end with its output in the log; kill it when ``interest`` is abandoned.

        Raises:
            BuildFailed: it cannot be started, or ends with another code than 0.
            BuildAbandoned: it was killed.
        """
        interest = interest or CancellationToken()
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise BuildFailed(f"{argv[0]}: cannot be started: {error.strerror}") from error
        with process, interest.ending(process.kill):
            self.lines(line.rstrip("\n") for line in process.stdout or ())
        interest.check()
        if process.returncode != 0:
            raise BuildFailed(f"{argv[0]}: exit code {process.returncode}")
