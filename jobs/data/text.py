"""Reads a directory of text files as one tensor of bytes, and draws windows from it.

A window's position depends only on the seed and the purpose that is given for it.  Files are ordered by
their paths relative to the directory, so the corpus does not depend on where it is mounted.  The sha256
of the corpus is the signature that a checkpoint must match.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape: N bytes, B sequences, V vocabulary

import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from jobs.contract import STDLIB
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import draw

HELD_OUT = 0.05
"""Share of the corpus, at its end, that is only evaluated on."""


INSTALLED = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders that hold what was installed or compiled, and so differ between machines."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as bytes; ``train_N`` and ``held_out_N`` are uint8 and do not overlap."""

    train_N: Tensor
    held_out_N: Tensor
    sha256: str
    files: int


def read_corpus(directory: Path, include: tuple[str, ...], window: int) -> Corpus:
    """Return all text below a directory whose file names match a pattern.

    Raises:
        InvalidSpec: nothing matches, a file cannot be read, or there are fewer bytes than two windows need.
    """
    paths = sorted(_matching(directory, include), key=lambda path: path.relative_to(directory).parts)
    if not paths:
        raise InvalidSpec(f"data: no file below {directory} matches {', '.join(include)}")
    text = bytearray()
    for path in paths:
        text += _read(path)
    held_out = max(window, int(len(text) * HELD_OUT))
    if len(text) < held_out + window:
        raise InvalidSpec(
            f"data: {len(paths)} file(s) below {directory} hold {len(text)} bytes;"
            f" a context of {window - 1} needs at least {2 * window}"
        )
    all_N = torch.frombuffer(text, dtype=torch.uint8)
    split = len(text) - held_out
    return Corpus(all_N[:split], all_N[split:], hashlib.sha256(text).hexdigest(), len(paths))


def corpus_directory(named: str) -> Path:
    """Return the directory of the text; ``stdlib`` is the standard library of the running Python."""
    return Path(sysconfig.get_path("stdlib")) if named == STDLIB else Path(named)


def windows(corpus_N: Tensor, batch: int, window: int, seed: int, *purpose: str | int) -> Tensor:
    """Return uint8 tokens of shape (batch, window) at random positions determined by seed and purpose."""
    starts_B = draw(corpus_N.numel() - window + 1, batch, seed, *purpose).to(corpus_N.device)
    # All places at once would be a copy so large that the CPU waits for the device to take it.
    return corpus_N[starts_B[:, None] + torch.arange(window, device=corpus_N.device)]


def unigram_nats(corpus_N: Tensor) -> float:
    """Return the entropy of single bytes: the loss of a model that uses byte frequencies and no context."""
    share_V = torch.bincount(corpus_N.cpu(), minlength=256).double() / corpus_N.numel()
    return float(torch.special.entr(share_V).sum())


def _matching(directory: Path, include: tuple[str, ...]) -> Iterator[Path]:
    root = directory.resolve()
    for parent, folders, names in os.walk(directory, onerror=_refuse):
        folders[:] = sorted(set(folders) - INSTALLED)
        for name in names:
            path = Path(parent, name)
            if any(fnmatchcase(name, pattern) for pattern in include) and _is_inside(path, root):
                yield path


def _is_inside(path: Path, root: Path) -> bool:
    """Return whether a path is a regular file inside this directory, directly or through a link."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)  # reading a pipe would block for ever
    except OSError as error:
        if path.is_symlink():  # dangling, or its target is not accessible: outside in both cases
            return False
        raise _unreadable(path, error) from error
    return regular and (not path.is_symlink() or path.resolve().is_relative_to(root))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _refuse(error: OSError) -> None:
    raise _unreadable(error.filename, error) from error


def _unreadable(path: Path | str, error: OSError) -> InvalidSpec:
    return InvalidSpec(f"data: {path}: {error.strerror}; make it readable for the job's user, or exclude it")
