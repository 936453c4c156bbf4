"""Hugging Face's Trainer on a small text, with a tiny model that is made from its configuration."""

import argparse

from datasets import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

parser = argparse.ArgumentParser()
parser.add_argument("--max_steps", type=int, default=40)
parser.add_argument("--resume_from_checkpoint")
args = parser.parse_args()

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the hunter in the morning " * 200
LENGTH = 64

letters = sorted(set(TEXT))
ids = [letters.index(letter) for letter in TEXT]
blocks = [ids[at : at + LENGTH] for at in range(0, len(ids) - LENGTH, LENGTH)]
dataset = Dataset.from_dict({"input_ids": blocks, "labels": blocks})

training = TrainingArguments(
    output_dir="out",
    max_steps=args.max_steps,
    per_device_train_batch_size=32,
    learning_rate=1e-3,
    logging_steps=5,
    save_steps=5,
    save_total_limit=2,
    use_cpu=True,
    report_to=[],
    seed=3,
)
shape = GPT2Config(
    vocab_size=len(letters),
    n_positions=LENGTH,
    n_embd=128,
    n_layer=2,
    n_head=4,
    bos_token_id=0,
    eos_token_id=0,
)


def make_model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(shape)


trainer = Trainer(
    args=training, model_init=make_model, train_dataset=dataset, data_collator=default_data_collator
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
trainer.save_model("out/final")
