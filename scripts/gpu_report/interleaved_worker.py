"""One arm of ``scripts.gpu_report.interleaved``: the trainer, which waits for a request before each turn."""

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from jobs.checkpoint.directory import Provenance
from jobs.checkpoint.saver import Checkpoints
from jobs.contract import AttemptSpec, RunPaths
from jobs.training import loop
from jobs.training.device import prepare
from jobs.training.phases import StepTime
from jobs.training.report import Reporter
from jobs.training.signals import StopRequests
from jobs.training.step import Training
from jobs.training.switches import Switches
from jobs.workloads.protocol import BuildContext, build
from scripts.gpu_report.interleaved import Ready, TurnRequest, TurnResult


class InterleavedTraining(Training):
    """A training that runs the requested number of steps and reports their time."""

    connection: Connection
    left: int = 0
    began: float | None = None
    loss: float | None = None

    def update(self, step: int) -> tuple[float | None, StepTime | None]:
        while self.left == 0:
            self._next_turn()
        self.left -= 1
        loss, took = super().update(step)
        self.loss = self.loss if loss is None else loss
        return loss, took

    def _next_turn(self) -> None:
        """Report the last turn and receive the next request."""
        if self.began is not None:
            self._settle()
            self.connection.send(TurnResult(time.perf_counter() - self.began, self.loss))
            self.began = None
        ask: TurnRequest = self.connection.recv()
        if ask.what == "steps":
            self.left = ask.count
            self._settle()
            self.began = time.perf_counter()
            return
        self._settle()
        began = time.perf_counter()
        for _ in range(ask.count):
            self.evaluate(StopRequests())
        self._settle()
        self.connection.send(TurnResult((time.perf_counter() - began) / ask.count, self.loss))

    def _settle(self) -> None:
        if self.device.torch_device.type == "cuda":
            torch.cuda.synchronize()


def train(connection: Connection, spec: AttemptSpec, directory: Path) -> None:
    """Train in turns until the parent closes the connection."""
    began = time.perf_counter()
    paths = RunPaths(directory, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True)
    reporter = Reporter(paths)
    reporter.begin()
    switches = Switches(spec.profile)
    device = prepare(spec, switches)
    plan: Any = spec.workload
    workload = build(plan, BuildContext(spec.seed, switches, paths.home / "cache"))
    training = InterleavedTraining(spec, plan, workload, device, switches)
    training.connection = connection
    reporter.progress.total_steps = plan.steps
    provenance = Provenance(spec.job_id, 1, 1, 1, training.signatures, training.environment())
    with Checkpoints(
        paths.lineage_dir, spec.checkpoint, provenance, reporter, in_background=True
    ) as checkpoints:
        requests = StopRequests()
        loop._rehearse(training, checkpoints, reporter, requests)  # noqa: SLF001 - the dry run of the trainer
        effective = training.effective().model_dump(mode="json")
        connection.send(Ready(effective, workload.items_per_step, time.perf_counter() - began))
        loop.train(training, checkpoints, reporter, requests)
