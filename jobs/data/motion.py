"""Reads recordings of bodies: ``.pt`` files that hold dicts of lists of tensors, one tensor per sequence.

This is the layout in which MobilePoser and its relatives keep AMASS, DIP-IMU and TotalCapture: a file for
each archive, with the keys ``acc``, ``ori``, ``pose``, ``tran`` and often ``joint`` and ``contact``.
Files are mapped, not read: opening one costs its list of contents, and a sequence costs its own pages, which
all processes share.  All sequences are checked once when a training begins.
"""
# ruff: noqa: N815 - tensors carry their shape: N frames, S sites, J joints

import hashlib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from jobs.contract.plans.base import Clean
from jobs.data.cleaning import Cleaner, held
from jobs.data.sequences import Recording
from jobs.data.skeleton import JOINTS, from_axis_angles, from_quaternions
from jobs.training.failures import UNLOADABLE, InvalidSpec
from jobs.training.lru import LruCache

REQUIRED: Final = ("acc", "ori", "pose", "tran")
OPTIONAL: Final = ("joint", "contact")
FINE_TUNING: Final = "eval"
"""The folder of the sets for fine-tuning and for tests, beside the archives to train on."""

TESTS: Final = ("*_test.pt", "totalcapture.pt", "totalcapture[0-9][0-9].pt")
"""Names of files that are for tests only, whatever the case of their letters."""

OPEN_FILES: Final = 32
SKEW: Final = 0.01
"""Most deviation of a column of a rotation from length one and from the others' right angle."""

Contents: TypeAlias = Mapping[str, Sequence[Any]]

_SHAPES: Final[Mapping[str, tuple[tuple[int | str, ...], ...]]] = {
    "acc": (("frames", "sites", 3),),
    "ori": (("frames", "sites", 3, 3), ("frames", "sites", 4)),
    "pose": (("frames", JOINTS, 3, 3), ("frames", JOINTS * 9), ("frames", JOINTS * 3), ("frames", JOINTS, 3)),
    "tran": (("frames", 3),),
    "joint": (("frames", JOINTS, 3), ("frames", JOINTS * 3)),
    "contact": (("frames", 2), ("frames", 4)),
}


@dataclass(frozen=True, slots=True)
class Motion:
    """One sequence, float32: what the sensors read, and what the body did."""

    acceleration_NS3: Tensor
    orientation_NS33: Tensor
    pose_NJ33: Tensor  # of each joint against its parent
    translation_N3: Tensor  # of the root, in metres
    joints_NJ3: Tensor | None  # positions in metres; None: not recorded
    contact_N2: Tensor | None  # 1 where the left and the right foot stand; None: not recorded


@dataclass(frozen=True, slots=True)
class MotionSurvey:
    """All sequences of a directory, each of them read and checked."""

    train: tuple[Recording, ...]
    test: tuple[Recording, ...]  # of files that are only for tests
    sha256: str


def survey(place: Path, patterns: Sequence[str], sites: int, clean: Clean | None = None) -> MotionSurvey:
    """Return the sequences of a file, or of all files in a directory that match a pattern.

    Files called ``*_test.pt`` and ``totalcapture.pt`` are for tests.  Other files in a folder ``eval`` are
    for fine-tuning: they are read if the directory itself is that folder.

    Raises:
        InvalidSpec: there is no sequence, or one is missing, unreadable, incomplete, or not a motion.
    """
    digest, train, test = hashlib.sha256(), list[Recording](), list[Recording]()
    cleaner = Cleaner(clean)
    if clean is not None:
        digest.update(clean.model_dump_json().encode())
    for path in _files(place, patterns):
        contents, name = _open(path), path.relative_to(place if place.is_dir() else place.parent)
        for number in range(len(contents["acc"])):
            motion = _motion(path, contents, number, cleaner)
            recording = Recording(path, str(number), name.parts[0], len(motion.translation_N3))
            _require_sites(recording, motion, sites)
            (test if _is_test(path) else train).append(recording)
            digest.update(f"{name.as_posix()}\0{number}\0{recording.samples}\n".encode())
            for key in (*REQUIRED, *OPTIONAL):
                if key in contents:
                    digest.update(contents[key][number].detach().contiguous().numpy().tobytes())
    if not train:
        raise InvalidSpec(
            f"data: {place}: no sequence to train on in a file that matches {', '.join(patterns)};"
            f" *_test.pt, totalcapture.pt and the other files of {FINE_TUNING}/ do not count; is it the right"
            " directory?"
        )
    cleaner.tell()
    return MotionSurvey(_grouped(train), tuple(test), digest.hexdigest())


class MotionFiles:
    """Opened files, the most recently used ones; it is pickled without them."""

    def __init__(self, count: int = OPEN_FILES, clean: Clean | None = None) -> None:
        self._clean = clean
        self._files: LruCache[Path, Contents] = LruCache(count)

    def read(self, recording: Recording, *, again: bool = False) -> Motion:
        """Return a sequence; ``again`` opens its file anew.

        Raises:
            InvalidSpec: the file has changed since the survey.
        """
        path, number = recording.path, int(recording.key or 0)
        contents = _open(path) if again else self._files.get(path, lambda: _open(path))
        found = len(contents["acc"])
        motion = _motion(path, contents, number, Cleaner(self._clean)) if number < found else None
        if motion is None or len(motion.translation_N3) != recording.samples:
            raise InvalidSpec(
                f"data: {recording.name}: not the {recording.samples} frames that were there when the"
                " training began; do not change recordings while they are in use"
            )
        return motion


def _files(place: Path, patterns: Sequence[str]) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise InvalidSpec(f"data: {place}: no such directory; give one that holds .pt files")
    found = sorted(path for path in place.rglob("*.pt") if path.is_file())
    return [path for path in found if _belongs(path.relative_to(place), patterns)]


def _belongs(path: Path, patterns: Sequence[str]) -> bool:
    for_others = FINE_TUNING in path.parts[:-1] and not _is_test(path)
    return not for_others and any(fnmatch(path.name, pattern) for pattern in patterns)


def _is_test(path: Path) -> bool:
    return any(fnmatch(path.name.lower(), pattern) for pattern in TESTS)


def _grouped(recordings: list[Recording]) -> tuple[Recording, ...]:
    """Return the sequences, each a group of its own if all lie in one file or folder."""
    if len({each.group for each in recordings}) > 1:
        return tuple(recordings)
    width = len(str(len(recordings)))
    return tuple(
        Recording(each.path, each.key, f"{number:0{width}}", each.samples)
        for number, each in enumerate(recordings)
    )


def _open(path: Path) -> Contents:
    """Return the lists of a file by key, all equally long; tensors stay on the disk until they are used."""
    try:
        mapped = zipfile.is_zipfile(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (OSError, *UNLOADABLE) as error:
        why = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise InvalidSpec(
            f"data: {path}: cannot be read as .pt: {why}; is it cut off, or does it hold more than tensors?"
        ) from error
    if not isinstance(loaded, dict):
        raise InvalidSpec(
            f"data: {path}: a {type(loaded).__name__}; it must be a dict with {', '.join(REQUIRED)}"
        )
    if missing := [key for key in REQUIRED if key not in loaded]:
        there = ", ".join(map(repr, loaded)) or "nothing"
        raise InvalidSpec(
            f"data: {path}: no key {missing[0]!r}; there are {there}; process the archive again"
        )
    keys = [*REQUIRED, *(key for key in OPTIONAL if loaded.get(key) is not None)]
    lists = {key: _list(path, key, loaded[key]) for key in keys}
    for key, entries in lists.items():
        if len(entries) != len(lists["acc"]):
            raise InvalidSpec(
                f"data: {path}[{key!r}]: {len(entries)} sequences where 'acc' has {len(lists['acc'])};"
                " process the archive again"
            )
    if not lists["acc"]:
        raise InvalidSpec(f"data: {path}['acc']: no sequence; remove the file")
    return lists


def _list(path: Path, key: str, value: object) -> Sequence[Any]:
    """Return the entries of a key; a single tensor is the only sequence of its file."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return value
    raise InvalidSpec(
        f"data: {path}[{key!r}]: a {type(value).__name__}; it must be a list of tensors, one per sequence"
    )


def _motion(path: Path, contents: Contents, number: int, cleaner: Cleaner) -> Motion:
    """Return a sequence after checking every value."""
    tensors = {key: _tensor(path, key, number, entries[number], cleaner) for key, entries in contents.items()}
    frames, first = len(tensors["acc"]), f"{path}['acc'][{number}]"
    for key, tensor in tensors.items():
        if len(tensor) != frames:
            raise InvalidSpec(
                f"data: {path}[{key!r}][{number}]: {len(tensor)} frames where {first} has {frames};"
                " cut both to the same frames"
            )
    sites = tensors["acc"].shape[1]
    if tensors["ori"].shape[1] != sites:
        raise InvalidSpec(
            f"data: {path}['ori'][{number}]: {tensors['ori'].shape[1]} sites where {first} has {sites};"
            " give both the same sites"
        )
    if not frames or not sites:
        fact = "no frames" if sites else "no sites"
        raise InvalidSpec(f"data: {first}: {fact}; remove the sequence from every key")
    joints = tensors.get("joint")
    return Motion(
        tensors["acc"],
        _rotations(path, "ori", number, tensors["ori"], sites),
        _rotations(path, "pose", number, tensors["pose"], JOINTS),
        tensors["tran"],
        None if joints is None else joints.reshape(-1, JOINTS, 3),
        None if (contact := tensors.get("contact")) is None else _feet(contact),
    )


def _feet(contact: Tensor) -> Tensor:
    """Return True if each foot stands; of four columns the first two are the left heel and toes."""
    return contact if contact.shape[1] == 2 else contact.unflatten(1, (2, 2)).amax(dim=2)


def _tensor(path: Path, key: str, number: int, value: object, cleaner: Cleaner) -> Tensor:
    """Return an entry as float32 of one of the shapes of its key, all its values finite."""
    where = f"data: {path}[{key!r}][{number}]"
    if not isinstance(value, Tensor):
        raise InvalidSpec(f"{where}: a {type(value).__name__}; it must be a tensor; remove the sequence")
    if value.is_complex() or value.layout != torch.strided:
        kind = value.dtype if value.is_complex() else value.layout
        raise InvalidSpec(f"{where}: type {kind}; it must hold real numbers")
    shapes = _SHAPES[key]
    if not any(_has_shape(value, shape) for shape in shapes):
        wanted = " or ".join("(" + ", ".join(map(str, shape)) + ")" for shape in shapes)
        raise InvalidSpec(f"{where}: shape {tuple(value.shape)}; it must be {wanted}")
    tensor = value.detach().to(torch.float32)
    if cleaner.rule is not None and not tensor.isfinite().all():
        tensor = torch.from_numpy(held(*cleaner.clean(tensor.numpy())))
    if not tensor.isfinite().all():
        place = [int(each) for each in (~tensor.isfinite()).nonzero()[0]]
        found = float(tensor[tuple(place)])
        raise InvalidSpec(
            f"{where}: frame {place[0]}, at {place[1:]}: {found}; repair it, cut it out, or set clean"
        )
    return tensor


def _has_shape(value: Tensor, shape: tuple[int | str, ...]) -> bool:
    return len(value.shape) == len(shape) and all(
        isinstance(wanted, str) or wanted == found for found, wanted in zip(value.shape, shape, strict=True)
    )


def _rotations(path: Path, key: str, number: int, value: Tensor, count: int) -> Tensor:
    """Return matrices of shape (frames, count, 3, 3), whatever notation the file has."""
    rotations = _NOTATIONS[value[0].numel() // count](value).reshape(-1, count, 3, 3)
    error = (rotations.transpose(-1, -2) @ rotations - torch.eye(3)).abs().amax((-1, -2))
    wrong = (error > SKEW) | (torch.linalg.det(rotations) < 0)
    if wrong.any():
        frame, place = (int(each) for each in wrong.nonzero()[0])
        what = "joint" if key == "pose" else "site"
        raise InvalidSpec(
            f"data: {path}[{key!r}][{number}]: frame {frame}, {what} {place}: not a rotation; matrices must"
            " be orthogonal and right-handed, quaternions (w, x, y, z) of length 1"
        )
    return rotations


_NOTATIONS: Final[Mapping[int, Callable[[Tensor], Tensor]]] = {
    9: lambda matrices: matrices,
    4: from_quaternions,
    3: lambda turns: from_axis_angles(turns.reshape(len(turns), -1, 3)),
}
"""Readers of a rotation, by the count of its numbers."""


def _require_sites(recording: Recording, motion: Motion, sites: int) -> None:
    found = motion.acceleration_NS3.shape[1]
    if found < sites:
        raise InvalidSpec(
            f"data: {recording.path}['acc'][{recording.key}]: {found} sites; the plan uses site {sites - 1},"
            " counted from 0; set workload.sites"
        )
