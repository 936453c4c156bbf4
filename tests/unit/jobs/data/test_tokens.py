"""Tokens are those of a text and lead back to it, or the file that should hold them is refused."""

import json
from pathlib import Path

import pytest
import torch

from jobs.data import tokens as data_tokens
from jobs.data.text import TextChoice, count_windows, cut, read_text, shuffled
from jobs.data.tokens import UNKNOWN, ByteTokens, CharacterTokens, read_tokenizer, smallest_type
from jobs.training.failures import InvalidSpec
from runner.adapters.datasets.tokenizer import train_tokenizer

TEXT = "Ein Bär liest Verse.\nDie Verse sind kurz.\n" * 20


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    train_tokenizer([tmp_path / "text.txt"], tmp_path / "tokenizer.json", 280)
    return tmp_path / "tokenizer.json"


def test_bytes_write_every_text() -> None:
    known = ByteTokens()
    assert known.encode("Bär").tolist() == list("Bär".encode())
    assert known.decode(known.encode(TEXT).tolist()) == TEXT
    assert known.decode([0xC3]) == "\ufffd"


def test_characters_are_those_of_the_training_text() -> None:
    known = CharacterTokens.of("abba ä")
    assert known.characters == UNKNOWN + " abä"
    assert known.encode("baä?").tolist() == [3, 2, 4, 0]
    assert known.decode([3, 2, 0]) == "ba" + UNKNOWN
    assert known.encode("a").dtype == torch.uint8


def test_a_tokenizer_from_a_file_leads_back_to_the_text(bpe: Path) -> None:
    known = read_tokenizer(bpe)
    assert known.size == 280
    assert known.decode(known.encode(TEXT).tolist()) == TEXT
    assert len(known.encode(TEXT)) < len(TEXT) / 2
    assert known.encode(TEXT).dtype == torch.int16
    assert read_tokenizer(bpe.parent).sha256 == known.sha256


def test_a_long_text_is_written_in_pieces_that_end_at_lines(
    bpe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_tokenizer(bpe).encode(TEXT)
    monkeypatch.setattr(data_tokens, "_PIECE", 50)
    assert read_tokenizer(bpe).encode(TEXT).equal(whole)


@pytest.mark.parametrize(
    ("size", "expected"),
    [(2, torch.uint8), (256, torch.uint8), (257, torch.int16), (32768, torch.int16), (32769, torch.int32)],
)
def test_tokens_are_kept_in_the_smallest_type(size: int, expected: torch.dtype) -> None:
    assert smallest_type(size) == expected


# --- What is read


def test_a_single_file_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(TEXT)
    found = read_text(tmp_path / "corpus.txt", TextChoice(), 8)
    assert found.files == 1
    assert bytes(torch.cat([found.train_N, found.held_out_N]).tolist()).decode() == TEXT


def test_named_files_are_read_in_their_order(tmp_path: Path) -> None:
    for name, letter in (("a.txt", "A"), ("b.txt", "B"), ("c.txt", "C")):
        (tmp_path / name).write_text(letter * 40)
    found = read_text(tmp_path, TextChoice(files=("c.txt", "a.txt")), 8)
    assert bytes(torch.cat([found.train_N, found.held_out_N]).tolist()).decode() == "C" * 40 + "A" * 40


def test_held_out_characters_are_not_in_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("ab" * 500 + "z" * 20)
    found = read_text(tmp_path / "corpus.txt", TextChoice(tokenizer="characters"), 8)
    assert found.tokens.size == 3
    assert int(found.held_out_N[-1]) == 0
    assert found.held_out_bytes == 51


def test_the_signature_is_that_of_text_and_tokenizer(tmp_path: Path, bpe: Path) -> None:
    file = tmp_path / "text.txt"
    ways = ["bytes", "characters", str(bpe)]
    digests = [read_text(file, TextChoice(tokenizer=way), 8).sha256 for way in ways]
    assert len(set(digests)) == 3
    (tmp_path / "other").mkdir()
    train_tokenizer([file], tmp_path / "other" / "tokenizer.json", 270)
    other = TextChoice(tokenizer=str(tmp_path / "other"))
    assert read_text(file, other, 8).sha256 not in digests


def test_windows_side_by_side_have_every_target_once() -> None:
    text = torch.arange(26)
    assert count_windows(text, window=6, stride=5) == 5
    found = cut(text, torch.arange(5), window=6, stride=5)
    assert found[:, 1:].flatten().tolist() == list(range(1, 26))
    assert count_windows(text, window=27, stride=26) == 0


def test_every_epoch_has_an_order_of_its_own() -> None:
    assert sorted(shuffled(20, 1, 0).tolist()) == list(range(20))
    assert not shuffled(20, 1, 0).equal(shuffled(20, 1, 1))
    assert not shuffled(20, 1, 0).equal(shuffled(20, 2, 0))


# --- What is refused


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer.json", b"", r"tokenizer\.json: is no tokenizer: .*; make one with: runner data tok"),
        ("tokenizer.json", b"{", r"is no tokenizer: .*EOF while parsing an object"),
        ("tokenizer.json", b"{}", r"is no tokenizer: .*Model missing"),
        ("tokenizer.json", b"\xff\xfe", r"is no tokenizer: .*(expected value|stream did not)"),
        (
            "tokenizer.json",
            json.dumps({"model": {"type": "unheard-of", "vocab": {}}}).encode(),
            r"is no tokenizer: .*",
        ),
        (
            "tokenizer.json",
            json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}).encode(),
            r"tokenizer\.json: is no tokenizer: .*Token `b` out of vocabulary",
        ),
        (
            "tokenizer.json",
            json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}).encode(),
            r"tokenizer\.json: has 1 token\(s\); two are needed at least; use more text",
        ),
        (
            "tokenizer.json",
            b"[1, 2]",
            r"tokenizer\.json: is no tokenizer: .*; make one with: runner data tok",
        ),
        (
            "tokenizer.json",
            json.dumps({"model": {"type": "BPE", "vocab": {"a": "0"}, "merges": []}}).encode(),
            r"tokenizer\.json: is no tokenizer: .*; make one with: runner data tokenize",
        ),
        ("other.json", b"{}", r"tokenizer\.json: No such file or directory; make one with: runner data"),
    ],
    ids=range(10),
)
def test_a_broken_tokenizer_is_refused_at_its_place(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidSpec, match=complaint):
        read_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("content", "line", "byte"),
    [
        (b"\xff\xfea\x00", 1, "ff"),
        (b"one\ntwo\xe4 latin\n", 2, "e4"),
        (b"\n\n\nB\xc3", 4, "c3"),
        (b"a\n\x80b", 2, "80"),
        (b"\xc0\xaf", 1, "c0"),
        (b"\xed\xa0\x80", 1, "ed"),
        (b"ok\nok\n\xf5", 3, "f5"),
        (b"windows \x93quote\x94\n", 1, "93"),
        (b"one\r\ntwo\r\n\xfe", 3, "fe"),
        (b"\xf4\x90\x80\x80", 1, "f4"),
    ],
)
def test_text_that_is_not_utf_8_is_refused_with_its_line(
    tmp_path: Path, content: bytes, line: int, byte: str
) -> None:
    (tmp_path / "corpus.txt").write_bytes(content)
    complaint = rf"corpus\.txt:{line}: the byte 0x{byte} is not UTF-8; convert .* or take tokenizer: bytes"
    with pytest.raises(InvalidSpec, match=complaint):
        read_text(tmp_path / "corpus.txt", TextChoice(tokenizer="characters"), 8)


def test_too_few_tokens_are_told_with_all_numbers(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("ab" * 100)
    complaint = r"are 190 tokens to train on and 10 held out \(characters\); a context of 32 needs 33 of each"
    with pytest.raises(InvalidSpec, match=complaint):
        read_text(tmp_path / "corpus.txt", TextChoice(tokenizer="characters"), 33)


@pytest.mark.parametrize("name", ["no.txt", "../text.txt", "/etc/passwd", "."])
def test_a_named_file_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "below").mkdir()
    with pytest.raises(InvalidSpec, match=r"workload\.files: .*: is no file below .*below; correct the name"):
        read_text(tmp_path / "below", TextChoice(files=(name,)), 8)


def test_a_missing_package_is_told_with_the_line_that_adds_it(
    bpe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_tokens, "find_spec", lambda _name: None)
    with pytest.raises(InvalidSpec, match=r"needs the package tokenizers; add image: \{requirements: \[tok"):
        read_tokenizer(bpe)
