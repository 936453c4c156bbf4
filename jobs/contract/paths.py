"""Every file name below a run directory; nobody else writes one down."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JOB_DIR: Final = Path("/job")
"""The run directory as the container sees it."""

CHECKPOINT_NAME: Final = re.compile(r"step-(\d{8,12})")

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Owns every file name below a run directory.

    ``root`` is ``/job`` inside the container and ``<state>/jobs/<id>`` on the host.
    The runner makes the directories; only the leaves ``attempts/N``, ``lineages/L``
    and ``home`` belong to the job's uid.
    """

    root: Path
    attempt: int
    lineage: int

    @property
    def attempt_dir(self) -> Path:
        return self.root / "attempts" / str(self.attempt)

    @property
    def spec(self) -> Path:
        return self.attempt_dir / "spec.json"

    @property
    def effective(self) -> Path:
        return self.attempt_dir / "effective.json"

    @property
    def status(self) -> Path:
        return self.attempt_dir / "status.json"

    @property
    def metrics(self) -> Path:
        return self.attempt_dir / "metrics.jsonl"

    @property
    def result(self) -> Path:
        return self.attempt_dir / "result.json"

    @property
    def log(self) -> Path:
        return self.attempt_dir / "log.txt"

    @property
    def lineage_dir(self) -> Path:
        return self.root / "lineages" / str(self.lineage)

    @property
    def final_dir(self) -> Path:
        """The finished model, published like a checkpoint, before exit 0."""
        return self.lineage_dir / "final"

    @property
    def home(self) -> Path:
        return self.root / "home"


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def profiles_dir() -> Path:
    """Where the named profiles lie, one YAML file each."""
    return Path(__file__).parents[1] / "profiles"
