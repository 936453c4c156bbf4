"""The share of the processors that a daemon of all users has beside the sessions of people."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_AUTOGROUP: Final = Path("/proc/self/autogroup")
_NICE: Final = -10
"""As much as nine sessions.  It computes in one thread at a time: it never takes more than one core."""


def raise_share() -> None:
    """Let this process and its threads come before the sessions of people, however many these have.

    The kernel gives each session the same share (``sched(7)``, autogroups).  Whatever has a session of its
    own, as jobs and workers of users have, gets none of this.  Where shares are those of cgroups, as below
    systemd, and for a process in somebody else's session, nothing changes.
    """
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            _AUTOGROUP.write_text(f"{_NICE}")
