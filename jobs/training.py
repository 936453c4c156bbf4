"""One training in memory: the model, its optimiser and its device, and what one step does to them.

``update(step)`` is a function of the state and the step number alone: the batch, the random
draws and the learning rate are derived from the step.  That is all that bitwise resume needs.
"""

import math
import time
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from jobs.contract import AttemptSpec, Effective
from jobs.device import Device, versions
from jobs.failures import NonFinite
from jobs.phases import StepTime
from jobs.randomness import seed_all
from jobs.signals import Requests
from jobs.signatures import NUMERICS, OPTIMIZER, SEED, signature
from jobs.snapshot import Plain
from jobs.workloads import Batch, Workload

BETAS = (0.9, 0.95)


class Training:
    """The state that a step changes, and the step."""

    def __init__(self, spec: AttemptSpec, workload: Workload, device: Device) -> None:
        self.spec = spec
        self.plan = spec.workload
        self.workload = workload
        self.device = device
        self.micro_batch = min(spec.profile.micro_batch or self.plan.batch_size, self.plan.batch_size)
        workload.model.to(device.torch_device)
        self._optimizer = torch.optim.AdamW(
            workload.parameter_groups(), betas=BETAS, fused=spec.profile.fused_optimizer
        )
        self._parameters = list(workload.model.parameters())

    # --- A step

    def update(self, step: int) -> tuple[float, StepTime]:
        """Take the weights from before a step to after it; return the loss and what it took.

        Raises:
            NonFinite: loss or gradient is not a number; the weights are as before.
        """
        began = time.perf_counter()
        seed_all(self.spec.seed, step)
        batch = self.workload.batch(step)
        waited = time.perf_counter() - began
        loss, norm = self._gradients(batch)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFinite(
                f"step {step}: loss {loss:g}, gradient norm {norm:g}; the weights were not updated"
            )
        self._set_learning_rate(step)
        self._optimizer.step()
        took = time.perf_counter() - began
        return loss, StepTime(self.workload.items_per_step, took, waited)

    def evaluate(self, requests: Requests) -> float | None:
        """Return the mean loss on held-out batches; None if asked to stop half-way."""
        total, count = 0.0, 0
        self.workload.model.eval()
        try:
            for index in range(self.plan.eval_batches):
                if requests.stop:
                    return None
                batch = self.workload.held_out(index)
                total += self._loss_of(batch)
                count += self.workload.count(batch)
        finally:
            self.workload.model.train()
        return total / count

    def rehearse(self) -> None:
        """Do what is slow only once, compilation above all, and leave no trace in the state."""
        self._gradients(self.workload.batch(0))
        self._optimizer.zero_grad(set_to_none=True)

    def _gradients(self, batch: Batch) -> tuple[float, float]:
        """Accumulate clipped gradients over micro-batches; return loss and norm, waiting once.

        Every micro-batch is divided by the number of items in the whole batch: a mean of
        means would weigh an uneven last part wrongly.
        """
        self._optimizer.zero_grad(set_to_none=True)
        count = self.workload.count(batch)
        loss = torch.zeros((), device=self.device.torch_device)
        for part in batch.split(self.micro_batch):
            share = self._loss_sum(part) / count
            share.backward()
            loss += share.detach()
        norm = clip_grad_norm_(self._parameters, self.plan.grad_clip)
        loss_value, norm_value = torch.stack([loss, norm]).tolist()
        return loss_value, norm_value

    @torch.inference_mode()
    def _loss_of(self, batch: Batch) -> float:
        return sum(float(self._loss_sum(part)) for part in batch.split(self.micro_batch))

    def _loss_sum(self, part: Batch) -> Tensor:
        with self.device.autocast():
            return self.workload.loss_sum(part.to(self.device.torch_device))

    def learning_rate(self, step: int) -> float:
        """Return the rate that the update of a step uses."""
        return self.workload.learning_rate(step)

    def _set_learning_rate(self, step: int) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate(step)

    # --- The state between two steps

    def state(self, step: int) -> Plain:
        """Return everything that a resume needs, not copied."""
        return {
            "step": step,
            "model": dict(self.workload.model.state_dict()),
            "optimizer": self._optimizer.state_dict(),
        }

    def weights(self) -> Mapping[str, Tensor]:
        return self.workload.model.state_dict()

    def load(self, state: Plain) -> None:
        """Take up a saved state, but keep the hyper-parameters and flags of this spec.

        They are put into the saved state first: loading them and correcting them afterwards
        would leave counters on the wrong device when the fused flag has changed.
        """
        optimizer = state["optimizer"]
        for saved, ours in zip(optimizer["param_groups"], self._optimizer.param_groups, strict=True):
            saved.update({key: value for key, value in ours.items() if key != "params"})
        self.workload.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(optimizer)

    # --- What it is

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        """The aspects of ``jobs.signatures``, of what really is in force."""
        names = [group["param_names"] for group in self._optimizer.param_groups]
        return {
            **self.workload.signatures,
            OPTIMIZER: signature([type(self._optimizer).__name__, names]),
            SEED: signature(self.spec.seed),
            NUMERICS: signature(self.environment),
        }

    @cached_property
    def environment(self) -> dict[str, str]:
        """What the rounding of this training depends on."""
        profile, device = self.spec.profile, self.device
        return versions() | {
            "device": device.name,
            "threads": str(device.threads),
            "precision": device.precision,
            "micro_batch": str(self.micro_batch),
            "compiled": str(device.graphs > 0),
            "fused_optimizer": str(profile.fused_optimizer),
            "deterministic": str(profile.deterministic),
        }

    def effective(self) -> Effective:
        """Return what took effect, for the report."""
        profile, device = self.spec.profile, self.device
        return Effective(
            device=str(device.torch_device),
            device_name=device.name,
            precision=device.precision,
            threads=device.threads,
            micro_batch=self.micro_batch,
            accumulation=-(-self.plan.batch_size // self.micro_batch),
            compiled=device.graphs > 0,
            compile_graphs=device.graphs,
            fused_optimizer=profile.fused_optimizer,
            deterministic=profile.deterministic,
            async_save=profile.async_save,
            parameters=sum(p.numel() for p in self._parameters),
            train_items=self.workload.train_items,
            versions=versions(),
            fallbacks=tuple(device.fallbacks),
        )
