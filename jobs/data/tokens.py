"""Turns text into tokens and back: bytes, characters, or a tokenizer from a local file.

A file is what ``Tokenizer.save`` of the package ``tokenizers`` writes, as ``runner data tokenize`` does; in
the directories of Hugging Face it is called ``tokenizer.json``.  Nothing is downloaded.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from jobs.training.failures import InvalidSpec

BYTES: Final = 256

UNKNOWN: Final = "\ufffd"
"""Stands for every character that the training text lacks; it is the first of a vocabulary of characters."""

_PIECE: Final = 256 * 1024
"""Characters that a tokenizer from a file takes at once; a piece ends at the end of a line."""


class Tokens(Protocol):
    """A vocabulary, and how text is written in it."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def size(self) -> int:
        """The number of tokens."""

    @property
    def sha256(self) -> str:
        """The digest of all that decides how text is written."""

    def encode(self, text: str) -> Tensor:
        """Return the tokens of a text, shape (N,), in the smallest type that holds them."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of some tokens; what is no text is replaced."""


def smallest_type(size: int) -> torch.dtype:
    """Return the smallest type for tokens below ``size``."""
    if size <= BYTES:
        return torch.uint8
    return torch.int16 if size <= 2**15 else torch.int32


@dataclass(frozen=True, slots=True)
class ByteTokens:
    """The 256 bytes; every text is written in them, in UTF-8."""

    name: str = "bytes"

    @property
    def size(self) -> int:
        return BYTES

    @property
    def sha256(self) -> str:
        return ""

    def encode(self, text: str) -> Tensor:
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


@dataclass(frozen=True)
class CharacterTokens:
    """The characters of the training text, in the order of their code points."""

    characters: str
    name: str = "characters"

    @classmethod
    def of(cls, text: str) -> "CharacterTokens":
        return cls(UNKNOWN + "".join(sorted(set(text) - {UNKNOWN})))

    @property
    def size(self) -> int:
        return len(self.characters)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.characters.encode()).hexdigest()

    @cached_property
    def _number(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters)}

    def encode(self, text: str) -> Tensor:
        numbers = [self._number.get(character, 0) for character in text]
        return torch.tensor(numbers, dtype=smallest_type(self.size))

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.characters[token] for token in tokens)


@dataclass(frozen=True, slots=True)
class FileTokens:
    """A tokenizer from a file."""

    tokenizer: Any  # of the package tokenizers, which has no types
    sha256: str
    name: str

    @property
    def size(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> Tensor:
        found = self.tokenizer.encode_batch(list(_pieces(text)), add_special_tokens=False)
        numbers = [number for piece in found for number in piece.ids]
        return torch.tensor(numbers, dtype=smallest_type(self.size))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))


def _pieces(text: str) -> list[str]:
    """Return the text in pieces of about equal size, so that its tokens need little memory at once."""
    pieces, start = [], 0
    while start < len(text):
        end = text.find("\n", start + _PIECE)
        end = len(text) if end < 0 else end + 1
        pieces.append(text[start:end])
        start = end
    return pieces


def read_tokenizer(path: Path) -> FileTokens:
    """Return the tokenizer of a file, or of ``tokenizer.json`` in a directory.

    Raises:
        InvalidSpec: the file is missing or no tokenizer, or the package that reads it is missing.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    where = f"workload.tokenizer: {file}"
    if find_spec("tokenizers") is None:
        raise InvalidSpec(f"{where}: needs the package tokenizers; add image: {{requirements: [tokenizers]}}")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidSpec(f"{where}: {error.strerror}; make one with: runner data tokenize TEXT") from error
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive a loader's fork
    from tokenizers import Tokenizer  # noqa: PLC0415 - an optional package

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the package raises Exception itself
        fact = " ".join(str(error).split())[:200]
        raise InvalidSpec(f"{where}: is no tokenizer: {fact}; make one with: runner data tokenize") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    made = FileTokens(tokenizer, hashlib.sha256(content).hexdigest(), file.name)
    if made.size < 2:
        raise InvalidSpec(f"{where}: has {made.size} token(s); two are needed at least; use more text")
    return made
