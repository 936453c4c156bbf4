"""Files that are written whole: a reader sees the old content or the new, whoever is killed in between."""

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident


def publish(path: Path, content: bytes, mode: int = 0o600, *, durable: bool = False) -> None:
    """Write a file in place of the one that is there; of several writers, one is the last.

    ``mode`` holds whatever the umask is.  With ``durable`` the new content also outlasts a power cut.

    Raises:
        OSError: the file system refuses it, and nothing has changed.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.draft")
    draft.unlink(missing_ok=True)  # of a process with the same id that was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
    if durable:
        sync(path.parent)


def write_whole(descriptor: int, content: bytes) -> None:
    """Write all bytes, however many calls that takes."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def sync(*places: Path) -> None:
    """Write files and directories to the disk: a power cut takes the newest entries of others."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
