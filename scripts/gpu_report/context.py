"""Context of every part: the accelerator, a scratch directory and a deadline."""

import os
import random
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from jobs.contract import AttemptSpec, CheckpointPlan, Profile, profiles_dir
from runner.files.profiles.load import ProfileChoice, resolve_choice
from scripts.gpu_report.report import Finding, checked, measured

T = TypeVar("T")

CPUS: Final = 4.0
"""The CPU quota of each training, and so its number of threads, on every machine."""


class CannotMeasureHere(Exception):
    """A precondition is missing; the message says which, in one line."""


@dataclass(frozen=True, slots=True)
class Context:
    """The environment of one part."""

    rehearsal: bool
    directory: Path
    deadline: float
    """Seconds of ``time.monotonic``."""
    tiny: bool = False
    """Use the sizes of a rehearsal on a real device: a smoke test of about a minute."""
    seed: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(20261123))  # noqa: S311 - kill points, no secrets

    @property
    def accelerator(self) -> Literal["cuda", "cpu"]:
        return "cpu" if self.rehearsal else "cuda"

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def sized(self, real: T, tiny: T) -> T:
        """Return ``real``, or ``tiny`` in a rehearsal or smoke test."""
        return tiny if self.rehearsal or self.tiny else real

    def folder(self, name: str) -> Path:
        """Return a new directory that other users may traverse."""
        made = self.directory / name
        made.mkdir(parents=True, mode=0o755)
        return made

    def profile(self, name: str, **changes: Any) -> Profile:
        """Return a named profile with changes.

        A rehearsal does not compile, which would take minutes on a CPU.
        """
        if self.rehearsal:
            changes = {**changes, "compile": "off"}
        choice = ProfileChoice.model_validate({"extends": name, **changes})
        return resolve_choice(choice, profiles_dir(), self.accelerator)

    def spec(
        self, workload: Mapping[str, Any], profile: Profile, checkpoint: Mapping[str, Any] | None = None
    ) -> AttemptSpec:
        """Return the spec of the first attempt of a training."""
        return AttemptSpec.model_validate(
            {
                "job_id": "report",
                "attempt": 1,
                "lineage": 1,
                "seed": self.seed,
                "workload": dict(workload),
                "profile": profile,
                "checkpoint": CheckpointPlan.model_validate(checkpoint or {}),
                "accelerator": self.accelerator,
                "cpus": CPUS,
            }
        )


def against_target(context: Context, name: str, summary: str, /, *, good: bool, **figures: Any) -> Finding:
    """Return the finding of a speed with a target; tiny sizes are not judged."""
    if context.rehearsal or context.tiny:
        return measured(name, summary, **figures)
    return checked(name, summary, good=good, **figures)


def output_of(argv: Sequence[str], within_s: float, environ: Mapping[str, str] | None = None) -> str:
    """Return what a program prints.

    Raises:
        CannotMeasureHere: it fails, or takes too long.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            env=environ or environment(),
            timeout=max(within_s, 1.0),
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasureHere(f"{' '.join(argv[1:3])}: did not end in time") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise CannotMeasureHere(f"exit code {done.returncode}: {' / '.join(lines[-3:])}"[:1000])
    return done.stdout


class PartFunction(Protocol):
    """The function of a part: yields each finding as soon as it is known."""

    def __call__(self, context: Context) -> Iterator[Finding]: ...


def source_root() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """Return the environment variables of a program that imports this project."""
    return {**os.environ, "PYTHONPATH": str(source_root()), "PYTHONUNBUFFERED": "1", **more}
