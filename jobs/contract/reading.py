"""Reading what lies in a hostile directory: limited, regular files only, verified.

Checkpoints are judged by either side with the same code: the container before it resumes,
the host before it believes that there is something to resume from.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
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
    """A directory that looks like a checkpoint and is not one; the text says what is wrong."""


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of one checkpoint directory.

    Raises:
        CheckpointInvalid: it is missing, too large, no JSON, of a newer contract, or for another step.
    """
    try:
        raw = read_limited(directory / MANIFEST, MAX_MANIFEST_BYTES)
        manifest = Manifest.model_validate_json(raw)
    except FileNotFoundError as error:
        raise CheckpointInvalid("no manifest: the save did not finish") from error
    except OSError as error:
        raise CheckpointInvalid(f"manifest cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise CheckpointInvalid(f"manifest is not valid: {first_problem(error)}") from error
    if manifest.contract_version > CONTRACT_VERSION:
        raise CheckpointInvalid(f"written by a newer contract ({manifest.contract_version})")
    if directory.name.startswith("step-") and directory.name != checkpoint_name(manifest.step):
        raise CheckpointInvalid(f"manifest is for step {manifest.step}")
    return manifest


def verify(directory: Path) -> Manifest:
    """Return the manifest of one checkpoint after comparing every file with it.

    Raises:
        CheckpointInvalid: the manifest is bad, or a file is missing, of another size or of other content.
    """
    manifest = read_manifest(directory)
    for name, expected in manifest.files.items():
        _verify_file(directory, name, expected)
    return manifest


def checkpoints(lineage_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield (step, directory) of what looks like a checkpoint, newest first, unverified."""
    try:
        names = [entry.name for entry in lineage_dir.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return
    found = [
        (int(match[1]), lineage_dir / name) for name in names if (match := CHECKPOINT_NAME.fullmatch(name))
    ]
    yield from sorted(found, reverse=True)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading that may lie in a hostile directory: no symbolic link, no pipe, no device."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(fd, "rb")


def file_sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify_file(directory: Path, name: str, expected: FileDigest) -> None:
    if "/" in name or name in {"", ".", ".."}:
        raise CheckpointInvalid(f"manifest names a file outside the checkpoint: {name!r}")
    path = directory / name
    try:
        size = path.lstat().st_size
        if size != expected.bytes:
            raise CheckpointInvalid(f"{name}: {size} bytes where the manifest says {expected.bytes}")
        digest = file_sha256(path)
    except OSError as error:
        raise CheckpointInvalid(f"{name}: {error.strerror}") from error
    if digest != expected.sha256:
        raise CheckpointInvalid(f"{name}: content differs from its sha256")


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of a small regular file.

    Raises:
        OSError: it is missing, no regular file, or larger than ``limit`` bytes.
    """
    with open_regular(path) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes")
    return raw


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is wrong, in one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def dump(model: BaseModel) -> str:
    """Return the JSON text that both sides write: one object, indented, with a final newline."""
    return model.model_dump_json(indent=1) + "\n"
