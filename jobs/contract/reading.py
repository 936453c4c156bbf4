"""Safe reading from an untrusted directory: regular files only, limited in size, verified.

Both sides verify checkpoints with the same code: the container before it resumes, and the host before
it treats a checkpoint as available.  A directory is opened once, and its files are opened relative to
its descriptor, so that renaming a directory cannot redirect a reader.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from jobs.contract.base import CONTRACT_VERSION
from jobs.contract.paths import CHECKPOINT_NAME, MANIFEST, checkpoint_name
from jobs.contract.reports import FileDigest, Manifest

MAX_REPORT_BYTES: Final = 64 * 1024
"""A status or result file larger than this is not read."""

MAX_MANIFEST_BYTES: Final = 1024 * 1024


class CheckpointInvalid(Exception):
    """A directory has the name of a checkpoint but is not a valid one; the text gives the reason."""


@contextmanager
def open_directory(path: Path | str, dir_fd: int | None = None) -> Iterator[int]:
    """Open an untrusted directory and yield its descriptor; the last component of its path must be no link.

    Files read through the descriptor are in this directory even if it is renamed in the meantime.
    ``dir_fd`` is the open directory that contains ``path``.

    Raises:
        OSError: The path is missing, a symbolic link, or not a directory.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of one checkpoint directory.

    Raises:
        CheckpointInvalid: It is missing, too large, no JSON, of a newer contract, or for another step.
    """
    with _open_checkpoint(directory) as fd:
        return read_manifest_in(fd, directory.name)


def verify(directory: Path) -> Manifest:
    """Return the manifest of one checkpoint after comparing every file with it.

    Raises:
        CheckpointInvalid: The manifest is invalid, or a file is missing, of another size or of other content.
    """
    with _open_checkpoint(directory) as fd:
        manifest = read_manifest_in(fd, directory.name)
        for file, expected in manifest.files.items():
            _verify_file(fd, file, expected)
        return manifest


@contextmanager
def _open_checkpoint(directory: Path) -> Iterator[int]:
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(open_directory(directory))
        except FileNotFoundError as error:
            raise CheckpointInvalid("no manifest: the save did not finish") from error
        except OSError as error:
            raise CheckpointInvalid(f"manifest cannot be read: {error.strerror}") from error
        yield fd


def read_manifest_in(fd: int, name: str) -> Manifest:
    """Return the manifest in an open checkpoint directory; ``name`` is the name of the directory.

    Raises:
        CheckpointInvalid: It is missing, too large, no JSON, of a newer contract, or for another step.
    """
    try:
        manifest = Manifest.model_validate_json(read_limited(MANIFEST, MAX_MANIFEST_BYTES, fd))
    except FileNotFoundError as error:
        raise CheckpointInvalid("no manifest: the save did not finish") from error
    except OSError as error:
        raise CheckpointInvalid(f"manifest cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise CheckpointInvalid(f"manifest is not valid: {first_problem(error)}") from error
    if manifest.contract_version > CONTRACT_VERSION:
        raise CheckpointInvalid(f"written by a newer contract ({manifest.contract_version})")
    if name.startswith("step-") and name != checkpoint_name(manifest.step):
        raise CheckpointInvalid(f"manifest is for step {manifest.step}")
    return manifest


def checkpoints(lineage_dir: Path | int) -> Iterator[tuple[int, Path]]:
    """Yield (step, directory) of every entry with a checkpoint's name, newest first, without verification.

    If ``lineage_dir`` is the descriptor of an open directory, the paths are relative to it.
    """
    parent = Path() if isinstance(lineage_dir, int) else lineage_dir
    try:
        names = os.listdir(lineage_dir)  # noqa: PTH208  a descriptor is not a path
    except (FileNotFoundError, NotADirectoryError):
        return
    found = [(int(match[1]), parent / name) for name in names if (match := CHECKPOINT_NAME.fullmatch(name))]
    yield from sorted(found, reverse=True)


def open_regular(path: Path | str, dir_fd: int | None = None) -> BufferedReader:
    """Open a regular file for reading in an untrusted directory; links, pipes and devices are rejected."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    fd = os.open(path, flags, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(fd, "rb")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_verified_size(fd: int, name: str, expected: FileDigest) -> BufferedReader:
    """Open a file of an open checkpoint directory, after comparing its size with the manifest.

    Raises:
        CheckpointInvalid: The file is missing, not regular, of another size, or not in this directory.
    """
    if "/" in name or name in {"", ".", ".."}:
        raise CheckpointInvalid(f"manifest names a file outside the checkpoint: {name!r}")
    try:
        file = open_regular(name, fd)
    except (OSError, ValueError) as error:
        raise CheckpointInvalid(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    size = os.fstat(file.fileno()).st_size
    if size != expected.bytes:
        file.close()
        raise CheckpointInvalid(f"{name}: {size} bytes where the manifest says {expected.bytes}")
    return file


def _verify_file(fd: int, name: str, expected: FileDigest) -> None:
    """Compare one file of an open checkpoint directory with the manifest: its size, then its content.

    Raises:
        CheckpointInvalid: The file is missing, not regular, of another size or of other content.
    """
    with open_verified_size(fd, name, expected) as file:
        try:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointInvalid(f"{name}: {error.strerror}") from error
    if digest != expected.sha256:
        raise CheckpointInvalid(f"{name}: content differs from its sha256")


def read_limited(path: Path | str, limit: int, dir_fd: int | None = None) -> bytes:
    """Return the content of a small regular file.

    Raises:
        OSError: The file is missing, not regular, or larger than ``limit`` bytes.
    """
    with open_regular(path, dir_fd) as file:
        return read_at_most(file, limit)


def read_at_most(file: BufferedReader, limit: int) -> bytes:
    """Return the content of an open file; may raise OSError, also if it is larger than ``limit`` bytes."""
    raw = file.read(limit + 1)
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes")
    return raw


def first_problem(error: ValidationError) -> str:
    """Return the first validation error, in one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def dump(model: BaseModel) -> str:
    """Return a model as JSON text in the format of both sides: indented, with a final newline."""
    return model.model_dump_json(indent=1) + "\n"
