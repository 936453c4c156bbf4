"""A run directory as the runner would make it, with a training that takes a tenth of a second."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.__main__ import main
from jobs.contract import AttemptSpec, Result, RunPaths, Status, verify
from jobs.training.phases import StepTime
from jobs.training.step import Training

TINY = {
    "kind": "causal_lm",
    "steps": 8,
    "batch_size": 3,
    "context": 8,
    "layers": 1,
    "heads": 2,
    "width": 8,
    "dropout": 0.2,
    "warmup_steps": 2,
    "eval_every": None,
    "eval_batches": 2,
    "log_every": 2,
}


@dataclass
class JobDir:
    """One job's run directory; ``attempt`` writes the next attempt's spec, ``train`` also runs it."""

    root: Path
    corpus: Path
    attempts: int = 0

    def attempt(self, **changes: object) -> RunPaths:
        """Write the spec of the next attempt; dictionaries are merged into its sections."""
        self.attempts += 1
        spec = self.spec(**changes)
        paths = RunPaths(self.root, self.attempts, spec.lineage)
        paths.attempt_dir.mkdir(parents=True)
        paths.lineage_dir.mkdir(parents=True, exist_ok=True)
        paths.spec.write_text(spec.model_dump_json())
        return paths

    def spec(self, **changes: object) -> AttemptSpec:
        sections = {
            "workload": _merged({**TINY, "data": str(self.corpus)}, changes.pop("workload", {})),
            "checkpoint": _merged({"every_steps": 2}, changes.pop("checkpoint", {})),
        }
        known = {"job_id": "j1", "attempt": max(1, self.attempts), "lineage": 1, "seed": 3}
        return AttemptSpec.model_validate(known | sections | changes)

    def train(self, **changes: object) -> int:
        """Run the next attempt and return its exit status."""
        return self.run(self.attempt(**changes))

    def run(self, paths: RunPaths) -> int:
        return main(
            ["--root", str(self.root), "--attempt", str(paths.attempt), "--lineage", str(paths.lineage)]
        )

    def result(self, attempt: int | None = None) -> Result:
        paths = RunPaths(self.root, attempt or self.attempts, 1)
        return Result.model_validate_json(paths.result.read_bytes())

    def status(self) -> Status:
        return Status.model_validate_json(RunPaths(self.root, self.attempts, 1).status.read_bytes())

    def run_weights(self, lineage: int = 1) -> str | None:
        """Return the digest of the finished model of a lineage."""
        return verify(RunPaths(self.root, 1, lineage).final_dir).state_sha256

    def metrics(self) -> list[dict[str, Any]]:
        lines = RunPaths(self.root, self.attempts, 1).metrics.read_text().splitlines()
        return [json.loads(line) for line in lines]

    def lineage(self, number: int = 1) -> Path:
        return RunPaths(self.root, 1, number).lineage_dir

    def names(self, number: int = 1) -> set[str]:
        """Return the visible names in a lineage."""
        return {path.name for path in self.lineage(number).iterdir() if not path.name.startswith(".")}

    def state_sha256(self, step: int, number: int = 1) -> str | None:
        return verify(self.lineage(number) / f"step-{step:08d}").state_sha256


def _merged(base: dict[str, Any], change: object) -> dict[str, Any]:
    assert isinstance(change, dict)
    left_out = {"steps"} if "epochs" in change else set()
    return {**{key: value for key, value in base.items() if key not in left_out}, **change}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Put back what a training in this process changes for good."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=False)
    torch.autograd.set_detect_anomaly(mode=False)
    torch.set_default_device(None)
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp('it\'s a "corpus"\n; echo')
    for path in Path(json.__file__).parent.glob("*.py"):
        shutil.copy(path, directory)
    return directory


@pytest.fixture
def job(tmp_path: Path, corpus: Path) -> JobDir:
    return JobDir(tmp_path / "run dir", corpus)


@pytest.fixture
def before_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, Callable[[], None]]], None]:
    """Return a function that arranges for something to happen in the outside world as a step begins."""
    update = Training.update

    def arrange(events: dict[int, Callable[[], None]]) -> None:

        def disturbed(self: Training, step: int) -> tuple[float | None, StepTime | None]:
            events.get(step, lambda: None)()
            return update(self, step)

        monkeypatch.setattr(Training, "update", disturbed)

    return arrange
