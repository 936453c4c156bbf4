"""``runner exec JOB [--] COMMAND...`` without the library of the command line.

Scripts call it in loops, and the library takes as long to import as a command takes in its container.
Whatever has another option, or is wrong, is left to ``runner.cli.exec``, which knows every message.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Final

from runner.base.errors import RunnerError
from runner.client.autostart import NoDaemon, connect, endpoints
from runner.client.sessions import open_on, use_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket

INPUT: Final = frozenset({"-i", "--interactive"})
LONGEST_REF: Final = 200


def run_plain(words: Sequence[str]) -> None:
    """Run the command and end this process; return if the words are not of the plain form."""
    has_input = words[:1] != [] and words[0] in INPUT
    job, *command = (words[1:] if has_input else words) or [""]
    if command[:1] == ["--"]:
        del command[0]
    if not command or not _is_plain_ref(job):
        return
    gc.enable()
    try:
        session = open_on(_connection(), job, "exec", {"argv": command, "input": has_input})
        code = use_command(session, has_input=has_input)
    except RunnerError as error:
        from runner.cli.console import complain_of

        code = complain_of(error)
    except BrokenPipeError:
        from runner.cli.console import READER_GONE

        code = READER_GONE
    except OSError as error:
        from runner.cli.main import tell_unwritten

        code = tell_unwritten(error)
    os._exit(code)  # nothing is buffered, and Python takes 5 ms to take itself apart


def _connection() -> socket:
    """Return a connection to the first daemon that answers, as ``client.find_or_start`` finds it."""
    for endpoint in endpoints(os.environ, os.geteuid()):
        try:
            return connect(endpoint.socket)
        except NoDaemon:
            continue
    from runner.client.client import find_or_start

    return connect(find_or_start(_tell).endpoint.socket)


def _is_plain_ref(job: str) -> bool:
    """Return True if a reference to a job needs no explanation of what is wrong with it."""
    return (
        job.isascii()
        and job.isprintable()
        and not job.startswith("-")
        and 0 < len(job) <= LONGEST_REF
        and (" " not in job and "/" not in job)
    )


def _tell(line: str) -> None:
    from runner.cli.console import complain

    complain(line)
    sys.stderr.flush()
