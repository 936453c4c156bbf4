"""Restart latency after SIGKILL by phase, and the stall of a checkpoint.

The attempts are complete processes, because the import of torch is part of a restart.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jobs.contract import STDLIB, AttemptSpec, RunPaths
from scripts.gpu_report.context import CannotMeasureHere, Context, environment
from scripts.gpu_report.near_limit import REAL, TINY
from scripts.gpu_report.report import Finding, measured, not_run

TITLE: Final = "restart latency and checkpoint stall"

STEPS: Final = 100_000
"""Never reached: the attempts are killed."""
SAVE_AT: Final = 10
POLL_S: Final = 0.002

BILLION: Final[Mapping[str, Any]] = {
    "batch_size": 4,
    "context": 512,
    "layers": 20,
    "heads": 16,
    "width": 2048,
}
"""1.0 billion parameters, 12 GB of weights and moments."""


@dataclass(slots=True)
class Run:
    """One training whose attempts are complete processes."""

    root: Path
    spec: AttemptSpec
    caches: Path
    attempts: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the next attempt, and return the time."""
        self.attempts += 1
        paths = RunPaths(self.root, self.attempts, 1)
        for each in (paths.attempt_dir, paths.lineage_dir, paths.home):
            each.mkdir(parents=True, exist_ok=True)
        paths.spec.write_text(self.spec.model_copy(update={"attempt": self.attempts}).model_dump_json())
        known = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"),
            "TRITON_CACHE_DIR": str(self.caches / "triton"),
        }
        argv = [
            sys.executable,
            "-m",
            "jobs",
            "--root",
            str(self.root),
            "--attempt",
            str(self.attempts),
            "--lineage",
            "1",
        ]
        began = time.monotonic()
        with paths.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=log, env=environment(**known), start_new_session=True
            )
        return began

    def seen(self, words: tuple[str, ...], began: float, limit_s: float) -> dict[str, float]:
        """Return the seconds until each of these line beginnings appeared in the log.

        Raises:
            CannotMeasureHere: the attempt ended before the last one, or the timeout passed.
        """
        found: dict[str, float] = {}
        log = RunPaths(self.root, self.attempts, 1).log
        while words[-1] not in found:
            lines = log.read_text(errors="replace").splitlines()
            now = time.monotonic() - began
            for word in words:
                if word not in found and any(line.startswith(word) for line in lines):
                    found[word] = now
            if self.process is not None and self.process.poll() is not None and words[-1] not in found:
                raise CannotMeasureHere(
                    f"{self.root.name}: the attempt ended: {' / '.join(lines[-3:])}"[:1500]
                )
            if now > limit_s:
                self.kill()
                raise CannotMeasureHere(f"{self.root.name}: {words[-1]!r} not logged in {limit_s:.0f} s")
            time.sleep(POLL_S)
        return found

    def kill(self) -> float:
        """Kill the attempt, and return the time when it was gone."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return time.monotonic()


def run(context: Context) -> Iterator[Finding]:
    """Yield restarts without and with compilation, then the stall of saves."""
    rows: list[dict[str, Any]] = []
    for name, changes in context.sized(KINDS, KINDS[:1]):
        try:
            rows += _restarts(context, name, changes)
        except CannotMeasureHere as error:
            yield not_run(f"restart, {name}", str(error))
    if rows:
        summary = "; ".join(f"{row['attempt']}: {row['first step s']:.1f} s" for row in rows)
        yield measured("from SIGKILL (or start) to the first step", summary, rows=rows)
    saves: list[dict[str, Any]] = []
    for size in context.sized(SIZES, SIZES[:1]):
        for way, background in (("in the background", True), ("waited for", False)):
            try:
                found = _stall(context, size, background=background)
                saves.append({"parameters": size.name, "save": way, **found})
            except CannotMeasureHere as error:
                yield not_run(f"checkpoint of {size.name}, {way}", str(error))
    if saves:
        summary = "; ".join(f"{row['parameters']}, {row['save']}: {row['stall ms']:,.0f} ms" for row in saves)
        yield measured("stall of the training by one save", summary, rows=saves)


def _restarts(context: Context, name: str, changes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the phases of a first attempt, and of a second one after SIGKILL."""
    run = Run(
        context.folder(f"restart-{name}".replace(" ", "-")),
        _spec(context, context.sized(REAL, TINY), changes),
        context.folder(f"caches-{name}".replace(" ", "-")),
    )
    began = run.start()
    try:
        yield _phases(run, Start(f"{name}, first attempt", began, None), context.left_s)
        run.seen((f"checkpoint of step {SAVE_AT} saved",), began, context.left_s)
        began = time.monotonic()
        gone = run.kill()
        run.start()
        yield _phases(run, Start(f"{name}, after SIGKILL", began, gone), context.left_s)
    finally:
        run.kill()


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an attempt: when its time begins, and when its predecessor was gone."""

    name: str
    began: float
    gone: float | None


def _phases(run: Run, start: Start, limit_s: float) -> dict[str, Any]:
    """Return the seconds of each phase since the start, or since SIGKILL.

    The first step is any: an attempt that was killed late has saved more than once.
    """
    resumed = "resumed from" if start.gone else "job "
    marks = run.seen(("job ", resumed, "step "), start.began, limit_s)
    effective = json.loads(RunPaths(run.root, run.attempts, 1).effective.read_text())
    return {
        "attempt": start.name,
        "process gone s": None if start.gone is None else start.gone - start.began,
        "spec read s": marks["job "],
        "resumed s": marks.get("resumed from"),
        "first step s": marks["step "],
        "graphs": effective.get("compile_graphs"),
    }


def _spec(
    context: Context, plan: Mapping[str, Any], changes: Mapping[str, Any], every: int = SAVE_AT
) -> AttemptSpec:
    include = context.sized({}, {"include": ("a*.py",)})
    workload = {
        "kind": "causal_lm",
        "data": STDLIB,
        **include,
        **plan,
        "steps": STEPS,
        "eval_every": None,
        "log_every": 1,
    }
    return context.spec(
        workload, context.profile("cuda-ampere", **changes), {"every_steps": every, "keep": 2}
    )


@dataclass(frozen=True, slots=True)
class Size:
    """A model size, the steps between two saves, and the number of saves."""

    name: str
    plan: Mapping[str, Any]
    every: int
    saves: int


KINDS: Final = (("not compiled", {"compile": "off"}), ("compiled", {"compile": "default"}))

SIZES: Final = (
    Size("124 M", {**REAL, "batch_size": 4}, every=150, saves=3),
    Size("1 B", BILLION, every=10, saves=1),
)


def _stall(context: Context, size: Size, *, background: bool) -> dict[str, Any]:
    """Return the median stall of a save, as the trainer reports it."""
    changes = {"compile": "off", "async_save": background, "loader_workers": 0}
    spec = _spec(context, context.sized(size.plan, TINY), changes, context.sized(size.every, 20))
    slug = f"save-{size.name}-{'background' if background else 'waited'}".replace(" ", "-")
    run = Run(context.folder(slug), spec, context.directory / "caches-saves")
    paths = RunPaths(run.root, 1, 1)
    began = run.start()
    saved = context.sized(size.every, 20) * size.saves
    try:
        run.seen((f"checkpoint of step {saved} saved",), began, min(context.left_s, 120))
        status = _status(paths, saved, context)
        bytes_ = max((file.stat().st_size for file in paths.lineage_dir.glob("step-*/state.pt")), default=0)
    finally:
        run.kill()
        shutil.rmtree(paths.lineage_dir)
    return {"stall ms": status["save_stall_s"] * 1000, "MiB": bytes_ / 2**20}


def _status(paths: RunPaths, saved: int, context: Context) -> dict[str, Any]:
    """Return the status of the trainer once it contains a save.

    Raises:
        CannotMeasureHere: the timeout passed.
    """
    until = time.monotonic() + min(context.left_s, 20)
    while time.monotonic() < until:
        status: dict[str, Any] = json.loads(paths.status.read_text())
        if (status.get("checkpoint_step") or 0) >= saved and status.get("save_stall_s") is not None:
            return status
        time.sleep(POLL_S)
    raise CannotMeasureHere(f"{paths.root.name}: no save in the status")
