"""Classifies pairs of molecules: which one has the higher measured value (first, second, or similar).

The workload follows LMOL, which shows two pictures to a large model.  It keeps two parts of LMOL: every
pair is judged in both orders, and the disagreement between the orders is a term of the loss whose weight
changes linearly from a start to an end value.  Three costs took most of LMOL's time and are switches here:
every picture was converted at each use; it was encoded again for every pair and order; and the head was
computed at all positions although only one is read.

A row of a batch is a group of molecules with all of its pairs.  A batch can therefore be split between
rows, shapes are constant, and a micro-batch encodes the same sequences as it would in the whole batch.
There is no dropout, because two encodings of the same molecule would differ.  Instead, the batch masks
characters, so that all variants see the same input.

Shape legend: R groups, I molecules of a group, P pairs of a group, O orders, S sequences, L characters,
C width, K answers.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.contract import Profile
from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.data.pairs import ANSWERS, FIRST, SECOND, SIMILAR, Part, Reading, read_molecules
from jobs.training import batches
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import derive, seed_all
from jobs.training.report import say
from jobs.training.switches import Switches
from jobs.workloads.common.encoder import EncoderBlock, initialise, tell_recomputing, through
from jobs.workloads.common.workload import TrainedWorkload
from jobs.workloads.protocol import BuildContext, Evaluation

_PAD, _QUESTION, _HIDDEN = range(3)  # control characters, which do not occur in SMILES

VOCABULARY: Final = 128
"""ASCII: what a SMILES is written in."""

_RAMP: Final = 0.5
"""Share of the steps over which the weight of the two orders' disagreement rises."""


def tokenise(smiles: Sequence[str], length: int) -> Tensor:
    """Return uint8 tokens (S, L): padding, the characters, and the question token at the last position."""
    rows = [[*bytes(length - 1 - len(one)), *one.encode("ascii"), _QUESTION] for one in smiles]
    return torch.tensor(rows, dtype=torch.uint8)


class PairNetwork(nn.Module):
    """Encodes molecules, then compares the summaries of every pair in both orders."""

    def __init__(self, plan: PairClassifier, profile: Profile) -> None:
        super().__init__()
        self.encode_once = profile.encode_once
        self.last_only = profile.last_position_only
        self.recompute = profile.activation_checkpointing
        self.token = nn.Embedding(VOCABULARY, plan.width)
        self.position = nn.Embedding(plan.length, plan.width)
        self.blocks = nn.ModuleList(EncoderBlock(plan.width, plan.heads) for _ in range(plan.layers - 1))
        self.head = EncoderBlock(plan.width, plan.heads)
        self.norm = nn.LayerNorm(plan.width)
        self.compare = nn.Linear(3 * plan.width, 2 * plan.width)
        self.answer = nn.Linear(2 * plan.width, len(ANSWERS))
        pairs_P2 = torch.tensor(list(combinations(range(plan.group), 2)))
        self.register_buffer("shown_PO2", torch.stack([pairs_P2, pairs_P2.flip(1)], dim=1), persistent=False)
        self.apply(initialise)

    def forward(self, tokens_RIL: Tensor) -> Tensor:
        """Return logits (R, P, O, K) of every pair, as it is and swapped."""
        if self.encode_once:
            shown_RPO2C = self._encode(tokens_RIL)[:, self.shown_PO2]
        else:
            shown_RPO2C = self._encode(tokens_RIL[:, self.shown_PO2])
        first_RPOC, second_RPOC = shown_RPO2C.unbind(3)
        both = torch.cat([first_RPOC, second_RPOC, first_RPOC - second_RPOC], dim=3)
        return self.answer(F.gelu(self.compare(both)))

    def _encode(self, tokens: Tensor) -> Tensor:
        """Return the summary of each sequence: (..., L) in, (..., C) out."""
        tokens_SL = tokens.flatten(0, -2).long()
        seen_SL = tokens_SL != _PAD
        x_SLC = through(
            self.blocks, self.token(tokens_SL) + self.position.weight, seen_SL, recompute=self.recompute
        )
        summary_SC = self.norm(self.head(x_SLC, seen_SL, last_only=self.last_only))[:, -1]
        return summary_SC.unflatten(0, tokens.shape[:-1])


@dataclass(frozen=True, slots=True)
class Items:
    """Molecules and their values; tokens are made once, or from the SMILES at each use."""

    smiles: tuple[str, ...]
    value_M: Tensor
    tokens_ML: Tensor | None
    length: int

    def of(self, members_RI: Tensor) -> Tensor:
        """Return tokens (R, I, L) of the chosen molecules."""
        if self.tokens_ML is not None:
            return self.tokens_ML[members_RI.to(self.tokens_ML.device)]
        chosen = [self.smiles[number] for number in members_RI.flatten().tolist()]
        return tokenise(chosen, self.length).unflatten(0, members_RI.shape)

    def on(self, device: torch.device) -> "Items":
        tokens_ML = None if self.tokens_ML is None else self.tokens_ML.to(device)
        return replace(self, tokens_ML=tokens_ML, value_M=self.value_M.to(device))


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of molecules, drawn for every step; a group holds no molecule twice."""

    train: Items
    test: Items
    plan: PairClassifier
    seed: int

    @property
    def resident_bytes(self) -> int | None:
        tables = [self.train.tokens_ML, self.test.tokens_ML]
        return sum(one.numel() for one in tables if one is not None) or None

    def on(self, device: torch.device) -> "Groups":
        return replace(self, train=self.train.on(device), test=self.test.on(device))

    def batch(self, step: int) -> Batch:
        batch = self._groups(self.train, "batch", step)
        batch["tokens"] = self._hide(batch["tokens"], step)
        return self._weighed(batch, swap_weight(self.plan, step))

    def held_out(self, index: int) -> Batch:
        return self._weighed(self._groups(self.test, "held-out", index), self.plan.swap_weight_end)

    def _groups(self, items: Items, purpose: str, number: int) -> Batch:
        plan = self.plan
        generator = torch.Generator().manual_seed(derive(self.seed, purpose, number))
        members_RI = members(len(items.smiles), plan.batch_size, plan.group, generator)
        values_RI = items.value_M[members_RI.to(items.value_M.device)]
        return {"tokens": items.of(members_RI), "answers": answers(values_RI, plan.threshold)}

    def _hide(self, tokens_RIL: Tensor, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive(self.seed, "hidden", step))
        chosen = (torch.rand(tokens_RIL.shape, generator=generator) < self.plan.masked).to(tokens_RIL.device)
        return tokens_RIL.masked_fill(chosen & (tokens_RIL > _HIDDEN), _HIDDEN)

    def _weighed(self, batch: Batch, weight: float) -> Batch:
        weight_R = torch.full((batches.rows(batch),), weight, device=batches.device_of(batch))
        return batch | {"swap_weight": weight_R}


def members(of: int, groups: int, size: int, generator: torch.Generator) -> Tensor:
    """Return indices below ``of``, shape (groups, size), taken from as many permutations as needed."""
    whole = of // size
    shuffles = [torch.randperm(of, generator=generator)[: whole * size] for _ in range(-(-groups // whole))]
    return torch.cat(shuffles)[: groups * size].view(groups, size)


def answers(values_RI: Tensor, threshold: float) -> Tensor:
    """Return int64 (R, P): which molecule of each pair has the higher value, or that they are similar."""
    first_RP, second_RP = (values_RI[:, column] for column in _columns(values_RI.shape[1]))
    ahead_RP = first_RP - second_RP
    higher_RP = torch.where(ahead_RP > 0, FIRST, SECOND)
    return torch.where(ahead_RP.abs() <= threshold, SIMILAR, higher_RP)


def _columns(group: int) -> tuple[list[int], list[int]]:
    firsts, seconds = zip(*combinations(range(group), 2), strict=True)
    return list(firsts), list(seconds)


def swap_weight(plan: PairClassifier, step: int) -> float:
    """Return the weight of the disagreement loss at a step: a linear ramp, then its end value."""
    risen = min(1.0, step / max(1.0, _RAMP * plan.steps))
    return plan.swap_weight_start + risen * (plan.swap_weight_end - plan.swap_weight_start)


class PairTask(TrainedWorkload[PairClassifier, nn.Module]):
    """Base of all workloads of pairs: the loss, the metrics and what they are compared with."""

    item = "pair"
    _items: int
    _shares: Mapping[str, float]

    @property
    def train_items(self) -> int:
        return self._items

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size * _pairs(self.plan.group)

    def loss_sum(self, batch: Batch) -> Tensor:
        logits_RPOK = self.model(batch["tokens"]).float()
        apart_RP = disagreement(logits_RPOK)
        return self._surprise(logits_RPOK, batch) + (batch["swap_weight"][:, None] * apart_RP).sum()

    def _surprise(self, logits_RPOK: Tensor, batch: Batch) -> Tensor:
        """Return the weighted cross-entropy summed over all pairs, as the mean of both orders."""
        answers_N = both_orders(batch["answers"]).flatten()
        # Flattened: on a GPU, cross_entropy with more dimensions has no deterministic kernel.
        nats_N = F.cross_entropy(logits_RPOK.flatten(0, 2), answers_N, reduction="none")
        return torch.where(answers_N == SIMILAR, self.plan.similar_weight * nats_N, nats_N).sum() / 2

    def count(self, batch: Batch) -> int:
        return batch["answers"].numel()

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        logits_RPOK = self.model(batch["tokens"]).float()
        answers_RPO = both_orders(batch["answers"])
        said_RPO = logits_RPOK.argmax(dim=3)
        nats = F.cross_entropy(logits_RPOK.flatten(0, 2), answers_RPO.flatten(), reduction="sum")
        return {
            "count": torch.tensor(self.count(batch)),
            "similar": (batch["answers"] == SIMILAR).sum(),
            "correct": (said_RPO == answers_RPO).sum() / 2,
            "consistent": (said_RPO[..., 0] == swapped(said_RPO[..., 1])).sum(),
            "disagreement": disagreement(logits_RPOK).sum(),
            "nats": nats / 2,
            **confusion(answers_RPO, said_RPO),
        }

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        mean = {name: total / sums["count"] for name, total in sums.items()}
        similar, either = mean["similar"], (1 - mean["similar"]) / 2
        priors = {"similar": similar, "either": 1 - similar}
        prior_nats = -sum(priors[name] * math.log(share) for name, share in self._shares.items())
        return Evaluation(
            {
                "accuracy": mean["correct"],
                "swap_consistency": mean["consistent"],
                "swap_disagreement": mean["disagreement"],
                "eval_loss": mean["nats"],
            },
            {
                "accuracy": max(similar, either),
                "swap_consistency": float(similar >= either),
                "swap_disagreement": 0.0,
                "eval_loss": prior_nats,
            },
            "accuracy",
            higher_is_better=True,
            details=by_answer(sums),
            lines=(_confusion_line(sums),),
        )


class PairComparator(PairTask):
    """The workload: molecules, model and loss of one spec."""

    def __init__(self, plan: PairClassifier, setting: BuildContext) -> None:
        self.plan = plan
        library = read_molecules(Path(plan.data), Reading(plan.value_column, plan.length - 1))
        for note in library.notes:
            say(note)
        self._corpus = library.sha256
        self._items = _pairs(len(library.train.texts))
        plan = plan.with_steps(self.steps_per_epoch)  # a ramp of the loss needs the number of steps
        once = setting.switches.profile.conversion == "once"
        self.source = Groups(
            _items(library.train, plan, once=once), _items(library.test, plan, once=once), plan, setting.seed
        )
        self._shares = shares(library.train.known_values, plan.threshold)
        seed_all(setting.seed, "weights")
        self.model = PairNetwork(plan, setting.switches.profile)
        _tell(setting.switches, self.model, plan)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        weights = (plan.similar_weight, plan.swap_weight_start, plan.swap_weight_end)
        return {
            MODEL: model_signature(self.model, plan.kind, plan.heads),
            CORPUS: self._corpus,
            SCHEDULE: schedule_signature(plan, plan.group, plan.threshold, plan.masked, *weights),
        }


def confusion(answers_RPO: Tensor, said_RPO: Tensor) -> dict[str, Tensor]:
    """Return the number of pairs of each answer that got each answer; a pair counts half in either order."""
    both = answers_RPO * len(ANSWERS) + said_RPO
    counts = torch.stack([(both == cell).sum() for cell in range(len(ANSWERS) ** 2)]) / 2
    return dict(zip(_CELLS, counts, strict=True))


def by_answer(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the confusion matrix, and the share that was right of each answer that occurred."""
    right = {}
    for answer in ANSWERS:
        count = sum(sums[_cell(answer, said)] for said in ANSWERS)
        if count:
            right[f"accuracy_{answer}"] = sums[_cell(answer, answer)] / count
    return {**right, **{name: sums[name] for name in _CELLS}}


def _cell(answer: str, said: str) -> str:
    return f"confusion_{answer}_{said}"


_CELLS: Final = tuple(_cell(answer, said) for answer in ANSWERS for said in ANSWERS)


def _confusion_line(sums: Mapping[str, float]) -> str:
    """Return the confusion matrix in one line of the log, in pairs."""
    rows = (
        f"{answer}: " + " ".join(f"{sums[_cell(answer, said)]:g}" for said in ANSWERS) for answer in ANSWERS
    )
    return f"answers, and what was said ({', '.join(ANSWERS)})  {'  '.join(rows)}"


def swapped(answers: Tensor) -> Tensor:
    """Return the corresponding answers for the swapped pairs."""
    return torch.where(answers == SIMILAR, SIMILAR, SECOND - answers)


def both_orders(answers_RP: Tensor) -> Tensor:
    """Return the answers (R, P, O) for the pairs as they are and swapped."""
    return torch.stack([answers_RP, swapped(answers_RP)], dim=2)


def disagreement(logits_RPOK: Tensor) -> Tensor:
    """Return (R, P): the symmetric KL divergence, in nats, between the predictions of both orders."""
    one_RPK, other_RPK = logits_RPOK.log_softmax(dim=3).unbind(2)
    other_RPK = torch.cat([other_RPK[..., :SIMILAR].flip(2), other_RPK[..., SIMILAR:]], dim=2)
    return ((one_RPK.exp() - other_RPK.exp()) * (one_RPK - other_RPK)).sum(dim=2) / 2


def shares(value_M: Tensor, threshold: float) -> dict[str, float]:
    """Return the smoothed shares of similar pairs and of each other answer; none is 0."""
    sorted_M = value_M.sort().values
    near_M = torch.searchsorted(sorted_M, sorted_M + threshold, right=True) - torch.arange(len(sorted_M)) - 1
    similar = (int(near_M.sum()) + 1) / (_pairs(len(sorted_M)) + 2)
    return {"similar": similar, "either": (1 - similar) / 2}


def _pairs(items: int) -> int:
    return items * (items - 1) // 2


def _items(part: Part, plan: PairClassifier, *, once: bool) -> Items:
    if len(part.texts) < plan.group:
        raise InvalidSpec(
            f"data: {len(part.texts)} molecule(s) with split {part.split} make no group of {plan.group};"
            " give more of them or lower group"
        )
    tokens_ML = tokenise(part.texts, plan.length) if once else None
    return Items(part.texts, part.known_values, tokens_ML, plan.length)


def _tell(switches: Switches, model: PairNetwork, plan: PairClassifier) -> None:
    """Record the switches of this workload; a group of empty molecules verifies those of the model."""
    encodings, positions = _looked_at(model, torch.full((1, plan.group, plan.length), _QUESTION))
    pairs = _pairs(plan.group)
    expected = plan.group if switches.profile.encode_once else 4 * pairs
    note = f"{encodings} encodings for {pairs} pairs of {plan.group} molecules in two orders"
    switches.applied("encode_once", verified=encodings == expected, note=note)
    asked = 1 if switches.profile.last_position_only else plan.length
    note = f"the head looks at {positions} of {plan.length} positions"
    switches.applied("last_position_only", verified=positions == asked, note=note)
    switches.applied("conversion", verified=True, note="SMILES to tokens")
    tell_recomputing(switches, plan.layers)


@torch.inference_mode()
def _looked_at(model: PairNetwork, tokens_RIL: Tensor) -> tuple[int, int]:
    """Return the number of sequences encoded for a batch, and of positions at which the head is computed."""
    shapes: list[torch.Size] = []
    hook = model.head.register_forward_hook(lambda _module, _given, made: shapes.append(made.shape))
    model(tokens_RIL)
    hook.remove()
    return sum(shape[0] for shape in shapes), shapes[0][1]
