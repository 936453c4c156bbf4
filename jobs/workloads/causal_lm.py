"""A decoder-only transformer over bytes, on any directory of text.

Shape legend: B sequences, T tokens, C width, H heads, D width of a head, V vocabulary.

Attention masks are never stored: ``is_causal`` lets every backend of
``scaled_dot_product_attention`` make its own.  Input and output embedding share one tensor.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name under which everybody knows it

from jobs.contract import CausalLm
from jobs.data import corpus_directory, read_corpus, unigram_nats, windows
from jobs.randomness import seed_all
from jobs.signatures import CORPUS, MODEL, SCHEDULE, signature

VOCABULARY = 256
FLOOR = 0.1
"""The learning rate ends at this share of its peak."""

_TRAJECTORY = (
    "steps",
    "batch_size",
    "dropout",
    "learning_rate",
    "warmup_steps",
    "weight_decay",
    "grad_clip",
)
"""Fields that decide where a training goes, and not what it can take up."""


class Block(nn.Module):
    """Attention, then a feed-forward network, each added to what came in."""

    def __init__(self, plan: CausalLm) -> None:
        super().__init__()
        self.heads = plan.heads
        self.attention_norm = nn.LayerNorm(plan.width)
        self.qkv = nn.Linear(plan.width, 3 * plan.width)
        self.attention_out = nn.Linear(plan.width, plan.width)
        self.feed_norm = nn.LayerNorm(plan.width)
        self.feed_in = nn.Linear(plan.width, 4 * plan.width)
        self.feed_out = nn.Linear(4 * plan.width, plan.width)
        self.dropout = nn.Dropout(plan.dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.dropout(self._attend(self.attention_norm(x_BTC)))
        hidden_BTC = self.feed_out(F.gelu(self.feed_in(self.feed_norm(x_BTC))))
        return x_BTC + self.dropout(hidden_BTC)

    def _attend(self, x_BTC: Tensor) -> Tensor:
        batch, time, width = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = self.qkv(x_BTC).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        return self.attention_out(y_BHTD.transpose(1, 2).reshape(batch, time, width))


class Transformer(nn.Module):
    """Bytes in, one distribution over the next byte out, for every position."""

    def __init__(self, plan: CausalLm) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, plan.width)
        self.position = nn.Embedding(plan.context, plan.width)
        self.dropout = nn.Dropout(plan.dropout)
        self.blocks = nn.ModuleList(Block(plan) for _ in range(plan.layers))
        self.norm = nn.LayerNorm(plan.width)
        self.apply(_initialise)
        for block in self.blocks:  # so that the sum over all layers starts at the size of one
            for out in (block.attention_out, block.feed_out):
                nn.init.normal_(out.weight, std=0.02 / math.sqrt(2 * plan.layers))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.dropout(self.token(tokens_BT) + self.position(positions_T))
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return F.linear(self.norm(x_BTC), self.token.weight)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


class CausalLanguageModel:
    """The workload: corpus, model, batches, loss and schedule of one spec."""

    def __init__(self, plan: CausalLm, seed: int) -> None:
        self.plan = plan
        self._seed = seed
        self._window = plan.context + 1
        self._corpus = read_corpus(corpus_directory(plan.data), plan.include, self._window)
        seed_all(seed, "weights")
        self.model = Transformer(plan)

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size * self.plan.context

    @property
    def train_items(self) -> int:
        return self._corpus.train_N.numel()

    @cached_property
    def baseline_loss(self) -> float:
        return unigram_nats(self._corpus.train_N)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan.model_dump(mode="json")
        shapes = [[name, list(t.shape), str(t.dtype)] for name, t in self.model.state_dict().items()]
        schedule = {key: plan[key] for key in _TRAJECTORY}
        return {
            MODEL: signature([plan["kind"], plan["heads"], shapes]),
            CORPUS: self._corpus.sha256,
            SCHEDULE: signature(schedule),
        }

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return matrices with weight decay, and biases and norms without."""
        named = list(self.model.named_parameters())
        decayed = [(name, p) for name, p in named if p.dim() >= 2]
        others = [(name, p) for name, p in named if p.dim() < 2]
        return [
            {"params": decayed, "weight_decay": self.plan.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]

    def learning_rate(self, step: int) -> float:
        """Return a linear warm-up, then half a cosine down to the floor."""
        plan = self.plan
        if step < plan.warmup_steps:
            return plan.learning_rate * (step + 1) / plan.warmup_steps
        done = (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
        return plan.learning_rate * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))

    def batch(self, step: int) -> Tensor:
        plan = self.plan
        return windows(self._corpus.train_N, plan.batch_size, self._window, self._seed, "batch", step)

    def held_out(self, index: int) -> Tensor:
        plan = self.plan
        return windows(self._corpus.held_out_N, plan.batch_size, self._window, self._seed, "held-out", index)

    def loss_sum(self, batch: Tensor) -> Tensor:
        tokens_BT = batch.long()
        logits_BTV = self.model(tokens_BT[:, :-1])
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT[:, 1:].flatten(), reduction="sum")

    def count(self, batch: Tensor) -> int:
        return batch.shape[0] * (batch.shape[1] - 1)
