"""A small transformer that reads two molecules in one sequence and answers in a token of its vocabulary.

Each molecule has a place of its own in the sequence: ``length`` - 1 characters, padded on the left, and a
separator or the question after them.  The output embedding is that of the input.

Shape legend: R rows, O orders, S sequences, T tokens, Q computed positions, C width, V vocabulary, K answers.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jobs.contract import Profile
from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.workloads.common.encoder import EncoderBlock, initialise, through

VOCABULARY: Final = 128
"""ASCII: what a SMILES is written in; the control characters are tokens of our own."""

PAD, QUESTION, HIDDEN = range(3)

ANSWER_TOKENS: Final = (3, 4, 5)
"""First, second and similar."""

BETWEEN: Final = 6
"""Separates the molecules; the largest control token in use."""


@dataclass(frozen=True, slots=True)
class Characters:
    """Writes a pair in the characters of its two molecules."""

    longest: int

    @property
    def length(self) -> int:
        return 2 * (self.longest + 1)

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def encode(self, text: str) -> list[int]:
        return list(text.encode("ascii"))

    def join(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        return [*self._padded(first), BETWEEN, *self._padded(second), QUESTION]

    def _padded(self, tokens: Sequence[int]) -> list[int]:
        return [*bytes(self.longest - len(tokens)), *tokens]

    def hide(self, tokens_ROT: Tensor, share: float, generator: torch.Generator) -> Tensor:
        chosen_ROT = torch.rand(tokens_ROT.shape, generator=generator) < share
        return tokens_ROT.masked_fill(chosen_ROT & (tokens_ROT > BETWEEN), HIDDEN)


class SequenceNetwork(nn.Module):
    """Returns logits (R, 1, O, K) of the answers to pairs, from tokens (R, O, T)."""

    def __init__(self, plan: PairClassifier, profile: Profile) -> None:
        super().__init__()
        self.last_only = profile.last_position_only
        self.recompute = profile.activation_checkpointing
        self.token = nn.Embedding(VOCABULARY, plan.width)
        self.position = nn.Embedding(Characters(plan.length - 1).length, plan.width)
        self.blocks = nn.ModuleList(EncoderBlock(plan.width, plan.heads) for _ in range(plan.layers - 1))
        self.head = EncoderBlock(plan.width, plan.heads)
        self.norm = nn.LayerNorm(plan.width)
        self.apply(initialise)

    def forward(self, tokens_ROT: Tensor) -> Tensor:
        words_SQV = self.words(tokens_ROT.flatten(0, 1))
        answers_SK = words_SQV[:, -1, list(ANSWER_TOKENS)]
        return answers_SK.unflatten(0, tokens_ROT.shape[:2])[:, None]

    def words(self, tokens_ST: Tensor) -> Tensor:
        """Return logits over the vocabulary, of the last position or of all."""
        tokens_ST = tokens_ST.long()
        seen_ST = tokens_ST != PAD
        x_STC = through(
            self.blocks, self.token(tokens_ST) + self.position.weight, seen_ST, recompute=self.recompute
        )
        x_SQC = self.norm(self.head(x_STC, seen_ST, last_only=self.last_only))
        return F.linear(x_SQC, self.token.weight)
