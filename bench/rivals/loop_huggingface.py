"""The same training in the Hugging Face ``Trainer``, with all optional features switched off."""

from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from bench.rivals.loops import GatedSource, StepDataset, TrainingParts, prepare_training
from bench.support.lockstep import Setup, StepGate, TrainingResult


class Model(nn.Module):
    """The model with its loss, in the form that the trainer needs."""

    def __init__(self, parts: TrainingParts) -> None:
        super().__init__()
        self.parts = parts
        self.model = parts.workload.model

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"loss": self.parts.loss({"tokens": tokens})}


class Fed(Trainer):
    """A trainer that takes complete batches, in order."""

    feed: DataLoader[Any]

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self.feed


def huggingface(setup: Setup, gate: StepGate) -> TrainingResult:
    """Train with ``Trainer.train``."""
    parts = prepare_training(setup, gate)
    parts.place()
    on_device = parts.device.torch_device.type == "cuda"
    steps = StepDataset(GatedSource(parts.workload.source, gate))
    arguments = TrainingArguments(
        output_dir=str(setup.directory / "out"),
        max_steps=parts.plan.steps,
        max_grad_norm=parts.plan.grad_clip,
        logging_steps=parts.plan.log_every,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_nan_inf_filter=False,  # looks at the loss in every step, which drains a device
        use_cpu=not on_device,
        bf16=parts.device.precision == "bf16",
        tf32=parts.switches.profile.tf32_matmul if on_device else None,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    trainer = Fed(Model(parts), arguments, train_dataset=steps, optimizers=parts.scheduled())
    trainer.feed = DataLoader(steps, batch_size=None, sampler=range(parts.plan.steps), pin_memory=on_device)
    trainer.train()
    return parts.ended()
