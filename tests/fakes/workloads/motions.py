"""Writes small folders in the layouts in which motion capture archives are kept for training.

Nothing of an archive is in them: the motions are made up.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from jobs.data.skeleton import global_rotations, joint_positions, own_bones
from jobs.workloads.imu_stream.body.synthetic import make_motion

Contents: TypeAlias = dict[str, Any]

RATE_HZ: Final = 30.0


def sequences(first: int, count: int, frames: int = 60) -> Contents:
    """Return the contents of a file with everything that a processed AMASS archive has."""
    made = [make_motion(number, frames + 7 * number, RATE_HZ) for number in range(first, first + count)]
    joints = [
        joint_positions(global_rotations(each.pose_NJ33), own_bones()) + each.translation_N3[:, None]
        for each in made
    ]
    return {
        "acc": [each.acceleration_NS3 for each in made],
        "ori": [each.orientation_NS33 for each in made],
        "pose": [each.pose_NJ33 for each in made],
        "tran": [each.translation_N3 for each in made],
        "joint": joints,
        "contact": [torch.zeros(len(each.translation_N3), 2) for each in made],
        "shape": [torch.zeros(10) for _ in made],
    }


def write_amass(directory: Path) -> Path:
    """Write a folder as of AMASS: a file for each of three archives, and sets for fine-tuning and tests."""
    (directory / "eval").mkdir(parents=True)
    for number, name in enumerate(("ACCAD", "BMLmovi", "CMU")):
        torch.save(sequences(3 * number, 3), directory / f"{name}.pt")
    torch.save(without(sequences(9, 3), *ONLY_OF_AMASS), directory / "eval" / "dip_train.pt")
    return directory


def write_totalcapture(directory: Path) -> Path:
    """Write a folder as of TotalCapture: a folder for each subject, no joints and no contacts."""
    for number, name in enumerate(("s1", "s2", "s3")):
        (directory / name).mkdir(parents=True)
        for take in range(2):
            contents = without(sequences(2 * number + take, 1), *ONLY_OF_AMASS)
            torch.save(contents, directory / name / f"walking{take + 1}.pt")
    return directory


def amass_file(directory: Path) -> tuple[Path, Contents]:
    """Return the place of one file of such a folder of AMASS, and contents for it with three sequences."""
    return write_amass(directory) / "CMU.pt", sequences(0, 3)


def fine_tuning_file(directory: Path) -> tuple[Path, Contents]:
    """Return the place of a set for fine-tuning in the folder that a job names, and contents for it."""
    return write_amass(directory) / "eval" / "dip_train.pt", without(sequences(0, 3), *ONLY_OF_AMASS)


def totalcapture_file(directory: Path) -> tuple[Path, Contents]:
    """Return the place of one take in such a folder of TotalCapture, and contents with three sequences."""
    return write_totalcapture(directory) / "s2" / "walking2.pt", without(sequences(0, 3), *ONLY_OF_AMASS)


ONLY_OF_AMASS: Final = ("joint", "contact", "shape")


def without(contents: Contents, *keys: str) -> Contents:
    """Return the contents without some keys."""
    return {key: value for key, value in contents.items() if key not in keys}


def _entry(key: str, number: int, change: Callable[[Any], Any]) -> Callable[[Contents], Contents]:
    def broken(contents: Contents) -> Contents:
        changed = list(contents[key])
        changed[number] = change(changed[number].clone())
        return {**contents, key: changed}

    return broken


def _with(value: float, *place: int) -> Callable[[Any], Any]:
    def changed(tensor: Any) -> Any:
        tensor[place] = value
        return tensor

    return changed


BROKEN: Final[dict[str, tuple[Callable[[Contents], Any], str]]] = {
    "no dict": (lambda contents: contents["acc"], "a list; it must be a dict with acc, ori, pose, tran"),
    "no orientations": (
        lambda contents: without(contents, "ori"),
        "no key 'ori'; there are 'acc', 'pose', 'tran'{others}; process the archive again",
    ),
    "a number in place of a list": (
        lambda contents: {**contents, "pose": 3},
        "['pose']: a int; it must be a list of tensors, one per sequence",
    ),
    "a list that ends early": (
        lambda contents: {**contents, "tran": contents["tran"][:2]},
        "['tran']: 2 sequences where 'acc' has 3; process the archive again",
    ),
    "no sequences": (
        lambda contents: {key: [] for key in contents},
        "['acc']: no sequence; remove the file",
    ),
    "a sequence that is none": (
        _entry("ori", 1, lambda _: None),
        "['ori'][1]: a NoneType; it must be a tensor; remove the sequence",
    ),
    "fewer frames": (
        _entry("pose", 2, lambda tensor: tensor[:-1]),
        "['pose'][2]: 73 frames where {path}['acc'][2] has 74; cut both to the same frames",
    ),
    "another number of joints": (
        _entry("pose", 0, lambda tensor: tensor[:, :22]),
        (
            "['pose'][0]: shape (60, 22, 3, 3); it must be (frames, 24, 3, 3) or (frames, 216)"
            " or (frames, 72) or (frames, 24, 3)"
        ),
    ),
    "fewer orientations than accelerations": (
        _entry("ori", 1, lambda tensor: tensor[:, :5]),
        "['ori'][1]: 5 sites where {path}['acc'][1] has 6; give both the same sites",
    ),
    "a hole": (
        _entry("acc", 1, _with(float("nan"), 17, 3, 2)),
        "['acc'][1]: frame 17, at [3, 2]: nan; repair it, cut it out, or set clean",
    ),
    "a mirrored joint": (
        _entry("pose", 2, lambda tensor: torch.cat([tensor[:5], -tensor[5:]])),
        (
            "['pose'][2]: frame 5, joint 0: not a rotation; matrices must be orthogonal and right-handed,"
            " quaternions (w, x, y, z) of length 1"
        ),
    ),
    "no frames": (
        lambda contents: {key: [each[:0] for each in value] for key, value in contents.items()},
        "['acc'][0]: no frames; remove the sequence from every key",
    ),
    "too few sites": (
        lambda contents: {
            **contents,
            **{key: [each[:, :3] for each in contents[key]] for key in ("acc", "ori")},
        },
        "['acc'][0]: 3 sites; the plan uses site 4, counted from 0; set workload.sites",
    ),
}
"""How a file with three sequences can be broken, and what is said after its path."""
