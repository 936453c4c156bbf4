"""The same training in Lightning, with all optional features switched off."""

from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from bench.rivals.loops import GatedSource, StepDataset, TrainingParts, prepare_training
from bench.support.lockstep import Setup, StepGate, TrainingResult
from jobs.training.batches import Batch


class Module(pl.LightningModule):
    """Loss and optimiser in the form that Lightning needs."""

    def __init__(self, parts: TrainingParts) -> None:
        super().__init__()
        self.parts = parts
        self.model = parts.workload.model

    def training_step(self, batch: Batch, number: int) -> Tensor:
        del number
        return self.parts.loss(batch)

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as Lightning does; Lightning itself refuses a fused optimiser under mixed precision."""
        if self.parts.device.precision == "fp32":
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        else:
            clip_grad_norm_(self.model.parameters(), self.parts.plan.grad_clip)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer, schedule = self.parts.scheduled()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Log(pl.Callback):
    """A log line at the same interval as in the other loops."""

    def __init__(self, every: int) -> None:
        self._every = every

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        del pl_module, batch
        if (batch_idx + 1) % self._every == 0:
            print(f"step {trainer.global_step}  loss {outputs['loss'].item():.4f}", flush=True)


def lightning(setup: Setup, gate: StepGate) -> TrainingResult:
    """Train with ``Trainer.fit``."""
    parts = prepare_training(setup, gate)
    parts.place()
    on_device = parts.device.torch_device.type == "cuda"
    steps = StepDataset(GatedSource(parts.workload.source, gate))
    loader = DataLoader(steps, batch_size=None, sampler=range(parts.plan.steps), pin_memory=on_device)
    trainer = pl.Trainer(
        accelerator="gpu" if on_device else "cpu",
        precision="bf16-mixed" if parts.device.precision == "bf16" else "32-true",
        devices=1,
        max_steps=parts.plan.steps,
        gradient_clip_val=parts.plan.grad_clip,
        callbacks=[Log(parts.plan.log_every)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=setup.directory,
    )
    trainer.fit(Module(parts), loader)
    return parts.ended()
