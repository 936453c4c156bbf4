"""Reads a table of molecules: a CSV file with SMILES, a measured value and a split (train or test).

A molecule that is in both splits is removed from the test split, because a model that was trained
on it cannot be tested on it.  The number of removed molecules is reported.
"""
# ruff: noqa: N815 - tensors carry their shape: M molecules

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from jobs.training.failures import InvalidSpec

FILE_NAME: Final = "molecules.csv"

SPLITS: Final = ("train", "test")


@dataclass(frozen=True, slots=True)
class Molecules:
    """One split of a table, in the order of the file; values are float64."""

    split: str
    smiles: tuple[str, ...]
    value_M: Tensor


@dataclass(frozen=True, slots=True)
class Library:
    """All molecules of a file."""

    train: Molecules
    test: Molecules
    repeated: int  # test molecules left out because they are training molecules too
    sha256: str


@dataclass(frozen=True, slots=True)
class _Row:
    smiles: str
    value: float
    split: str


def read_molecules(path: Path, value_column: str, longest: int) -> Library:
    """Return the molecules of a CSV file, or of ``molecules.csv`` in a directory.

    Raises:
        InvalidSpec: a column or a value is missing or wrong, or a SMILES has invalid characters or more than
            ``longest`` characters.
    """
    file = path / FILE_NAME if path.is_dir() else path
    rows = list(_rows(file, value_column, longest))
    train = [row for row in rows if row.split == "train"]
    known = {row.smiles for row in train}
    test = [row for row in rows if row.split == "test" and row.smiles not in known]
    repeated = len(rows) - len(train) - len(test)
    text = "\n".join(f"{row.smiles} {row.value!r} {row.split}" for row in rows)
    return Library(
        _molecules("train", train),
        _molecules("test", test),
        repeated,
        hashlib.sha256(text.encode()).hexdigest(),
    )


def _molecules(split: str, rows: list[_Row]) -> Molecules:
    values = torch.tensor([row.value for row in rows], dtype=torch.float64)
    return Molecules(split, tuple(row.smiles for row in rows), values)


def _rows(file: Path, value_column: str, longest: int) -> Iterator[_Row]:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            _look_for_columns(file, reader.fieldnames or (), ("smiles", value_column, "split"))
            for fields in reader:
                yield _row(file, reader.line_num, fields, value_column, longest)
    except OSError as error:
        raise InvalidSpec(f"data: {file}: {error.strerror}; give a CSV file of molecules") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidSpec(f"data: {file}: {error}; it must be CSV in UTF-8") from error


def _look_for_columns(file: Path, found: Iterable[str], wanted: Iterable[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise InvalidSpec(
            f"data: {file}:1: no column {', '.join(missing)} among {', '.join(found) or 'none'};"
            " add it, or name the column of the value in value_column"
        )


def _row(file: Path, line: int, fields: dict[str, str | None], value_column: str, longest: int) -> _Row:
    where = f"data: {file}:{line}"
    smiles, value, split = (fields[name] for name in ("smiles", value_column, "split"))
    if smiles is None or value is None or split is None or None in fields:
        raise InvalidSpec(f"{where}: not as many fields as columns; the file may be cut off")
    _check_smiles(where, smiles, longest)
    if split not in SPLITS:
        raise InvalidSpec(f"{where}: split is {split!r}; it must be train or test")
    return _Row(smiles, _number(f"{where}: {value_column}", value), split)


def _check_smiles(where: str, smiles: str, longest: int) -> None:
    if not smiles:
        raise InvalidSpec(f"{where}: smiles is empty; write the molecule or take the row out")
    if not (smiles.isascii() and smiles.isprintable() and " " not in smiles):
        raise InvalidSpec(f"{where}: smiles {smiles!r} has characters that no SMILES has; correct it")
    if len(smiles) > longest:
        raise InvalidSpec(
            f"{where}: smiles has {len(smiles)} characters, and length allows {longest}; raise length"
        )


def _number(where: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise InvalidSpec(
            f"{where} is {text!r}, which is no number; correct it or take the row out"
        ) from error
    if not math.isfinite(number):
        raise InvalidSpec(f"{where} is {text}, which is not finite; correct it or take the row out")
    return number
