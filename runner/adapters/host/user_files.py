"""Work of a worker with the files of its user, with the rights of the process that it runs in."""

import json
import os
from contextlib import suppress
from typing import Any, Final

from runner.adapters.host.archive import write_archive
from runner.adapters.host.code_snapshot.frames import read_frames
from runner.adapters.host.code_snapshot.update import apply_changes
from runner.adapters.host.code_snapshot.walk import WalkLimits, send_tree
from runner.adapters.host.paths import PathRefusedError, open_beneath, open_path
from runner.adapters.rpc.calls import Descriptor, HostPath
from runner.base.textfile import one_line
from runner.core.ports.users import PathKind

MAX_KEPT: Final = 20
"""Paths that an answer names at most."""
MAX_PATH_SHOWN: Final = 100
STREAM_BYTES: Final = 1024**2


class UserFiles:
    """Files of a user; descriptors are of what the daemon has opened, or of the near end of a stream.

    What has a stream runs in a process of its own, because it changes the working directory.
    """

    def open_path(self, path: HostPath, kind: PathKind) -> Descriptor:
        """Open a path for reading; may raise PathRefusedError."""
        return open_path(path, kind)

    def send_code(
        self,
        path: HostPath,
        limits: WalkLimits,
        skip: tuple[tuple[int, int], ...],
        stream: Descriptor,
        known: Descriptor,
    ) -> None:
        """Write what a code directory holds; ``known`` is the last listing.  May raise PathRefusedError."""
        os.fchdir(open_path(path, "directory"))
        listing: dict[str, Any] = {}
        with os.fdopen(os.dup(known), "rb") as file:
            if file.readline():  # about the snapshot, which is the daemon's business
                listing = json.load(file)
        with suppress(BrokenPipeError, ConnectionResetError), _opened(stream, "wb") as out:
            send_tree(out, listing, limits, frozenset(skip))

    def archive(self, directory: Descriptor, name: str, stream: Descriptor) -> None:
        """Write what lies at a name below a directory as a tar; may raise PathRefusedError."""
        found = open_beneath(directory, name)
        try:
            with suppress(BrokenPipeError, ConnectionResetError), _opened(stream, "wb") as out:
                write_archive(out, found)
        except OSError as error:
            where = str(error.filename or name)[:MAX_PATH_SHOWN]
            fact = f"{one_line(where)}: {error.strerror or error}"
            raise PathRefusedError(fact) from error

    def update(self, directory: Descriptor, stream: Descriptor, *, read_only: bool) -> tuple[str, ...]:
        """Make the changes of a stream in a directory; return the first paths that were left as they were."""
        os.fchdir(directory)
        with _opened(stream, "rb") as changes:
            kept = apply_changes(read_frames(changes), read_only=read_only)
        return tuple(path[:MAX_PATH_SHOWN] for path in kept[:MAX_KEPT])


def _opened(stream: int, mode: str) -> Any:  # noqa: ANN401  a BufferedReader or a BufferedWriter
    return os.fdopen(os.dup(stream), mode, STREAM_BYTES)
