"""A small directory of recordings, and workloads upon it."""

from pathlib import Path

import numpy as np

from jobs.contract import Profile
from jobs.contract.plans.imu_stream import ImuStream
from jobs.training.switches import Switches
from jobs.workloads.imu_stream.workload import StreamedPoses
from jobs.workloads.protocol import BuildContext

SUBJECTS = ("a", "b", "c")
SAMPLES = (95, 60, 81, 64, 120, 20)
WINDOW = 20

WASTEFUL: dict[str, object] = {"conversion": "each_use", "shared_targets": False, "stream_buffer": 1}


def write_recordings(directory: Path) -> Path:
    """Fill a directory with six recordings of three subjects: a slow turn, gravity and noise."""
    generator = np.random.default_rng(0)
    (directory / "recordings").mkdir(parents=True)
    lines = ["file,subject,activity"]
    for number, samples in enumerate(SAMPLES):
        signal = generator.standard_normal((samples, 6)) * 0.3 + [0.1, 0.2, 0.9, 0.5, 0.0, -0.5]
        np.save(directory / f"recordings/{number}.npy", signal.astype(np.float32))
        lines.append(f"recordings/{number}.npy,{SUBJECTS[number // 2]},x")
    (directory / "index.csv").write_text("\n".join(lines) + "\n")
    return directory


def plan(directory: Path, **changes: object) -> ImuStream:
    small = {"batch_size": 12, "window": WINDOW, "hidden": 8, "shards": 2, "held_out": 0.34}
    return ImuStream.model_validate({"data": str(directory)} | small | changes)


def streamed(directory: Path, profile: dict[str, object] | None = None, **changes: object) -> StreamedPoses:
    return build(plan(directory, **changes), Switches(Profile.model_validate(profile or {})))


def build(asked: ImuStream, switches: Switches) -> StreamedPoses:
    return StreamedPoses(asked, BuildContext(seed=3, switches=switches))
