"""A Hugging Face Trainer made resumable: the lines marked (+) are all that it took."""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gpu_job_runner.integrations.huggingface import Attached  # (+)

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
CONTEXT = 64


class Text(Dataset[dict[str, Tensor]]):
    """Overlapping pieces of one text, byte by byte."""

    def __init__(self, text: bytes) -> None:
        self._text = torch.tensor(list(text))

    def __len__(self) -> int:
        return (len(self._text) - CONTEXT) // 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        piece = self._text[16 * index : 16 * index + CONTEXT]
        return {"input_ids": piece, "labels": piece}


arguments = TrainingArguments(
    output_dir=str(Path.home() / "trainer"),  # HOME is the job's own; /code is read-only
    max_steps=STEPS,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    logging_steps=10,
    save_strategy="no",  # (+) Attached says when
    report_to=[],
    disable_tqdm=True,
    seed=0,
)
torch.manual_seed(0)
shape = GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, bos_token_id=0)
model = GPT2LMHeadModel(shape)
trainer = Trainer(model, arguments, train_dataset=Text(Path(__file__).read_bytes()))

attached = Attached()  # (+)
attached.train(trainer)  # (+) was: trainer.train()
