"""Every error that a user may meet, and the exit code it stands for.

One root and three kinds below it.  Adapters translate third-party exceptions into
these at the seam and chain them; nothing below the command line prints.  A message
names the thing, the fact and the next step, in one line.
"""

from typing import ClassVar


class RunnerError(Exception):
    """Something went wrong that has a one-line explanation."""

    exit_code: ClassVar[int] = 1


class UsageError(RunnerError):
    """You must change something: the job file, the settings, the command."""

    exit_code = 2


class Refused(RunnerError):
    """A rule or a permission stands against it."""

    exit_code = 3


class Unavailable(RunnerError):
    """The world is not ready: an engine that is down, a socket that does not answer, a full disk."""

    exit_code = 4
