"""Commands inside of a running attempt: the port that ``runner exec`` and its relatives stand on.

A command gets exactly the walls of the attempt: its user, capabilities, limits, devices, environment and
control group.  It is no attempt: it has no record, and the executor forgets it when it ends.
"""

from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from runner.core.ports.executor import Key
from runner.core.ports.users import Owner

STDOUT: Final = 1
STDERR: Final = 2


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The size of a terminal in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command to run inside of an attempt."""

    argv: tuple[str, ...]
    owner: Owner  # whom the attempt runs as
    environment: Mapping[str, str] = field(default_factory=dict)  # in addition to that of the attempt
    has_input: bool = False  # without it, standard input is empty
    outlives: bool = False  # it goes on when its streams are closed, and ends with the attempt
    terminal: TerminalSize | None = None  # of a terminal that the executor makes; None: plain streams


class ExecProcess(Protocol):
    """A command that was started inside of an attempt.  Whoever has it closes it."""

    def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the output of the command, with ``STDOUT`` or ``STDERR``, until both are closed."""

    async def write(self, content: bytes) -> None:
        """Write to the command's standard input; nothing happens if it reads no more."""

    async def end_input(self) -> None:
        """Close the command's standard input."""

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of the command's terminal, if it has one."""

    async def signal(self, number: int) -> None:
        """Send a signal to the command; no error if it has ended."""

    async def exit_code(self) -> int:
        """Return the exit code once ``outputs`` has ended; 128+n after signal n.

        Raises:
            Unavailable: the executor cannot tell it.
        """

    async def close(self) -> None:
        """Close the streams.  A command that still runs gets SIGHUP, unless it outlives them."""


class ExecPort(Protocol):
    """Starts commands inside of attempts; each call belongs to one event loop."""

    async def start(
        self, key: Key, request: ExecRequest, recorded: Awaitable[None] | None = None
    ) -> ExecProcess:
        """Start a command inside of an attempt, but not before it is ``recorded``.

        What has to be done before the start is done meanwhile; what ``recorded`` raises is raised.

        Raises:
            Refused: the attempt does not run, or would not run the command as its owner.
            Unavailable: the executor does not answer.
        """
