"""A small training by Hugging Face; only the tests that run it import it, for it takes seconds to load."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset

from gpu_job_runner.attach import Attempt
from gpu_job_runner.integrations.huggingface import Attached

STEPS, BATCHES = 8, 5


class Rows(Dataset[dict[str, Tensor]]):
    """Made-up tokens."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(16, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class StopAt(transformers.TrainerCallback):
    """Asks the attempt to stop within a step."""

    def __init__(self, job: Attempt, step: int | None) -> None:
        self._job, self._step = job, step

    def on_step_begin(self, args: object, state: Any, control: object, **_: object) -> None:
        del args, control
        self._job.stopping |= state.global_step + 1 == self._step


def train(job: Attempt, output: Path, stop_at: int | None = None, **arguments: Any) -> Tensor:
    """Train to the end, or to where it stops; return the weights."""
    torch.manual_seed(0)
    shape = transformers.GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1
    )
    model = transformers.GPT2LMHeadModel(shape)
    known = {
        "output_dir": str(output),
        "use_cpu": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(**{**known, **arguments}), train_dataset=Rows()
    )
    trainer.add_callback(StopAt(job, stop_at))
    trained = Attached(job).train(trainer)
    assert trained.metrics["train_loss"] == trained.training_loss  # as after Trainer.train
    return torch.cat([weights.detach().flatten() for weights in model.parameters()])
