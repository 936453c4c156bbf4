"""Batches of pairs as sequences of tokens: how a pair is drawn, and how it is written.

A pair is a pure function of the step.  With ``balance: classes``, its answer is drawn first, and then one of
all pairs with that answer, without a list of all pairs: texts in the order of their values have the partners
of each answer side by side.

Shape legend: R rows (pairs), O orders, T tokens, M texts, P pairs that a file lists.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.data.pairs import ANSWERS, FIRST, SECOND, SIMILAR, Part
from jobs.training.batches import Batch
from jobs.training.randomness import derive
from jobs.workloads.pair_classifier import swap_weight


class Codec(Protocol):
    """Writes two texts as one sequence of tokens; it can be pickled."""

    @property
    def length(self) -> int:
        """Tokens of every sequence."""

    @property
    def dtype(self) -> torch.dtype: ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text alone."""

    def join(self, first: Sequence[int], second: Sequence[int]) -> list[int]:
        """Return ``length`` tokens, the last of which asks."""

    def hide(self, tokens_ROT: Tensor, share: float, generator: torch.Generator) -> Tensor:
        """Return the tokens with a share of those of the texts hidden."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The texts of one side; their tokens are kept, or made at each use."""

    part: Part
    codec: Codec
    tokens: tuple[tuple[int, ...], ...] | None

    def of(self, pairs_R2: Tensor) -> Tensor:
        """Return the tokens (R, O, T) of pairs in both orders."""
        rows = []
        for first, second in pairs_R2.tolist():
            one, other = self._tokens(first), self._tokens(second)
            rows.append([self.codec.join(one, other), self.codec.join(other, one)])
        return torch.tensor(rows, dtype=self.codec.dtype)

    def _tokens(self, number: int) -> Sequence[int]:
        if self.tokens is not None:
            return self.tokens[number]
        return self.codec.encode(self.part.texts[number])


class Pool(Protocol):
    """All pairs of one side, from which batches are drawn."""

    @property
    def count(self) -> int:
        """The number of pairs, in one order."""

    def draw(self, rows: int, generator: torch.Generator, *, balanced: bool) -> tuple[Tensor, Tensor]:
        """Return texts (R, 2) and answers (R,) of pairs drawn with replacement."""

    @property
    def similar(self) -> int:
        """Number of similar pairs."""


def shares(pairs: Pool) -> dict[str, float]:
    """Return the smoothed shares of similar pairs and of each other answer; none is 0."""
    share = (pairs.similar + 1) / (pairs.count + 2)
    return {"similar": share, "either": (1 - share) / 2}


@dataclass(frozen=True, slots=True)
class ListedPairs:
    """The pairs that a file lists, with their answers."""

    pairs_P2: Tensor
    answers_P: Tensor

    @property
    def count(self) -> int:
        return len(self.pairs_P2)

    @property
    def similar(self) -> int:
        return int((self.answers_P == SIMILAR).sum())

    def draw(self, rows: int, generator: torch.Generator, *, balanced: bool) -> tuple[Tensor, Tensor]:
        if not balanced:
            drawn_R = torch.randint(self.count, (rows,), generator=generator)
            return self.pairs_P2[drawn_R], self.answers_P[drawn_R]
        listed = [torch.nonzero(self.answers_P == answer).flatten() for answer in range(len(ANSWERS))]
        listed = [numbers for numbers in listed if len(numbers)]
        which_R = torch.randint(len(listed), (rows,), generator=generator)
        share_R = torch.rand(rows, generator=generator, dtype=torch.float64)
        sizes = torch.tensor([len(numbers) for numbers in listed])
        starts = sizes.cumsum(0) - sizes
        drawn_R = torch.cat(listed)[starts[which_R] + (share_R * sizes[which_R]).long()]
        return self.pairs_P2[drawn_R], self.answers_P[drawn_R]


@dataclass(frozen=True, slots=True)
class AllPairs:
    """All pairs of texts with values."""

    value_M: Tensor
    order_M: Tensor
    """The texts in the order of their values."""
    below_M: Tensor
    """For each of them, how many are lower by more than the threshold."""
    above_M: Tensor
    """And the place of the first that is higher by more than that."""
    threshold: float

    @classmethod
    def of(cls, value_M: Tensor, threshold: float) -> "AllPairs":
        sorted_M, order_M = value_M.sort(stable=True)
        below_M = torch.searchsorted(sorted_M, sorted_M - threshold)
        above_M = torch.searchsorted(sorted_M, sorted_M + threshold, right=True)
        return cls(value_M, order_M, below_M, above_M, threshold)

    @property
    def count(self) -> int:
        return len(self.order_M) * (len(self.order_M) - 1) // 2

    @property
    def similar(self) -> int:
        return int(self.partners[SIMILAR].sum()) // 2

    @property
    def partners(self) -> Tensor:
        """Number of ordered pairs with each answer, by the place of the first text; shape (3, M)."""
        near_M = self.above_M - self.below_M - 1
        return torch.stack([self.below_M, len(self.order_M) - self.above_M, near_M])

    def draw(self, rows: int, generator: torch.Generator, *, balanced: bool) -> tuple[Tensor, Tensor]:
        pairs_R2 = self._balanced(rows, generator) if balanced else self._any(rows, generator)
        ahead_R = self.value_M[pairs_R2[:, 0]] - self.value_M[pairs_R2[:, 1]]
        higher_R = torch.where(ahead_R > 0, FIRST, SECOND)
        return pairs_R2, torch.where(ahead_R.abs() <= self.threshold, SIMILAR, higher_R)

    def _any(self, rows: int, generator: torch.Generator) -> Tensor:
        count = len(self.order_M)
        first_R = torch.randint(count, (rows,), generator=generator)
        second_R = torch.randint(count - 1, (rows,), generator=generator)
        return torch.stack([first_R, second_R + (second_R >= first_R)], dim=1)

    def _balanced(self, rows: int, generator: torch.Generator) -> Tensor:
        partners_AM = self.partners
        there = torch.nonzero(partners_AM.sum(dim=1)).flatten()
        answer_R = there[torch.randint(len(there), (rows,), generator=generator)]
        ends_AM = partners_AM.cumsum(dim=1)
        share_R = torch.rand(rows, generator=generator, dtype=torch.float64)
        drawn_R = (share_R * ends_AM[answer_R, -1]).long()
        place_R = torch.searchsorted(ends_AM[answer_R], drawn_R[:, None], right=True).flatten()
        which_R = drawn_R - (ends_AM - partners_AM)[answer_R, place_R]
        near_R = self.below_M[place_R] + which_R
        near_R += near_R >= place_R
        partner_R = torch.where(answer_R == SECOND, self.above_M[place_R] + which_R, near_R)
        partner_R = torch.where(answer_R == FIRST, which_R, partner_R)
        return torch.stack([self.order_M[place_R], self.order_M[partner_R]], dim=1)


def pool(part: Part, threshold: float) -> Pool:
    """Return the pairs of one side."""
    if part.listed is not None:
        return ListedPairs(*part.listed)
    values = torch.empty(0, dtype=torch.float64) if part.value_M is None else part.value_M
    return AllPairs.of(values, threshold)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Pairs as sequences, drawn for every step."""

    train: Shown
    test: Shown
    train_pool: Pool
    test_pool: Pool
    plan: PairClassifier
    seed: int

    @property
    def resident_bytes(self) -> None:
        """A sequence is made of two texts when it is drawn, so there is no table of them."""
        return

    def on(self, device: torch.device) -> "Sequences":
        raise NotImplementedError(f"sequences are made on the host, not on {device}")

    def batch(self, step: int) -> Batch:
        plan, generator = self.plan, self._generator("batch", step)
        balanced = plan.balance == "classes"
        batch = self._pairs(
            self.train, *self.train_pool.draw(plan.batch_size, generator, balanced=balanced), step
        )
        batch["tokens"] = self.train.codec.hide(batch["tokens"], plan.masked, self._generator("hidden", step))
        return batch

    def held_out(self, index: int) -> Batch:
        generator = self._generator("held-out", index)
        drawn = self.test_pool.draw(self.plan.batch_size, generator, balanced=False)
        return self._pairs(self.test, *drawn, self.plan.steps)

    def _pairs(self, shown: Shown, pairs_R2: Tensor, answers_R: Tensor, step: int) -> Batch:
        weight_R = torch.full((len(pairs_R2),), swap_weight(self.plan, step))
        return {"tokens": shown.of(pairs_R2), "answers": answers_R[:, None], "swap_weight": weight_R}

    def _generator(self, *purpose: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(derive(self.seed, *purpose))
