"""Trains a decoder-only transformer over bytes, characters or tokens, on any text.

Shape legend: B sequences, T tokens, C width, H heads, D width of a head, V vocabulary.

Attention is either fused with ``is_causal``, or uses an explicit mask that is made once in every forward
pass, for all blocks, or kept from one pass to the next.  These are the variants of the project "AGI2" before
and after its optimisation.
The input and the output embedding share one tensor.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gpu_job_runner.profiled import MATH, causal_attention_kernel
from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.contract import Profile
from jobs.contract.plans.causal_lm import CausalLm
from jobs.data.text import (
    Corpus,
    TextChoice,
    corpus_directory,
    count_windows,
    cut,
    read_text,
    shuffled,
    unigram_nats,
    windows,
)
from jobs.data.tokens import BYTES
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import seed_all
from jobs.workloads.common.encoder import initialise
from jobs.workloads.common.workload import TrainedWorkload
from jobs.workloads.protocol import BuildContext, Evaluation

TEMPERATURE: Final = 0.8
"""Temperature of the samples that are drawn: below 1, likely tokens are more likely still."""


MAX_NATS: Final = 700.0
"""Above it, a perplexity is larger than any number."""


class Masks:
    """Causal masks, made once in a forward pass for all blocks, or kept by length and device."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.kept_TT: dict[tuple[int, torch.device], Tensor] = {}

    def of(self, time: int, device: torch.device) -> Tensor | None:
        """Return a mask that is True where attention is not allowed; None if attention is fused."""
        if self.how == "fused":
            return None
        if self.how == "rebuilt_mask":
            return torch.ones(time, time, dtype=torch.bool, device=device).triu(1)
        if (time, device) not in self.kept_TT:
            self.kept_TT[time, device] = torch.ones(time, time, dtype=torch.bool, device=device).triu(1)
        return self.kept_TT[time, device]

    def clear(self) -> None:
        self.kept_TT.clear()

    @property
    def kept_bytes(self) -> int:
        return sum(mask.numel() * mask.element_size() for mask in self.kept_TT.values())


def attend(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, hidden_TT: Tensor | None) -> Tensor:
    """Return causal self-attention, fused without a mask and step by step with one."""
    if hidden_TT is None:
        return F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
    scores_BHTT = q_BHTD @ k_BHTD.transpose(2, 3) / math.sqrt(q_BHTD.shape[-1])
    return scores_BHTT.masked_fill(hidden_TT, -math.inf).softmax(-1).to(v_BHTD.dtype) @ v_BHTD


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network, each with a residual connection."""

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

    def forward(self, x_BTC: Tensor, hidden_TT: Tensor | None) -> Tensor:
        x_BTC = x_BTC + self.dropout(self._attend(self.attention_norm(x_BTC), hidden_TT))
        hidden_BTC = self.feed_out(F.gelu(self.feed_in(self.feed_norm(x_BTC))))
        return x_BTC + self.dropout(hidden_BTC)

    def _attend(self, x_BTC: Tensor, hidden_TT: Tensor | None) -> Tensor:
        batch, time, width = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = self.qkv(x_BTC).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y_BHTD = attend(q_BHTD, k_BHTD, v_BHTD, hidden_TT)
        return self.attention_out(y_BHTD.transpose(1, 2).reshape(batch, time, width))


class Sinusoids(nn.Module):
    """Vectors of positions that are not trained: sines and cosines of falling frequencies."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        half_H = torch.arange(0, width, 2, dtype=torch.float64)
        angle_PH = torch.arange(positions)[:, None] * torch.exp(-math.log(1e4) / width * half_H)
        weight_PC = torch.stack([angle_PH.sin(), angle_PH.cos()], dim=2).flatten(1)[:, :width]
        self.weight: Tensor
        self.register_buffer("weight", weight_PC.float())

    def forward(self, positions_T: Tensor) -> Tensor:
        return self.weight[positions_T]


class Transformer(nn.Module):
    """Predicts the distribution of the next token at every position."""

    def __init__(self, plan: CausalLm, profile: Profile, vocabulary: int = BYTES) -> None:
        super().__init__()
        self.masks = Masks(profile.attention)
        self.recompute = profile.activation_checkpointing
        self.token = nn.Embedding(vocabulary, plan.width)
        kind = nn.Embedding if plan.positions == "learned" else Sinusoids
        self.position = kind(plan.context, plan.width)
        self.dropout = nn.Dropout(plan.dropout)
        self.blocks = nn.ModuleList(TransformerBlock(plan) for _ in range(plan.layers))
        self.norm = nn.LayerNorm(plan.width)
        self.apply(initialise)
        for block in self.blocks:  # the sum over all layers begins at the scale of one layer
            for out in (block.attention_out, block.feed_out):
                nn.init.normal_(out.weight, std=0.02 / math.sqrt(2 * plan.layers))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.dropout(self.token(tokens_BT) + self.position(positions_T))
        hidden_TT = self.masks.of(tokens_BT.shape[1], tokens_BT.device)
        for block in self.blocks:
            x_BTC = (
                checkpoint(block, x_BTC, hidden_TT, use_reentrant=False)
                if self.recompute
                else block(x_BTC, hidden_TT)
            )
        return F.linear(self.norm(x_BTC), self.token.weight)

    def _apply(self, *args: Any, **options: Any) -> "Transformer":  # noqa: ANN401  (as in torch)
        """Move or convert the parameters; masks of the device before are given up."""
        self.masks.clear()
        return super()._apply(*args, **options)


class _CountedMasks(Masks):
    """Counts how often a mask is asked for that is not there."""

    made = 0

    def of(self, time: int, device: torch.device) -> Tensor | None:
        kept = len(self.kept_TT)
        mask_TT = super().of(time, device)
        self.made += mask_TT is not None and (self.how == "rebuilt_mask" or len(self.kept_TT) > kept)
        return mask_TT


@torch.inference_mode()
def _observed_attention(model: Transformer) -> str:
    """Return the name of what two forward passes do about masks."""
    masks, counted = model.masks, _CountedMasks(model.masks.how)
    model.masks = counted
    for _ in range(2):
        model(torch.zeros(1, 2, dtype=torch.int64))
    model.masks = masks
    return {0: "fused", 1: "cached_mask", 2: "rebuilt_mask"}.get(counted.made, "one mask per block")


@dataclass(frozen=True, slots=True)
class Text:
    """The corpus, and windows of it."""

    corpus: Corpus
    plan: CausalLm
    seed: int

    @property
    def resident_bytes(self) -> int:
        corpus = self.corpus
        return sum(one.numel() * one.element_size() for one in (corpus.train_N, corpus.held_out_N))

    def on(self, device: torch.device) -> "Text":
        corpus = self.corpus
        moved = replace(corpus, train_N=corpus.train_N.to(device), held_out_N=corpus.held_out_N.to(device))
        return replace(self, corpus=moved)

    @property
    def stride(self) -> int | None:
        """Tokens between the beginnings of two windows; None: they begin anywhere."""
        plan = self.plan
        strides = {
            "anywhere": None,
            "separate": plan.context,
            "overlapping": plan.stride or plan.context // 2,
        }
        return strides[plan.windows]

    @property
    def window_count(self) -> int | None:
        """The number of training windows, None if they begin anywhere."""
        if self.stride is None:
            return None
        return count_windows(self.corpus.train_N, self.plan.context + 1, self.stride)

    def batch(self, step: int) -> Batch:
        count, stride = self.window_count, self.stride
        if count is None or stride is None:
            return self._windows(self.corpus.train_N, "batch", step)
        size, per_epoch = self.plan.batch_size, max(1, count // self.plan.batch_size)
        epoch, place = divmod(step, per_epoch)
        order_N = shuffled(count, self.seed, epoch)
        numbers_B = order_N[(place * size + torch.arange(size)) % count]
        return {"tokens": cut(self.corpus.train_N, numbers_B, self.plan.context + 1, stride)}

    def held_out(self, index: int) -> Batch:
        held_out_N, plan = self.corpus.held_out_N, self.plan
        if self.stride is None:
            return self._windows(held_out_N, "held-out", index)
        count = count_windows(held_out_N, plan.context + 1, plan.context)
        numbers_B = (index * plan.batch_size + torch.arange(plan.batch_size)) % count
        return {"tokens": cut(held_out_N, numbers_B, plan.context + 1, plan.context)}

    def _windows(self, text_N: Tensor, purpose: str, number: int) -> Batch:
        plan = self.plan
        return {"tokens": windows(text_N, plan.batch_size, plan.context + 1, self.seed, purpose, number)}


def as_gpt2(plan: CausalLm, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by the names of GPT-2 in transformers, whose matrices are transposed."""
    found = {
        "transformer.wte.weight": weights["token.weight"],
        "transformer.wpe.weight": weights["position.weight"],
        "transformer.ln_f.weight": weights["norm.weight"],
        "transformer.ln_f.bias": weights["norm.bias"],
    }
    for number in range(plan.layers):
        for ours, theirs in _GPT2.items():
            for part in ("weight", "bias"):
                tensor = weights[f"blocks.{number}.{ours}.{part}"]
                turned = tensor.T if tensor.dim() > 1 else tensor
                found[f"transformer.h.{number}.{theirs}.{part}"] = turned
    return {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}


_GPT2: Final = {
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "attention_out": "attn.c_proj",
    "feed_norm": "ln_2",
    "feed_in": "mlp.c_fc",
    "feed_out": "mlp.c_proj",
}


class CausalLanguageModel(TrainedWorkload[CausalLm, Transformer]):
    """The workload: corpus, model and loss of one spec."""

    item = "token"

    def __init__(self, plan: CausalLm, setting: BuildContext) -> None:
        self.plan = plan
        choice = TextChoice(plan.include, plan.files, plan.tokenizer)
        corpus = read_text(corpus_directory(plan.data), choice, plan.context + 1)
        self.source = Text(corpus, plan, setting.seed)
        self._tokens = corpus.tokens
        self._bytes_per_token = corpus.held_out_bytes / corpus.held_out_N.numel()
        seed_all(setting.seed, "weights")
        if plan.vocabulary is not None and plan.vocabulary < corpus.tokens.size:
            raise InvalidSpec(
                f"workload.vocabulary: {plan.vocabulary} is less than the {corpus.tokens.size} tokens of"
                f" {corpus.tokens.name}; raise it or leave it out"
            )
        self._rows = plan.vocabulary or corpus.tokens.size
        self.model = Transformer(plan, setting.switches.profile, self._rows)
        self._switches = setting.switches
        how = setting.switches.profile.attention
        self._is_attention_as_asked = _observed_attention(self.model) == how
        self._told: tuple[int, torch.device] | None = None
        self._tell_masks(plan.context, torch.device("cpu"))
        setting.switches.applied("activation_checkpointing")

    def _tell_masks(self, time: int, device: torch.device) -> None:
        """Record how attention is computed, with the entries and bytes of its mask."""
        if self._told == (time, device):
            return
        self._told = (time, device)
        mask_TT = self.model.masks.of(time, device)
        note, as_asked = "no mask", self._is_attention_as_asked
        if mask_TT is None:
            kernel = causal_attention_kernel(
                self.plan.heads, time, self.plan.width // self.plan.heads, device
            )
            note, as_asked = f"no mask, {kernel} on {device.type}", as_asked and kernel != MATH
        else:
            entries, blocks = mask_TT.numel(), len(self.model.blocks)
            size = entries * mask_TT.element_size()
            note = f"one mask of {entries:,} entries and {size:,} bytes for {blocks} block(s), "
            kept = f"{len(self.model.masks.kept_TT)} kept on {device} ({self.model.masks.kept_bytes:,} bytes)"
            note += kept if self.model.masks.kept_TT else f"made in every forward pass on {device}"
        self._switches.applied("attention", verified=as_asked, note=note)

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size * self.plan.context

    @property
    def train_items(self) -> int:
        count = self.source.window_count
        return self.source.corpus.train_N.numel() if count is None else count * self.plan.context

    @cached_property
    def baseline_loss(self) -> float:
        return unigram_nats(self.source.corpus.train_N)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        ways = () if self.source.stride is None else (plan.windows, self.source.stride)
        return {
            MODEL: model_signature(self.model, plan.kind, plan.heads),
            CORPUS: self.source.corpus.sha256,
            SCHEDULE: schedule_signature(plan, plan.dropout, *ways),
        }

    def loss_sum(self, batch: Batch) -> Tensor:
        tokens_BT = batch["tokens"].long()
        logits_BTV = self.model(tokens_BT[:, :-1])
        self._tell_masks(logits_BTV.shape[1], logits_BTV.device)
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), tokens_BT[:, 1:].flatten(), reduction="sum")

    def count(self, batch: Batch) -> int:
        tokens_BT = batch["tokens"]
        return tokens_BT.shape[0] * (tokens_BT.shape[1] - 1)

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": self.loss_sum(batch), "count": torch.tensor(self.count(batch))}

    def save_pretrained(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write a directory that ``GPT2LMHeadModel.from_pretrained`` reads."""
        plan = self.plan
        config = {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self._rows,
            "n_positions": plan.context,
            "n_embd": plan.width,
            "n_layer": plan.layers,
            "n_head": plan.heads,
            "activation_function": "gelu",
            "tie_word_embeddings": True,
            **dict.fromkeys(("embd_pdrop", "resid_pdrop"), plan.dropout),
            "attn_pdrop": 0.0,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        with (directory / "pytorch_model.bin").open(
            "wb"
        ) as file:  # given a path, torch does not tell a full disk
            torch.save(as_gpt2(plan, weights), file)

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        loss = sums["loss"] / sums["count"]
        return Evaluation(
            {"eval_loss": loss, **self._in_other_units(loss)},
            {"eval_loss": self.baseline_loss, **self._in_other_units(self.baseline_loss)},
            "eval_loss",
            lines=tuple(self._samples()),
        )

    def _in_other_units(self, nats: float) -> dict[str, float]:
        """Return the perplexity, and the bits of a byte if tokens are of several bytes."""
        perplexity = math.exp(nats) if nats < MAX_NATS else math.inf
        if self._tokens.name == "bytes":
            return {"perplexity": perplexity}
        bits = nats / math.log(2) / self._bytes_per_token
        return {"perplexity": perplexity, "bits_per_byte": bits}

    def _samples(self) -> Iterator[str]:
        """Yield the texts that the model writes, each as one line; they are the same for the same weights."""
        if not self.plan.samples:
            return
        opening_N = self._tokens.encode(self.plan.sample_prompt or "\n").long()
        for number in range(self.plan.samples):
            written = self._written(opening_N, torch.Generator().manual_seed(number))
            yield f"sample {number + 1}: {json.dumps(written, ensure_ascii=False)}"

    @torch.inference_mode()
    def _written(self, opening_N: Tensor, generator: torch.Generator) -> str:
        """Return what the model writes after an opening."""
        device, tokens = self.model.token.weight.device, opening_N.tolist() or [0]
        begun = len(opening_N) if self.plan.sample_prompt else len(tokens)
        self.model.eval()
        try:
            for _ in range(self.plan.sample_tokens):
                seen_1T = torch.tensor([tokens[-self.plan.context :]], device=device)
                logits_V = self.model(seen_1T)[0, -1, : self._tokens.size].double().cpu() / TEMPERATURE
                tokens.append(int(torch.multinomial(logits_V.softmax(0), 1, generator=generator)))
        finally:
            self.model.train()
        return self._tokens.decode(tokens if self.plan.sample_prompt else tokens[begun:])
