"""The log of a build: written line by line, with the last lines kept for the error message."""

import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, Self

from images.cancellation import CancellationToken
from images.errors import BuildFailed

LAST_LINES: Final = 20
COUNT_EVERY_S: Final = 1.0
"""Between two lines that say how far something is."""

_MIB: Final = 1024**2


def _private(path: str, flags: int) -> int:
    """Open a file that nobody else reads: it has the commands of a user's Dockerfile, and what they say."""
    return os.open(path, flags, 0o600)


class BuildLog:
    """Appends lines to a file that can be followed, and carries the cancellation token of the build."""

    def __init__(
        self, path: Path, echo: Callable[[str], None] | None = None, token: CancellationToken | None = None
    ) -> None:
        self.token = token or CancellationToken()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", buffering=1, encoding="utf-8", errors="replace", opener=_private)  # noqa: SIM115
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

    def counted(self, parts: Iterable[bytes], total: int, what: str) -> Iterator[bytes]:
        """Yield parts, and say once in a while how much of the whole they are by now."""
        done, told_s = 0, monotonic()
        for part in parts:
            yield part
            done += len(part)
            if monotonic() - told_s >= COUNT_EVERY_S:
                told_s = monotonic()
                self.line(f"{what}: {done / _MIB:.0f} of {total / _MIB:.0f} MiB")

    def tail(self) -> str:
        """Return the last lines, which explain a failed build."""
        return "\n".join(self._last)

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        token: CancellationToken | None = None,
    ) -> None:
        """Run a program with its output in the log, and kill it when ``token`` is cancelled.

        Raises:
            BuildFailed: it cannot be started, or its exit code is not 0.
            BuildCancelled: it was killed.
        """
        token = token or CancellationToken()
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
        with process, token.on_cancel(process.kill):
            self.lines(line.rstrip("\n") for line in process.stdout or ())
        token.check()
        if process.returncode != 0:
            raise BuildFailed(f"{argv[0]}: exit code {process.returncode}")
