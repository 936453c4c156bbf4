"""Reads what pairs are made of: a table of molecules, a list of scores, or a table of judged pairs.

The three layouts, by the names of their files in a directory:

``molecules.csv``
    Columns smiles, a measured value and split (train or test).  A molecule of both splits is none to test on.
``labels.txt``
    One text and its score on each line, as in the data of LMOL (``name score``); folds divide them.
``pairs.csv``
    One judged pair on each row: first and second (or img1 and img2), score1 and score2, label, split.  A
    label is enough, and so are the scores.  Without a split, folds divide the texts, and a pair is used if
    both of its texts are on the same side.

``train_fold1_30000.csv`` and ``eval_fold1_3000.csv``, also in a folder below
    Judged pairs of each fold, numbered from 1, as LMOL keeps them; ``fold: 0`` reads the two of fold 1.

A text never is on both sides.
"""
# ruff: noqa: N815 - tensors carry their shape: M texts, P pairs

import csv
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from jobs.training.failures import InvalidSpec

MOLECULES: Final = "molecules.csv"

LABELS: Final = "labels.txt"

PAIRS: Final = "pairs.csv"

LAYOUTS: Final = (MOLECULES, LABELS, PAIRS)

FIRST, SECOND, SIMILAR = range(3)

ANSWERS: Final = ("first", "second", "similar")

SPLITS: Final = ("train", "test")

_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "first": ("first", "img1"),
    "second": ("second", "img2"),
    "score1": ("score1",),
    "score2": ("score2",),
    "label": ("label",),
    "split": ("split",),
}
"""The columns of a table of pairs, each with the names that it may have."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for reading the files."""

    value_column: str = "logs"
    longest: int = 95
    """Characters of the longest text."""
    any_text: bool = False
    """True if other texts than SMILES are allowed."""
    threshold: float = 1.0
    folds: int | None = None
    fold: int | None = None

    def check(self, where: str, text: str) -> None:
        """Refuse a text that no model can be shown.

        Raises:
            InvalidSpec: it is empty, too long or no SMILES.
        """
        if not self.any_text:
            check_smiles(where, text, self.longest)
        elif not text.strip() or not text.isprintable():
            raise InvalidSpec(f"{where}: {text!r} is not a printable text; correct it or take the row out")
        elif len(text) > self.longest:
            fact = f"a text of {len(text)} characters, and length allows {self.longest}"
            raise InvalidSpec(f"{where}: {fact}; raise length")

    def tests_on(self, place: int) -> bool:
        """Return True if the text at a place in the order of digests is held out."""
        return self.folds is not None and place % self.folds == self.fold


@dataclass(frozen=True, slots=True)
class Part:
    """The texts of one side; their values, if known, and the judged pairs, if there are such."""

    split: str
    texts: tuple[str, ...]
    value_M: Tensor | None
    """float64; None: they are not known."""
    listed: tuple[Tensor, Tensor] | None = None
    """Pairs (P, 2) and their answers (P,), int64; None: all pairs of texts."""

    @property
    def known_values(self) -> Tensor:
        """The values of a part of which they are known, such as one of molecules."""
        if self.value_M is None:
            raise AssertionError(f"the values of the {self.split} texts are not known")
        return self.value_M


@dataclass(frozen=True, slots=True)
class PairSet:
    """Everything that was read; ``notes`` say what was left out."""

    train: Part
    test: Part
    sha256: str
    notes: tuple[str, ...] = ()


def read_pairs(path: Path, reading: Reading) -> PairSet:
    """Return the pairs of a file, or of the one known file in a directory.

    Raises:
        InvalidSpec: there is no such file or more than one, or a line of it is missing something or wrong.
    """
    if (found := _fold_files(path, reading)) is not None:
        return _of_fold(found, reading)
    file = _find(path)
    if file.suffix.lower() == ".txt":
        return _of_scores(file, reading)
    return _of_pairs(file, reading) if _is_of_pairs(file) else read_molecules(file, reading)


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / name for name in LAYOUTS if (path / name).exists()]
    if len(found) != 1:
        names = " and ".join(one.name for one in found) or "none"
        raise InvalidSpec(
            f"data: {path}: must hold one of {', '.join(LAYOUTS)}, not {names}; name the file itself"
        )
    return found[0]


_FOLD_FILES: Final[Mapping[str, str]] = {"train": "train_fold{}", "test": "eval_fold{}"}


def _fold_files(path: Path, reading: Reading) -> dict[str, Path] | None:
    """Return the files of a fold by side, None if the directory has no files of folds."""
    if not path.is_dir() or not any(path.rglob("train_fold*.csv")):
        return None
    if reading.folds is None or reading.fold is None:
        fact = "give folds and fold, as in folds: 5 and fold: 0 for train_fold1 and eval_fold1"
        raise InvalidSpec(f"data: {path}: holds files of folds; {fact}")
    chosen = dict[str, Path]()
    for side, pattern in _FOLD_FILES.items():
        stem = pattern.format(reading.fold + 1)
        found = sorted({*path.rglob(f"{stem}.csv"), *path.rglob(f"{stem}_*.csv")})
        if len(found) != 1:
            names = " and ".join(str(one.relative_to(path)) for one in found) or "none"
            raise InvalidSpec(
                f"data: {path}: must hold one {stem}_*.csv for fold {reading.fold}, not {names}"
            )
        chosen[side] = found[0]
    return chosen


def _of_fold(found: Mapping[str, Path], reading: Reading) -> PairSet:
    """Return the pairs of the two files of a fold."""
    judged = _Judged()
    for split, file in found.items():
        for first, second, answer, _ in _rows(file, replace(reading, folds=1, fold=None), judged):
            judged.rows.append((first, second, answer, split))
    return _sides(judged, replace(reading, folds=None, fold=None))


def _is_of_pairs(file: Path) -> bool:
    with _opened(file) as stream:
        header = next(iter(stream), "")
    return bool({"first", "img1"} & {name.strip() for name in header.rstrip("\r\n").split(",")})


class _opened:  # noqa: N801 - a context manager that is used like a function
    """Opens a text file; whatever it cannot read is told with the file's name."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Iterator[str]:
        try:
            self._stream = self._file.open(encoding="utf-8-sig", newline="")
        except OSError as error:
            known = ", ".join(LAYOUTS)
            raise InvalidSpec(f"data: {self._file}: {error.strerror}; give one of {known}") from error
        return self._stream

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._stream.close()
        if isinstance(error, UnicodeDecodeError | csv.Error):
            raise InvalidSpec(f"data: {self._file}: {error}; it must be text in UTF-8") from error


# --- Values of single texts


def read_molecules(path: Path, reading: Reading) -> PairSet:
    """Return the molecules of a CSV file, or of ``molecules.csv`` in a directory, with their values.

    Raises:
        InvalidSpec: a column or a value is missing or wrong, or a text is one that no model can be shown.
    """
    rows = list(_molecules(path / MOLECULES if path.is_dir() else path, reading))
    trained = {text for text, _, split in rows if split == "train"}
    kept = [row for row in rows if row[2] == "train" or row[0] not in trained]
    sides = {split: [row for row in kept if row[2] == split] for split in SPLITS}
    if reading.folds is None:
        lost = len(rows) - len(kept)
        note = f"{lost} test molecules are training molecules too, and were left out"
        content = "\n".join(f"{text} {value!r} {split}" for text, value, split in rows)
        train, test = (_part(split, [row[:2] for row in side]) for split, side in sides.items())
        return PairSet(train, test, _digest(content), (note,) if lost else ())
    values = [(text, value) for side in sides.values() for text, value, _ in side]
    known = dict(reversed(values))  # the first row of a text counts
    lost = len(rows) - len(known)
    notes = (f"{lost} rows repeat a molecule of an earlier one, and were left out",) if lost else ()
    return _divided(dict(reversed(known.items())), reading, notes)


def _molecules(file: Path, reading: Reading) -> Iterator[tuple[str, float, str]]:
    """Yield each molecule with its value and its split."""
    names = ("smiles", reading.value_column, "split")
    with _opened(file) as stream:
        reader = csv.DictReader(stream, strict=True)
        found = reader.fieldnames or ()
        if missing := [name for name in names if name not in found]:
            raise InvalidSpec(
                f"data: {file}:1: no column {', '.join(missing)} among {', '.join(found) or 'none'};"
                " add it, or name the column of the value in value_column"
            )
        for fields in reader:
            where = f"data: {file}:{reader.line_num}"
            text, value, split = (fields[name] for name in names)
            if text is None or value is None or split is None or None in fields:
                raise InvalidSpec(f"{where}: not as many fields as columns; the file may be cut off")
            reading.check(where, text)
            if split not in SPLITS:
                raise InvalidSpec(f"{where}: split is {split!r}; it must be train or test")
            yield text, read_number(f"{where}: {reading.value_column}", value), split


def _part(split: str, values: Sequence[tuple[str, float]]) -> Part:
    texts, numbers = zip(*values, strict=True) if values else ((), ())
    return Part(split, texts, torch.tensor(numbers, dtype=torch.float64))


def _of_scores(file: Path, reading: Reading) -> PairSet:
    if reading.folds is None:
        raise InvalidSpec(
            f"data: {file}: has no split; give folds and fold, as in folds: 5 and fold: 0, and a matrix over"
            " workload.fold for all of them"
        )
    known: dict[str, float] = {}
    lines: dict[str, int] = {}
    with _opened(file) as stream:
        for number, line in enumerate(stream, start=1):
            where = f"data: {file}:{number}"
            text, _, score = line.strip().rpartition(" ")
            if not text:
                raise InvalidSpec(f"{where}: must be a text, a space and its score, not {line.strip()!r}")
            text = text.strip()
            reading.check(where, text)
            if text in known:
                raise InvalidSpec(f"{where}: {text} has a score in line {lines[text]}; take one of them out")
            known[text], lines[text] = read_number(f"{where}: the score", score), number
    return _divided(known, reading)


def _divided(known: Mapping[str, float], reading: Reading, notes: tuple[str, ...] = ()) -> PairSet:
    """Return the texts as training and test texts of a fold."""
    held_out = _held_out(known, reading)
    parts = [
        _part(split, [each for each in known.items() if (each[0] in held_out) == (split == "test")])
        for split in SPLITS
    ]
    content = "\n".join(f"{text} {value!r}" for text, value in known.items())
    return PairSet(parts[0], parts[1], _digest(content), notes)


def _held_out(texts: Mapping[str, float] | frozenset[str], reading: Reading) -> frozenset[str]:
    """Return the texts of the fold; folds differ by one text at most, and not with the order of the file."""
    ordered = sorted(texts, key=_digest)
    return frozenset(text for place, text in enumerate(ordered) if reading.tests_on(place))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- Judged pairs


@dataclass(slots=True)
class _Judged:
    """Contents of a table of pairs, as it is read."""

    rows: list[tuple[str, str, int, str | None]] = field(default_factory=list)
    """First, second, answer and split."""
    scores: dict[str, tuple[float, int]] = field(default_factory=dict)
    """The score of a text, and the line that it is from."""

    def score(self, where: str, text: str, written: str, line: int) -> float:
        value = read_number(where, written)
        before, earlier = self.scores.setdefault(text, (value, line))
        if before != value:
            raise InvalidSpec(
                f"{where} of {text} is {value:g}, and {before:g} in line {earlier}; correct one"
            )
        return value


def _of_pairs(file: Path, reading: Reading) -> PairSet:
    judged = _Judged()
    judged.rows += _rows(file, reading, judged)
    return _sides(judged, reading)


def _rows(file: Path, reading: Reading, judged: _Judged) -> Iterator[tuple[str, str, int, str | None]]:
    """Yield the judged pairs of a table; the scores that it has are kept in ``judged``."""
    with _opened(file) as stream:
        reader = csv.DictReader(stream, strict=True)
        columns = _columns(file, tuple(reader.fieldnames or ()), reading)
        for fields in reader:
            where = f"data: {file}:{reader.line_num}"
            if None in fields or None in fields.values():
                raise InvalidSpec(f"{where}: not as many fields as columns; the file may be cut off")
            row = {name: fields[written] for name, written in columns.items()}
            yield _judged_row(where, row, reader.line_num, reading, judged)


def _columns(file: Path, found: tuple[str, ...], reading: Reading) -> dict[str, str]:
    columns = {name: written for name, known in _COLUMNS.items() for written in known if written in found}
    missing = [name for name in ("first", "second") if name not in columns]
    if not {"label"} & set(columns) and not {"score1", "score2"} <= set(columns):
        missing.append("label (or score1 and score2)")
    if reading.folds is None and "split" not in columns:
        missing.append("split (or give folds and fold)")
    if missing:
        raise InvalidSpec(f"data: {file}:1: no column {', '.join(missing)} among {', '.join(found)}; add it")
    return columns


def _judged_row(
    where: str, row: Mapping[str, str], line: int, reading: Reading, judged: _Judged
) -> tuple[str, str, int, str | None]:
    first, second = row["first"], row["second"]
    for text in (first, second):
        reading.check(where, text)
    if first == second:
        raise InvalidSpec(f"{where}: {first} is compared with itself; take the row out")
    split = row.get("split") if reading.folds is None else None
    if split is not None and split not in SPLITS:
        raise InvalidSpec(f"{where}: split is {split!r}; it must be train or test")
    answer, ahead = None, None
    if "score1" in row and "score2" in row:
        one, other = (
            judged.score(f"{where}: {name}", text, row[name], line)
            for name, text in (("score1", first), ("score2", second))
        )
        ahead = one - other
        answer = _by_scores(ahead, reading.threshold)
    if answer is None or "label" in row:
        answer = _by_label(where, row["label"], ahead)
    return first, second, answer, split


def _by_scores(ahead: float, threshold: float) -> int:
    if abs(ahead) <= threshold:
        return SIMILAR
    return FIRST if ahead > 0 else SECOND


def _by_label(where: str, label: str, ahead: float | None) -> int:
    if label.strip().lower() not in ANSWERS:
        raise InvalidSpec(f"{where}: label is {label!r}; it must be First, Second or Similar")
    answer = ANSWERS.index(label.strip().lower())
    if ahead is not None and ((answer == FIRST and ahead < 0) or (answer == SECOND and ahead > 0)):
        fact = f"label is {label}, and the other one has the higher score"
        raise InvalidSpec(f"{where}: {fact}; correct the row")
    return answer


def _sides(judged: _Judged, reading: Reading) -> PairSet:
    texts = frozenset(text for row in judged.rows for text in row[:2])
    if reading.folds is not None:
        held_out = _held_out(texts, reading)
        rows = {
            split: [
                row for row in judged.rows if all((text in held_out) == (split == "test") for text in row[:2])
            ]
            for split in SPLITS
        }
        lost = len(judged.rows) - sum(map(len, rows.values()))
        note = f"{lost} pairs have a text on either side of the fold, and were left out"
    else:
        rows = {split: [row for row in judged.rows if row[3] == split] for split in SPLITS}
        trained = {text for row in rows["train"] for text in row[:2]}
        clean = [row for row in rows["test"] if trained.isdisjoint(row[:2])]
        lost, rows["test"] = len(rows["test"]) - len(clean), clean
        note = f"{lost} test pairs have a text of a training pair, and were left out"
    content = "\n".join(" ".join(map(str, row)) for row in judged.rows)
    train, test = (_judged_part(split, rows[split], judged) for split in SPLITS)
    return PairSet(train, test, _digest(content), (note,) if lost else ())


def _judged_part(split: str, rows: list[tuple[str, str, int, str | None]], judged: _Judged) -> Part:
    places: dict[str, int] = {}
    pairs = [[places.setdefault(text, len(places)) for text in row[:2]] for row in rows]
    known = [judged.scores[text][0] for text in places if text in judged.scores]
    return Part(
        split,
        tuple(places),
        torch.tensor(known, dtype=torch.float64) if len(known) == len(places) else None,
        (
            torch.tensor(pairs, dtype=torch.int64).view(-1, 2),
            torch.tensor([row[2] for row in rows], dtype=torch.int64),
        ),
    )


# --- Single cells


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
