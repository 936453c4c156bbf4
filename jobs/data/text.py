"""Reads text, one file or a directory of them, as one tensor of tokens, and takes windows from it.

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
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from jobs.contract import STDLIB
from jobs.data.tokens import BYTES, ByteTokens, CharacterTokens, Tokens, read_tokenizer
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import derive, draw

HELD_OUT = 0.05
"""Share of the corpus, at its end, that is only evaluated on."""


INSTALLED = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders that hold what was installed or compiled, and so differ between machines."""


@dataclass(frozen=True, slots=True)
class TextChoice:
    """Choice of the text to read, and of its tokens."""

    include: tuple[str, ...] = ("*",)
    files: tuple[str, ...] = ()
    """Files in the order in which they are read; empty: all that match ``include``."""
    tokenizer: str = "bytes"
    """``bytes``, ``characters``, or the path of a tokenizer."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as tokens; ``train_N`` and ``held_out_N`` are of an unsigned or small type and do not overlap."""

    train_N: Tensor
    held_out_N: Tensor
    sha256: str
    files: int
    tokens: Tokens = field(default_factory=ByteTokens)
    held_out_bytes: int = 0


def read_text(source: Path, choice: TextChoice, window: int) -> Corpus:
    """Return the text that a choice selects, in its tokens.

    Raises:
        InvalidSpec: nothing matches, a file cannot be read or is not UTF-8, the text is too short for two
            windows, or the tokenizer cannot be read.
    """
    paths = _named(source, choice.files) if choice.files else _paths(source, choice.include)
    if choice.tokenizer == "bytes":
        return _as_bytes(source, paths, window)
    text = "".join(_decode(path) for path in paths)
    split = len(text) - max(1, int(len(text) * HELD_OUT))
    train, held_out = text[:split], text[split:]
    characters = choice.tokenizer == "characters"
    tokens = CharacterTokens.of(train) if characters else read_tokenizer(Path(choice.tokenizer))
    train_N, held_out_N = tokens.encode(train), tokens.encode(held_out)
    if min(len(train_N), len(held_out_N)) < window:
        raise InvalidSpec(
            f"data: {len(paths)} file(s) of {source} are {len(train_N)} tokens to train on and"
            f" {len(held_out_N)} held out ({tokens.name}); a context of {window - 1} needs {window} of each:"
            " lower context or give more text"
        )
    digest = hashlib.sha256(f"{tokens.name} {tokens.sha256}\0{text}".encode()).hexdigest()
    return Corpus(train_N, held_out_N, digest, len(paths), tokens, len(held_out.encode()))


def _paths(directory: Path, include: tuple[str, ...]) -> list[Path]:
    if directory.is_file():
        return [directory]
    paths = sorted(_matching(directory, include), key=lambda path: path.relative_to(directory).parts)
    if not paths:
        raise InvalidSpec(f"data: no file below {directory} matches {', '.join(include)}")
    return paths


def _named(directory: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the named files of a directory, in their order."""
    root, paths = directory.resolve(), [directory / name for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.is_file() or not path.resolve().is_relative_to(root):
            raise InvalidSpec(f"workload.files: {name}: is no file below {directory}; correct the name")
    return paths


def _decode(path: Path) -> str:
    content = _read(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        fact = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        step = "convert the file, leave it out, or take tokenizer: bytes"
        raise InvalidSpec(f"data: {path}:{line}: {fact}; {step}") from error


def _as_bytes(directory: Path, paths: list[Path], window: int) -> Corpus:
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
    digest = hashlib.sha256(text).hexdigest()
    return Corpus(all_N[:split], all_N[split:], digest, len(paths), held_out_bytes=held_out)


def corpus_directory(named: str) -> Path:
    """Return the directory of the text; ``stdlib`` is the standard library of the running Python."""
    return Path(sysconfig.get_path("stdlib")) if named == STDLIB else Path(named)


def cut(corpus_N: Tensor, numbers_B: Tensor, window: int, stride: int) -> Tensor:
    """Return windows (batch, window) by their numbers; number n begins at token n * stride."""
    starts_B = (numbers_B * stride).to(corpus_N.device)
    return corpus_N[starts_B[:, None] + torch.arange(window, device=corpus_N.device)]


def count_windows(corpus_N: Tensor, window: int, stride: int) -> int:
    """Return the number of whole windows; the rest at the end belongs to none."""
    return max(0, (corpus_N.numel() - window) // stride + 1)


@lru_cache(maxsize=4)
def shuffled(count: int, seed: int, epoch: int) -> Tensor:
    """Return the numbers below ``count`` in the order of an epoch; it is not to be changed."""
    generator = torch.Generator().manual_seed(derive(seed, "epoch", epoch))
    return torch.randperm(count, generator=generator)


def windows(corpus_N: Tensor, batch: int, window: int, seed: int, *purpose: str | int) -> Tensor:
    """Return tokens of shape (batch, window) at random positions determined by seed and purpose."""
    starts_B = draw(corpus_N.numel() - window + 1, batch, seed, *purpose).to(corpus_N.device)
    # All places at once would be a copy so large that the CPU waits for the device to take it.
    return corpus_N[starts_B[:, None] + torch.arange(window, device=corpus_N.device)]


def unigram_nats(corpus_N: Tensor) -> float:
    """Return the entropy of single tokens: the loss of a model that uses frequencies and no context."""
    share_V = torch.bincount(corpus_N.cpu(), minlength=BYTES).double() / corpus_N.numel()
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
    """Return True if a path is a regular file inside this directory, directly or through a link."""
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
