"""Check that a daemon can work where its state and its installation lie, before anything is made."""

import os
import sys
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.file_systems import remote_type
from runner.base.reach import closed_installation, closed_to_users
from runner.client.autostart import local_place
from runner.files.settings.model import Settings


def check_state_place(directory: Path, settings: Settings) -> None:
    """Refuse a state directory in which jobs would fail or the store could be damaged.

    Raises:
        UsageError: it is on a remote file system, out of the reach of Slurm's nodes, or closed to the users.
    """
    own = local_place(os.geteuid())
    if settings.executor == "slurm":
        if str(directory) == own:
            raise UsageError(
                f"{directory}: the nodes of Slurm do not see this directory; set RUNNER_STATE_DIR to one that"
                " they see"
            )
    elif (kind := remote_type(str(directory))) is not None:
        local = "/var/lib/runner" if os.geteuid() == 0 else own
        raise UsageError(
            f"{directory}: is on a file system of type {kind}, where the store and its locks are not safe,"
            " and which containers may not be able to read; choose a directory on a local disk"
            f" (RUNNER_STATE_DIR), such as {local}"
        )
    if settings.serves_all_users and (closed := closed_to_users(directory)) is not None:
        raise UsageError(
            f"{directory}: {closed} is closed to the users whose jobs run here; choose another state"
            f" directory (RUNNER_STATE_DIR), such as /var/lib/runner, or open it: chmod o+x {closed}"
        )


def check_installation(settings: Settings) -> None:
    """Refuse to serve users who cannot read the runner or its Python, as their workers and jobs must.

    Raises:
        UsageError: a directory on the way is closed to them.
    """
    if settings.serves_all_users and (closed := closed_installation()) is not None:
        raise UsageError(
            f"{sys.executable}: {closed} is closed to the users whose jobs run here, who need to read the"
            " runner and its Python; install both outside of it, such as in /opt with /usr/bin/python3, or"
            f" open it: chmod o+x {closed}; for root alone, system_wide: false in the settings"
        )
