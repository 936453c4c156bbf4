"""All file names below a run directory; no other module defines one."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Final

JOB_DIR: Final = Path("/job")
"""The run directory as the container sees it."""

CHECKPOINT_NAME: Final = re.compile(r"step-(\d{8,12})")

BEST_NAME: Final = re.compile(r"best-(\d{8,12})")
"""The weights of the best evaluation so far."""

FINAL_NAME: Final = re.compile("final")
"""The weights of the finished model."""

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True)
class RunPaths:
    """The paths of all files below a run directory.

    ``root`` is ``/job`` inside the container and ``<state>/jobs/<id>`` on the host.
    The runner creates the directories.  Only the leaves ``attempts/N``, ``lineages/L``,
    ``homes/L``, ``work/L`` and ``cache`` are owned by the job's uid.
    """

    root: Path
    attempt: int
    lineage: int

    STATUS: ClassVar = "status.json"
    METRICS: ClassVar = "metrics.jsonl"
    EFFECTIVE: ClassVar = "effective.json"
    RESULT: ClassVar = "result.json"
    REPORTS: ClassVar = (STATUS, METRICS, EFFECTIVE, RESULT)
    """The files that only some programs write."""

    LEFT: ClassVar = "left.txt"

    @cached_property
    def attempt_dir(self) -> Path:
        return self.root.joinpath("attempts", str(self.attempt))

    def _of_attempt(self, name: str) -> Path:
        return self.attempt_dir / name

    @cached_property
    def spec(self) -> Path:
        return self._of_attempt("spec.json")

    @cached_property
    def effective(self) -> Path:
        return self._of_attempt(self.EFFECTIVE)

    @cached_property
    def status(self) -> Path:
        return self._of_attempt(self.STATUS)

    @cached_property
    def metrics(self) -> Path:
        return self._of_attempt(self.METRICS)

    @cached_property
    def result(self) -> Path:
        return self._of_attempt(self.RESULT)

    @cached_property
    def trace(self) -> Path:
        """The trace of ``torch.profiler``; the name is one that TensorBoard recognises."""
        return self._of_attempt("steps.pt.trace.json.gz")

    @cached_property
    def trace_summary(self) -> Path:
        return self._of_attempt("trace.json")

    @cached_property
    def log(self) -> Path:
        return self._of_attempt("log.txt")

    def rank_log(self, rank: int) -> Path:
        """Return the log of one of several processes; the first one writes that of the attempt."""
        return self.attempt_dir / f"rank-{rank}.log.txt" if rank else self.log

    @cached_property
    def left(self) -> Path:
        """The names of the processes that the program has left running, one a line; they end with it."""
        return self._of_attempt(self.LEFT)

    @cached_property
    def terminals(self) -> Path:
        """The sockets of the terminals that are held in the attempt."""
        return self._of_attempt("terminals")

    def inside_program(self, name: str) -> Path:
        """Return the copy of a program that the runner starts beside the job's; the job cannot change it."""
        return self.root / "attempts" / f"{self.attempt}.{name}.py"

    @cached_property
    def lineage_dir(self) -> Path:
        return self.root.joinpath("lineages", str(self.lineage))

    @cached_property
    def work_dir(self) -> Path:
        """The working directory of the lineage: the code as submitted, and what programs write there."""
        return self.root.joinpath("work", str(self.lineage))

    @cached_property
    def final_dir(self) -> Path:
        """The finished model, published like a checkpoint, before exit 0."""
        return self.lineage_dir / "final"

    @cached_property
    def home(self) -> Path:
        """A link to ``homes/L``, the home directory of the lineage of the present attempt."""
        return self.root / "home"

    @cached_property
    def cache(self) -> Path:
        """Compiled code and downloads, which all lineages share."""
        return self.root / "cache"


@dataclass(frozen=True)
class RankPaths(RunPaths):
    """The same for one of several processes that does not lead: its reports lie apart from the attempt's."""

    rank: int

    def _of_attempt(self, name: str) -> Path:
        return super()._of_attempt(f"rank-{self.rank}.{name}" if name in self.REPORTS else name)


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def inside_source(name: str) -> str:
    """Return the text of a program of ``jobs.inside``, which runs in any image that has a Python."""
    return (Path(__file__).parents[1] / "inside" / f"{name}.py").read_text()


_PROFILES: Final = Path(__file__).parents[1] / "profiles"


def profiles_dir() -> Path:
    """Return the directory of the named profiles, one YAML file each."""
    return _PROFILES
