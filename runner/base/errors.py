"""The errors that a user may meet, and their exit codes.

There is one root with three kinds below it.  Adapters translate third-party exceptions into these and chain
them; only the command line prints.  A message names the thing, the fact and the next step, in one line.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a file system or a quota that has no room."""

UNWRITTEN: Final = FULL | {errno.EFBIG, errno.EIO, errno.EBADF}
"""Errors of a write to standard output; these name no file."""


class RunnerError(Exception):
    """An error with a one-line explanation."""

    exit_code: ClassVar[int] = 1

    details: str = ""
    """More about the reason, for those who ask for it; may have many lines."""


class UsageError(RunnerError):
    """The user must change something: the job file, the settings, the command."""

    exit_code = 2


class Refused(RunnerError):
    """A rule or a permission forbids it."""

    exit_code = 3


class Unavailable(RunnerError):
    """Something outside is not ready: an engine that is down, a socket that does not answer, a full disk."""

    exit_code = 4


@contextmanager
def disk_errors(action: object) -> Iterator[None]:
    """Translate the errors of a file system to ``Unavailable``; ``action`` is what was tried, or where."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{action}: {disk_fact(error)}") from error


def disk_fact(error: OSError) -> str:
    """Return the fact that an error of a file system tells, with what to do about a full one."""
    step = "; make room there" if error.errno in FULL else ""
    return f"{error.strerror or error}{step}"
