"""Reads directories of recordings: .npy, .npz and .pt files with samples in rows and channels in columns.

A recording is one two-dimensional array of real numbers; a file may hold several.  All recordings
are read once when a training begins.  An invalid value in any file is therefore reported before the
first step, and a checkpoint can record which data it was trained on.
"""
# ruff: noqa: N806 - arrays carry their shape: T samples, C columns

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.failures import UNLOADABLE, InvalidSpec

Samples: TypeAlias = NDArray[np.float32]

SUFFIXES: Final = (".npy", ".npz", ".pt")


@dataclass(frozen=True, slots=True)
class Recording:
    """The location of one recording, its length, and its group (for example, a subject)."""

    path: Path
    key: str | None  # of the array within its file; None: the file is one array
    group: str
    samples: int

    @property
    def name(self) -> str:
        return _name(self.path, self.key)


@dataclass(frozen=True, slots=True)
class Survey:
    """All recordings below a directory, each of them read and checked."""

    recordings: tuple[Recording, ...]
    sha256: str
    """Of names, groups and the chosen columns; the place of the directory does not matter."""


def survey(directory: Path, columns: tuple[int, ...], index: str, group: str) -> Survey:
    """Return the recordings that the index lists, or all below the directory if there is no index.

    Without an index every file is a group of its own.

    Raises:
        InvalidSpec: there is no recording, or one is missing, unreadable, empty, not finite, or of wrong
            shape or type.
    """
    digest, recordings = hashlib.sha256(), []
    for path, its_group in _files(directory, index, group):
        for key, raw in _arrays(path).items():
            samples_TC = _checked(raw, _name(path, key), columns)
            recordings.append(Recording(path, key, its_group, len(samples_TC)))
            named = [path.relative_to(directory).as_posix(), key or "", its_group, str(len(samples_TC))]
            digest.update("\0".join(named).encode() + b"\n")
            digest.update(samples_TC.tobytes())
    if not recordings:
        raise InvalidSpec(
            f"data: no {', '.join(SUFFIXES)} file below {directory}; is it the right directory?"
        )
    return Survey(tuple(recordings), digest.hexdigest())


def read(recording: Recording, columns: tuple[int, ...]) -> Samples:
    """Return the chosen columns of one recording, float32 of shape (T, C).

    Raises:
        InvalidSpec: the recording has changed since the survey.
    """
    arrays = _arrays(recording.path, recording.key)
    samples_TC = _checked(arrays.get(recording.key), recording.name, columns)
    if len(samples_TC) != recording.samples:
        raise InvalidSpec(
            f"data: {recording.name}: {len(samples_TC)} samples where there were {recording.samples}"
            " when the training began; do not change recordings while they are in use"
        )
    return samples_TC


def _files(directory: Path, index: str, group: str) -> Iterable[tuple[Path, str]]:
    if not directory.is_dir():
        raise InvalidSpec(f"data: {directory}: no such directory; give one that holds recordings")
    table = directory / index
    if table.is_file():
        return _listed(directory, table, group)
    found = sorted(path for path in directory.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return [(path, path.relative_to(directory).as_posix()) for path in found]


def _listed(directory: Path, table: Path, group: str) -> Iterator[tuple[Path, str]]:
    """Yield the file and the group of every row of an index."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or ()
            for wanted in ("file", group):
                if wanted not in columns:
                    raise InvalidSpec(
                        f"data: {table}:1: no column {wanted!r}; there are {', '.join(columns) or 'none'}"
                    )
            for row in rows:
                where = f"{table}:{rows.line_num}"
                if not row[group]:
                    raise InvalidSpec(f"data: {where}: no {group}; every recording belongs to one")
                yield _indexed(directory, row["file"] or "", where), row[group]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidSpec(f"data: {table}: {error}; it must be CSV in UTF-8") from error


def _indexed(directory: Path, file: str, where: str) -> Path:
    path = directory / file
    if not path.resolve().is_relative_to(directory.resolve()):
        raise InvalidSpec(f"data: {where}: {file!r} lies outside the directory; give a path below it")
    if path.suffix not in SUFFIXES:
        raise InvalidSpec(f"data: {where}: {file!r} is none of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise InvalidSpec(f"data: {where}: {file!r} is not there; remove the line or bring the file")
    return path


def _arrays(path: Path, only: str | None = None) -> Mapping[str | None, Any]:
    """Return the arrays of a file by key; the key is None for a file that is a single array."""
    try:
        with path.open("rb") as file:  # numpy does not close a file that it opened and failed to read
            return _parsed(file, path, only)
    except (OSError, *UNLOADABLE) as error:
        why = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise InvalidSpec(f"data: {path}: cannot be read as {path.suffix}: {why}; is it cut off?") from error


def _parsed(file: BinaryIO, path: Path, only: str | None) -> Mapping[str | None, Any]:
    match path.suffix:
        case ".npy" | ".npz":
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {None: loaded}
            with loaded as archive:
                return {key: archive[key] for key in ([only] if only else archive.files)}
        case _:
            return _tensors(torch.load(file, map_location="cpu", weights_only=True), path)


def _tensors(loaded: object, path: Path) -> Mapping[str | None, Any]:
    match loaded:
        case torch.Tensor():
            return {None: loaded}
        case list() | tuple():
            named = {str(number): each for number, each in enumerate(loaded)}
        case dict():
            named = {str(key): each for key, each in loaded.items()}
        case _:
            named = {"": loaded}
    for key, each in named.items():
        if not isinstance(each, torch.Tensor):
            raise InvalidSpec(
                f"data: {path}: {key or 'the file'} is a {type(each).__name__};"
                " it must be a tensor, or a list or dict of tensors"
            )
    return named  # type: ignore[return-value]  # dict keys are invariant


def _checked(raw: Any, name: str, columns: tuple[int, ...]) -> Samples:  # noqa: ANN401 - an array or a tensor
    """Return the chosen columns as float32, after checking every value."""
    try:
        if isinstance(raw, torch.Tensor):
            raw = raw.detach().to(torch.float32).numpy() if raw.is_floating_point() else raw.detach().numpy()
    except (RuntimeError, TypeError) as error:
        fact = str(error).split("\n", 1)[0]
        raise InvalidSpec(f"data: {name}: {fact}; a recording is a dense tensor of real numbers") from error
    if not isinstance(raw, np.ndarray):
        raise InvalidSpec(f"data: {name}: no array; every recording is one")
    if raw.dtype.kind not in "fiu":
        raise InvalidSpec(f"data: {name}: type {raw.dtype}; a recording holds real numbers")
    if raw.ndim != 2:
        raise InvalidSpec(f"data: {name}: shape {raw.shape}; a recording is (samples, columns)")
    if raw.shape[1] <= max(columns):
        raise InvalidSpec(
            f"data: {name}: {raw.shape[1]} columns; the plan names column {max(columns)}, counted from 0"
        )
    if not len(raw):
        raise InvalidSpec(f"data: {name}: no samples; remove the recording")
    with np.errstate(over="ignore"):  # an overflow of float32 is reported below
        samples_TC = np.ascontiguousarray(raw[:, columns], dtype=np.float32)
    finite_TC = np.isfinite(samples_TC)
    if not finite_TC.all():
        row, place = (int(first) for first in np.argwhere(~finite_TC)[0])
        value = samples_TC[row, place]
        raise InvalidSpec(
            f"data: {name}: row {row}, column {columns[place]}: {value}; repair it or cut it out"
        )
    return samples_TC


def _name(path: Path, key: str | None) -> str:
    return str(path) if key is None else f"{path}[{key}]"
