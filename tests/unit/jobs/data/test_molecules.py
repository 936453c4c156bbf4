"""A table of molecules is read whole, or refused with the file, the row and what to do."""

from pathlib import Path

import pytest

from jobs.data.pairs import PairSet, Reading, read_molecules
from jobs.training.failures import InvalidSpec

HEADER = "smiles,logs,class,split\n"
GOOD = HEADER + "CC,-1.5,low,train\nCCC,-2,low,train\nCCO,0.5,high,test\n"


def read(tmp_path: Path, text: str | bytes, longest: int = 20) -> PairSet:
    file = tmp_path / "molecules.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_molecules(file, Reading("logs", longest))


def test_both_parts_keep_the_order_of_the_file(tmp_path: Path) -> None:
    library = read(tmp_path, GOOD)
    assert library.train.texts == ("CC", "CCC")
    assert library.train.known_values.tolist() == [-1.5, -2.0]
    assert (library.test.texts, library.test.known_values.tolist()) == (("CCO",), [0.5])


def test_a_directory_is_asked_for_its_file(tmp_path: Path) -> None:
    whole = read(tmp_path, GOOD)
    assert read_molecules(tmp_path, Reading("logs", 20)).sha256 == whole.sha256


def test_the_signature_is_that_of_the_content(tmp_path: Path) -> None:
    before = read(tmp_path, GOOD).sha256
    assert read(tmp_path, GOOD.replace("\n", "\r\n").replace(",class", ",other")).sha256 == before
    assert read(tmp_path, GOOD.replace("0.5", "0.6")).sha256 != before


def test_a_test_molecule_that_is_trained_on_is_left_out_and_counted(tmp_path: Path) -> None:
    library = read(tmp_path, GOOD + "CC,-1.5,low,test\n")
    assert library.test.texts == ("CCO",)
    assert library.notes == ("1 test molecules are training molecules too, and were left out",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"molecules\.csv:1: no column smiles, logs, split among none; add it"),
        ("smiles,solubility,split\n", r":1: no column logs among smiles, solubility, split;.*value_column"),
        (HEADER + "CC,,low,train\n", r":2: logs is '', which is no number"),
        (HEADER + "CC,1,low,train\nCC,x,low,train\n", r":3: logs is 'x', which is no number"),
        (HEADER + "CC,nan,low,train\n", r":2: logs is nan, which is not finite"),
        (HEADER + "CC,1e999,low,train\n", r":2: logs is 1e999, which is not finite"),
        (HEADER + ",1,low,train\n", r":2: smiles is empty"),
        (HEADER + "C\u00e9,1,low,train\n", r":2: smiles 'C\u00e9' has characters that no SMILES has"),
        (HEADER + "C C,1,low,train\n", r":2: smiles 'C C' has characters that no SMILES has"),
        (HEADER + "C" * 21 + ",1,low,train\n", r":2: smiles has 21 characters, and length allows 20; raise"),
        (HEADER + "CC,1,low,dev\n", r":2: split is 'dev'; it must be train or test"),
        (HEADER + "CC,1,low\n", r":2: not as many fields as columns; the file may be cut off"),
        (HEADER + "CC,1,low,train,more\n", r":2: not as many fields as columns"),
        (HEADER + '"CC,1,low,train\n', r"unexpected end of data; it must be text"),
        (GOOD.encode("utf-16"), r"it must be text in UTF-8"),
    ],
)
def test_a_bad_table_is_refused_with_its_row(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    with pytest.raises(InvalidSpec, match=complaint):
        read(tmp_path, text)


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"data: .*molecules\.csv: No such file.*; give one of molecules"):
        read_molecules(tmp_path, Reading("logs", 20))
