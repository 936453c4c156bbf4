"""Job files that tests submit: small trainings, and programs that only count."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class JobFiles:
    """Writes job files below a directory."""

    root: Path  # others may pass through it

    def file(self, name: str, directory: Path | None = None, **fields: object) -> Path:
        """Write a job file and return its path; JSON is YAML."""
        path = (directory or self.root) / f"{name}.yaml"
        path.write_text(json.dumps({"name": name, **fields}))
        path.chmod(0o644)
        return path

    def tireless(self) -> str:
        """Write a policy that resumes whatever happens, as often as it takes, and return its path."""
        path = self.root / "tireless.yaml"
        path.write_text(
            "policy: 1\n"
            "ceilings: {attempts: 1000, no_progress: 1000, storm: {attempts: 100, within: 1s}}\n"
            "on_exit: [{name: done, when: {exit.class: success}, do: finish},"
            " {name: again, when: {}, do: resume}]\n"
        )
        path.chmod(0o644)
        return str(path)

    def counting(self, name: str, steps: int = 40, *, every: int = 5, **fields: Any) -> Path:
        """Write a job file whose program counts; fields of environment and retry are merged."""
        environment = {"PERIOD_S": "0.05", **fields.pop("environment", {})}
        retry = {"backoff": "0s", **fields.pop("retry", {})}
        known = {
            "workload": {"kind": "causal_lm", "data": "stdlib", "steps": steps},
            "image": "counter",
            "resources": {"cpus": 1, "memory": "256MiB"},
            "checkpoint": {"every_steps": every, "keep": 3},
        }
        return self.file(name, **{**known, "environment": environment, "retry": retry, **fields})

    def training(self, name: str, steps: int = 40, *, every: int = 5, **fields: Any) -> Path:
        """Write a job file that really trains, on very little."""
        corpus = self.root / "corpus"
        if not corpus.exists():
            corpus.mkdir()
            for path in sorted(Path(json.__file__).parent.glob("*.py")):
                shutil.copy(path, corpus)
        workload = {
            "kind": "causal_lm",
            "data": str(corpus),
            "steps": steps,
            "batch_size": 4,
            "context": 32,
            "layers": 1,
            "heads": 2,
            "width": 32,
            "warmup_steps": 4,
            "eval_every": None,
            "log_every": 1,
            **fields.pop("workload", {}),
        }
        known = {
            "workload": workload,
            "profile": {"extends": "cpu", "threads": 1},
            "resources": {"cpus": 1, "memory": "2GiB"},
            "checkpoint": {"every_steps": every, "keep": 3},
            "retry": {"backoff": "0s"},
        }
        return self.file(name, **{**known, **fields})
