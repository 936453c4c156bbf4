"""Reads a table of molecules: a CSV file with SMILES, a measured value and a split (train or test).

A molecule that is in both splits is removed from the test split, because a model that was trained
on it cannot be tested on it.  The number of removed molecules is reported.
"""
# ruff: noqa: N815 - tensors carry their shape: M molecules

import csv
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

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


TextCheck: TypeAlias = Callable[[str, str], None]
"""Refuses the text of a row, given where it is."""


def read_molecules(path: Path, value_column: str, longest: int, check: TextCheck | None = None) -> Library:
    """Return the molecules of a CSV file, or of ``molecules.csv`` in a directory.

    ``check`` replaces the check of a SMILES, for texts of other kinds.

    Raises:
        InvalidSpec: a column or a value is missing or wrong, or a SMILES has invalid characters or more than
            ``longest`` characters.
    """
    file = path / FILE_NAME if path.is_dir() else path
    rows = list(_rows(file, value_column, check or partial(check_smiles, longest=longest)))
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


def _rows(file: Path, value_column: str, check: TextCheck) -> Iterator[_Row]:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            _look_for_columns(file, reader.fieldnames or (), ("smiles", value_column, "split"))
            for fields in reader:
                yield _row(file, reader.line_num, fields, value_column, check)
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


def _row(file: Path, line: int, fields: dict[str, str | None], value_column: str, check: TextCheck) -> _Row:
    where = f"data: {file}:{line}"
    smiles, value, split = (fields[name] for name in ("smiles", value_column, "split"))
    if smiles is None or value is None or split is None or None in fields:
        raise InvalidSpec(f"{where}: not as many fields as columns; the file may be cut off")
    check(where, smiles)
    if split not in SPLITS:
        raise InvalidSpec(f"{where}: split is {split!r}; it must be train or test")
    return _Row(smiles, read_number(f"{where}: {value_column}", value), split)


def check_smiles(where: str, smiles: str, longest: int) -> None:
    """Refuse what is no SMILES, or one that is too long.

    Raises:
        InvalidSpec: it has invalid characters, none, or more than ``longest``.
    """
    if not smiles:
        raise InvalidSpec(f"{where}: smiles is empty; write the molecule or take the row out")
    if not (smiles.isascii() and smiles.isprintable() and " " not in smiles):
        raise InvalidSpec(f"{where}: smiles {smiles!r} has characters that no SMILES has; correct it")
    if len(smiles) > longest:
        raise InvalidSpec(
            f"{where}: smiles has {len(smiles)} characters, and length allows {longest}; raise length"
        )


def read_number(where: str, text: str) -> float:
    """Return a finite number of a table.

    Raises:
        InvalidSpec: it is none, at its place ``where``.
    """
    try:
        number = float(text)
    except ValueError as error:
        raise InvalidSpec(
            f"{where} is {text!r}, which is no number; correct it or take the row out"
        ) from error
    if not math.isfinite(number):
        raise InvalidSpec(f"{where} is {text}, which is not finite; correct it or take the row out")
    return number
