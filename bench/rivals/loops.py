"""One training in two loops: the trainer of this project, and a hand-written loop.

Model, loss, batches, optimiser, clipping, learning rates and logging are the same objects and
numbers for all; dropout is off, so that seeds do not matter and every loop must end with the
same weights.  Only the processes of ``bench.support.lockstep`` import it: it needs torch.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import Dataset

from bench.support.lockstep import Setup, StepGate, TrainingResult
from jobs.checkpoint.directory import Provenance
from jobs.checkpoint.saver import Checkpoints
from jobs.checkpoint.state import Plain, weights_sha256
from jobs.contract import RunPaths
from jobs.contract.plans.causal_lm import CausalLm
from jobs.training import batches
from jobs.training.batches import Batch
from jobs.training.device import Device, prepare
from jobs.training.loop import train
from jobs.training.lr_schedule import learning_rate
from jobs.training.optimizer import BETAS
from jobs.training.report import Reporter
from jobs.training.signals import StopRequests
from jobs.training.step import Training
from jobs.training.switches import Switches
from jobs.workloads.causal_lm import CausalLanguageModel
from jobs.workloads.protocol import BuildContext


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """The parts common to all loops."""

    plan: CausalLm
    workload: CausalLanguageModel
    device: Device
    switches: Switches

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss over all items, as the trainer does."""
        return self.workload.loss_sum(batch) / self.workload.count(batch)

    def optimizer(self, rate: float) -> torch.optim.Optimizer:
        wanted = self.switches.profile.optimizer
        return torch.optim.AdamW(
            self.workload.parameter_groups(),
            lr=rate,
            betas=BETAS,
            fused=wanted == "fused",
            foreach=wanted == "foreach",
        )

    def scheduled(self) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        """Return optimiser and schedule in the form that frameworks take; the values are the same."""
        optimizer = self.optimizer(1.0)
        rate: Callable[[int], float] = lambda step: learning_rate(self.plan, step)  # noqa: E731
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def place(self) -> None:
        """Move the model to the device, and compile it if the profile says so."""
        model, profile = self.workload.model, self.switches.profile
        model.to(self.device.torch_device)
        if profile.compile != "off":
            model.compile(mode=profile.compile, dynamic=profile.compile_dynamic)

    def sent(self, batch: Batch) -> Batch:
        """Return the batch sent to the device, by the fastest available transfer."""
        if batches.device_of(batch) == self.device.torch_device:
            return batch
        return batches.to(batches.pin(batch), self.device.torch_device, non_blocking=True)

    @torch.inference_mode()
    def ended(self) -> TrainingResult:
        self.workload.model.eval()
        with self.device.autocast():
            loss = self.loss(self.sent(self.workload.source.held_out(0)))
        return TrainingResult(float(loss), weights_sha256(self.workload.model.state_dict()))


def prepare_training(setup: Setup, gate: StepGate) -> TrainingParts:
    """Return model, data and settings, with the initial weights."""
    plan, switches = setup.spec.workload, Switches(setup.spec.profile)
    if not isinstance(plan, CausalLm):
        raise TypeError(f"{plan.kind}: loops are compared on causal_lm")
    device = prepare(setup.spec, switches)
    if device.torch_device.type == "cuda":
        gate.settle = torch.cuda.synchronize
    return TrainingParts(
        plan, CausalLanguageModel(plan, BuildContext(setup.spec.seed, switches)), device, switches
    )


class GatedSource:
    """A source of batches that passes the gate before each batch."""

    def __init__(self, source: Any, gate: StepGate) -> None:
        self._source, self._gate = source, gate
        self.held_out = source.held_out
        self.resident_bytes = source.resident_bytes

    def batch(self, step: int) -> Batch:
        self._gate.wait_at(step)
        batch: Batch = self._source.batch(step)
        return batch


class StepDataset(Dataset[Batch]):
    """The batches of a source by step, as frameworks read them."""

    def __init__(self, source: GatedSource) -> None:
        self._source = source

    def __getitem__(self, step: int) -> Batch:
        return self._source.batch(step)


def train_by_hand(setup: Setup, gate: StepGate) -> TrainingResult:
    """Train with a minimal loop."""
    parts = prepare_training(setup, gate)
    parts.place()
    plan, model, source = parts.plan, parts.workload.model, GatedSource(parts.workload.source, gate)
    optimizer, parameters = parts.optimizer(plan.learning_rate), list(model.parameters())
    for step in range(plan.steps):
        optimizer.zero_grad(set_to_none=True)
        batch = parts.sent(source.batch(step))
        with parts.device.autocast():
            loss = parts.loss(batch)
        loss.backward()
        clip_grad_norm_(parameters, plan.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, step)
        optimizer.step()
        if (step + 1) % plan.log_every == 0:
            print(f"step {step + 1}/{plan.steps}  loss {loss.item():.4f}", flush=True)
    return parts.ended()


def train_with_runner(setup: Setup, gate: StepGate) -> TrainingResult:
    """Train with the trainer of this project, its reports and its checkpoints included."""
    parts = prepare_training(setup, gate)
    paths = RunPaths(setup.directory, 1, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.lineage_dir.mkdir(parents=True)
    reporter = Reporter(paths)
    reporter.begin()
    reporter.progress.total_steps = parts.plan.steps
    training = Training(setup.spec, parts.plan, parts.workload, parts.device, parts.switches)
    if setup.spec.profile.compile == "off":
        training.rehearse()
    else:
        from jobs.training.compilation import compile_model  # imported as late as in the trainer

        compile_model(training.workload.model, parts.switches, parts.device, training.rehearse)
    training.feed.source = GatedSource(training.feed.source, gate)  # type: ignore[assignment]  # no other device
    provenance = Provenance(setup.spec.job_id, 1, 1, 1, training.signatures, training.environment())
    in_background = setup.spec.profile.async_save
    with TimedCheckpoints(
        paths.lineage_dir, setup.spec.checkpoint, provenance, reporter, in_background=in_background
    ) as checkpoints:
        checkpoints.gate = gate
        train(training, checkpoints, reporter, StopRequests())
    return parts.ended()


class TimedCheckpoints(Checkpoints):
    """Checkpoints that report to the gate how long the training waited for them."""

    gate: StepGate

    def save(self, step: int, state: Plain) -> None:
        with self._timed():
            super().save(step, state)

    def poll(self) -> None:
        with self._timed():
            super().poll()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.gate.stalled_s += time.perf_counter() - began
