"""A tokenizer is trained on text files, or nothing is written and a line says why."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from runner.adapters.datasets import tokenizer as data_tokenizer
from runner.adapters.datasets.tokenizer import train_tokenizer
from runner.base.errors import UsageError

TEXT = "So viele Worte, so viele Verse.\n" * 30


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_the_same_text_makes_the_same_tokenizer(text: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    made = train_tokenizer([text], one, 270)
    train_tokenizer([text], other, 270)
    assert (made.tokens, made.files, made.bytes) == (270, 1, len(TEXT))
    assert one.read_bytes() == other.read_bytes()
    known = Tokenizer.from_file(str(one))
    assert known.decode(known.encode("B\u00e4r \u2603").ids) == "B\u00e4r \u2603"  # every byte is a token


@pytest.mark.parametrize(
    ("content", "vocabulary", "complaint"),
    [
        (b"a\n\xff", 300, r"text\.txt:2: the byte 0xff is not UTF-8; convert the file or leave it out"),
        (b"a", 256, r"--vocabulary 256: 257 is the least"),
        (None, 300, r"text\.txt: No such file or directory; name text files"),
    ],
    ids=["latin", "small", "missing"],
)
def test_what_cannot_be_trained_on_leaves_nothing(
    text: Path, tmp_path: Path, content: bytes | None, vocabulary: int, complaint: str
) -> None:
    text.unlink()
    if content is not None:
        text.write_bytes(content)
    before = list(tmp_path.iterdir())
    with pytest.raises(UsageError, match=complaint):
        train_tokenizer([text], tmp_path / "made.json", vocabulary)
    assert list(tmp_path.iterdir()) == before


def test_a_place_that_cannot_be_written_to_is_told(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no/made\.json: No such file or directory; choose another place"):
        train_tokenizer([text], tmp_path / "no" / "made.json", 300)


def test_a_missing_package_is_told(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tokenizer, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install 'gpu-job-runner\[text\]'"):
        train_tokenizer([text], tmp_path / "made.json", 300)
