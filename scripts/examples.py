"""Every example as it is shipped, with the commands of a user: how long it takes, and what it beats.

Each file of ``examples/`` is submitted alone with ``runner submit FILE --wait``, after ``runner data
prepare`` of the set that it reads.  The table shows its metric beside that of the trivial predictor on the
same rows; for a program, the mean loss of its last steps beside the variance of what it fits.
The exit code is 1 if an example fails, does not beat the trivial predictor, or takes longer than two minutes.
Names of examples as arguments choose some of them.  ``EXCLUDED`` says which files are left out, and why.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts import image

ROOT: Final = Path(__file__).parent.parent
EXAMPLES: Final = ROOT / "examples"
RUNNER: Final = str(Path(sys.executable).with_name("runner"))
STATE: Final = Path(os.environ.get("RUNNER_STATE_DIR") or ROOT / ".make" / "examples")
LIMIT_S: Final = 120.0
"""The longest that an example may take on two CPU cores."""

VARIANCE: Final = 32.0
"""Of the targets of ``examples/programs``, sums of 16 squares of normal numbers: the error of their mean."""

LAST: Final = 50
"""Steps at the end of a program whose losses are averaged."""


@dataclass(frozen=True, slots=True)
class Example:
    """Measure of an example; None: it trains nothing."""

    metric: str | None = "eval_loss"
    higher: bool = False
    trivial: float | None = None
    """None: the workload reports it as ``baseline_METRIC``."""
    prepare: str | None = None
    """The data set that it reads."""


RUN: Final[Mapping[str, Example]] = {
    "causal_lm": Example(),
    "causal_lm_minimal": Example(),
    "causal_lm_text": Example(),
    "demo": Example(),
    "evaluate": Example(metric=None),
    "with_everything": Example(),
    "matrix": Example(),
    "program": Example("loss", trivial=VARIANCE),
    "distributed": Example("loss", trivial=VARIANCE),
    "graph_forecast": Example(prepare="sp500-stocks"),
    "graph_forecast_panel": Example(),
    "imu_stream": Example("eval_mse", prepare="watch"),
    "imu_stream_body": Example("eval_joints_cm"),
    "imu_stream_body_poser": Example("eval_angle_deg"),
    "imu_stream_body_foot_contact": Example("eval_contact_loss"),
    "imu_stream_body_velocity": Example("eval_velocity_m_s"),
    "imu_stream_body_finetune": Example("eval_angle_deg"),
    "pair_classifier": Example("accuracy", higher=True, prepare="solubility"),
    "pair_classifier_sequence": Example("accuracy", higher=True, prepare="solubility"),
    "resident_transformer": Example(prepare="index-ohlcv"),
    "resident_transformer_annotations": Example(),
}
"""In this order: a job comes after those that it waits for."""

NEEDS_A_GPU: Final = "asks for a GPU"

EXCLUDED: Final[Mapping[str, str]] = {
    "causal_lm_gpu": NEEDS_A_GPU,
    "graph_forecast_gpu": NEEDS_A_GPU,
    "imu_stream_gpu": NEEDS_A_GPU,
    "pair_classifier_gpu": NEEDS_A_GPU,
    "pair_classifier_pretrained": NEEDS_A_GPU,
    "resident_transformer_annotations_gpu": NEEDS_A_GPU,
    "resident_transformer_gpu": NEEDS_A_GPU,
    "sweep": "27 of the same as causal_lm, with other rates: make demo-sweep",
    "nightly": "makes a schedule: its job is submitted at half past two",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Outcome of one job of an example."""

    name: str
    state: str
    seconds: float
    example: Example
    metrics: Mapping[str, Any]

    @property
    def reached(self) -> float | None:
        value = self.metrics.get(self.example.metric or "")
        return None if value is None else float(value)

    @property
    def trivial(self) -> float | None:
        known = self.example.trivial
        value = self.metrics.get(f"baseline_{self.example.metric}") if known is None else known
        return None if value is None else float(value)

    @property
    def better(self) -> bool | None:
        """Return True if it beats the trivial predictor; None: it trains nothing."""
        if self.example.metric is None:
            return None
        if self.reached is None or self.trivial is None:
            return False
        return self.reached > self.trivial if self.example.higher else self.reached < self.trivial

    @property
    def good(self) -> bool:
        return self.state == "succeeded" and self.better is not False and self.seconds <= LIMIT_S

    def cells(self) -> str:
        """Return the row as a line of a Markdown table."""
        numbers = ["-" if each is None else f"{each:.4g}" for each in (self.reached, self.trivial)]
        better = {True: "yes", False: "NO", None: "-"}[self.better]
        metric = f"`{self.example.metric}`" if self.example.metric else "-"
        cells = (f"`{self.name}`", self.state, f"{self.seconds:.0f}", metric, *numbers, better)
        return f"| {' | '.join(cells)} |"


def runner(*arguments: str) -> tuple[int, str]:
    """Run a command as a user would; return its exit code and output."""
    print(f"$ runner {' '.join(arguments)}", file=sys.stderr, flush=True)
    done = subprocess.run([RUNNER, *arguments], check=False, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return done.returncode, done.stdout


def last_loss(run_dir: Path, attempt: int) -> dict[str, float]:
    """Return the mean loss of the last steps that a program reported; nothing if it reported none."""
    file = run_dir / "attempts" / str(attempt) / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    losses = [float(line["loss"]) for line in lines if "loss" in line][-LAST:]
    return {"loss": sum(losses) / len(losses)} if losses else {}


def submitted(said: str) -> dict[str, str]:
    """Return the names of the jobs that a submission has made, by their ids."""
    cells = (line.split("\t") for line in said.splitlines())
    return {each[0]: each[1] for each in cells if len(each) == 2}


def train(name: str) -> list[Row]:
    """Submit an example, wait for it, and return a row for each of its jobs."""
    file, example = EXAMPLES / f"{name}.yaml", RUN[name]
    if example.prepare is not None and runner("data", "prepare", example.prepare)[0] != 0:
        return [Row(name, f"no {example.prepare}", 0.0, example, {})]
    began = time.monotonic()
    code, said = runner("submit", str(file.relative_to(ROOT)), "--wait")
    seconds = time.monotonic() - began
    if code != 0:
        print(said, file=sys.stderr, flush=True)
    rows = []
    jobs = submitted(said)
    for job_id, job in jobs.items():
        found = json.loads(runner("show", job_id, "--json")[1])
        metrics = (found["result"] or {}).get("metrics") or {}
        if example.trivial is not None:
            metrics = metrics | last_loss(Path(found["run_dir"]), found["attempt"])
        title = name if len(jobs) == 1 else f"{name}: {job}"
        rows.append(Row(title, str(found["outcome"] or found["state"]), seconds, example, metrics))
    return rows or [Row(name, "refused", seconds, example, {})]


def main() -> int:
    os.environ["RUNNER_STATE_DIR"] = str(STATE)
    image.main()  # so that no example waits for it
    chosen = sys.argv[1:] or list(RUN)
    if unknown := [name for name in chosen if name not in RUN]:
        sys.exit(f"examples: {unknown[0]}: {EXCLUDED.get(unknown[0], 'there is no such example')}")
    runner("list")  # starts the daemon
    print(
        "| example | ended | seconds | metric | reached | trivial | better |\n|---|---|---|---|---|---|---|"
    )
    rows = []
    try:
        for name in RUN:
            for row in train(name) if name in chosen else ():
                print(row.cells(), flush=True)
                rows.append(row)
    finally:
        runner("stop")
    for name, why in EXCLUDED.items():
        print(f"not run: {name}: {why}", file=sys.stderr)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
