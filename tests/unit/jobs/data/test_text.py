"""The corpus is the same everywhere, and a batch depends on nothing but seed and step."""

import math
import os
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jobs.data.text import Corpus, TextChoice, corpus_directory, read_text, unigram_nats, windows
from jobs.training.failures import InvalidSpec

PATTERNS = ("*.py", "*.txt")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    directory = tmp_path / "texts"
    for name, text in {
        "b.txt": b"B" * 40,
        "a.py": b"A" * 40,
        "sub/c.txt": b"C" * 40,
        "no.bin": b"N" * 40,
    }.items():
        (directory / name).parent.mkdir(exist_ok=True, parents=True)
        (directory / name).write_bytes(text)
    return directory


def read_corpus(directory: Path, include: tuple[str, ...], window: int) -> Corpus:
    return read_text(directory, TextChoice(include), window)


def everything(directory: Path) -> bytes:
    corpus = read_corpus(directory, PATTERNS, window=8)
    return bytes(torch.cat([corpus.train_N, corpus.held_out_N]).tolist())


def test_files_are_taken_in_the_order_of_their_paths(texts: Path) -> None:
    assert everything(texts) == b"A" * 40 + b"B" * 40 + b"C" * 40


def test_the_place_of_the_directory_does_not_matter(texts: Path) -> None:
    before = read_corpus(texts, PATTERNS, window=8).sha256
    moved = texts.rename(texts.with_name("elsewhere\nand with ; odd 'name'"))
    assert read_corpus(moved, PATTERNS, window=8).sha256 == before


def test_training_and_held_out_text_do_not_overlap(texts: Path) -> None:
    corpus = read_corpus(texts, PATTERNS, window=8)
    assert (corpus.train_N.numel(), corpus.held_out_N.numel(), corpus.files) == (112, 8, 3)


def test_links_are_followed_inside_the_directory_and_nowhere_else(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(b"S" * 40)
    (texts / "out.txt").symlink_to(tmp_path / "secret.txt")
    (texts / "dangling.txt").symlink_to("nowhere")
    (texts / "folder").symlink_to(tmp_path)
    (texts / "z.txt").symlink_to("a.py")
    assert everything(texts) == b"A" * 40 + b"B" * 40 + b"C" * 40 + b"A" * 40


def test_a_pipe_is_not_waited_for(texts: Path) -> None:
    os.mkfifo(texts / "pipe.txt")
    assert len(everything(texts)) == 120


def test_what_was_installed_beside_the_sources_is_left_out(texts: Path) -> None:
    (texts / "site-packages").mkdir()
    (texts / "site-packages" / "a.py").write_bytes(b"X" * 40)
    assert len(everything(texts)) == 120


def test_the_standard_library_has_a_name() -> None:
    assert corpus_directory("stdlib") == Path(sysconfig.get_path("stdlib"))
    assert corpus_directory("/text") == Path("/text")


def test_no_match_names_the_directory_and_the_patterns(texts: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no file below .*texts matches \*\.c, \*\.h"):
        read_corpus(texts, ("*.c", "*.h"), window=8)


def test_too_little_text_is_told_with_both_numbers(texts: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"hold 120 bytes; a context of 99 needs at least 200"):
        read_corpus(texts, PATTERNS, window=100)


def test_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="nowhere: No such file"):
        read_corpus(tmp_path / "nowhere", PATTERNS, window=8)


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A directory of somebody else's, and no privileges to ignore its permissions."""
    if os.geteuid() != 0:
        pytest.skip("only root may become somebody else")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        os.seteuid(65534)
        yield path
        os.seteuid(0)


def test_an_unreadable_file_is_told_by_name(as_nobody: Path) -> None:
    os.seteuid(0)
    (as_nobody / "a.txt").write_bytes(b"A" * 40)
    (as_nobody / "a.txt").chmod(0)
    os.seteuid(65534)
    with pytest.raises(InvalidSpec, match=r"a\.txt: Permission denied; make it readable"):
        read_corpus(as_nobody, PATTERNS, window=8)


def test_an_unreadable_folder_is_told_by_name(as_nobody: Path) -> None:
    os.seteuid(0)
    (as_nobody / "folder").mkdir(mode=0)
    os.seteuid(65534)
    with pytest.raises(InvalidSpec, match=r"folder: Permission denied"):
        read_corpus(as_nobody, PATTERNS, window=8)


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    corpus = torch.arange(200, dtype=torch.uint8)
    batch = windows(corpus, 4, 9, 1, "batch", 5)
    torch.rand(3)  # other draws do not matter
    assert windows(corpus, 4, 9, 1, "batch", 5).equal(batch)
    assert not windows(corpus, 4, 9, 1, "batch", 6).equal(batch)
    assert not windows(corpus, 4, 9, 2, "batch", 5).equal(batch)


def test_a_window_is_consecutive_text_and_reaches_both_ends() -> None:
    batch = windows(torch.arange(10, dtype=torch.uint8), 200, 9, 1, "batch", 5)
    assert batch.shape == (200, 9)
    assert (batch[:, 1:].int() - batch[:, :-1].int()).eq(1).all()
    assert {int(first) for first in batch[:, 0]} == {0, 1}


def test_the_unigram_loss_of_even_text_is_the_logarithm_of_its_alphabet() -> None:
    even = torch.arange(256, dtype=torch.uint8).repeat(3)
    assert unigram_nats(even) == pytest.approx(math.log(256))
    assert unigram_nats(torch.zeros(9, dtype=torch.uint8)) == 0


def test_windows_are_taken_where_the_text_lies() -> None:
    """Only the starts travel to a device: places of all tokens would be a copy that the CPU waits for."""
    copied: list[int] = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default:
                copied.append(args[0].numel())
            if func is torch.ops.aten.index.Tensor:
                assert all(index.device == args[0].device for index in args[1])
            return found

    text = torch.empty(1000, dtype=torch.uint8, device="meta")
    with Copies():
        tokens = windows(text, 8, 65, 0, "batch", 1)
    assert (tokens.shape, tokens.device.type) == ((8, 65), "meta")
    assert copied == [8]
