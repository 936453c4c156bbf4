"""Trains a tokenizer on text: byte-pair encoding over bytes, as ``causal_lm`` and Hugging Face read it.

The work is that of the package ``tokenizers``, which only this command needs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from runner.base.errors import UsageError

END_OF_TEXT: Final = "<|endoftext|>"
"""The one special token; it is never in a text."""

BYTES: Final = 256

LEAST: Final = BYTES + 1
"""The smallest vocabulary: every byte, and the end of a text."""


@dataclass(frozen=True, slots=True)
class TrainedTokenizer:
    """Size of a trained tokenizer and of the text that it was trained on."""

    tokens: int
    files: int
    bytes: int


def train_tokenizer(texts: Sequence[Path], output: Path, vocabulary: int) -> TrainedTokenizer:
    """Write a tokenizer of at most so many tokens, trained on some files.

    Raises:
        UsageError: the package is missing, a file cannot be read, or the output exists or cannot be written.
    """
    if find_spec("tokenizers") is None:
        raise UsageError("needs the package tokenizers; type: pip install 'gpu-job-runner[text]'")
    if vocabulary < LEAST:
        raise UsageError(
            f"--vocabulary {vocabulary}: {LEAST} is the least: every byte, and the end of a text"
        )
    if output.exists():
        raise UsageError(f"{output}: exists already; remove it, or give another name with -o")
    contents = {path: _read(path) for path in texts}
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - optional

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_lines(contents.values()), trainer)
    draft = output.with_name(f".{output.name}.new")
    try:
        draft.write_text(made.to_str(), encoding="utf-8")
        draft.replace(output)
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}; choose another place with -o") from error
    size = sum(len(text.encode()) for text in contents.values())
    return TrainedTokenizer(made.get_vocab_size(), len(contents), size)


def _lines(texts: Iterable[str]) -> Iterator[list[str]]:
    for text in texts:
        yield text.splitlines(keepends=True)


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name text files") from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        fact = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        raise UsageError(f"{path}:{line}: {fact}; convert the file or leave it out") from error
