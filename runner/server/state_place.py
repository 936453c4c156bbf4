"""Check that a state directory is where a daemon can keep its state, before anything is made there."""

import os
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.file_systems import remote_type
from runner.client.autostart import local_place
from runner.files.settings.model import Settings

CLOSED_TO_OTHERS = 0o011
"""Neither the group nor others may pass a directory without one of these bits."""


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
    if settings.serves_all_users and (closed := _closed(directory)) is not None:
        raise UsageError(
            f"{directory}: {closed} is closed to the users whose jobs run here; choose another state"
            f" directory (RUNNER_STATE_DIR), such as /var/lib/runner, or open it: chmod o+x {closed}"
        )


def _closed(directory: Path) -> Path | None:
    """Return the directory on the way that its owner alone may pass, or None."""
    for each in (directory, *directory.parents):
        try:
            mode = each.stat().st_mode
        except OSError:  # it is made later
            continue
        if not mode & CLOSED_TO_OTHERS:
            return each
    return None
